"""Response bodies: threads, states and runs in the shapes that LangGraph's clients expect."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Protocol, TypeVar

from fastapi import Response
from langgraph.types import PregelTask, StateSnapshot

from perdure.errors import Corrupt, Unreadable
from perdure.langgraph.reading.readable_states import refusals
from perdure.model import write_records
from perdure.model.runs.messages import (
    DONE,
    FAILED,
    INTERRUPTED,
    OPEN,
    RETRY_OF,
    ROLLED_BACK,
    TIMEOUT,
    WAITING,
    Run,
)
from perdure.model.runs.payloads import COMMAND, INPUT, RESUME
from perdure.model.runs.queue import INTERRUPT_RUN
from perdure.model.runs.waits import Wait, Waits, is_unanswerable
from perdure.model.times import to_datetime
from perdure.runtime import Standing
from perdure.runtime.events.outgoing import reference_of
from perdure.runtime.json_encoding import describe_interrupt, to_json
from perdure.runtime.threads.rows import ThreadRow
from perdure.server.assistants import Assistant
from perdure.server.error_handlers import make_public_message, make_recorded_message

CANCELLED = "Cancelled"
"""Type of the error of a run that was cancelled and has no result."""

_ENDED = {DONE: "success", WAITING: "success", INTERRUPTED: "interrupted", FAILED: "error"}


class Json(Response):
    """A response of JSON data, which may contain messages and other values of a graph."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return to_json(content).encode()


R = TypeVar("R")


class _Page(Protocol):
    """The part of a request that chooses a page of a list."""

    limit: int
    offset: int


def make_page(found: Sequence[R], asked: _Page, shown: Callable[[R], dict[str, Any]]) -> Json:
    """Return the page of a list that a request asks for.

    Args:
        found: the whole list, in order.
        asked: the page, and in its ``select``, if it has one, the parts of each entry to return.
        shown: returns an entry of the response.
    """
    end = asked.offset + asked.limit
    rows = [shown(entry) for entry in found[asked.offset : end]]
    select: Sequence[str] | None = getattr(asked, "select", None)
    if select is not None:
        rows = [select_parts(entry, select) for entry in rows]
    following = None
    if len(found) > end:
        following = end
    return Json(rows, headers=make_page_headers(len(found), following))


def make_page_headers(total: int, following: int | None) -> dict[str, str]:
    """Return the headers of a page.

    Args:
        total: the number of entries on all pages, as far as it is known.
        following: the offset of the next page, if there is one.
    """
    headers = {"X-Pagination-Total": str(total)}
    if following is not None:
        headers["X-Pagination-Next"] = str(following)
    return headers


def format_time(microseconds: int) -> str:
    """Return a time of the database as text, RFC 3339."""
    return to_datetime(microseconds).isoformat(timespec="microseconds")


def format_optional_time(microseconds: int | None) -> str | None:
    """Return a time as ``format_time`` does, None for None."""
    if microseconds is None:
        return None
    return format_time(microseconds)


def assistant(found: Assistant) -> dict[str, Any]:
    times = {"created_at": format_time(found.created_at), "updated_at": format_time(found.updated_at)}
    return {**asdict(found), **times}


def show_assistant_version(found: Assistant) -> dict[str, Any]:
    """Return a version of an assistant, which never changes."""
    shown = assistant(found)
    del shown["updated_at"]
    return shown


