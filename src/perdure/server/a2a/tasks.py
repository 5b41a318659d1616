"""Tasks of A2A: a task consists of a run, and of the runs that answer its questions.

The state of a task is read from the records of its runs each time, so every server knows it, even after a
restart. The task's id contains the ids of its first run and of its thread, and the thread's id determines the
task's context.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perdure.langgraph.reading.open_interrupts import is_by_name
from perdure.model.runs.messages import DONE, OPEN, WAITING, Run
from perdure.model.runs.payloads import COMMAND, INPUT, RESUME
from perdure.model.runs.waits import BY_WAIT, find_unanswerable, is_unanswerable
from perdure.runtime import Standing
from perdure.runtime.json_encoding import to_json
from perdure.runtime.options import Options
from perdure.runtime.tenant import TenantRuntime
from perdure.server import responses
from perdure.server.a2a.contexts import context_of
from perdure.server.a2a.parts import make_data_part, parts_of, text_of
from perdure.server.responses import run_id_of
from perdure.server.runs.run_values import RunResult, result_of, values_of
from perdure.server.state_snapshots import list_asked, list_messages

PROTOCOL = "protocol"
"""Key, in a run's data, of the protocol through which the run was created and of the protocol's own data."""
A2A = "a2a"
_PAGE = 100
_PAGES_MAX = 10
"""Maximum number of pages of a thread's messages that are read for one task."""
_MESSAGES = "messages"

SUBMITTED, WORKING = "TASK_STATE_SUBMITTED", "TASK_STATE_WORKING"
COMPLETED, FAILED, CANCELED = "TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED"
INPUT_REQUIRED = "TASK_STATE_INPUT_REQUIRED"
TERMINAL = frozenset({COMPLETED, FAILED, CANCELED})

_STATES = {
    "pending": SUBMITTED,
    "running": WORKING,
    "success": COMPLETED,
    "interrupted": CANCELED,
    "": CANCELED,
}

JsonObject = dict[str, Any]


def task_id_of(thread_id: str, run_id: str) -> str:
    """Return the id of the task that began with a run."""
    return f"{run_id}:{thread_id}"


def split_task_id(task_id: str) -> tuple[str, str]:
    """Return the ids of the thread and the run in a task's id; raise ``ValueError`` if one is missing."""
    run_id, colon, thread_id = task_id.partition(":")
    if not (run_id and colon and thread_id):
        raise ValueError("the id of a task has the form RUN:CONTEXT; pass it as it was returned")
    return thread_id, run_id


def protocol_of(standing: Standing) -> Mapping[str, Any]:
    """Return A2A's own data of a run; empty if the run was not created through A2A."""
    stored: Mapping[str, Any] = Options.read_if_readable(standing.message.options).about.get(PROTOCOL) or {}
    if stored.get("name") == A2A:
        return stored
    return {}


@dataclass(frozen=True, slots=True)
class DurableTask:
    """A task: the message that began it, those that answered its questions, and the standing of each.

    Attributes:
        asked: ids of the interrupts that wait for an answer, ``None`` if the task waits for none.
        may_be_superseded: True if a later message of the context was accepted that may replace the question.
            Until that is decided, the question takes no answer.
        is_asleep: True if the task waits for a time or a signal, but for no answer.
    """

    thread_id: str
    standings: tuple[Standing, ...]
    asked: tuple[str, ...] | None = None
    may_be_superseded: bool = False
    is_asleep: bool = False

    @property
    def id(self) -> str:
        return task_id_of(self.thread_id, self.first_run_id)

    @property
    def first_run_id(self) -> str:
        """The id of the run with which the task began, even if that run is not stored any more."""
        return _task_run_of(self.standings[0])

    @property
    def context_id(self) -> str:
        return context_of(self.thread_id)

    @property
    def current(self) -> Standing:
        """The standing of the latest run, which determines the task's state."""
        return self.standings[-1]

    @property
    def run_id(self) -> str:
        """The id of the latest run."""
        return run_id_of(self.current)

    @property
    def assistant_id(self) -> Any:
        return self.standings[0].message.options.get("about", {}).get("assistant_id")

    @property
    def state(self) -> str:
        """The state in A2A's terms."""
        run = self.current.run
        if self.asked is not None:
            return INPUT_REQUIRED
        if self.may_be_superseded or self.is_asleep:
            return WORKING
        if self.is_superseded:
            return CANCELED
        if protocol_of(self.current).get("ends") and run is not None:
            return CANCELED
        return _STATES.get(responses.run_status(self.current), FAILED)

    @property
    def question(self) -> str | None:
        """The id of the interrupt whose answer the task waits for, if there is exactly one."""
        if self.asked is not None and len(self.asked) == 1:
            return self.asked[0]
        return None

    @property
    def is_superseded(self) -> bool:
        """True if a later message of the context replaced the task's question, so that it takes no answer."""
        run = self.current.run
        is_open = self.asked is not None or self.may_be_superseded or self.is_asleep
        return run is not None and run.state == WAITING and not is_open

    def with_standing(self, standing: Standing) -> DurableTask:
        """Return the task with a newer standing of its current run."""
        run = standing.run
        asked, is_asleep = None, False
        if run is not None and run.state == WAITING:
            unanswerable = find_unanswerable(run.note)
            ids = [str(each["id"]) for each in run.note.get("interrupts", ())]
            asked = tuple(name for name in ids if name not in unanswerable)
            if is_asleep := bool(ids) and not asked:
                asked = None
        standings = (*self.standings[:-1], standing)
        return replace(self, standings=standings, asked=asked, is_asleep=is_asleep)


