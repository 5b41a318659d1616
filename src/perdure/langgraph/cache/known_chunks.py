"""The chunks of a thread that a process takes for stored, and the checks that prove it in the commit.

A write leaves out the chunks that are stored already. Whether they are is known from earlier loads and writes
of this process, and that knowledge can be wrong: the database may have come back older than it was. So
nothing is believed that the commit itself does not prove. A checkpoint that is there proves all that was
stored before it; a chunk that was stored since is checked by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from perdure.model.lineage import ROOT
from perdure.model.ops import Check, Expect
from perdure.model.records import CHECKPOINT, CHUNK

_DIGESTS_MAX = 200_000
_PAST_MAX = 8
_CHECKS_MAX = 64


class WriteBasis(NamedTuple):
    """The thread as a write in ``namespace`` is planned on it: its collection generation, the checkpoints
    that are heads of this namespace and of the root, and whether the commit is refused when the first has
    changed."""

    generation: int
    namespace: str
    head: str | None
    root: str | None
    is_guarded: bool

    @property
    def guards_root(self) -> bool:
        """Whether the commit proves by its own guard that the root's head is there."""
        # An id alone proves nothing: checkpoints of two namespaces may have the same.
        is_root = self.namespace == ROOT and self.head == self.root
        return self.is_guarded and self.head is not None and is_root


class Reuse(Enum):
    """The known chunks that a write leaves out: ``ALL``, those that one check of the root
    proves, or ``NONE``."""

    ALL = "all"
    OF_ROOT = "of root"
    NONE = "none"


@dataclass(slots=True, eq=False)
class KnownChunks:
    """The chunks that are known in one collection generation, by digest, and nodes with their digests.

    All of ``stored`` is there if the checkpoint ``root`` is; of ``recent`` that has to be checked one by one.
    ``past`` are checkpoints that ``root`` was before, on the way of this process.
    """

    generation: int
    root: str | None
    stored: set[bytes] = field(default_factory=set)
    recent: set[bytes] = field(default_factory=set)
    nodes: dict[bytes, bytes] = field(default_factory=dict)
    past: deque[str | None] = field(default_factory=lambda: deque(maxlen=_PAST_MAX))

    def follows(self, root: str | None) -> bool:
        """Whether a thread with this head of its root is the known one, or a little older look at it."""
        return root == self.root or root in self.past

    def advance(self, root: str, replaced: str | None, digests: Iterable[bytes]) -> None:
        """The root's head was moved by this process from ``replaced``, and these chunks are there beside what
        was known."""
        if replaced != self.root:
            # Heard of later than of another move: this checkpoint does not prove what came with that one.
            self.recent.update(digests)
            return
        # First the proof, then what it proves: another thread may be planning a write with this meanwhile.
        self.past.append(self.root)
        self.root = root
        digests = list(digests)
        self.stored.update(digests)
        self.recent.difference_update(digests)

    def is_full(self) -> bool:
        return len(self.stored) + len(self.recent) > _DIGESTS_MAX


def entered(known: KnownChunks, generation: int, root: str | None, *, exactly: bool = False) -> KnownChunks:
    """Return what is known of a thread in a generation and with a head of its root: ``known``, or its rest.

    Chunks of another generation are let go. Where the root's head is not the one that this process knows,
    ``exactly`` or from a little earlier, each chunk has to be proven anew.
    """
    if generation != known.generation or known.is_full():
        return KnownChunks(generation, root)
    if root == known.root or (not exactly and known.follows(root)):
        return known
    return KnownChunks(generation, root, recent=known.stored | known.recent, nodes=known.nodes)


def proof(
    known: KnownChunks, basis: WriteBasis, relied: Iterable[bytes], *, leans: bool, room: int
) -> tuple[Check, ...] | None:
    """Return the checks that prove what a write leaves out.

    ``relied`` are recent chunks, ``leans`` says that it left out others. ``None`` where more checks are
    needed than there is ``room`` for.
    """
    checks = [Check(CHUNK, (digest,), Expect.PRESENT) for digest in sorted(relied)]
    if leans and not basis.guards_root and known.root is not None:
        checks.append(Check(CHECKPOINT, (ROOT, known.root), Expect.PRESENT))
    return tuple(checks) if len(checks) <= min(room, _CHECKS_MAX) else None


class HeadRefs(NamedTuple):
    """The references of a checkpoint that was the head of its namespace when it was loaded or stored."""

    checkpoint_id: str
    refs: Mapping[str, bytes]