def thread(row: ThreadRow, state: StateSnapshot | None, fault: Exception | None = None) -> dict[str, Any]:
    """Return a thread, with the values of its state if that was read.

    Args:
        row: the thread.
        state: its state, if it was read.
        fault: the error that prevented reading the state. With it, or with a fault in the row, the status
            is ``error`` and the error names the thread.
    """
    fault = fault or row.fault
    updated_at = format_time(row.updated_at)
    body: dict[str, Any] = {
        "thread_id": row.thread_id,
        "created_at": format_time(row.created_at),
        "updated_at": updated_at,
        "state_updated_at": updated_at,
        "metadata": dict(row.metadata),
        "status": row.status,
        "config": {},
        "values": None,
        "interrupts": {},
        "error": None,
    }
    if state is not None:
        body["interrupts"] = {
            task.id: list(map(describe_interrupt, task.interrupts)) for task in state.tasks if task.interrupts
        }
        if state.created_at is not None:
            body |= {"state_updated_at": state.created_at, "values": state.values}
    if row.status == "error" and row.run is not None and row.run.state == FAILED:
        body["error"] = run_error(row.run)
    with_waits(body, row)
    if state is None and row.is_asleep and row.status == "interrupted":
        body["waits"] = [{"id": name, **wait_shown(wait)} for name, wait in row.waits.items()]
    if fault is not None:
        body |= {"status": "error", "error": describe_unreadable(row.thread_id, fault)}
    elif body["error"] is None and state is not None and (refused := refusals(state)):
        body["error"] = {name: refused[0][name] for name in ("error", "message")}
    return body


def with_waits(shown: dict[str, Any], row: ThreadRow) -> dict[str, Any]:
    """Add the deadlines to the questions of a thread or a state as it is shown. Move sleeps and waits for
    signals from the interrupts, which clients show to a person, to ``waits``."""
    others: dict[str, Any] = {}
    if row.waits:
        _sort_waits(shown, row.waits, others)
    if others:
        shown["waits"] = list(others.values())
    return shown


def _sort_waits(shown: dict[str, Any], waits: Waits, others: dict[str, Any]) -> None:
    """Keep only the questions among the interrupts of a thread, a state or a task as it is shown. Add its
    other waits to ``others``, by the id of the interrupt."""
    asked = shown.get("interrupts")
    if isinstance(asked, dict):
        by_task = {task: _keep_questions(interrupts, waits, others) for task, interrupts in asked.items()}
        shown["interrupts"] = {task: interrupts for task, interrupts in by_task.items() if interrupts}
    elif asked:
        shown["interrupts"] = _keep_questions(asked, waits, others)
    for task in shown.get("tasks") or ():
        if isinstance(task, dict):
            _sort_waits(task, waits, others)
            if isinstance(task.get("state"), dict):
                _sort_waits(task["state"], waits, others)


def _keep_questions(
    asked: Iterable[dict[str, Any]], waits: Waits, others: dict[str, Any]
) -> list[dict[str, Any]]:
    questions: list[dict[str, Any]] = []
    for entry in asked:
        name = entry["id"]
        if is_unanswerable(waits, name):
            others[name] = {"id": name, **wait_shown(waits[name])}
        elif name in waits:
            questions.append({**entry, "wait": wait_shown(waits[name])})
        else:
            questions.append(entry)
    return questions


def wait_shown(wait: Wait) -> dict[str, Any]:
    """Return a wait as it is shown: its kind, its deadline, and the signal that ends it, if one does."""
    shown = {"kind": wait.kind, "until": format_optional_time(wait.until)}
    if wait.name:
        shown["signal"] = wait.name
    return shown


def reminder(data: str) -> dict[str, Any]:
    """Return the event of a reminder: the run that asked, and its interrupts with their deadlines."""
    stored: dict[str, Any] = json.loads(data)
    asked = [{**each, "until": format_optional_time(each["until"])} for each in stored["interrupts"]]
    return {**stored, "interrupts": asked}


def wait_text(wait: Wait) -> str:
    """Return a wait as a sentence about the agent."""
    until = ""
    if wait.until is not None:
        until = f" until {format_time(wait.until)}"
    if wait.kind == "sleep":
        return f"The agent sleeps{until}."
    return f"The agent waits for the signal {wait.name!r}{until}."


