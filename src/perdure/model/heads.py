"""Rules for moving a head: compare-and-set, declared forks and lost races.

A put names its parent. It advances the thread if the parent is the head. It forks if the fork was declared:
by the source ``fork`` in its metadata, or because its loop addressed a checkpoint that was not the head when
the loop loaded it. Any other put lost a race. The order of ids has no meaning.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from hashlib import blake2b
from typing import NamedTuple

from perdure.model.record_versions import successor

ROOT = ""
"""Root namespace, the only one with compare-and-set: a subgraph is fenced through its root."""


class Verdict(Enum):
    """Effect of a put on the head of its namespace."""

    ADVANCE = "advance"
    FORK = "fork"
    LOST = "lost"


class LoadedHead(NamedTuple):
    """Result of the load with which a loop began.

    Attributes:
        addressed: the checkpoint that was loaded, ``None`` if the thread was absent.
        was_head: true if it was the head when it was loaded.
        version: the version of the head's record at that time.
    """

    addressed: str | None
    was_head: bool
    version: int | None = None


class HeadClaim(NamedTuple):
    """Claim of a loop on the head that it loaded.

    The loop's first write moves the head from the version ``before`` to its own version ``after``. A rival
    that loaded the same head then finds it claimed, so that one of the two stores all of its writes and
    the other none; without the claim each could win the slots that it reached first."""

    checkpoint_id: str
    before: int
    after: int

    def holds(self, checkpoint_id: str, version: int) -> bool:
        """Return True if a head is the one that was loaded, unchanged or claimed by this loop."""
        return checkpoint_id == self.checkpoint_id and version in (self.before, self.after)


UNVERSIONED = 1
"""Schema version of an application that declares none, and of everything that it stores."""

_SCHEMA = "~"


def make_loop_name(drawn: str, run_id: object, schema: int = UNVERSIONED) -> str:
    """Return the nonce of a loop: the name drawn for it, its schema version unless it is the first, and the
    mark of its run, if it has one.

    A rollback of the run finds the loop's writes by that mark. The schema version tells how to read a write
    on a checkpoint of an older version.

    Args:
        drawn: The random name, of letters and digits; empty for a write that no load preceded.
        run_id: The id of the run; ignored if it is not text.
        schema: The schema version of the application that writes.
    """
    if schema != UNVERSIONED:
        drawn = f"{drawn}{_SCHEMA}{schema}"
    if isinstance(run_id, str) and run_id:
        return f"{drawn}.{_digest_run(run_id)}"
    return drawn


def schema_of(nonce: str) -> int:
    """Return the schema version of the application that a loop belongs to."""
    return int(nonce.partition(".")[0].partition(_SCHEMA)[2] or UNVERSIONED)


def is_loop(nonce: str) -> bool:
    """Return True if a nonce names a loop; false for that of a write that no load preceded."""
    return not nonce.startswith(_SCHEMA) and nonce != ""


def are_of_one_run(nonce: str, other: str) -> bool:
    """Return True if two loops belong to one run, or both to none."""
    return _read_mark(nonce) == _read_mark(other)


def belongs(nonce: str, run_ids: Iterable[str]) -> bool:
    """Return True if a loop belongs to one of these runs."""
    mark = _read_mark(nonce)
    return bool(mark) and any(mark == _digest_run(run_id) for run_id in run_ids)


def is_of_run(nonce: str) -> bool:
    """Return True if a loop belongs to a run at all."""
    return bool(_read_mark(nonce))


def _digest_run(run_id: str) -> str:
    return blake2b(run_id.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _read_mark(nonce: str) -> str:
    return nonce.partition(".")[2]


def claim(loaded: LoadedHead, checkpoint_id: str | None, nonce: str) -> HeadClaim | None:
    """Return the claim of a loop on a checkpoint; ``None`` if it did not load that one as the head."""
    is_loaded = loaded.was_head and checkpoint_id == loaded.addressed
    if checkpoint_id is None or loaded.version is None or not is_loaded:
        return None
    return HeadClaim(checkpoint_id, loaded.version, successor(loaded.version, nonce))


def judge(
    *, namespace: str, head: str | None, parent: str | None, source: str | None, loaded: LoadedHead | None
) -> Verdict:
    """Return the verdict on a put. ``loaded`` is ``None`` for a bare put without a preceding load."""
    if namespace != ROOT or parent == head:
        return Verdict.ADVANCE
    if source == "fork" or loaded is None:
        return Verdict.FORK
    if loaded.addressed is not None and parent == loaded.addressed and not loaded.was_head:
        return Verdict.FORK
    return Verdict.LOST
