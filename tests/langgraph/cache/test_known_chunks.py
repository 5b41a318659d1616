"""The chunks that a process takes for stored: what proves them."""

from __future__ import annotations

from perdure.langgraph.cache.known_chunks import KnownChunks


def test_a_checkpoint_heard_of_late_does_not_prove_what_came_after_it() -> None:
    known = KnownChunks(1, "head")
    known.advance("second", "first", [b"of the second"])
    known.advance("first", "head", [b"of the first"])
    assert known.root == "first"
    assert known.stored == {b"of the first"}
    assert known.recent == {b"of the second"}
