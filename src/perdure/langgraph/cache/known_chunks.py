"""The chunks of a thread that a process takes for stored, and the checks that prove it in the commit.

A write leaves out the chunks that are stored already. This process knows them from its earlier loads and
writes, and that knowledge can be wrong: the database may have been restored to an earlier state. So a write
relies only on what its commit proves. A checkpoint that is present proves all that was stored
before it; a chunk that was stored since is checked by itself.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from perdure.model.heads import ROOT
from perdure.model.ops import Check, Expect
from perdure.model.records import CHECKPOINT
from perdure.model.values.packs import Place

_DIGESTS_MAX = 4096
"""Maximum number of digests that are remembered of a thread whose state has few chunks."""
_STATES_MAX = 4
"""The same for a thread whose state has more chunks: a multiple of their number."""
_PAST_MAX = 8
_CHECKS_MAX = 64


class WriteBasis(NamedTuple):
    """The state of the thread on which a write in ``namespace`` is planned: its collection generation, the
    checkpoints that are heads of this namespace and of the root, and ``is_guarded``: True if the commit is
    refused when the namespace's head has changed."""

    generation: int
    namespace: str
    head: str | None
    root: str | None
    is_guarded: bool

    @property
    def guards_root(self) -> bool:
        """True if the commit proves by its own guard that the root's head is present."""
        # An id alone proves nothing: checkpoints of two namespaces may have the same.
        is_root = self.namespace == ROOT and self.head == self.root
        return self.is_guarded and self.head is not None and is_root


class Reuse(Enum):
    """The known chunks that a write leaves out: all (``ALL``), those that one check of the root
    proves (``OF_ROOT``), or none (``NONE``)."""

    ALL = "all"
    OF_ROOT = "of root"
    NONE = "none"


@dataclass(slots=True, eq=False)
class KnownChunks:
    """The chunks that are known in one collection generation, with the records that hold them, and nodes with
    their digests.

    All of ``stored`` is present if the checkpoint ``root`` is; each of ``recent`` has to be checked by
    itself. ``past`` holds the earlier heads that this process has replaced. ``first`` is the number of
    digests after the first load or write, which may have needed all of the thread's state; 0 before.
    """

    generation: int
    root: str | None
    stored: dict[bytes, Place] = field(default_factory=dict)
    recent: dict[bytes, Place] = field(default_factory=dict)
    nodes: dict[bytes, bytes] = field(default_factory=dict)
    past: deque[str | None] = field(default_factory=lambda: deque(maxlen=_PAST_MAX))
    first: int = 0

    @property
    def count(self) -> int:
        """The number of known digests."""
        return len(self.stored) + len(self.recent)

    def follows(self, root: str | None) -> bool:
        """Return True if ``root`` is the known head of the root, or one that this process has replaced."""
        return root == self.root or root in self.past

    def advance(self, root: str, replaced: str | None, places: Mapping[bytes, Place]) -> None:
        """Record a move of the root's head by this process.

        Args:
            root: The new head.
            replaced: The head before, ``None`` for none.
            places: Chunks that are stored besides the known ones.
        """
        if replaced != self.root:
            # Another move was recorded in between: this checkpoint does not prove the chunks that came with
            # that move.
            self.recent.update(places)
            return
        # First the checkpoint that proves, then the chunks that it proves: another OS thread may be planning
        # a write with this instance.
        self.past.append(self.root)
        self.root = root
        self.stored.update(places)
        for name in places:
            self.recent.pop(name, None)

    def move(self, places: Mapping[bytes, Place]) -> None:
        """Record that chunks are in other records now."""
        for chunks in (self.stored, self.recent):
            chunks.update((name, place) for name, place in places.items() if name in chunks)

    def note_end(self) -> None:
        """Note the end of a load or a write."""
        self.first = self.first or self.count

    def is_full(self) -> bool:
        """Return True if most digests are of earlier states, so that it is better to start from nothing: the
        next write stores again what it needs, and learns it."""
        return self.count > max(_DIGESTS_MAX, _STATES_MAX * self.first)


def enter_generation(
    known: KnownChunks, generation: int, root: str | None, *, exactly: bool = False
) -> KnownChunks:
    """Return the part of ``known`` that holds in a generation of a thread, with a head of its root.

    Chunks of another generation are dropped. Where the root's head is not the one that this process knows,
    each chunk has to be proven again.

    Args:
        known: The facts known so far.
        generation: The thread's collection generation.
        root: The head of its root.
        exactly: Do not accept a head that this process has replaced.
    """
    if generation != known.generation or known.is_full():
        return KnownChunks(generation, root)
    if root == known.root or (not exactly and known.follows(root)):
        return known
    recent = known.stored | known.recent
    return KnownChunks(generation, root, recent=recent, nodes=known.nodes, first=known.first)


def proof(
    known: KnownChunks, basis: WriteBasis, relied: Iterable[bytes], *, uses_stored: bool, room: int
) -> tuple[Check, ...] | None:
    """Return the checks that prove the chunks that a write leaves out.

    Args:
        known: The chunks that the write was planned with.
        basis: The thread as the write was planned on it.
        relied: The recent chunks that are left out.
        uses_stored: True if other known chunks are left out, too.
        room: Maximum number of checks that the commit has room for.

    Returns:
        The checks, ``None`` if there are more of them than ``room`` or ``_CHECKS_MAX``.
    """
    # A chunk that another OS thread has stored with a checkpoint meanwhile is no longer among the recent
    # ones.
    places = dict.fromkeys(known.recent.get(name) or known.stored[name] for name in sorted(relied))
    checks = [Check(*place, Expect.PRESENT) for place in places]
    if uses_stored and not basis.guards_root and known.root is not None:
        checks.append(Check(CHECKPOINT, (ROOT, known.root), Expect.PRESENT))
    if len(checks) <= min(room, _CHECKS_MAX):
        return tuple(checks)
    return None


class HeadRefs(NamedTuple):
    """The references of a checkpoint that was the head of its namespace when it was loaded or stored."""

    checkpoint_id: str
    refs: Mapping[str, bytes]
