"""Who may move a head: the pure rules of compare-and-set, declared forks and lost races.

A put names its parent. It advances the thread when the parent is the head. It forks when the fork was
declared: by the source ``fork`` in its metadata, or because its loop addressed a checkpoint that was not
the head when it was loaded. Everything else lost a race. Ids are never compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

ROOT = ""
"""The root namespace, the only one with compare-and-set: a subgraph is fenced through its root."""


class Verdict(Enum):
    """What a put does to the head of its namespace."""

    ADVANCE = "advance"
    FORK = "fork"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a loop loaded: the checkpoint it addressed (``None``: the thread was absent), and whether that
    was the head at the time."""

    addressed: str | None
    was_head: bool


def judge(
    *,
    namespace: str,
    head: str | None,
    parent: str | None,
    source: str | None,
    loaded: Loaded | None,
) -> Verdict:
    """The verdict on a put. ``loaded`` is ``None`` for a bare put that no load preceded."""
    if namespace != ROOT or parent == head:
        return Verdict.ADVANCE
    if source == "fork":
        return Verdict.FORK
    if loaded is None:
        return Verdict.FORK
    if loaded.addressed is not None and parent == loaded.addressed and not loaded.was_head:
        return Verdict.FORK
    return Verdict.LOST