async def find(runtime: TenantRuntime, thread_id: str, run_id: str) -> DurableTask | None:
    """Return the task that began with a run, None if there is none.

    The run may not be stored: a thread that waits is handed over to another database with only the run that
    asked last. Then the task consists of those answers that are stored.
    """
    first = await runtime.find(thread_id, run_id)
    if first is None:
        first = await _find_first_answer(runtime, thread_id, run_id)
        if first is None:
            return None
    elif not (protocol := protocol_of(first)) or "task" in protocol or is_by_wait(first):
        return None
    if first.run is None or first.run.state != WAITING:
        return DurableTask(thread_id, (first,))
    standings, after = [first], first.message.seq
    newest = await runtime.messages(thread_id, limit=1)
    for _ in range(_PAGES_MAX):
        if not newest or after >= newest[0].message.seq:
            break
        page = await runtime.messages(thread_id, limit=_PAGE, before=after + _PAGE + 1)
        if _add_answers(standings, [one for one in reversed(page) if one.message.seq > after]):
            break
        after += _PAGE
    return await _with_question(runtime, DurableTask(thread_id, tuple(standings)))


async def _find_first_answer(runtime: TenantRuntime, thread_id: str, run_id: str) -> Standing | None:
    """Return the first answer of the task that began with a run, searched among the thread's newest
    messages."""
    first: Standing | None = None
    before: int | None = None
    for _ in range(_PAGES_MAX):
        page = await runtime.messages(thread_id, limit=_PAGE, before=before)
        for standing in page:
            if protocol_of(standing).get("task") == run_id:
                first = standing
        if len(page) < _PAGE:
            break
        before = page[-1].message.seq
    return first


def _task_run_of(standing: Standing) -> str:
    """Return the id of the run with which the task of a run began."""
    return protocol_of(standing).get("task") or run_id_of(standing)


async def _with_question(runtime: TenantRuntime, task: DurableTask) -> DurableTask:
    """Return a task with the thread's open question, if a run of the task asked it. The question stays open
    if the run of an answer failed."""
    waiting_run_id = await runtime.waiting_run(task.thread_id)
    if waiting_run_id is None or all(run_id_of(standing) != waiting_run_id for standing in task.standings):
        return task
    if (run := task.current.run) is None or run.state == OPEN:
        return task
    if (question := await runtime.question(task.thread_id)) is not None:
        return replace(task, asked=question.interrupts)
    row = await runtime.threads.get(task.thread_id)
    if row.status == "busy" or not any(is_unanswerable(row.waits, name) for name in row.waits):
        return replace(task, may_be_superseded=True)
    # A run that failed after its wait was over is not asleep: nothing wakes it again.
    return replace(task, is_asleep=run.state == WAITING)


def _add_answers(task: list[Standing], newer: Iterable[Standing]) -> bool:
    """Add the answers among later messages, oldest first, to a task that has asked a question. Return True if
    the messages after these can only answer questions of other runs."""
    task_run = _task_run_of(task[0])
    for standing in newer:
        last = task[-1].run
        if last is None or last.state in (OPEN, DONE):
            return True
        if standing.run is not None and standing.run.id == last.id:
            continue
        protocol = protocol_of(standing)
        # An answer that was not given through A2A, but for instance through the API of threads, continues the
        # task as well; so does that of a deadline, although it has A2A's data of the run that asked.
        is_from_elsewhere = standing.message.mode == "answer" and (not protocol or is_by_wait(standing))
        if protocol.get("task") == task_run or is_from_elsewhere:
            task.append(standing)
        elif standing.run is not None and standing.run.state in (DONE, WAITING):
            # Later answers are for questions of this run.
            return True
    return False


async def list_tasks(
    runtime: TenantRuntime, thread_id: str, limit: int, before: int | None
) -> tuple[list[DurableTask], int | None]:
    """Return tasks of a thread, newest first.

    Args:
        runtime: the runtime of the user's tenant.
        thread_id: the thread.
        limit: number of messages to look at.
        before: look only at messages with lower numbers, None for all.

    Returns:
        The tasks, and the value of ``before`` for the next page, None if there are no more.
    """
    page: Sequence[Standing] = await runtime.messages(thread_id, limit=limit, before=before)
    found: list[DurableTask] = []
    tasks: dict[str, DurableTask | None] = {}
    for standing in page:
        if not protocol_of(standing):
            continue
        if (first_run_id := _task_run_of(standing)) not in tasks:
            tasks[first_run_id] = await find(runtime, thread_id, first_run_id)
        task = tasks[first_run_id]
        if task is not None and task.standings[0].message.seq == standing.message.seq:
            found.append(task)
    if len(page) < limit:
        return found, None
    return found, page[-1].message.seq


