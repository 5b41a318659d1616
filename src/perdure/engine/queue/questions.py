"""A thread's question: its answer, what is left of it after a run, and the reply to send once it is closed.

The open questions are read from the latest checkpoint each time. The inbox names the run that asked, whose
graph and channel an answer gets. A run that waits may leave a reply in its note for the case that its
question is closed without an answer. This reply enters the outbox in the commit that ends the run which
replaced the question, so that the people who got the question learn that it is closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from perdure.engine.decoding import read_each, read_one
from perdure.engine.queue.latest_checkpoint import read_latest_checkpoint
from perdure.engine.requests import read_lane, read_record, try_commit
from perdure.engine.threads.thread_records import raise_generation
from perdure.engine.threads.thread_state import guards, load_view
from perdure.engine.transact import ATTEMPTS
from perdure.errors import Conflict, Corrupt, NotWaiting
from perdure.model.checkpoint import CheckpointRecord, PendingWrite
from perdure.model.heads import ROOT, belongs
from perdure.model.ops import Check, Delete, Expect, Fetch, Get, Op, Range
from perdure.model.program import Program, ask
from perdure.model.records import CHECKPOINT, HEAD, INBOX, LANE, RUN, WRITE, Key, Partition, Record
from perdure.model.runs.lifecycle import Facts, Left, QuestionState, decide_question_state
from perdure.model.runs.messages import ANSWERS, RETRY_OF, START, WAITING, Message, Run
from perdure.model.runs.payloads import COMMAND
from perdure.model.runs.payloads import RESUME as ANSWER
from perdure.model.runs.queue import IN, Lane
from perdure.model.runs.stale_questions import StaleQuestions, find_added_questions
from perdure.model.runs.waits import BY_WAIT, HANDED_OVER, find_unanswerable, mark_resume, read_waits
from perdure.model.write_records import (
    INTERRUPT,
    NULL_TASK,
    RESUME,
    find_asking_tasks,
    group_by_record,
    plan_partial_removal,
    put_over,
    read_writes,
)

REFUSALS = (NotWaiting, Conflict)
"""Refusals of a message because of its thread's questions. The questions are read after the inbox, so the
cause may be the same message, accepted by another process in between."""
_CLOSED = "if_closed"
CLOSING_ORD = 1 << 20
"""Place of the closing reply among those of its run: above all others, and the same each time."""


class Asked(NamedTuple):
    """Questions of a checkpoint of a thread.

    Attributes:
        head: the version of the record that names the latest checkpoint, ``None`` if there is none.
        interrupts: ids of the checkpoint's interrupts that have no answer.
        renamed: further ids under which clients may know the interrupts, because a node was renamed since.
        is_latest: false for the questions of an older checkpoint.
        waits: of an older checkpoint, the interrupts of sleeps and of waits for signals, which no person
            answers; of the latest one, these are known from the run that asked.
    """

    head: int | None = None
    interrupts: tuple[str, ...] = ()
    renamed: tuple[str, ...] = ()
    is_latest: bool = True
    waits: tuple[str, ...] = ()


NEWEST = Range(RUN, by="first", reverse=True, limit=10)
"""The newest runs, one of which may have asked a question that a rollback reopened."""


class ReadAsked(Protocol):
    """Reads what a thread asks now, or what it asks at a checkpoint."""

    def __call__(self, checkpoint_id: str | None = None, /) -> Program[Asked]:
        """Read the questions; raise ``NotFound`` if the checkpoint is not stored."""
        ...


def ask_nothing(checkpoint_id: str | None = None, /) -> Program[Asked]:
    """Return no questions, for a thread that asks nothing."""
    yield from ()
    return Asked()


class OpenQuestion(NamedTuple):
    """A question that may be answered. ``asked`` has no interrupts if the graph stopped before or after a
    node; ``run`` is the run that asked, ``None`` if an application ran the graph itself."""

    asked: Asked
    run: Run | None

    @property
    def interrupts(self) -> tuple[str, ...]:
        """Ids of the interrupts that have no answer."""
        return self.asked.interrupts

    @property
    def unanswerable_ids(self) -> frozenset[str]:
        """Ids of the interrupts that no person answers: those of a sleep, or of a wait for a signal."""
        if self.run is None:
            return frozenset(self.asked.waits)
        return find_unanswerable(self.run.note).union(self.asked.waits)

    @property
    def is_elsewhere(self) -> bool:
        """True if the question was handed over to another database, and is to be answered there."""
        return self.run is not None and HANDED_OVER in self.run.note

    def knows(self, interrupt_id: str) -> bool:
        """Return True if an interrupt has this id, or is known under it because a node was renamed."""
        return interrupt_id in self.asked.interrupts or interrupt_id in self.asked.renamed


def with_closing_reply(
    note: Mapping[str, Any], payload: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the note of a run that waits, with what happens once its question is closed or answered.

    Args:
        note: the note of the run.
        payload: the reply for the run's channel if the question is closed without an answer.
        options: the options to store with an answer that comes without a channel of its own.
    """
    return {**note, _CLOSED: {"reply": dict(payload), "options": dict(options)}}


