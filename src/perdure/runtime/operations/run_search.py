"""Runs of a tenant: a search, the failed runs that still need attention, and one run in all its detail.

The runs of a thread are read in its partition, so finding runs reads the threads with recent activity first,
and stops at the first that is too old. A failed run *stands*, and so needs attention, if it was not
run again, and no later run of its thread ended in another state.
"""

from __future__ import annotations

import heapq
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import Any, NamedTuple

from perdure.engine.complete_reads import read_all
from perdure.engine.decoding import read_each, read_one
from perdure.engine.queue import inbox
from perdure.engine.queue.retries import make_repetition_key
from perdure.errors import Corrupt, NotFound
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.heads import ROOT
from perdure.model.ops import Fetch, FindRuns, Get, Range
from perdure.model.program import Program, ask
from perdure.model.records import CHECKPOINT, DEDUPE, HEAD, INBOX, RUN, Partition, Record
from perdure.model.runs.lifecycle import may_retry
from perdure.model.runs.messages import FAILED, RETRY_OF, ROLLED_BACK, Message, Run
from perdure.runtime.json_encoding import to_plain
from perdure.runtime.operations.failures import RunFailure, failure_of
from perdure.runtime.operations.thread_users import UsersOfRow, find_owner
from perdure.runtime.operations.walk_by_activity import ThreadWalk
from perdure.runtime.threads.rows import ThreadRow, load_row
from perdure.runtime.threads.user_and_title import user_of_options

_PAGE = 100
OF_THREAD_MAX = 100
"""Maximum number of runs of one thread that a search finds."""
BEGINNING_MIN = 6
"""Minimum number of characters of the beginning of an id that stands for the run."""
_SHOWN_MAX = 5
STATES = ("open", "waiting", "done", "failed", "interrupted", "rolled_back")


class RunQuery(NamedTuple):
    """Conditions on runs; one that is ``None`` does not restrict the search.

    Attributes:
        state: the state of the run.
        user: the owner of its thread or, without one, the user of its first message.
        since: earliest time of its last change, in microseconds since 1970.
        before: latest time of its last change.
        error: part of the type or the text of its error, in either case.
        group: name of the group of its error.
        graph: its graph.
        version: the version of its graph.
        stands: true to find only failed runs that stand.
    """

    state: str | None = None
    user: str | None = None
    since: int | None = None
    before: int | None = None
    error: str | None = None
    group: str | None = None
    graph: str | None = None
    version: str | None = None
    stands: bool = False

    def is_met(self, run: FoundRun) -> bool:
        """Return True if a run, found by its state, time and graph, meets the other conditions."""
        failure = run.failure
        if self.error is not None and (failure is None or not failure.has(self.error)):
            return False
        if self.user not in (None, run.user) or self.version not in (None, run.run.graph_version):
            return False
        if self.group is not None and (failure is None or failure.group != self.group):
            return False
        return run.stands or not self.stands


class FoundRun(NamedTuple):
    """A run with its thread.

    Attributes:
        thread_id: the thread.
        user: the owner of the thread, or else the user of the run's first message or, if that names none, the
            user whom the thread's metadata name; ``None`` if there is none.
        run: the run.
        failure: its error, if it has one.
        is_repeated: it failed, and was run again.
        stands: it failed, was not run again, and no later run of the thread ended in another state.
    """

    thread_id: str
    user: str | None
    run: Run
    failure: RunFailure | None
    is_repeated: bool = False
    stands: bool = False


class RunStep(NamedTuple):
    """A thread that was examined.

    Attributes:
        cursor: where to continue after it.
        runs: its runs that match.
        at: the time of its last change, if threads come by time.
        is_last: true if no later thread can have runs that match.
        fault: why its runs cannot be read, if they cannot.
        examined: the number of threads that were examined since the step before.
    """

    cursor: str
    runs: tuple[FoundRun, ...]
    at: int | None = None
    is_last: bool = False
    fault: str | None = None
    examined: int = 1