async def describe_task(runtime: TenantRuntime, task: DurableTask) -> JsonObject:
    """Return a task in A2A's JSON form, with its reply or its question."""
    state, run = task.state, task.current.run
    updated = responses.updated_at_of(task.current)
    status: JsonObject = {"state": state, "timestamp": responses.format_time(updated)}
    shown: JsonObject = {
        "id": task.id,
        "contextId": task.context_id,
        "status": status,
        "history": [asked for one in task.standings if (asked := _read_user_message(task, one)) is not None],
    }
    if state == COMPLETED and run is not None:
        result = await result_of(runtime, task.thread_id, task.standings[0].run or run, run)
        if (artifact := _make_artifact(task, result)) is not None:
            shown["artifacts"] = [artifact]
    if run is not None and (parts := await _describe_status(runtime, task, run)):
        status["message"] = {
            "messageId": f"{task.run_id}:{state}",
            "role": "ROLE_AGENT",
            "taskId": task.id,
            "contextId": task.context_id,
            "parts": parts,
        }
    return shown


async def _describe_status(runtime: TenantRuntime, task: DurableTask, run: Run) -> list[JsonObject]:
    """Return the parts of the message about a task's state: its questions, or why it sleeps or has ended."""
    if task.state == INPUT_REQUIRED:
        values = json.loads(to_json(await values_of(runtime, task.thread_id, run)))
        parts = [_make_part(one.get("value")) for one in list_asked(values)]
        return parts or [{"text": "The agent waits for a message to go on."}]
    if task.is_asleep:
        row = await runtime.threads.get(task.thread_id)
        waits = [wait for wait in row.waits.values() if wait.kind != "question"]
        return [{"text": responses.wait_text(wait)} for wait in waits]
    if task.state == FAILED:
        error = responses.run_error(run)
        return [{"text": f"{error['error']}: {error['message']}"}]
    if task.is_superseded:
        return [{"text": "The context continued with another message instead of an answer to the question."}]
    return []


def _make_part(value: Any) -> JsonObject:
    if isinstance(value, str) and value:
        return {"text": value}
    return make_data_part(value)


def _make_artifact(task: DurableTask, result: RunResult) -> JsonObject | None:
    """Return the result of a task: the last message that the agent has added or changed, or else the outputs
    of its graph besides messages. None if there is neither."""
    values, before = json.loads(to_json(result.after)), json.loads(to_json(result.before))
    if not isinstance(values, dict):
        return {"artifactId": task.run_id, "name": "values", "parts": [make_data_part(values)]}
    if not isinstance(before, dict):
        before = {}
    earlier_messages = list_messages(before)
    for message in reversed(list_messages(values)):
        is_new_reply = (
            isinstance(message, dict) and message.get("type") == "ai" and message not in earlier_messages
        )
        if is_new_reply and (parts := parts_of(message)):
            return {"artifactId": message.get("id") or task.run_id, "name": "reply", "parts": parts}
    outputs = {name: value for name, value in values.items() if name in result.outputs and name != _MESSAGES}
    if _MESSAGES in values:
        # Other values of a conversation are results of a task only if the task changed them.
        outputs = {name: value for name, value in outputs.items() if before.get(name) != value}
    if not outputs:
        return None
    return {"artifactId": task.run_id, "name": "values", "parts": [make_data_part(outputs)]}


def read_answer(standing: Standing) -> Any:
    """Return the answer that a message gives; if it answers one interrupt by its id, the answer alone."""
    payload = standing.message.payload
    answer = payload.get(RESUME, (payload.get(COMMAND) or {}).get("resume"))
    if is_by_name(answer) and len(answer) == 1:
        return next(iter(answer.values()))
    return answer


def is_by_wait(standing: Standing) -> bool:
    """Return True if a deadline or a signal gave the answer, not a person."""
    return bool(standing.message.options.get(BY_WAIT))


def _read_user_message(task: DurableTask, standing: Standing) -> JsonObject | None:
    """Return the user's message of a run, None for a run that has none."""
    if is_by_wait(standing):
        return None
    payload = standing.message.payload
    values = payload.get(INPUT)
    command = payload.get(COMMAND) or {}
    parts: list[JsonObject] = []
    if isinstance(values, dict):
        last = next(reversed(list_messages(values)), None)
        if isinstance(last, dict) and (text := text_of(last)):
            parts.append({"text": text})
        if others := {name: value for name, value in values.items() if name != _MESSAGES}:
            parts.append(make_data_part(others))
    elif RESUME in payload or "resume" in command:
        parts.append(_make_part(read_answer(standing)))
    if not parts:
        return None
    return {
        "messageId": protocol_of(standing).get("message") or standing.message.id,
        "role": "ROLE_USER",
        "taskId": task.id,
        "contextId": task.context_id,
        "parts": parts,
    }