def choose_closing_options(run: Run) -> Mapping[str, Any]:
    """Return the options of an answer that comes without a channel of its own."""
    options: Mapping[str, Any] = run.note.get(_CLOSED, {}).get("options", {})
    return options


def find_open_question(
    partition: Partition, lane: Lane, read_asked: ReadAsked
) -> Program[tuple[OpenQuestion | None, tuple[Op, ...]]]:
    """Return the question of a thread that may be answered now, ``None`` if there is none, and the check that
    the question has not changed. While the thread is busy this check is left out, as that of the inbox
    suffices. Messages that were withdrawn, and that no worker has passed over yet, do not make it busy.

    Args:
        partition: the thread.
        lane: its inbox.
        read_asked: reads what it asks.
    """
    if (yield from _is_busy(partition, lane)):
        return None, ()
    asked = yield from read_asked()
    unchanged = (check_head(asked),)
    is_asking = bool(asked.interrupts) or (yield from is_paused(partition, lane))
    facts = Facts(is_busy=False, is_asking=is_asking)
    if decide_question_state(facts) is not QuestionState.OPEN:
        return None, unchanged
    run = yield from find_asking_run(partition, lane, asked.interrupts)
    return OpenQuestion(asked, run), unchanged


def _is_busy(partition: Partition, lane: Lane) -> Program[bool]:
    """Return True if a run of a thread is open, or a message waits that was not withdrawn."""
    while lane.run_id is None and lane.pending:
        pending = Range(INBOX, after=(lane.bound,), limit=lane.pending, bodies=False)
        lanes, found = yield from ask(Fetch(partition, (Get(LANE, (IN,)), pending)))
        seen, lane = lane, Lane.read(IN, lanes)
        if lane.version == seen.version:
            return len(found) != lane.pending or any(each.fields["mode"] != "withdrawn" for each in found)
    return lane.run_id is not None


def find_asking_run(partition: Partition, lane: Lane, interrupts: Sequence[str]) -> Program[Run | None]:
    """Return the run that asked the questions of a thread's latest checkpoint: the run named by the inbox, or
    else the newest that waited with one of these interrupts, as after a rollback; ``None`` if no run did."""
    if lane.waiting is not None:
        (found,) = yield from ask(Fetch(partition, (Get(RUN, (lane.waiting,)),)))
        if found:
            return read_one(partition, Run.read, found[0])
    if not interrupts:
        return None
    (found,) = yield from ask(Fetch(partition, (NEWEST,)))
    for run in read_each(partition, Run.read, found):
        asked = {one["id"] for one in run.note.get("interrupts", ())}
        if run.state == WAITING and not asked.isdisjoint(interrupts):
            return run
    return None


def find(partition: Partition, read_asked: ReadAsked) -> Program[OpenQuestion | None]:
    """Return the question of a thread that a person may answer now, ``None`` if there is none."""
    lane = yield from read_lane(partition, IN)
    question, _ = yield from find_open_question(partition, lane, read_asked)
    if question is None or question.is_elsewhere:
        return None
    if not (left_alone := question.unanswerable_ids):
        return question
    ids = tuple(name for name in question.interrupts if name not in left_alone)
    if ids:
        return question._replace(asked=question.asked._replace(interrupts=ids))
    return None