def describe_unreadable(thread_id: str, fault: Exception) -> dict[str, str]:
    """Return the error of a thread that cannot be read."""
    kind = type(fault).__name__
    match fault:
        case Unreadable():
            cause = f": {make_public_message(fault)}"
        case Corrupt():
            cause = f" ({kind}): stored bytes are missing or damaged; `perdure fsck` with its id says which."
        case _:
            cause = (
                f" ({kind}): its values do not fit the graph that reads them; the server's log says where."
            )
    return {"error": kind, "message": f"Thread {thread_id!r} cannot be read{cause}"}


def ttl(row: ThreadRow) -> dict[str, Any] | None:
    """Return the time to live of a thread."""
    if row.ttl is None:
        return None
    return {**row.ttl, "expires_at": format_time(row.ttl["expires_at"])}


def state(snapshot: StateSnapshot, select: Sequence[str] | None = None) -> dict[str, Any]:
    """Return a state; with ``select`` only those parts, where ``values.key`` names one of the values."""
    here, parent = _make_ref(snapshot.config), _make_ref(snapshot.parent_config)
    values, metadata = snapshot.values, None
    if snapshot.created_at is None:
        # The thread has no such checkpoint, so it has no parent, either.
        values, here = {}, None
    elif here is not None:
        metadata = {**(snapshot.metadata or {}), "thread_id": here["thread_id"]}
    body: dict[str, Any] = {
        "values": values,
        "next": list(snapshot.next),
        "tasks": list(map(_show_task, snapshot.tasks)),
        "metadata": metadata,
        "created_at": snapshot.created_at,
        "checkpoint": here,
        "parent_checkpoint": parent,
        "interrupts": list(map(describe_interrupt, snapshot.interrupts)),
        "checkpoint_id": here and here["checkpoint_id"],
        "parent_checkpoint_id": parent and parent["checkpoint_id"],
    }
    if not select:
        return body
    return select_parts(body, select)


def select_parts(whole: Mapping[str, Any], select: Iterable[str]) -> dict[str, Any]:
    """Return the named parts of a mapping; ``values.key`` names a part of a part."""
    parts: dict[str, Any] = {}
    for name in select:
        head, _, rest = name.partition(".")
        if head not in whole:
            continue
        if not rest or not isinstance(whole[head], Mapping):
            parts[head] = whole[head]
        elif rest in whole[head]:
            part = parts.setdefault(head, {})
            if isinstance(part, dict):
                part[rest] = whole[head][rest]
    return parts


def _show_task(task: PregelTask) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": task.id,
        "name": task.name,
        "path": list(task.path),
        "error": None,
        "interrupts": list(map(describe_interrupt, task.interrupts)),
        "checkpoint": None,
        "state": None,
        "result": task.result,
    }
    if task.error is not None:
        shown["error"] = _make_error_text(task.error)
    if isinstance(task.state, StateSnapshot):
        shown["state"] = state(task.state)
    elif isinstance(task.state, Mapping):
        # Unless the states of subgraphs are requested, LangGraph gives the config of the subgraph instead.
        shown["checkpoint"] = reference_of(task.state)
    return shown


def _make_error_text(error: Any) -> str:
    """Return the text of a task's error, which is stored as its ``repr``."""
    if isinstance(error, BaseException):
        kind = type(error).__name__
        return f"{kind}({make_recorded_message(kind, str(error))!r})"
    stored = str(error)
    kind = stored.partition("(")[0]
    text = make_recorded_message(kind, stored)
    if text == stored:
        return stored
    return f"{kind}({text!r})"


def _make_ref(config: Any) -> dict[str, Any] | None:
    configurable = (config or {}).get("configurable")
    if not configurable:
        return None
    ref = {
        "thread_id": configurable.get("thread_id"),
        "checkpoint_ns": configurable.get("checkpoint_ns", ""),
        "checkpoint_id": configurable.get("checkpoint_id"),
    }
    if "checkpoint_map" in configurable:
        ref["checkpoint_map"] = configurable["checkpoint_map"]
    return ref


