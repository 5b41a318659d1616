"""Transfer of a thread: read at one database, written at another, and verified there by content digest.

The order of arrival is chunks, checkpoints oldest to newest, writes, tags, heads of subgraphs, documents,
each document after its earlier versions. Then the thread is read back and its digest compared. Only after
that, one commit adds the root's head, the thread's own document and the collection generation. Until then the
thread does not exist at the target: it has no latest state, a graph that is called on it finds nothing, and
any writer to it stops the transfer. An interrupted transfer can be repeated: records that have arrived intact
are not written twice. A thread that is replaced is copied within the target first, and the copy removed when
the replacement has arrived.

Leases and queues are not transferred: the arrived thread keeps its epoch, without an open run, and a thread
is moved only while its queue is at rest. The run whose question it waits on is transferred, too, and so is
one that may be continued with recorded effects (``engine.transfer.transfer_waits``).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from perdure.engine.complete_reads import read_all
from perdure.engine.threads import arrival_leftovers, thread_digest, transfer_claim
from perdure.engine.threads.chunk_collection import collect
from perdure.engine.threads.chunk_reads import ChunkReader
from perdure.engine.threads.thread_digest import ThreadContent
from perdure.engine.threads.thread_records import Contents, put_head, references
from perdure.engine.threads.thread_state import View, guards, load_view
from perdure.engine.transact import Budget, split_into_batches
from perdure.engine.transfer import waiting_runs
from perdure.engine.transfer.same_database import refuse_same_database
from perdure.engine.transfer.transfer_terms import (
    ATTEMPTS,
    Exists,
    OnSide,
    Side,
    State,
    TransferOptions,
    TransferResult,
    busy_target_error,
    commit_at_target,
    run_at_source,
    run_at_target,
)
from perdure.engine.transfer.transfer_waits import (
    bring_waits,
    give_waits_back,
    leave_or_note_arrival,
    refuse_to_wake_twice,
    send_results,
    take_waits,
)
from perdure.engine.transfer.waiting_runs import WaitingRun, read_waiting
from perdure.errors import Conflict, Contention, Corrupt, NotFound, PerdureError, Unavailable
from perdure.model.ops import Check, Delete, Drop, Expect, Fetch, FindThreads, Get, Now, Op, Put, Range, Stage
from perdure.model.program import Program, advance, ask, resume
from perdure.model.records import (
    BLOB,
    CHECKPOINT,
    CHUNK,
    DEDUPE,
    DOCUMENT,
    EFFECT,
    EPOCH,
    EVENT,
    GC,
    HEAD,
    INBOX,
    ITEM,
    LANE,
    OF_THREAD,
    OUTBOX,
    PACK,
    RUN,
    SEAL,
    TAG,
    WRITE,
    Key,
    Kind,
    Partition,
    Record,
)
from perdure.model.values.chunks import Digester
from perdure.model.values.packs import pack_puts
from perdure.model.write_records import make_new_puts

MOVED: tuple[Kind, ...] = (HEAD, GC, EPOCH, CHECKPOINT, CHUNK, BLOB, PACK, WRITE, TAG, ITEM, DOCUMENT)
"""The kinds that are transferred; ``ITEM`` by ``engine.transfer.transfer_items``."""

LEFT: tuple[Kind, ...] = (SEAL, LANE, INBOX, DEDUPE, RUN, OUTBOX, EFFECT, EVENT)
"""The kinds that belong to a database and stay there. The queue of a thread at rest records only finished
work, except the run that waits or may be continued with what belongs to it
(``engine.transfer.waiting_runs``), and its events are of finished runs."""

_OF_COPY = re.compile(r"[0-9a-f]{16}\)")
"""End of the name of the copy of a replaced thread, after the thread's own name."""

_ROWS = (CHECKPOINT, WRITE, TAG, HEAD, DOCUMENT)
_ROOT: Key = ("",)


def compare_thread(
    partition: Partition, target: Partition, terms: TransferOptions
) -> Program[TransferResult]:
    """Compare a thread with the target's; nothing is changed.

    Raises:
        Conflict: its queue is not at rest, here or at the target, or its waits would have to be handed over.
        NotFound: the source has no such thread.
        Corrupt: it is damaged at the source.
        Contention: it keeps being written to.
    """
    waiting = yield from run_at_source(read_waiting(partition))
    refuse_to_wake_twice(partition, waiting, terms)
    compared = yield from _compare(partition, target, terms)
    if compared.found in (State.ABSENT, State.PARTIAL) or (
        compared.found is State.DIFFERENT and terms.replace
    ):
        yield from run_at_target(waiting_runs.refuse_target_at_work(target))
    return compared