def is_paused(partition: Partition, lane: Lane) -> Program[bool]:
    """Return True if a thread waits as its inbox shows, at an interrupt or at a node: the run that the inbox
    names may have been answered, or its thread edited, by a program that leaves the inbox as it is."""
    if lane.waiting is None:
        return False
    latest = yield from read_latest_checkpoint(partition)
    if latest is None:
        return False
    if latest.has_interrupt:
        return True
    return latest.is_asking((yield from read_waited(partition, lane)))


def waiting_run(partition: Partition) -> Program[str | None]:
    """Return the id of the run whose question a thread's latest checkpoint asks, whether it may be answered
    now or not; ``None`` if there is none."""
    lane = yield from read_lane(partition, IN)
    try:
        if not (yield from is_paused(partition, lane)):
            return None
    except Corrupt:
        # Whether its question stands cannot be known, so the run must not be removed.
        return lane.waiting
    return lane.waiting


def address_answer(
    partition: Partition, message: Message, lane: Lane, read_asked: ReadAsked
) -> Program[tuple[Message, tuple[Op, ...]]]:
    """Complete an answer with the graph that asked, with the only question if the answer names none, and by
    default with the channel of the run that asked. Return it with the check that the question is still the
    same.

    An answer that starts from the latest checkpoint is an answer like any other. One that starts from an
    older checkpoint, whose question has no answer, begins a fork there: it leaves the thread's question
    behind, as a message does.

    Raises:
        NotWaiting: the thread has no question that may be answered now, or not the one that the answer names.
        NotFound: the answer starts from a checkpoint that is not stored.
    """
    thread, named = partition.thread, message.options.get(ANSWERS, [])
    start = message.options.get(START)
    past = None
    if start is not None and not (yield from _is_busy(partition, lane)):
        asked_there = yield from read_asked(start)
        if asked_there.is_latest:
            # The run would otherwise begin there again at each attempt, also once an edit has moved the head.
            message = replace(message, options=_without_start(message.options))
        else:
            past = yield from _find_past_question(partition, lane, asked_there, start)
    if past is None:
        question, unchanged = yield from find_open_question(partition, lane, read_asked)
    else:
        question, unchanged = past, (check_head(past.asked),)
    if question is None:
        raise NotWaiting(
            f"thread {thread!r} waits for no answer: nothing interrupted it, it was answered already, or a "
            "later message goes on without one; nothing of this answer was stored. Look at the thread's state"
        )
    if question.is_elsewhere:
        raise NotWaiting(describe_elsewhere(thread, "this answer"))
    ids, run = question.interrupts, question.run
    if question.unanswerable_ids and BY_WAIT not in message.options:
        ids = tuple(name for name in ids if name not in question.unanswerable_ids)
        _refuse_wait(thread, question, named, has_question=bool(ids))
    asked = " and ".join(map(repr, ids)) or "nothing"
    if unknown := [name for name in named if not question.knows(name)]:
        raise NotWaiting(
            f"thread {thread!r} waits for the answer to {asked}, not to {unknown[0]!r}; nothing of this "
            "answer was stored. Look at the thread's state"
        )
    if not named and len(ids) > 1:
        raise NotWaiting(
            f"thread {thread!r} waits for the answers to {asked}, and this one names none of them; "
            "nothing of it was stored. Say which one it answers, or answer each by its id"
        )
    if run is None and not message.graph:
        raise NotWaiting(
            f"thread {thread!r} waits for the answer to {asked}, but no run asked it that is stored here; "
            "nothing of this answer was stored. Name the graph that asked (graph=, or --graph on the command "
            "line)"
        )
    options = dict(message.options)
    if run is not None:
        if not message.channel:
            options |= choose_closing_options(run)
        message = replace(message, graph=run.graph, channel=message.channel or run.channel)
    if not named and ids:
        options[ANSWERS] = list(ids)
    if run is not None and BY_WAIT not in options and RETRY_OF not in options:
        message = replace(message, payload=_mark_answers(message.payload, options.get(ANSWERS, ()), run))
    if past is not None:
        message = replace(message, mode="enqueue")
    return replace(message, options=options), unchanged


def _mark_answers(payload: Any, asked: Sequence[str], run: Run) -> Any:
    """Return the payload of a person's answer so that it is not taken for the mark of a deadline."""
    if not isinstance(payload, Mapping):
        return payload
    if COMMAND in payload:
        return {**payload, COMMAND: _mark_answers(payload[COMMAND], asked, run)}
    if ANSWER in payload:
        return {**payload, ANSWER: mark_resume(payload[ANSWER], asked, read_waits(run.note))}
    return payload


