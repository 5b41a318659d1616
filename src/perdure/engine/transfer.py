"""Moving house: a thread is read at one database and written at another, and says the same there.

A program here asks two databases: every effect says at which ``Side`` it is to be performed. A thread
arrives chunks first, then checkpoints oldest to newest, writes, tags, the heads of subgraphs and documents;
then it is read back and its content digest compared; only then, and in one commit, come the root's head and
the collection generation. A thread with neither has not arrived: it has no latest state, a graph that is
called on it finds nothing, and whoever writes to it stops the move. A move that was cut short is taken up
again: what is there already, and right, is not written twice.

A lease does not move: the arrived thread has its epoch and no open run. Nor does a queue: a thread moves when
it is at rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from perdure.engine import content, transfer_claim
from perdure.engine.content import Digest, Report, ThreadContent
from perdure.engine.paging import read_all
from perdure.engine.retention import Contents, batches, collect
from perdure.engine.threads import HeadView, View, guards, load_view
from perdure.engine.transact import Budget, chunk_puts
from perdure.errors import Conflict, Contention, Corrupt, NotFound
from perdure.model.chunks import Digester
from perdure.model.ops import Check, Commit, Committed, Delete, Expect, Fetch, Get, Op, Put, Range, Stage
from perdure.model.program import Effect, Program, ask
from perdure.model.queue import IN, LATER, OUT, Lane
from perdure.model.records import (
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
    OUTBOX,
    RUN,
    SEAL,
    TAG,
    WRITE,
    Key,
    Kind,
    Partition,
    Record,
)

R = TypeVar("R")

MOVED: tuple[Kind, ...] = (HEAD, GC, EPOCH, CHECKPOINT, CHUNK, WRITE, TAG, ITEM, DOCUMENT)
"""The kinds that are taken along; ``ITEM`` by ``engine.moving_items``."""

LEFT: tuple[Kind, ...] = (SEAL, LANE, INBOX, DEDUPE, RUN, OUTBOX, EFFECT, EVENT)
"""The kinds that belong to a database and stay there. Of a thread at rest its queue says what was done, and
its events are over."""

ATTEMPTS = 5
"""How often a thread is read anew because it was written to while it moved."""

_ROWS = (CHECKPOINT, WRITE, TAG, HEAD, DOCUMENT)
_ROOT: Key = ("",)


class Side(Enum):
    """Where an effect is performed."""

    SOURCE = "source"
    TARGET = "target"


@dataclass(frozen=True, slots=True)
class OnSide(Effect[R]):
    """An effect, and the place where it is to be performed."""

    place: Side
    effect: Effect[R]


def at(place: Side, program: Program[R]) -> Program[R]:
    """A program of one database, as a part of one that asks two."""
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            effect = program.send(answer) if error is None else program.throw(error)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        try:
            answer, error = (yield OnSide(place, effect)), None
        except Exception as raised:
            answer, error = None, raised


class State(Enum):
    """What the target had of a thread."""

    ABSENT = "absent"
    PARTIAL = "partial"
    SAME = "same"
    DIFFERENT = "different"


@dataclass(frozen=True, slots=True)
class TransferResult:
    """What became of a thread or of a namespace of the store. ``found`` is what the target had of it before,
    ``digest`` what it says, ``written`` how many bytes of chunks were written now."""

    found: State
    digest: Digest
    written: int = 0


@dataclass(frozen=True, slots=True)
class TransferOptions:
    """How threads move: the digest keys of both places, what a commit at the target may carry, where the
    versions of a new thread start, whether a different thread of the same name is replaced, and who is told
    of the bytes that were read."""

    source: Digester
    target: Digester
    budget: Budget
    first_version: int
    replace: bool = False
    report: Report = content.silent


class Exists(Conflict):
    """The target has a different thread of this name; it was left as it is."""


def compare_thread(
    partition: Partition, target: Partition, terms: TransferOptions
) -> Program[TransferResult]:
    """What the target has of a thread; nothing is changed."""

    def whole(contents: Contents) -> None:
        _refuse_headless(partition, contents)

    digest = yield from at(
        Side.SOURCE, content.digest_thread(partition, terms.source, terms.report, check=whole)
    )
    if not digest.checkpoints and not digest.writes and not digest.documents:
        raise _gone(partition)
    view = yield from at(Side.TARGET, load_view(target, ""))
    if _has_arrived(view) or (yield from at(Side.TARGET, _has_documents(target))):
        there = yield from at(Side.TARGET, content.digest_thread(target, terms.target))
        return TransferResult(State.SAME if there.agrees(digest) else State.DIFFERENT, digest)
    held = yield from at(Side.TARGET, _hold(target))
    return TransferResult(held.state, digest)


def move_thread(partition: Partition, target: Partition, terms: TransferOptions) -> Program[TransferResult]:
    """Bring a thread to the target, as it is at the source when it arrives.

    Raises ``Conflict`` while the thread's queue is not at rest or when the target is written to by others,
    ``NotFound`` when there is no such thread, ``Exists`` when the target has a different one and ``replace``
    is false, ``Contention`` when the source is written to, ``Corrupt`` when the source is damaged or what
    arrived is not what was sent. When it was writing by then the thread has not arrived; moving it again goes
    on from what is there.
    """
    yield from at(Side.SOURCE, _refuse_busy(partition))
    found: State | None = None
    view = yield from at(Side.TARGET, load_view(target, ""))
    if _has_arrived(view) or (yield from at(Side.TARGET, _has_documents(target))):
        compared = yield from compare_thread(partition, target, terms)
        if compared.found is State.SAME:
            return compared
        if not terms.replace:
            raise Exists(
                f"thread {target.thread!r} is at the target already and differs from the source; it was left "
                "as it is. Pass --replace to bring it up to date"
            )
        yield from at(Side.TARGET, _withdraw(target, view))
        found = State.DIFFERENT
    written = 0
    for _ in range(ATTEMPTS):
        reading = yield from at(Side.SOURCE, content.read_thread(partition, terms.source, terms.target))
        if reading is None:
            continue
        if not reading.contents.checkpoints and not reading.contents.writes and not reading.documents:
            raise _gone(partition)
        _refuse_headless(partition, reading.contents)
        yield from at(Side.TARGET, _commit(target, transfer_claim.claim(terms.first_version)))
        held = yield from at(Side.TARGET, _hold(target))
        found = found or held.state
        sent = yield from _send_chunks(partition, target, reading, held, terms)
        if sent is None:
            continue
        written += sent.written
        digest = content.digest_of(reading, sent.read)
        written += yield from at(Side.TARGET, _send_rows(target, reading, held, terms))
        root = reading.contents.heads.get("")
        arrived = yield from at(Side.TARGET, content.digest_thread(target, terms.target, root=root))
        if not arrived.agrees(digest):
            raise Corrupt(
                f"thread {target.thread!r}: what arrived is not what was sent (digest {arrived.hex}, not "
                f"{digest.hex}); it was not put in place. Copy it again, and run `perdure fsck` on the source"
            )
        if (yield from at(Side.SOURCE, content.pulse(partition))) != reading.pulse:
            continue
        yield from at(Side.TARGET, _arrive(target, reading, held, terms))
        return TransferResult(found, digest, written)
    raise Contention(
        f"thread {partition.thread!r} is written to all the time and was not moved; stop its writers, or "
        "move it later"
    )


# At the source


def _gone(partition: Partition) -> NotFound:
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
class _Held:
    """What the target has of a thread that has not arrived: records by kind and key, names of chunks, and the
    newest generation of those."""

    rows: dict[tuple[str, Key], Record]
    chunks: set[bytes]
    generation: int

    @property
    def state(self) -> State:
        return State.PARTIAL if self.rows or self.chunks else State.ABSENT


@dataclass(frozen=True, slots=True)
class _Sent:
    """Bytes of payloads that were read, and of chunks that were written."""

    read: int
    written: int


def _has_arrived(view: View) -> bool:
    return view.head is not None or view.generation > 0


def _has_documents(target: Partition) -> Program[bool]:
    """Whether documents are there that nobody is bringing: a thread that nobody has called yet."""
    documents, claims = yield from ask(
        Fetch(target, (Range(DOCUMENT, limit=1, bodies=False), Get(SEAL, transfer_claim.CLAIM)))
    )
    return bool(documents) and not claims


def _hold(target: Partition) -> Program[_Held]:
    *found, chunks = yield from read_all(target, *map(Range, _ROWS), Range(CHUNK, bodies=False))
    rows = {
        (record.kind.name, record.key): record
        for records in found
        for record in records
        if record.kind is not HEAD or record.key != _ROOT
    }
    generation = max((r.fields["generation"] for r in chunks), default=0)
    return _Held(rows, {r.key[0] for r in chunks}, generation)


def _withdraw(target: Partition, view: View) -> Program[None]:
    """Take a thread's root head and generation away: it is absent then, and what is left is half a copy."""
    fence, _ = guards(target, view, None)
    ops: list[Op] = [fence]
    ops.append(Delete(GC, (), view.generation) if view.generation else Check(GC, (), Expect.ABSENT))
    if view.head is not None:
        ops.append(Delete(HEAD, _ROOT, view.head.version))
    yield from _commit(target, ops)