async def search(
    walk: ThreadWalk, query: RunQuery, cursor: str = "", enough: int | None = None
) -> AsyncGenerator[RunStep, None]:
    """Yield the matching runs, thread by thread.

    Args:
        walk: the threads; failed runs that stand are searched only in threads with the status ``error``.
        query: the conditions.
        cursor: where to continue, empty for the beginning.
        enough: the number of runs after which the caller is likely to stop.
    """
    if query.stands:
        walk = walk._replace(status="error")
    async with aclosing(walk.steps(cursor, enough)) as steps:
        async for step in steps:
            row = step.row
            if row is None:
                yield RunStep(step.cursor, (), examined=step.examined)
                continue
            if row.fault is not None:
                # Its time may be unknown, so the search cannot end here.
                yield RunStep(
                    step.cursor, (), fault=_describe_fault(row.thread_id, row.fault), examined=step.examined
                )
                continue
            if walk.is_by_time and query.since is not None and 0 < row.updated_at < query.since:
                yield RunStep(step.cursor, (), row.updated_at, is_last=True)
                return
            found: tuple[FoundRun, ...] = ()
            has_runs = row.run is not None or query.state in (None, ROLLED_BACK)
            may_match = query.user is None or find_owner(row) in (None, query.user)
            fault: str | None = None
            if may_match and has_runs:
                program = load_runs(Partition(walk.tenant, row.thread_id), row, query)
                try:
                    found = await walk.database.arun(program)
                except Corrupt as error:
                    fault = _describe_fault(row.thread_id, error)
            at = row.updated_at if walk.is_by_time else None
            yield RunStep(step.cursor, found, at, fault=fault, examined=step.examined)


def _describe_fault(thread_id: str, error: Corrupt) -> str:
    text = str(error)
    if repr(thread_id) in text:
        return text
    return f"thread {thread_id!r}: {text}"


async def find_newest(
    walk: ThreadWalk, query: RunQuery, limit: int, note_fault: Callable[[str], None] = lambda fault: None
) -> list[FoundRun]:
    """Return the newest matching runs, by the time of their last change, newest first. ``note_fault`` is
    called for each thread whose runs cannot be read."""
    return await _find_largest(walk, query, limit, note_fault, _find_change_time)


async def find_slowest(
    walk: ThreadWalk, query: RunQuery, limit: int, note_fault: Callable[[str], None] = lambda fault: None
) -> list[FoundRun]:
    """Return the matching runs that took longest from their start to their last change, the slowest first.
    All matching runs are read. ``note_fault`` is as in ``newest``."""
    return await _find_largest(walk, query, limit, note_fault, _find_duration)


def _find_change_time(run: Run) -> int:
    return run.updated_at


def _find_duration(run: Run) -> int:
    return run.updated_at - run.started_at


async def _find_largest(
    walk: ThreadWalk,
    query: RunQuery,
    limit: int,
    note_fault: Callable[[str], None],
    order: Callable[[Run], int],
) -> list[FoundRun]:
    found: list[tuple[int, int, FoundRun]] = []
    number = 0
    async with aclosing(search(walk, query, enough=limit)) as steps:
        async for step in steps:
            # No run changed later than its thread, so the threads that follow have no newer ones.
            is_full = order is _find_change_time and len(found) == limit
            if step.is_last or (step.at is not None and is_full and step.at < found[0][0]):
                break
            if step.fault is not None:
                note_fault(step.fault)
            for run in step.runs:
                number += 1
                entry = (order(run.run), -number, run)
                if len(found) < limit:
                    heapq.heappush(found, entry)
                else:
                    heapq.heappushpop(found, entry)
    return [run for _, _, run in sorted(found, reverse=True)]