def _without_start(options: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if name != START}


def check_head(asked: Asked) -> Check:
    """Return the check that the latest checkpoint is still the one whose questions were read."""
    return Check(HEAD, (ROOT,), asked.head or Expect.ABSENT)


def _find_past_question(
    partition: Partition, lane: Lane, asked: Asked, checkpoint_id: str
) -> Program[OpenQuestion]:
    """Return the question of an older checkpoint.

    Raises:
        NotWaiting: it asks nothing that has no answer. LangGraph would go on with the answer that is stored
            there, and drop the new one.
    """
    if not asked.interrupts:
        raise NotWaiting(
            f"thread {partition.thread!r} waits for no answer at checkpoint {checkpoint_id!r}: it was "
            "answered already, or asked nothing; nothing of this answer was stored. Run the graph from there "
            "without input, so that it asks again, and answer that"
        )
    run = yield from find_asking_run(partition, lane._replace(waiting=None), asked.interrupts)
    return OpenQuestion(asked, run)


def describe_elsewhere(thread: str, what: str) -> str:
    """Return the text of the error for a message whose wait was handed over to another database."""
    return (
        f"thread {thread!r} was handed over to another database, and waits there; nothing of {what} was "
        "stored. Send it there, or hand the thread over to this database again"
    )


def _refuse_wait(thread: str, question: OpenQuestion, named: Sequence[str], *, has_question: bool) -> None:
    """Raise ``NotWaiting`` if an answer is to a sleep or to a wait for a signal."""
    if has_question and not question.unanswerable_ids.intersection(named):
        return
    raise NotWaiting(
        f"thread {thread!r} sleeps or waits for a signal, and takes no answer to that; nothing of this "
        "answer was stored. Send the signal, or wait until its time is over"
    )


def would_abandon_question(payload: Any) -> bool:
    """Return True if a payload is a command that goes to another node and answers nothing. Such a command
    would abandon an open question: LangGraph shows one of the two, and drops the other."""
    if not isinstance(payload, Mapping):
        return False
    command = payload.get(COMMAND)
    if not isinstance(command, Mapping) or ANSWER in command:
        return False
    return bool(command.get("goto")) and command["goto"] not in ("__end__", ["__end__"])


def refuse_abandoning(
    partition: Partition, message: Message, lane: Lane, read_asked: ReadAsked
) -> Program[tuple[Op, ...]]:
    """Return the check that a thread has no open question that a command would abandon; no check for any
    other message.

    Raises:
        Conflict: the thread has such a question.
    """
    if not would_abandon_question(message.payload) or START in message.options:
        # A run that starts from another checkpoint: its questions are known only once the run has loaded it.
        return ()
    question, unchanged = yield from find_open_question(partition, lane, read_asked)
    if question is not None and question.interrupts:
        raise Conflict(describe_abandoning(partition.thread, question.interrupts))
    return unchanged


def describe_abandoning(thread: str, interrupts: Sequence[str]) -> str:
    """Return the text of the error of a command that would abandon open questions."""
    asked = " and ".join(map(repr, interrupts))
    return (
        f"thread {thread!r} waits for the answer to {asked}, and a command that goes to another node would "
        "leave it; nothing of the command was stored. Answer first, with the goto beside the answer if it "
        "belongs to it, or end the step with goto='__end__'"
    )


def note_edit(partition: Partition, *, goes_on: bool) -> Program[None]:
    """Record that a thread without an open run was edited: from then on it waits at a node if ``goes_on``,
    otherwise for nothing."""
    for _ in range(ATTEMPTS):
        lanes, runs = yield from ask(
            Fetch(partition, (Get(LANE, (IN,)), Range(RUN, by="first", reverse=True, limit=1, bodies=False)))
        )
        lane = Lane.read(IN, lanes)
        waits_with = None
        if goes_on:
            waits_with = lane.waiting or next((run.key[0] for run in runs), None)
        if not lane.version or lane.run_id is not None or lane.waiting == waits_with:
            return
        if (yield from try_commit(partition, (lane._replace(waiting=waits_with).put(0),))):
            return


# The end of a run


