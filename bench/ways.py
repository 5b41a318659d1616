"""The ways for a message to reach a graph, by name, and what the page calls them."""

from __future__ import annotations

BARE, SYNC, RUNTIME = "bare", "sync", "runtime"

WAYS = {
    BARE: "a loop of `ainvoke`",
    SYNC: 'the same with `durability="sync"`',
    RUNTIME: "**Perdure's runtime**",
}
"""The second has the durability that the runtime gives its runs."""
