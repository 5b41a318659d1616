"""Results of operations as JSON data, the same for commands and pages. Times are microseconds since 1970."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from perdure.engine.queue.stuck import Stuck
from perdure.runtime.json_encoding import to_plain
from perdure.runtime.operations.failures import FailureGroup, RunFailure
from perdure.runtime.operations.open_questions import AskedQuestion
from perdure.runtime.operations.reruns import Rerun
from perdure.runtime.operations.run_search import FoundRun, RunDetail
from perdure.runtime.question_forms import form_of, text_of

_QUESTION_MAX = 64 * 1024


def run_entry(found: FoundRun, *, with_traceback: bool = False) -> dict[str, Any]:
    """Return a run, without its input."""
    run = found.run
    return {
        "thread_id": found.thread_id,
        "run_id": run.id,
        "state": run.state,
        "graph": run.graph,
        "graph_version": run.graph_version,
        "channel": run.channel,
        "user": found.user,
        "attempts": run.attempts,
        "started_at": run.started_at,
        "updated_at": run.updated_at,
        "error": None if found.failure is None else _make_failure_entry(found.failure, with_traceback),
        "is_repeated": found.is_repeated,
        "stands": found.stands,
    }


def _make_failure_entry(failure: RunFailure, with_traceback: bool) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "kind": failure.kind,
        "message": failure.message,
        "group": failure.group,
        "node": failure.node,
    }
    if with_traceback:
        return {**entry, "traceback": failure.traceback}
    return entry


def make_detail_entry(detail: RunDetail) -> dict[str, Any]:
    """Return a run in all its detail."""
    checkpoint, step = detail.goes_on_from or (None, None)
    return {
        **run_entry(detail.found, with_traceback=True),
        "messages": detail.messages,
        "repeats": detail.repeats,
        "repeated_by": detail.repeated_by,
        "goes_on_from": None if checkpoint is None else {"checkpoint_id": checkpoint, "step": step},
    }


def make_stuck_entry(stuck: Stuck) -> dict[str, Any]:
    """Return threads that are blocked for one reason, with what can be done."""
    return {
        "problem": stuck.problem,
        "what": stuck.what,
        "name": stuck.name,
        "threads": stuck.threads,
        "since": stuck.since,
        "attempts": stuck.attempts,
        "tenant": stuck.example.tenant,
        "example": stuck.example.thread,
        "advice": _advise(stuck),
    }


def _advise(stuck: Stuck) -> str:
    if stuck.problem == "damaged":
        return "A record cannot be read: run `perdure fsck`."
    if stuck.problem == "failing":
        if stuck.what == "graph":
            return (
                "Attempts fail and are repeated: the inspector's page Runs and `perdure runs ls --status "
                "open` have the error, and the log of the workers has each of them."
            )
        return (
            "Attempts fail and are repeated: the thread's Inbox in the inspector and `perdure threads "
            "outbox` have the error, and the log of the workers has each of them."
        )
    if stuck.what == "graph":
        return (
            f"No worker takes them: start one with the graph {stuck.name!r}, or more of them if all are at "
            "work. `perdure runs stop` ends runs that are not wanted."
        )
    if stuck.what == "channel":
        return f"No worker sends them: start one with the channel {stuck.name!r} in its configuration."
    return "No worker looks after deadlines and reminders: start one."


def group_entry(group: FailureGroup) -> dict[str, Any]:
    """Return a group of failures."""
    thread_id, run_id = group.example
    return {
        **group._asdict(),
        "nodes": list(group.nodes),
        "example": {"thread_id": thread_id, "run_id": run_id},
        "versions": dict(sorted(group.versions.items(), key=lambda each: -each[1])),
    }


def rerun_entry(rerun: Rerun) -> dict[str, Any]:
    """Return an attempt to run a run again."""
    return rerun._asdict()


def _wait_text(question: AskedQuestion) -> str:
    if question.signal is None:
        return "It sleeps."
    return f"It waits for the signal {question.signal!r}."


def wait_entries(asked: Iterable[AskedQuestion]) -> dict[str, Any]:
    """Return the waits of a thread, apart from questions, and whether it waits for an answer, too."""
    questions = list(asked)
    return {
        "asks": any(each.kind == "question" for each in questions),
        "waits": [
            {
                "kind": each.kind,
                "since": each.since,
                "until": each.deadline,
                "signal": each.signal,
                "text": _wait_text(each),
            }
            for each in questions
            if each.kind != "question"
        ],
    }


def make_question_entry(question: AskedQuestion) -> dict[str, Any]:
    """Return an open question with its text and the form that answers it. A text longer than 64 kB is cut,
    and takes an answer as text or JSON only."""
    entry = question._asdict()
    value = to_plain(entry.pop("value"))
    if question.kind != "question":
        text, form = _wait_text(question), {"kind": "none"}
    elif question.interrupt_id is None:
        text, form = "It stopped before its next step.", {"kind": "pause"}
    else:
        text, form = text_of(value), form_of(value)
    if len(json.dumps(value, default=str)) > _QUESTION_MAX:
        value, form, text = None, {"kind": "open"}, f"{text[:_QUESTION_MAX]} [the rest is not shown]"
    return {**entry, "text": text, "value": value, "form": form}