def read_left(partition: Partition, run: Run, waited: Run | None) -> Program[Left]:
    """Return the facts about the thread's latest checkpoint after a run that failed or was stopped.

    Args:
        partition: the thread.
        run: the run.
        waited: the run whose question the thread was waiting on when it began, if any.
    """
    try:
        return (yield from _read_left(partition, run, waited))
    except Corrupt:
        # The damage must not keep the run from ending; a later read of the thread reports it.
        return Left(is_unmoved=False, has_interrupt=False)


def _read_left(partition: Partition, run: Run, waited: Run | None) -> Program[Left]:
    was_paused = waited is not None and not waited.note.get("interrupts")
    head_record = yield from read_record(partition, HEAD, (ROOT,))
    if head_record is None:
        return Left(is_unmoved=True, has_interrupt=False, was_paused=was_paused)
    head = head_record.fields["checkpoint_id"]
    stored, records = yield from ask(
        Fetch(partition, (Get(CHECKPOINT, (ROOT, head)), Range(WRITE, (ROOT, head), bodies=False)))
    )
    return Left(not _is_made_by(run, stored), bool(find_asking_tasks(records)), was_paused)


def _is_made_by(run: Run, checkpoint: tuple[Record, ...]) -> bool:
    return bool(checkpoint) and CheckpointRecord.read(checkpoint[0]).run_id == run.id


def find_closing_reply(waited: Run | None, waits: str | None, *, is_answer: bool) -> tuple[str, Any] | None:
    """Return the channel and the reply that a run left for the case that its question is closed without an
    answer; ``None`` if that does not happen now, or it left none.

    Args:
        waited: the run whose question the thread was waiting on.
        waits: the run whose question the thread waits on from now on.
        is_answer: an answer to the question was given.
    """
    if waited is None or waits == waited.id or is_answer or _CLOSED not in waited.note:
        return None
    return waited.channel, waited.note[_CLOSED]["reply"]


def has_written(partition: Partition, run: Run) -> Program[bool]:
    """Return True if what a run's command writes is stored beside the thread's latest checkpoint."""
    head = yield from read_record(partition, HEAD, (ROOT,))
    if head is None:
        return False
    place = (ROOT, head.fields["checkpoint_id"], NULL_TASK)
    (records,) = yield from ask(Fetch(partition, (Range(WRITE, place),)))
    return any(write.idx >= 0 and belongs(write.nonce, (run.id,)) for write in read_writes(records))


def may_have_taken(partition: Partition, run: Run) -> Program[bool]:
    """Return True if a run has asked, taken an answer, or stored a step of a subgraph, so that an answer
    without an id, with which it began its step, may have been taken."""
    (heads,) = yield from ask(Fetch(partition, (Range(HEAD),)))
    for head in heads:
        place = head.key[0], head.fields["checkpoint_id"]
        made, writes = yield from ask(
            Fetch(partition, (Get(CHECKPOINT, place), Range(WRITE, place, bodies=False)))
        )
        if place[0] != ROOT and _is_made_by(run, made):
            return True
        for write in writes:
            is_of_task = write.key[2] != NULL_TASK and write.fields["channel"] in (INTERRUPT, RESUME)
            if is_of_task and belongs(write.fields["nonce"], (run.id,)):
                return True
    return False


def read_behind(partition: Partition, run: Run) -> Program[frozenset[str]]:
    """Return the namespaces of the subgraphs of tasks that still ask what they asked before a run."""
    (heads,) = yield from ask(Fetch(partition, (Range(HEAD),)))
    latest = {head.key[0]: head.fields["checkpoint_id"] for head in heads}
    if len(latest) < 2 or ROOT not in latest:
        return frozenset()
    (records,) = yield from ask(Fetch(partition, (Range(WRITE, (ROOT, latest[ROOT])),)))
    stale = StaleQuestions.of(read_writes(records), find_asking_tasks(records), run.id)
    return frozenset(filter(stale.holds, latest))