def outcome(state: StateSnapshot, waits: Waits) -> Any:
    """Return the values with which a run ended, including its interrupts if it waits for an answer; ``waits``
    are the waits of the run."""
    asked = [describe_interrupt(one) for one in state.interrupts if not is_unanswerable(waits, one.id)]
    if not asked:
        return state.values
    values = state.values if isinstance(state.values, Mapping) else {}
    return {**values, write_records.INTERRUPT: asked}


def checkpoint(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the response to an update of a state."""
    ref = _make_ref(config) or {}
    return {"checkpoint": ref, "configurable": ref, "checkpoint_id": ref.get("checkpoint_id")}


def run_status(standing: Standing) -> str:
    """Return the status of a run in the API's terms; ``""`` for one that was rolled back."""
    run = standing.run
    if run is None:
        if not standing.message.is_withdrawn:
            return "pending"
        if standing.message.stop == INTERRUPT_RUN:
            return "interrupted"
        return ""
    if run.state == ROLLED_BACK:
        return ""
    if run.state == FAILED and run.note.get("kind") == TIMEOUT:
        return "timeout"
    # A run that is being rolled back counts as running until it is removed.
    # A run of a withdrawn message only ends the message: the message says how it was stopped.
    stop = standing.stop
    if standing.message.is_withdrawn:
        stop = standing.message.stop
    if run.state == OPEN and stop == INTERRUPT_RUN:
        return "interrupted"
    return _ENDED.get(run.state, "running")


def run_error(run: Run) -> dict[str, str]:
    """Return the error with which a run failed."""
    text, kind = str(run.note.get("error", "")), str(run.note.get("kind", "Error"))
    return {"error": kind, "message": make_recorded_message(kind, text.removeprefix(f"{kind}: "))}


def end_error(standing: Standing) -> dict[str, str] | None:
    """Return the error of a run that has ended and left no values: it failed, was cancelled before it began,
    or was rolled back; None for any other."""
    run = standing.run
    if standing.message.is_withdrawn or run is None:
        return {"error": CANCELLED, "message": "the run was cancelled before it began, and left nothing"}
    if run.state == ROLLED_BACK:
        return {"error": CANCELLED, "message": "the run was rolled back, and left nothing"}
    if run.state == FAILED:
        return run_error(run)
    return None


def read_input(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the input of a run, as its client sent it."""
    command = dict(payload.get(COMMAND) or {})
    if RESUME in payload:
        command["resume"] = payload[RESUME]
    return {"input": payload.get(INPUT), "command": command or None}


def run(standing: Standing, thread_id: str) -> dict[str, Any]:
    """Return a run with its current status."""
    message = standing.message
    about = message.options.get("about", {})
    shown = {
        "run_id": run_id_of(standing),
        "thread_id": thread_id,
        "assistant_id": about.get("assistant_id"),
        "created_at": format_time(message.accepted_at),
        "updated_at": format_time(updated_at_of(standing)),
        "status": run_status(standing),
        "metadata": about.get("metadata", {}),
        "kwargs": {**read_input(message.payload), **about.get("kwargs", {})},
        "multitask_strategy": about.get("multitask_strategy", "enqueue"),
    }
    if RETRY_OF in message.options:
        shown["retry_of"] = message.options[RETRY_OF]
    if is_taken_up(standing):
        shown |= {"run_id": message.id, "taken_up_by": run_id_of(standing)}
    return shown


def run_id_of(standing: Standing) -> str:
    """Return the id of a message's run, or the id that the run will have if it has not begun."""
    if standing.run is None:
        return standing.message.id
    return standing.run.id


def updated_at_of(standing: Standing) -> int:
    """Return when a message's run has last changed, or when the message was accepted if it has no run."""
    if standing.run is None:
        return standing.message.accepted_at
    return standing.run.updated_at


def is_taken_up(standing: Standing) -> bool:
    """Return True if a message that steers was taken up by an open run, so that it did not become a run of
    its own."""
    return standing.message.mode == "steer" and run_id_of(standing) != standing.message.id