def load_runs(partition: Partition, row: ThreadRow, query: RunQuery) -> Program[tuple[FoundRun, ...]]:
    """Return the matching runs of a thread, newest first, at most ``OF_THREAD_MAX``.

    Raises:
        Corrupt: a matching run cannot be read.
    """
    found: list[FoundRun] = []
    after: int | None = None
    is_standing, is_last = True, False
    while True:
        page = Range(RUN, by="first", reverse=True, after=after, limit=_PAGE, bodies=False)
        (records,) = yield from ask(Fetch(partition, (page,)))
        wanted: list[tuple[Record, bool]] = []
        for record in records:
            state = record.fields["state"]
            is_standing = is_standing and state == FAILED
            is_too_old = query.since is not None and record.fields["updated_at"] < query.since
            if is_too_old or (query.stands and not is_standing):
                is_last = True
                break
            is_too_new = query.before is not None and record.fields["updated_at"] > query.before
            if is_too_new or query.state not in (None, state):
                continue
            if query.graph in (None, record.fields["graph"]):
                wanted.append((record, is_standing))
        found += [
            run
            for run in (yield from _read(partition, row, wanted[: OF_THREAD_MAX - len(found)]))
            if query.is_met(run)
        ]
        if is_last or len(records) < _PAGE or len(found) >= OF_THREAD_MAX:
            return tuple(found)
        after = records[-1].fields["first"]


def _read(
    partition: Partition, row: ThreadRow, wanted: Sequence[tuple[Record, bool]]
) -> Program[list[FoundRun]]:
    """Read runs with their errors and users, and whether they were run again."""
    if not wanted:
        return []
    gets = (
        (
            Get(RUN, record.key),
            Get(DEDUPE, (make_repetition_key(record.key[0]),)),
            Get(INBOX, (record.fields["first"],)),
        )
        for record, _ in wanted
    )
    answers = yield from ask(Fetch(partition, tuple(get for each in gets for get in each)))
    out: list[FoundRun] = []
    for (_, is_standing), stored, repeated, messages in zip(
        wanted, answers[::3], answers[1::3], answers[2::3], strict=True
    ):
        for run in read_each(partition, Run.read, stored):
            of_messages = (
                user_of_options(message.options) for message in read_each(partition, Message.read, messages)
            )
            run_user = UsersOfRow.read(row).choose_for(next(of_messages, None))
            stands = is_standing and may_retry(run.state) and not repeated
            out.append(
                FoundRun(partition.thread, run_user, run, failure_of(run.note), bool(repeated), stands)
            )
    return out


class RunDetail(NamedTuple):
    """A run in all its detail.

    Attributes:
        found: the run.
        tenant: its tenant.
        repeats: the failed run that it repeats, if it does.
        repeated_by: the run that repeats it, or will.
        goes_on_from: the id and the step of the thread's latest checkpoint, if this run made it: a repetition
            continues from there.
        messages: the number of messages that it took.
    """

    found: FoundRun
    tenant: str
    repeats: str | None
    repeated_by: str | None
    goes_on_from: tuple[str, int | None] | None
    messages: int


async def show(walk: ThreadWalk, run_id: str, thread_id: str | None = None) -> RunDetail:
    """Return a run.

    A run is found by its checkpoints. If it has none and its thread is not named, or if only the beginning of
    its id is given, all threads are searched, those with failed runs first.

    Args:
        walk: the threads.
        run_id: the run, or the beginning of its id, of ``BEGINNING_MIN`` characters or more.
        thread_id: its thread, if it is known.

    Raises:
        NotFound: there is no such run, or there are several whose ids begin so.
    """
    named, where = thread_id, "there is"
    if named is not None:
        where = f"thread {named!r} has"
    else:
        hits = await walk.database.arun(ask(FindRuns(walk.tenant, run_id, limit=1)))
        thread_id = next((hit.partition.thread for hit in hits), None)
    if thread_id is not None and (found := await _load_detail(walk, thread_id, run_id)) is not None:
        return found
    places = await _find_by_beginning(walk, run_id, named)
    if len(places) > 1:
        several = ", ".join(f"{run!r} of thread {thread!r}" for thread, run in places[:_SHOWN_MAX])
        raise NotFound(f"the ids of {len(places)} runs begin with {run_id!r}, write more of one: {several}")
    for place in places:
        if (found := await _load_detail(walk, *place)) is not None:
            return found
    raise NotFound(
        f"{where} no run {run_id!r}, and none whose id begins so with {BEGINNING_MIN} characters or more: it "
        "has not begun, or its record was removed; `perdure runs ls` lists those that there are"
    )