def release_answers(partition: Partition, run: Run, message: Message) -> Program[bool]:
    """Take back the answers of a run that failed or was stopped after applying them, so that the questions
    are open again as before. Everything else that the run stored stays, also what a command without an answer
    wrote.

    A command is given again together with its answer. So a run that stored no checkpoint, and left questions
    as they were, also takes back what its command wrote beside the answer, and the questions of the tasks
    that the command added.

    Args:
        partition: the thread.
        run: the run.
        message: its first message. If this names a checkpoint to start from, a run that stored no checkpoint
            wrote there.

    Returns:
        False if there was nothing to take back.

    Raises:
        Fenced: the run is not held any more.
    """
    is_with_answer = COMMAND in message.payload and (message.mode == "answer" or ANSWERS in message.options)
    while True:
        view = yield from load_view(partition, ROOT)
        fence, _ = guards(partition, view, run.epoch)
        if view.head is None:
            return False
        head = Get(CHECKPOINT, (ROOT, view.head.checkpoint_id))
        checkpoint, heads = yield from ask(Fetch(partition, (head, Range(HEAD))))
        latest = {record.key[0]: record.fields["checkpoint_id"] for record in heads}
        latest[ROOT] = view.head.checkpoint_id
        is_moved = not checkpoint or _is_made_by(run, checkpoint)
        if not is_moved:
            latest[ROOT] = message.options.get(START, latest[ROOT])
        ops: list[Op] = []
        tasks: set[str] = set()
        # Parents first: a subgraph is examined if its task still waits for an answer.
        for namespace in sorted(latest, key=lambda name: (name.count("|"), name)):
            if not _is_to_examine(namespace, tasks):
                continue
            (records,) = yield from ask(Fetch(partition, (Range(WRITE, (namespace, latest[namespace])),)))
            asking, writes = find_asking_tasks(records), read_writes(records)
            tasks |= asking
            stale = StaleQuestions.of(writes, asking, run.id)
            gone = _find_answers(writes, {NULL_TASK, *stale.tasks}, run.id)
            if namespace == ROOT:
                gone += _find_all(writes, stale.called, run.id)
            if namespace == ROOT and not is_moved and is_with_answer and stale.tasks:
                gone += _find_all(writes, {NULL_TASK}, run.id)
                added = find_added_questions(gone, writes, CheckpointRecord.read(checkpoint[0]))
                ops += (Delete(WRITE, write.key, write.record_version) for write in added)
            ops += _plan_release(writes, gone)
        if not ops:
            return False
        # Chunks that the writes referred to may be unreachable now; a concurrent collection must see the
        # change.
        raised = raise_generation(view.generation, run.id)
        if (yield from try_commit(partition, (fence, raised, *ops))):
            return True


def _is_to_examine(namespace: str, tasks: set[str]) -> bool:
    """Return True for the root, for a subgraph that keeps its state, and for a subgraph that one of these
    tasks runs."""
    return ":" not in namespace or any(f":{task}|" in f"{namespace}|" for task in tasks)


def _find_answers(writes: Sequence[PendingWrite], tasks: Set[str], run_id: str) -> list[PendingWrite]:
    return [write for write in _find_all(writes, tasks, run_id) if write.channel == RESUME]


def _find_all(writes: Sequence[PendingWrite], tasks: Set[str], run_id: str) -> list[PendingWrite]:
    """Return what a run has written for tasks."""
    own = (write for write in writes if write.task_id in tasks and belongs(write.nonce, (run_id,)))
    return [write for write in own if not write.is_aside]


def _plan_release(writes: Sequence[PendingWrite], gone: Sequence[PendingWrite]) -> list[Op]:
    """Return the removals of writes, in whose place those that they have overwritten are restored."""
    aside, stored = {w.key: w for w in writes if w.is_aside}, group_by_record(writes)
    ops: dict[Key, Op] = {}
    for key, some in group_by_record(gone).items():
        overwritten = aside.get(some[0].aside.key) if some[0].idx < 0 else None
        if overwritten is None:
            ops[key] = plan_partial_removal(stored[key], some) or Delete(WRITE, key, some[0].record_version)
        else:
            ops[key] = put_over(overwritten._replace(idx=some[0].idx), some[0])
            ops[overwritten.key] = Delete(WRITE, overwritten.key)
    return list(ops.values())


def read_waited(partition: Partition, inbox: Lane) -> Program[Run | None]:
    """Return the run whose question a thread waits on, ``None`` if it waits on none. A run that is gone or
    cannot be read counts as none: the thread goes on all the same, and ``fsck`` reports it."""
    if inbox.waiting is None:
        return None
    stored = yield from read_record(partition, RUN, (inbox.waiting,))
    try:
        return stored and Run.read(stored)
    except Corrupt:
        return None
