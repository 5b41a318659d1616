"""Who may move a head: the pure rules of compare-and-set, declared forks and lost races.

A put names its parent. It advances the thread when the parent is the head. It forks when the fork was
declared: by the source ``fork`` in its metadata, or because its loop addressed a checkpoint that was not
the head when it was loaded. Everything else lost a race. Ids are never compared.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple

from perdure.model.versions import successor

ROOT = ""
"""The root namespace, the only one with compare-and-set: a subgraph is fenced through its root."""


class Verdict(Enum):
    """What a put does to the head of its namespace."""

    ADVANCE = "advance"
    FORK = "fork"
    LOST = "lost"


class LoadedHead(NamedTuple):
    """What a loop loaded: the checkpoint it addressed (``None``: the thread was absent), and whether that
    was the head at the time, of which version."""

    addressed: str | None
    was_head: bool
    version: int | None = None


class HeadClaim(NamedTuple):
    """A loop's first write on the head that it loaded takes the head from one version to another, which is
    the loop's own. Who loaded the same head then finds it claimed, so that of two rivals one gets every write
    and the other none, where each could otherwise win the slots that it came to first."""

    checkpoint_id: str
    before: int
    after: int

    def holds(self, checkpoint_id: str, version: int) -> bool:
        """Whether a head is still the one that was loaded, or claimed by this very loop."""
        return checkpoint_id == self.checkpoint_id and version in (self.before, self.after)


def loop_name(drawn: str, run_id: object) -> str:
    """Return the nonce of a loop: the name that was drawn for it, and the mark of its run, if it has one.

    By it what the loop writes is found when the run is taken back.
    """
    return f"{drawn}.{_mark(run_id)}" if isinstance(run_id, str) and run_id else drawn


def are_of_one_run(nonce: str, other: str) -> bool:
    """Whether two loops belong to one run, or both to none."""
    return _mark_in(nonce) == _mark_in(other)


def belongs(nonce: str, run_ids: Iterable[str]) -> bool:
    """Whether a loop belongs to one of these runs."""
    found = _mark_in(nonce)
    return bool(found) and any(found == _mark(run_id) for run_id in run_ids)


def _mark(run_id: str) -> str:
    return blake2b(run_id.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _mark_in(nonce: str) -> str:
    return nonce.partition(".")[2]


def claim(loaded: LoadedHead, checkpoint_id: str | None, nonce: str) -> HeadClaim | None:
    """The claim of a loop on a checkpoint; ``None`` where it did not load that one as the head."""
    if (
        checkpoint_id is None
        or checkpoint_id != loaded.addressed
        or not loaded.was_head
        or loaded.version is None
    ):
        return None
    return HeadClaim(checkpoint_id, loaded.version, successor(loaded.version, nonce))


def judge(
    *,
    namespace: str,
    head: str | None,
    parent: str | None,
    source: str | None,
    loaded: LoadedHead | None,
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