def _compare(partition: Partition, target: Partition, terms: TransferOptions) -> Program[TransferResult]:
    refuse_headless = partial(_refuse_headless, partition)
    digest = yield from run_at_source(
        thread_digest.compute_thread_digest(partition, terms.source, terms.report, check=refuse_headless)
    )
    if not digest.checkpoints and not digest.writes and not digest.documents:
        raise _gone_error(partition)
    if (yield from run_at_target(_is_there(target))):
        target_digest = yield from run_at_target(thread_digest.compute_thread_digest(target, terms.target))
        if target_digest.agrees(digest):
            return TransferResult(State.SAME, digest)
        return TransferResult(State.DIFFERENT, digest)
    at_target = yield from run_at_target(_read_target(target, terms.target))
    return TransferResult(at_target.state, digest)


def move_thread(partition: Partition, target: Partition, terms: TransferOptions) -> Program[TransferResult]:
    """Transfer a thread to the target, in its latest state at the source.

    After an error during the writing the thread has not arrived; a repeated transfer continues with the
    records that have arrived, unless the target refused the thread: then nothing of it is left there. A
    thread that was to be replaced is put back if its replacement cannot arrive, unless a database is
    unavailable.

    Raises:
        Conflict: the thread's queue is not at rest, here or at the target, its waits would have to be handed
            over or were handed over before, others write to the target, or the target is the source.
        NotFound: the source has no such thread.
        Exists: the target has a different one, and ``replace`` is false.
        Contention: the source keeps being written to.
        Corrupt: the source is damaged, or what arrived differs from what was sent.
    """
    waiting = yield from run_at_source(read_waiting(partition))
    refuse_to_wake_twice(partition, waiting, terms)
    view = yield from run_at_target(load_view(target, ""))
    if _has_arrived(view) or (yield from run_at_target(_has_documents(target))):
        compared = yield from _compare(partition, target, terms)
        if compared.found is State.SAME:
            if terms.replace:
                yield from run_at_target(_drop_replaced(target))
            yield from bring_waits(partition, target, terms)
            return compared
        refuse_to_wake_twice(partition, waiting, terms, is_there=False)
        if not terms.replace:
            raise Exists(
                f"thread {target.thread!r} is at the target already and differs from the source; it was left "
                "as it is. Pass --replace to bring it up to date"
            )
        yield from refuse_same_database(partition, target, terms)
        return (yield from _replace(partition, target, view, terms))
    refuse_to_wake_twice(partition, waiting, terms, is_there=False)
    yield from run_at_target(waiting_runs.refuse_target_at_work(target))
    try:
        result = yield from _bring(partition, target, terms, None)
    except Conflict:
        # A message was accepted there meanwhile: it begins a thread of its own, beside which nothing of this
        # one may be left.
        leaving = arrival_leftovers.abandon(target, terms.first_version, terms.budget)
        yield from run_at_target(leaving)
        raise
    if result.found is State.PARTIAL:
        yield from run_at_target(_drop_replaced(target))
    return result


def _replace(
    partition: Partition, target: Partition, view: View, terms: TransferOptions
) -> Program[TransferResult]:
    """Transfer a thread in the place of a different one, which is put back if that fails."""
    yield from run_at_target(waiting_runs.refuse_target_at_work(target))
    copy = yield from _set_aside(target, terms)
    yield from run_at_target(_withdraw(target, view, terms.first_version))
    try:
        result = yield from _bring(partition, target, terms, State.DIFFERENT)
    except Unavailable:
        # A repeated transfer continues with what has arrived.
        raise
    except PerdureError as error:
        yield from _put_back(copy, target, terms, error)
        raise
    yield from run_at_target(_drop_replaced(target))
    return result