async def _load_detail(walk: ThreadWalk, thread_id: str, run_id: str) -> RunDetail | None:
    partition = Partition(walk.tenant, thread_id)
    row = await walk.database.arun(load_row(partition))
    return await walk.database.arun(read_detail(partition, run_id, row))


async def _find_by_beginning(
    walk: ThreadWalk, beginning: str, thread_id: str | None
) -> list[tuple[str, str]]:
    """Return the threads and the ids of the runs whose ids begin so; only the one that has this very id, if
    there is one."""
    found: dict[tuple[str, str], None] = {}

    async def look(thread: str) -> bool:
        (records,) = await walk.database.arun(
            read_all(Partition(walk.tenant, thread), Range(RUN, bodies=False))
        )
        names = [record.key[0] for record in records]
        if len(beginning) >= BEGINNING_MIN:
            found.update({(thread, name): None for name in names if name.startswith(beginning)})
        return beginning in names

    if thread_id is not None:
        await look(thread_id)
        return list(found)
    for status in ("error", None):
        async with aclosing(walk._replace(status=status).steps()) as steps:
            async for step in steps:
                if step.row is not None and await look(step.row.thread_id):
                    return [(step.row.thread_id, beginning)]
    return list(found)


async def load_input(walk: ThreadWalk, detail: RunDetail) -> list[Any]:
    """Return the contents of the messages that a run took, at most 100, as plain data."""
    partition, run = Partition(walk.tenant, detail.found.thread_id), detail.found.run
    taken = Range(INBOX, after=(run.first - 1,), limit=min(detail.messages, _PAGE))
    (records,) = await walk.database.arun(ask(Fetch(partition, (taken,))))
    messages = read_each(partition, Message.read, records)
    return [to_plain(message.payload) for message in messages if message.seq <= run.last]


def read_detail(partition: Partition, run_id: str, row: ThreadRow | None = None) -> Program[RunDetail | None]:
    """Return a run of a thread, ``None`` if there is none; ``row`` is the thread, if it was read."""
    runs, latest_runs, heads, keys = yield from ask(
        Fetch(
            partition,
            (
                Get(RUN, (run_id,)),
                Range(RUN, by="first", reverse=True, limit=_PAGE, bodies=False),
                Get(HEAD, (ROOT,)),
                Get(DEDUPE, (make_repetition_key(run_id),)),
            ),
        )
    )
    if not runs:
        # ``run_id`` may be the id of a message that was joined with an earlier one: return their run.
        joined = yield from inbox.find(partition, run_id)
        if joined is None or joined.run is None or joined.run.id == run_id:
            return None
        return (yield from read_detail(partition, joined.run.id, row))
    run = read_one(partition, Run.read, runs[0])
    later_states = [record.fields["state"] for record in latest_runs if record.fields["first"] > run.first]
    head = heads[0].fields["checkpoint_id"] if heads else ""
    seq = keys[0].fields["seq"] if keys else 0
    messages, repetitions, checkpoints = yield from ask(
        Fetch(
            partition,
            (Get(INBOX, (run.first,)), Get(INBOX, (seq,)), Get(CHECKPOINT, (ROOT, head))),
        )
    )
    repeats = None
    of_message = None
    for message in read_each(partition, Message.read, messages):
        repeats = message.options.get(RETRY_OF)
        of_message = user_of_options(message.options)
    repeated_by = None
    for message in read_each(partition, Message.read, repetitions):
        repeated_by = message.id
    goes_on_from = None
    if checkpoints and (latest := CheckpointRecord.read(checkpoints[0])).run_id == run.id:
        goes_on_from = (latest.id, latest.step)
    stands = may_retry(run.state) and not keys and all(state == FAILED for state in later_states)
    user = UsersOfRow.read(row).choose_for(of_message)
    found = FoundRun(partition.thread, user, run, failure_of(run.note), bool(keys), stands)
    count = run.last - run.first + 1
    return RunDetail(found, partition.tenant, repeats, repeated_by, goes_on_from, count)
