"""Options that all chat channels share."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

if TYPE_CHECKING:
    from perdure.runtime import Runtime

Groups = Literal["mention", "all", "none"]
"""Messages of group chats that are accepted: those that mention the bot or reply to it, all, or none."""

Edits = Literal["accept", "ignore"]
"""Treatment of a message that its sender changed after it was sent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """Options of a chat channel.

    Args:
        graph: The name of the graph; optional if there is only one.
        tenant: The tenant of its threads; ``None`` for the database's. Another tenant needs a runtime with
            ``all_tenants``.
        debounce: Seconds to wait for more messages before a run begins.
        max_wait: Maximum seconds of that wait.
        groups: The messages of group chats that are accepted.
        edits: Whether a changed message is accepted: it replaces the original while the original waits, and
            becomes a message of its own later.
        allowed: Ids of the chats and senders that are served; empty for all.
        body_bytes: Maximum size of a request of the provider, in bytes.
        new_notice: Reply to ``/new``.
        stop_notice: Reply to ``/stop``.

    Raises:
        ValueError: An option is out of range.
    """

    graph: str | None = None
    tenant: str | None = None
    debounce: float = 2.0
    max_wait: float = 10.0
    groups: Groups = "mention"
    edits: Edits = "accept"
    allowed: Collection[str] = ()
    body_bytes: int = 1024 * 1024
    new_notice: str = "This is a new conversation."
    stop_notice: str = "Stopped."

    def __post_init__(self) -> None:
        if self.groups not in get_args(Groups):
            raise ValueError(f"groups is 'mention', 'all' or 'none', not {self.groups!r}")
        if self.edits not in get_args(Edits):
            raise ValueError(f"edits is 'accept' or 'ignore', not {self.edits!r}")
        for name in ("debounce", "max_wait"):
            seconds = getattr(self, name)
            if not math.isfinite(seconds) or seconds < 0:
                raise ValueError(f"{name} is {seconds} s; it has to be 0 or more")
        if isinstance(self.allowed, str):
            raise ValueError(f"allowed is a list of ids, not {self.allowed!r}; write [{self.allowed!r}]")
        if self.body_bytes < 1:
            raise ValueError(f"body_bytes is {self.body_bytes}; it has to be at least 1")

    def choose_tenant(self, runtime: Runtime) -> str:
        """Return the tenant of the threads in a runtime."""
        if self.tenant is None:
            return runtime.tenant
        return self.tenant

    def serves(self, chat: str, sender: str) -> bool:
        """Return True if messages of this chat or sender are accepted."""
        return not self.allowed or chat in self.allowed or sender in self.allowed