def _send_chunks(
    partition: Partition, target: Partition, reading: ThreadContent, held: _Held, terms: TransferOptions
) -> Program[_Sent | None]:
    """Send payloads as they are read, then the nodes; ``None`` when some are gone at the source."""
    graft = reading.graft
    read = written = 0
    pace = content.Pace()
    for names in pace.slices(sorted(graft.payloads)):
        bodies = yield from at(Side.SOURCE, content.fetch(partition, reading, names))
        if bodies is None:
            return None
        pace.learn(bodies)
        fresh: dict[bytes, bytes] = {}
        for name, body in bodies.items():
            fresh[graft.arrive(name, body)] = body
            read += len(body)
            terms.report(len(body))
        written += yield from at(Side.TARGET, _stage(target, fresh, held, terms.budget))
    for ref in content.references(reading.contents):
        graft.reference(ref)
    written += yield from at(Side.TARGET, _stage(target, graft.fresh, held, terms.budget))
    return _Sent(read, written)


def _stage(target: Partition, chunks: dict[bytes, bytes], held: _Held, budget: Budget) -> Program[int]:
    fresh = {name: body for name, body in chunks.items() if name not in held.chunks}
    for batch in batches(chunk_puts(fresh, 0), budget):
        yield from ask(Stage(target, tuple(op for op in batch if isinstance(op, Put))))
    return sum(map(len, fresh.values()))