def _bring(
    partition: Partition,
    target: Partition,
    terms: TransferOptions,
    found: State | None,
    *,
    is_claimed: bool = False,
) -> Program[TransferResult]:
    """Transfer a thread to a name that no thread has.

    Args:
        partition: the thread.
        target: its name at the target.
        terms: the options.
        found: the target's state before, if that is known.
        is_claimed: the name is claimed already, and the transfer ends if the claim is lost.
    """
    written = 0
    is_taken = False
    for _ in range(ATTEMPTS):
        reading = yield from run_at_source(thread_digest.read_thread(partition, terms.source, terms.target))
        if reading is None:
            continue
        if not reading.contents.checkpoints and not reading.contents.writes and not reading.documents:
            raise _gone_error(partition)
        _refuse_headless(partition, reading.contents)
        if not is_claimed:
            yield from run_at_target(_claim(target, terms.first_version))
        at_target = yield from run_at_target(_read_target(target, terms.target))
        found = found or at_target.state
        sent = yield from _send_chunks(partition, target, reading, at_target, terms)
        if sent is None:
            continue
        written += sent.written
        digest = thread_digest.digest_of(reading, sent.read)
        written += yield from run_at_target(_send_rows(target, reading, at_target, terms))
        arrived = yield from run_at_target(
            thread_digest.compute_thread_digest(target, terms.target, arriving=reading)
        )
        if not arrived.agrees(digest):
            yield from run_at_target(_refuse_foreign(target, _make_rows(reading, terms), terms))
            raise Corrupt(
                f"thread {target.thread!r}: what arrived is not what was sent (digest {arrived.hex}, not "
                f"{digest.hex}); it was not put in place. Copy it again, and run `perdure fsck` on the source"
            )
        taken = yield from take_waits(partition, terms)
        is_taken = is_taken or (taken is not None and taken.is_taken)
        # A signal that came before the waits were taken is a part of the thread: read it again.
        if taken is None or (yield from run_at_source(thread_digest.read_pulse(partition))) != reading.pulse:
            continue
        try:
            sending = send_results(target, taken.waiting, transfer_claim.checks(terms.first_version), terms)
            yield from run_at_target(sending)
            generation = yield from run_at_target(_arrive(target, reading, at_target, terms, taken.waiting))
        except Conflict:
            if is_taken:
                yield from give_waits_back(partition, terms)
            raise
        yield from leave_or_note_arrival(partition, taken, reading.pulse, terms)
        if not at_target.chunks <= reading.graft.names:
            yield from run_at_target(collect(target, generation, terms.target, terms.budget))
        return TransferResult(found, digest, written)
    if is_taken:
        yield from give_waits_back(partition, terms)
    raise Contention(
        f"thread {partition.thread!r} keeps being written to and was not moved; stop its writers, or "
        "move it later"
    )


def _set_aside(target: Partition, terms: TransferOptions) -> Program[Partition]:
    """Copy a thread of the target that is to be replaced: until its replacement has arrived, it is kept under
    a name of its own, which is returned. An earlier transfer that was cut short may have made the copy
    already."""
    digest = yield from run_at_target(thread_digest.compute_thread_digest(target, terms.target))
    name = Partition(target.tenant, f"{target.thread} (replaced {digest.hex[:16]})")
    if not (yield from run_at_target(_is_there(name))):
        yield from _copy_at_target(target, name, terms)
    return name


def _put_back(
    copy: Partition, target: Partition, terms: TransferOptions, error: PerdureError
) -> Program[None]:
    """Put the thread that was to be replaced back to its name. Its queue was left as it is, so that a message
    that was accepted meanwhile goes on with it.

    Nothing is put back if the claim on the name is lost: the thread was deleted meanwhile, or another
    transfer brings one.
    """
    try:
        yield from _copy_at_target(copy, target, terms, is_claimed=True)
    except PerdureError as failure:
        raise Conflict(
            f"{error}. The thread that was there could not be put back to its name; it is at the target as "
            f"{copy.thread!r}"
        ) from failure
    yield from run_at_target(ask(Drop(copy)))


def _copy_at_target(
    partition: Partition, name: Partition, terms: TransferOptions, *, is_claimed: bool = False
) -> Program[None]:
    within = replace(terms, source=terms.target, report=thread_digest.report_nothing, has_queue=False)
    copying: Program[Any] = _bring(partition, name, within, None, is_claimed=is_claimed)
    # Both sides are the target here.
    yield from resume(
        copying, advance(copying), lambda each: ask(OnSide(Side.TARGET, cast(Any, each).effect))
    )


def _drop_replaced(target: Partition) -> Program[None]:
    """Remove the copies of earlier threads of a name, whose replacement has arrived. Other records whose
    names begin in the same way are kept."""
    begin = f"{target.thread} (replaced "
    for hit in (yield from ask(FindThreads(target.tenant, prefix=begin))):
        if _OF_COPY.fullmatch(hit.partition.thread[len(begin) :]):
            yield from ask(Drop(hit.partition))


