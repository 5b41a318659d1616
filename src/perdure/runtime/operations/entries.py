"""What operations found as JSON data, the same for commands and pages. Times are microseconds since 1970."""

from __future__ import annotations

from typing import Any

from perdure.runtime.operations.failures import Failure, FailureGroup
from perdure.runtime.operations.reruns import Rerun
from perdure.runtime.operations.run_search import FoundRun, RunDetail


def run_entry(found: FoundRun, *, with_traceback: bool = False) -> dict[str, Any]:
    """Return a run, without what it was given."""
    run = found.run
    return {
        "thread_id": found.thread_id,
        "run_id": run.id,
        "state": run.state,
        "graph": run.graph,
        "channel": run.channel,
        "user": found.user,
        "attempts": run.attempts,
        "started_at": run.started_at,
        "updated_at": run.updated_at,
        "error": None if found.failure is None else _failure_entry(found.failure, with_traceback),
        "is_repeated": found.is_repeated,
        "stands": found.stands,
    }


def _failure_entry(failure: Failure, with_traceback: bool) -> dict[str, Any]:
    entry = {"kind": failure.kind, "message": failure.message, "group": failure.group}
    return {**entry, "traceback": failure.traceback} if with_traceback else entry


def detail_entry(detail: RunDetail) -> dict[str, Any]:
    """Return a run in all its detail."""
    checkpoint, step = detail.goes_on_from or (None, None)
    return {
        **run_entry(detail.found, with_traceback=True),
        "messages": detail.messages,
        "repeats": detail.repeats,
        "repeated_by": detail.repeated_by,
        "goes_on_from": None if checkpoint is None else {"checkpoint_id": checkpoint, "step": step},
    }


def group_entry(group: FailureGroup) -> dict[str, Any]:
    """Return a group of failures."""
    thread_id, run_id = group.example
    return {**group._asdict(), "example": {"thread_id": thread_id, "run_id": run_id}}


def rerun_entry(rerun: Rerun) -> dict[str, Any]:
    """Return an attempt to run a run again."""
    return rerun._asdict()
