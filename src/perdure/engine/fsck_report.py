"""What a check of a thread finds: the kinds of damage, and what to do about each."""

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
    """One piece of damage: where it is, what is wrong, and what to do.

    ``checkpoint_id`` is ``None`` where no one checkpoint is concerned. ``repairable`` says that ``repair``
    mends it; what is wrong with a queue is always for a person.
    """

    thread_id: str
    namespace: str
    checkpoint_id: str | None
    kind: Damage
    detail: str
    mend: str
    repairable: bool = False

    def __str__(self) -> str:
        place = f" {self.namespace}" if self.namespace else ""
        where = f"thread {self.thread_id!r}{place}"
        if self.checkpoint_id is not None:
            where += f", checkpoint {self.checkpoint_id}"
        return f"{where}: {self.kind.value}: {self.detail}; {self.mend}"


@dataclass(frozen=True, slots=True)
class Repaired:
    """What a repair mended, and what is left for a person."""

    mended: tuple[Finding, ...]
    left: tuple[Finding, ...]


RESTORE = "restore the thread from a backup, or delete it"
REPAIR = "run `perdure fsck --repair`"