# At the source


def _gone_error(partition: Partition) -> NotFound:
    return NotFound(f"thread {partition.thread!r} is not at the source; there is nothing to move")


def _refuse_headless(partition: Partition, contents: Contents) -> None:
    stored = {(c.namespace, c.id) for c in contents.checkpoints}
    headless = {c.namespace for c in contents.checkpoints} - set(contents.heads)
    if headless or any((ns, head.checkpoint_id) not in stored for ns, head in contents.heads.items()):
        raise Corrupt(
            f"thread {partition.thread!r} is damaged at the source, or is itself half a copy: a head is "
            "missing or leads nowhere; run `perdure fsck` on the source"
        )


# At the target


@dataclass(frozen=True, slots=True)
class _AtTarget:
    """Contents of the target for a thread that has not arrived: records by kind and key, names of chunks, and
    the newest generation of the chunks."""

    rows: dict[tuple[str, Key], Record]
    chunks: set[bytes]
    generation: int

    @property
    def state(self) -> State:
        if self.rows or self.chunks:
            return State.PARTIAL
        return State.ABSENT


@dataclass(frozen=True, slots=True)
class _Sent:
    """Count of payload bytes that were read, and of chunk bytes that were written."""

    read: int
    written: int


def _has_arrived(view: View) -> bool:
    return view.head is not None or view.generation > 0


def _is_there(target: Partition) -> Program[bool]:
    """Return True if a thread has arrived, or has only documents."""
    view = yield from load_view(target, "")
    return _has_arrived(view) or (yield from _has_documents(target))


def _has_documents(target: Partition) -> Program[bool]:
    """Return True if there are documents of a thread without checkpoints, and no transfer in progress."""
    documents, claims = yield from ask(
        Fetch(target, (Range(DOCUMENT, limit=1, bodies=False), Get(SEAL, transfer_claim.CLAIM)))
    )
    return bool(documents) and not claims


def _read_target(target: Partition, digest: Digester) -> Program[_AtTarget]:
    *found, blobs = yield from read_all(target, *map(Range, _ROWS), Range(BLOB, bodies=False))
    reader = ChunkReader(target, digest)
    yield from reader.read()
    rows = {
        (record.kind.name, record.key): record
        for records in found
        for record in records
        if record.kind is not HEAD or record.key != _ROOT
    }
    names = {*reader.bodies, *(r.key[0] for r in blobs)}
    return _AtTarget(rows, names, max((reader.newest, *(r.fields["generation"] for r in blobs))))


def _withdraw(target: Partition, view: View, version: int) -> Program[None]:
    """Remove a thread's root head and generation, and claim its name: the thread is then absent, and the rest
    of it is an incomplete copy."""
    fence, _ = guards(target, view, None)
    ops: list[Op] = [fence, transfer_claim.make_claim(version, (yield from ask(Now())), Expect.ANY)]
    if view.generation:
        ops.append(Delete(GC, (), view.generation))
    else:
        ops.append(Check(GC, (), Expect.ABSENT))
    if view.head is not None:
        ops.append(Delete(HEAD, _ROOT, view.head.version))
    yield from commit_at_target(target, ops)


def _claim(target: Partition, version: int) -> Program[None]:
    yield from commit_at_target(target, (yield from transfer_claim.claim(version)))


def _send_chunks(
    partition: Partition,
    target: Partition,
    reading: ThreadContent,
    at_target: _AtTarget,
    terms: TransferOptions,
) -> Program[_Sent | None]:
    """Send payloads as they are read, then the nodes; ``None`` if some are gone at the source."""
    graft = reading.graft
    read = written = 0
    pace = thread_digest.Pace()
    for names in pace.slices(sorted(graft.payloads)):
        bodies = yield from run_at_source(thread_digest.fetch(partition, reading, names))
        if bodies is None:
            return None
        pace.learn(bodies)
        fresh: dict[bytes, bytes] = {}
        for name, body in bodies.items():
            fresh[graft.arrive(name, body)] = body
            read += len(body)
            terms.report(len(body))
        written += yield from run_at_target(_stage(target, fresh, at_target, terms.budget))
    for ref in references(reading.contents):
        graft.rename(ref)
    written += yield from run_at_target(_stage(target, graft.fresh, at_target, terms.budget))
    return _Sent(read, written)


