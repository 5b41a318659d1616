"""Report of a check: the kinds of damage, and the advice for each."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Damage(Enum):
    """The kinds of damage."""

    HOLE = "hole"
    HEAD = "head"
    ORDER = "order"
    TAG = "tag"
    DANGLING = "dangling"
    DAMAGED = "damaged"
    UNREADABLE = "unreadable"
    QUEUE = "queue"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True)
class Finding:
    """One piece of damage: its place, a description, and advice.

    ``checkpoint_id`` is ``None`` if no single checkpoint is concerned. ``repairable`` is true if ``repair``
    fixes it; damage to a queue always needs a person.
    """

    thread_id: str
    namespace: str
    checkpoint_id: str | None
    kind: Damage
    detail: str
    advice: str
    repairable: bool = False

    def __str__(self) -> str:
        where = f"thread {self.thread_id!r}"
        if self.namespace:
            where += f" {self.namespace}"
        if self.checkpoint_id is not None:
            where += f", checkpoint {self.checkpoint_id}"
        return f"{where}: {self.kind.value}: {self.detail}; {self.advice}"


@dataclass(frozen=True, slots=True)
class Repaired:
    """Result of a repair: the findings that were fixed, and those left for a person."""

    fixed: tuple[Finding, ...]
    left: tuple[Finding, ...]


RESTORE = "restore the thread from a backup, or delete it"
REPAIR = "run `perdure fsck --repair`"
ARRIVE = "repeat the import, the move or the copy that was to bring it, or delete it"
