"""Questions of a tenant's threads that wait for an answer, and answering them without a runtime."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, NamedTuple

from perdure.database.asynchronous import Database
from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.database.handle import DatabaseHandle
from perdure.engine.decoding import read_each
from perdure.engine.queue import questions
from perdure.engine.queue.inbox import Accept
from perdure.engine.retention.thread_expiry import read_expiry_facts
from perdure.errors import Corrupt
from perdure.langgraph.reading import open_interrupts
from perdure.model.ops import Fetch, Get, Now
from perdure.model.program import Program, ask
from perdure.model.records import INBOX, LANE, RUN, Partition
from perdure.model.runs.messages import Message, Run
from perdure.model.runs.payloads import RESUME
from perdure.model.runs.queue import IN, Debounce, Lane
from perdure.model.runs.waits import HANDED_OVER, Kind, Wait, read_waits, require_name
from perdure.model.times import time_of
from perdure.runtime.notifications import Notifications
from perdure.runtime.operations.walk_by_activity import ThreadWalk
from perdure.runtime.options import Options
from perdure.runtime.settings import Settings
from perdure.runtime.threads.rows import ThreadRow
from perdure.runtime.threads.user_and_title import find_title, find_user
from perdure.runtime.tickets import SignalReceipt, address_answer, make_signal, message_of


class AskedQuestion(NamedTuple):
    """A question that waits for an answer. Times are microseconds since 1970.

    Attributes:
        thread_id: the thread.
        title: its title, if it has one.
        user: its user, ``None`` if it names none.
        graph: the graph that asked, ``None`` if no stored run asked.
        run_id: the run that asked, ``None`` likewise.
        interrupt_id: the interrupt, ``None`` for a stop before or after a node.
        value: what is asked, in plain data.
        since: the time at which it was asked.
        until: the time at which its thread expires if nothing happens, ``None`` if it does not, by
            the retention policies that this process knows.
        fault: why it cannot be read, if it cannot.
        kind: ``sleep`` and ``signal`` are waits that no person answers; they have no ``value``.
        deadline: the time at which it is answered by its default or expires, ``None`` if it does not.
        signal: the name of the signal that it waits for.
    """

    thread_id: str
    title: str
    user: str | None
    graph: str | None
    run_id: str | None
    interrupt_id: str | None
    value: Any
    since: int
    until: int | None
    fault: str | None = None
    kind: Kind = "question"
    deadline: int | None = None
    signal: str | None = None


class QuestionStep(NamedTuple):
    """A thread that was examined: the cursor from which to continue after it, and its open questions."""

    cursor: str
    questions: tuple[AskedQuestion, ...]


async def search(
    walk: ThreadWalk,
    *,
    user: str | None = None,
    asked_before: int | None = None,
    cursor: str = "",
    with_waits: bool = False,
) -> AsyncGenerator[QuestionStep, None]:
    """Yield the open questions, thread by thread, the oldest first where threads come by time.

    Args:
        walk: the threads; those with the status ``interrupted`` are examined.
        user: the user of the threads, ``None`` for any.
        asked_before: latest time at which they were asked, in microseconds since 1970.
        cursor: where to continue, empty for the beginning.
        with_waits: include sleeps, and waits for signals.
    """
    walk = walk._replace(status="interrupted", is_oldest_first=True)
    async with aclosing(walk.steps(cursor)) as steps:
        async for step in steps:
            found: tuple[AskedQuestion, ...] = ()
            if step.row is not None and user in (None, find_user(step.row.metadata)):
                program = load_questions(walk.database, walk.tenant, step.row, with_waits=with_waits)
                found = await walk.database.arun(program)
            yield QuestionStep(
                step.cursor,
                tuple(each for each in found if asked_before is None or each.since <= asked_before),
            )


def load_questions(
    database: DatabaseHandle, tenant: str, row: ThreadRow, *, with_waits: bool = False
) -> Program[tuple[AskedQuestion, ...]]:
    """Return the open questions of a thread; none while a run is open or a message waits. ``with_waits``
    includes sleeps, and waits for signals."""
    partition = Partition(tenant, row.thread_id)
    lane, run = yield from _load_waiting_run(partition)
    if lane.run_id is not None or lane.pending or (run is not None and HANDED_OVER in run.note):
        return ()
    fault, checkpoint_id = None, None
    values: Mapping[str, Any] = {}
    try:
        checkpoint_id, values = yield from open_interrupts.read_values(partition, database.digest)
    except Corrupt as error:
        fault = str(error)
    asked_at = run.updated_at if run is not None else time_of(checkpoint_id or "")
    until = yield from _find_expiry(database, partition)
    common = AskedQuestion(
        row.thread_id,
        find_title(row.metadata),
        find_user(row.metadata),
        run.graph if run is not None else row.graph_id,
        None if run is None else run.id,
        None,
        None,
        asked_at or row.updated_at,
        until,
        fault,
    )
    if not values and fault is None and not (yield from questions.is_paused(partition, lane)):
        return ()
    if not values:
        return (common,)
    waits = {} if run is None else read_waits(run.note)
    asked = (_describe_question(common, name, value, waits.get(name)) for name, value in values.items())
    return tuple(each for each in asked if with_waits or each.kind == "question")


def _describe_question(
    common: AskedQuestion, interrupt_id: str, value: Any, wait: Wait | None
) -> AskedQuestion:
    asked = common._replace(interrupt_id=interrupt_id, value=value)
    if wait is None:
        return asked
    value = value if wait.kind == "question" else None
    return asked._replace(value=value, kind=wait.kind, deadline=wait.until, signal=wait.name or None)


def _find_expiry(database: DatabaseHandle, partition: Partition) -> Program[int | None]:
    try:
        found = yield from read_expiry_facts(partition)
        return found.expires_at(database.retention)
    except (Corrupt, LookupError):
        return None


def read_asking_options(partition: Partition) -> Program[Options]:
    """Return the config and the context of the run that asked a thread's open question: with these, the graph
    continues for the same user if an operator answers. Empty options if there is no such run."""
    _, run = yield from _load_waiting_run(partition)
    if run is None:
        return Options()
    (messages,) = yield from ask(Fetch(partition, (Get(INBOX, (run.first,)),)))
    for message in read_each(partition, Message.read, messages):
        options = Options.read_if_readable(message.options)
        return Options(config=options.config, context=options.context)
    return Options()


def _load_waiting_run(partition: Partition) -> Program[tuple[Lane, Run | None]]:
    """Return the inbox of a thread, and the run that it shows as waiting, if there is one."""
    (lanes,) = yield from ask(Fetch(partition, (Get(LANE, (IN,)),)))
    lane = Lane.read(IN, lanes)
    if lane.waiting is None:
        return lane, None
    (stored,) = yield from ask(Fetch(partition, (Get(RUN, (lane.waiting,)),)))
    return lane, next(read_each(partition, Run.read, stored), None)


async def answer(
    database: Database | SyncDatabase,
    partition: Partition,
    value: Any,
    *,
    interrupt_id: str | None = None,
    graph: str | None = None,
) -> str:
    """Answer a question, so that a worker in another process continues; return the id of the answer's run.

    Args:
        database: the database.
        partition: the thread.
        value: the answer, plain JSON data.
        interrupt_id: the interrupt, if the thread waits for several.
        graph: the graph that asked, if no stored run asked.

    Raises:
        NotWaiting: the thread does not wait for this answer.
        QueueFull: too many messages wait.
        Unserialisable, TooLarge: the answer cannot be stored.
    """
    handle = handle_of(database)
    resume, interrupt_ids = address_answer(value, interrupt_id)
    options = await handle.arun(read_asking_options(partition))
    message = message_of(graph or "", {RESUME: resume}, "answer", None, "", options, answers=interrupt_ids)
    accept = Accept(
        partition,
        message,
        await handle.arun(ask(Now())),
        Debounce(),
        "enqueue",
        Settings().max_pending,
        handle.draw_version(),
        read_asked=partial(database.checkpointer(tenant=partition.tenant).read_asked, partition),
    )
    accepted = await handle.arun(accept.store(None))
    Notifications(handle, None).notify_due(partition)
    return accepted.id


async def give_signal(
    database: Database | SyncDatabase,
    partition: Partition,
    name: str,
    value: Any,
    *,
    key: str | None = None,
    to_all: bool = True,
) -> SignalReceipt:
    """Give a signal to a thread, so that a worker in another process continues; the arguments and errors are
    those of ``Runtime.signal``."""
    handle = handle_of(database)
    signal = make_signal(
        partition,
        require_name(name),
        value,
        key,
        to_all=to_all,
        now=await handle.arun(ask(Now())),
        fresh=handle.draw_version(),
        read_asked=partial(database.checkpointer(tenant=partition.tenant).read_asked, partition),
    )
    signalled = await handle.arun(signal.store())
    if signalled.accepted is not None and not signalled.is_duplicate:
        Notifications(handle, None).notify_due(partition)
    return SignalReceipt.of(signal, signalled)