def _stage(
    target: Partition, chunks: dict[bytes, bytes], at_target: _AtTarget, budget: Budget
) -> Program[int]:
    fresh = {name: body for name, body in chunks.items() if name not in at_target.chunks}
    for batch in split_into_batches(pack_puts(fresh), budget):
        yield from ask(Stage(target, tuple(batch)))
    return sum(map(len, fresh.values()))


def _send_rows(
    target: Partition, reading: ThreadContent, at_target: _AtTarget, terms: TransferOptions
) -> Program[int]:
    """Write rows that are missing or differ, oldest first, then remove those that do not belong there."""
    wanted = _make_rows(reading, terms)
    ops: list[Op] = [put for put in wanted if not _is_same(at_target.rows.get((put.kind.name, put.key)), put)]
    written = sum(len(op.body) for op in ops if isinstance(op, Put))
    names = {(put.kind.name, put.key) for put in wanted}
    ops += [Delete(r.kind, r.key) for name, r in at_target.rows.items() if name not in names]
    ours = transfer_claim.checks(terms.first_version)
    for batch in split_into_batches(ops, terms.budget, reserve=len(ours)):
        yield from commit_at_target(target, [*ours, *batch])
    return written


def _make_rows(reading: ThreadContent, terms: TransferOptions) -> list[Put]:
    contents, graft = reading.contents, reading.graft
    rows = [
        thread_digest.rename_references(c, graft).put()
        for c in thread_digest.sort_checkpoints(contents.checkpoints)
    ]
    rows += make_new_puts(thread_digest.rename_write(w, graft) for w in contents.writes)
    rows += [Put(TAG, t.key, t.fields, version=t.version) for t in contents.tags]
    rows += [put_head(ns, head) for ns, head in contents.heads.items() if ns != ""]
    # The versions of a document, which are in folders, come before it.
    documents = sorted(reading.documents, key=lambda d: "/" not in d.key[0])
    rows += [_make_document_put(d, terms) for d in documents if d.key != OF_THREAD]
    return rows


def _make_document_put(record: Record, terms: TransferOptions) -> Put:
    # The version is new: no reader of an earlier document of this name expects it.
    return Put(DOCUMENT, record.key, record.fields, record.body, version=terms.first_version)


def _arrive(
    target: Partition,
    reading: ThreadContent,
    at_target: _AtTarget,
    terms: TransferOptions,
    waiting: WaitingRun | None,
) -> Program[int]:
    """Make the thread visible, and return the generation of its chunks."""
    view, root = reading.contents.view, reading.contents.heads.get("")
    generation = max(terms.first_version, at_target.generation + 1)
    ops: list[Op] = [
        Put(GC, (), expect=Expect.ABSENT, version=generation),
        transfer_claim.release(terms.first_version),
    ]
    if root is not None:
        ops.append(put_head("", root._replace(version=terms.first_version), Expect.ABSENT))
    ops += [
        _make_document_put(d, terms)._replace(expect=Expect.ABSENT)
        for d in reading.documents
        if d.key == OF_THREAD
    ]
    target_view = yield from load_view(target, "")
    if view.epoch and not target_view.epoch:
        # The holder of an open run's lease belongs to the source: a raised epoch keeps it from writing here.
        epoch = view.epoch + (view.open_run is not None)
        ops.append(Put(EPOCH, (), {"open_run": None}, expect=Expect.ABSENT, version=epoch))
    if terms.has_queue:
        now = yield from ask(Now())
        ops += yield from waiting_runs.arrive(target, waiting, now, terms.first_version, terms.budget)
    yield from commit_at_target(target, ops)
    return generation


def _is_same(stored: Record | None, put: Put) -> bool:
    return stored is not None and stored.body == put.body and dict(stored.fields) == dict(put.fields)


def _refuse_foreign(target: Partition, wanted: Iterable[Put], terms: TransferOptions) -> Program[None]:
    """Raise ``Conflict`` if the target was removed meanwhile, or has rows that were not sent: if a run began
    on the earlier thread of this name, the writes of its tasks check no claim."""
    yield from commit_at_target(target, transfer_claim.checks(terms.first_version))
    at_target = yield from _read_target(target, terms.target)
    if at_target.rows.keys() - {(put.kind.name, put.key) for put in wanted}:
        raise busy_target_error(target)
