"""Arrival of a thread that another saver stored: in many commits, visible with the last one.

A thread that is new at the target does not exist before its last commit, which adds its root's head and its
collection generation; a claim excludes other writers until then. An existing thread keeps its head while
checkpoints are added beside it, and moves to the latest one in the last commit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from perdure.engine.complete_reads import read_all
from perdure.engine.requests import expect_unchanged
from perdure.engine.threads import arrival_leftovers, transfer_claim
from perdure.engine.threads.thread_records import put_head, view_heads
from perdure.engine.threads.thread_state import HeadView, View, guards, read_view, view_items
from perdure.engine.transact import ATTEMPTS, Budget, commit_or_raise, commit_with_chunks, split_into_batches
from perdure.errors import Contention
from perdure.model.checkpoint import PendingWrite
from perdure.model.ops import Check, Committed, Drop, Expect, Fetch, Get, Op, Put, Range
from perdure.model.program import Program, ask
from perdure.model.record_versions import successor
from perdure.model.records import CHECKPOINT, DOCUMENT, GC, HEAD, SEAL, WRITE, Key, Partition
from perdure.model.values.packs import make_chunk_puts
from perdure.model.write_records import read_writes

_EXTENT: Key = ("imported",)
"""Key of the record about the last import."""

_ORIGIN: Key = ("origin",)
"""Key of the record of the source that the last import read."""

CheckpointKey = tuple[str, str]
"""Namespace and id of a checkpoint."""


@dataclass(frozen=True, slots=True)
class StoredThread:
    """Contents of a thread at the target: its state, its heads by namespace, its checkpoints with their
    sequence numbers, and its writes by slot.

    ``is_partial`` is true for the remains of an interrupted arrival. ``extent`` has the facts about the
    source that the last import noted, empty if there was none.
    """

    view: View
    heads: Mapping[str, HeadView]
    checkpoints: Mapping[CheckpointKey, int]
    writes: Mapping[Key, PendingWrite]
    is_partial: bool
    extent: bytes = b""

    @property
    def exists(self) -> bool:
        """Return True if the thread has a latest state, or had one."""
        return self.view.head is not None or self.view.generation > 0


def survey(partition: Partition) -> Program[StoredThread]:
    """Return the stored records of a thread, without values, under one latest checkpoint.

    Raises:
        Contention: the thread keeps being written to.
    """
    for _ in range(ATTEMPTS):
        *state, claims, extents = yield from ask(
            Fetch(partition, (*view_items(""), Get(SEAL, transfer_claim.CLAIM), Get(SEAL, _EXTENT)))
        )
        view = read_view("", tuple(state))
        heads, checkpoints, writes = yield from read_all(
            partition, Range(HEAD), Range(CHECKPOINT, bodies=False), Range(WRITE)
        )
        head_views = view_heads(heads)
        if head_views.get("") == view.head:
            return StoredThread(
                view,
                head_views,
                {(c.key[0], c.key[1]): c.fields["seq"] for c in checkpoints},
                {w.key: w for w in read_writes(writes)},
                bool(claims),
                b"".join(extent.body for extent in extents),
            )
    raise _busy_target_error(partition)


@dataclass(frozen=True, slots=True)
class Arrival:
    """An arrival in progress.

    ``view`` is the thread as the arrival found it, and the checks of every commit demand that it is
    unchanged; ``heads`` are its heads by namespace; ``version`` is the number of the claim on a new thread,
    and the start of its versions.
    """

    partition: Partition
    view: View
    heads: Mapping[str, HeadView]
    is_new: bool
    version: int
    budget: Budget

    def checks(self) -> tuple[Op, ...]:
        """Return the checks that every commit carries."""
        if self.is_new:
            return tuple(transfer_claim.checks(self.version))
        head_check = Check(HEAD, ("",), expect_unchanged(self.view.head))
        return (*guards(self.partition, self.view, None), head_check)


def came_from(partition: Partition, origin: bytes) -> Program[bool]:
    """Return True if the last import of a thread read this source. Imports of before this was recorded have
    no source."""
    (origins,) = yield from ask(Fetch(partition, (Get(SEAL, _ORIGIN),)))
    return any(record.body == origin for record in origins)


def begin(
    partition: Partition, found: StoredThread, added: Mapping[str, int], version: int, budget: Budget
) -> Program[Arrival]:
    """Claim a thread's name, or reserve sequence numbers in an existing thread.

    Args:
        partition: The thread.
        found: Its contents.
        added: The number of checkpoints to be added, by namespace.
        version: A number that no other arrival has.
        budget: The limits of one commit.

    Raises:
        Fenced: a run of the thread is open.
        Contention: the thread is written to.
    """
    if not found.exists:
        yield from commit_or_raise(partition, (yield from transfer_claim.claim(version)), _busy_target_error)
        arrival = Arrival(partition, found.view, {}, True, version, budget)
        if found.is_partial:
            yield from _discard(arrival)
        return arrival
    fence, unchanged = guards(partition, found.view, None)
    numbers = find_last_numbers(found)
    # Raise the numbers first: if this arrival is interrupted, a run that goes on from a present head numbers
    # its checkpoints above those that have arrived.
    raised = {
        namespace: head._replace(
            version=successor(head.version, "import", added[namespace]),
            seq=numbers[namespace] + added[namespace],
        )
        for namespace, head in found.heads.items()
        if added.get(namespace)
    }
    ops = [put_head(ns, head, found.heads[ns].version) for ns, head in raised.items()]
    for batch in split_into_batches(ops, budget, reserve=2):
        yield from commit_or_raise(partition, [fence, unchanged, *batch], _busy_target_error)
    view = found.view._replace(head=raised.get("", found.view.head))
    return Arrival(partition, view, {**found.heads, **raised}, False, version, budget)


def abandon(arrival: Arrival) -> Program[None]:
    """Remove what was stored of a thread that cannot arrive, if it is new. An existing thread stays, and so
    do messages and a server's document that came to the name meanwhile.

    Raises:
        Contention: the name was claimed by another writer.
    """
    if not arrival.is_new:
        return
    yield from _discard(arrival)
    (documents,) = yield from ask(Fetch(arrival.partition, (Range(DOCUMENT, limit=1, bodies=False),)))
    if not documents:
        claim_checks = transfer_claim.checks(arrival.version)
        # Remove the name as a whole, so that it is not listed.
        outcome = yield from ask(Drop(arrival.partition, (*claim_checks, *transfer_claim.NO_QUEUES)))
        if isinstance(outcome, Committed):
            return
    yield from commit_or_raise(
        arrival.partition, [transfer_claim.release(arrival.version)], _busy_target_error
    )


def store(arrival: Arrival, rows: Sequence[Put], chunks: Mapping[bytes, bytes]) -> Program[None]:
    """Store checkpoints and writes with their chunks; they fit one commit, the chunks need not.

    Raises:
        Contention: the thread is written to.
    """
    puts = make_chunk_puts(chunks, arrival.view.generation)
    outcome = yield from commit_with_chunks(
        arrival.partition, [*arrival.checks(), *rows], puts, arrival.budget
    )
    if not isinstance(outcome, Committed):
        raise _busy_target_error(arrival.partition)


def finish(arrival: Arrival, heads: Mapping[str, HeadView], extent: bytes, origin: bytes) -> Program[None]:
    """Move the heads, the root's last: with it the thread has arrived.

    Args:
        arrival: The arrival.
        heads: The new heads by namespace, each with the sequence number that its namespace has come to; the
            versions are set here.
        extent: Facts about the source that the next import needs.
        origin: The source, by a digest of its kind and place.

    Raises:
        Contention: the thread is written to.
    """
    checks = arrival.checks()
    moves: list[Op] = [_move_head(arrival, ns, head) for ns, head in heads.items() if ns != ""]
    for batch in split_into_batches(moves, arrival.budget, reserve=len(checks)):
        yield from commit_or_raise(arrival.partition, [*checks, *batch], _busy_target_error)
    last: list[Op] = [
        Put(SEAL, key, body=body, version=arrival.version)
        for key, body in ((_EXTENT, extent), (_ORIGIN, origin))
    ]
    if "" in heads:
        last.append(_move_head(arrival, "", heads[""]))
    if arrival.is_new:
        last += [
            Put(GC, (), expect=Expect.ABSENT, version=arrival.version),
            transfer_claim.release(arrival.version),
        ]
    else:
        last += guards(arrival.partition, arrival.view, None)
    yield from commit_or_raise(arrival.partition, last, _busy_target_error)


def _discard(arrival: Arrival) -> Program[None]:
    """Remove what an interrupted arrival left, as the source may have changed since."""
    if not (yield from arrival_leftovers.discard(arrival.partition, arrival.version, arrival.budget)):
        raise _busy_target_error(arrival.partition)


def _move_head(arrival: Arrival, namespace: str, head: HeadView) -> Put:
    before, version = arrival.heads.get(namespace), arrival.version
    if before is not None:
        version = successor(before.version, head.checkpoint_id)
    return put_head(namespace, head._replace(version=version), expect_unchanged(before))


def find_last_numbers(found: StoredThread) -> dict[str, int]:
    """Return the last sequence number in use, by namespace."""
    numbers: dict[str, int] = {ns: head.seq for ns, head in found.heads.items()}
    for (namespace, _), seq in found.checkpoints.items():
        numbers[namespace] = max(seq, numbers.get(namespace, 0))
    return numbers


def _busy_target_error(partition: Partition) -> Contention:
    return Contention(
        f"thread {partition.thread!r} is written to at the target while it is imported; what was there stays "
        "as it is. Run the import again"
    )