def _send_rows(
    target: Partition, reading: ThreadContent, held: _Held, terms: TransferOptions
) -> Program[int]:
    """Write what is not there yet or differs, oldest first, then remove what does not belong there."""
    wanted = _rows(reading, terms)
    ops: list[Op] = [put for put in wanted if not _is_same(held.rows.get((put.kind.name, put.key)), put)]
    written = sum(len(op.body) for op in ops if isinstance(op, Put))
    names = {(put.kind.name, put.key) for put in wanted}
    ops += [Delete(r.kind, r.key) for name, r in held.rows.items() if name not in names]
    ours = transfer_claim.checks(terms.first_version)
    for batch in batches(ops, terms.budget, reserve=len(ours)):
        yield from _commit(target, [*ours, *batch])
    return written


def _rows(reading: ThreadContent, terms: TransferOptions) -> list[Put]:
    contents, graft = reading.contents, reading.graft
    rows = [content.renamed(c, graft).put() for c in content.in_order(contents.checkpoints)]
    rows += [content.renamed_write(w, graft).put() for w in contents.writes]
    rows += [Put(TAG, t.key, t.fields, version=t.version) for t in contents.tags]
    rows += [_head(ns, head, head.version) for ns, head in contents.heads.items() if ns != ""]
    # Under versions that whoever has read another document of the name here cannot expect.
    rows += [Put(DOCUMENT, d.key, d.fields, d.body, version=terms.first_version) for d in reading.documents]
    return rows


def _arrive(target: Partition, reading: ThreadContent, held: _Held, terms: TransferOptions) -> Program[None]:
    """Put the thread in place, and take away the chunks that an earlier attempt left."""
    view, root = reading.contents.view, reading.contents.heads.get("")
    generation = max(terms.first_version, held.generation + 1)
    ops: list[Op] = [
        Put(GC, (), expect=Expect.ABSENT, version=generation),
        transfer_claim.release(terms.first_version),
    ]
    if root is not None:
        ops.append(_head("", root, terms.first_version)._replace(expect=Expect.ABSENT))
    there = yield from load_view(target, "")
    if view.epoch and not there.epoch:
        # Whoever held the open run's lease belongs to the old place and is fenced out of the new one.
        epoch = view.epoch + (view.open_run is not None)
        ops.append(Put(EPOCH, (), {"open_run": None}, expect=Expect.ABSENT, version=epoch))
    yield from _commit(target, ops)
    if not held.chunks <= reading.graft.names:
        yield from collect(target, generation, terms.target, terms.budget)


_QUEUES = (IN, OUT, LATER)


def _refuse_busy(partition: Partition) -> Program[None]:
    lanes = yield from ask(Fetch(partition, tuple(Get(LANE, (name,)) for name in _QUEUES)))
    for name, found in zip(_QUEUES, lanes, strict=True):
        lane = Lane.read(name, found)
        if lane.due_at is not None or lane.waiting is not None:
            raise Conflict(
                f"thread {partition.thread!r} has messages or replies under way, or waits for an answer, "
                "and would leave them behind; nothing of it was moved. Let its workers finish and its "
                "question be answered, then move it"
            )


def _head(namespace: str, head: HeadView, version: int) -> Put:
    return Put(HEAD, (namespace,), {"checkpoint_id": head.checkpoint_id, "seq": head.seq}, version=version)


def _is_same(stored: Record | None, put: Put) -> bool:
    return stored is not None and stored.body == put.body and dict(stored.fields) == dict(put.fields)


def _commit(target: Partition, ops: Iterable[Op]) -> Program[None]:
    outcome = yield from ask(Commit(target, tuple(ops)))
    if not isinstance(outcome, Committed):
        raise Conflict(
            f"thread {target.thread!r} is written to at the target while it arrives; it was not put in "
            "place. Stop its writers there, delete it there, and move it again"
        )
