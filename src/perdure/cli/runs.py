"""Commands on runs of all threads: which there are, which failed and why, and running them again."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from datetime import datetime, time, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.markup import escape

from perdure.cli.app import (
    AsJson,
    Db,
    Keys,
    Tenant,
    add_listing,
    err,
    handle_in,
    legible,
    open_database,
    out,
    print_json,
    printable,
    run_coroutine,
    several,
)
from perdure.cli.suggestions import Group
from perdure.model.times import to_datetime

if TYPE_CHECKING:
    from perdure.database.blocking import SyncDatabase
    from perdure.runtime.operations.run_search import FoundRun, RunQuery
    from perdure.runtime.operations.walk_by_activity import ThreadWalk

runs = typer.Typer(
    cls=Group,
    help="Look at the runs of all threads, find out why some failed, and run them again.",
    no_args_is_help=True,
)

_MESSAGE_MAX = 100
_FAULTS_MAX = 10


_CLOCK_TIME = re.compile(r"\d{1,2}:\d{2}")


def check_span(value: str | None) -> str | None:
    """Return a span of time as it was given; raise ``BadParameter`` if it is none."""
    if value is not None:
        from perdure.model.retention_policy import duration_us

        try:
            duration_us(value)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    return value


def _state(value: str | None) -> str | None:
    from perdure.runtime.operations.run_search import STATES

    if value is not None and value not in STATES:
        raise typer.BadParameter(f"a run is {', '.join(STATES[:-1])} or {STATES[-1]}, not {value!r}")
    return value


def _check_since(value: str | None) -> str | None:
    """Return a span or a time as it was given; ``BadParameter`` if it is neither."""
    return value if value is not None and _time_in(value, 0) is not None else check_span(value)


def _time_in(text: str, now: int) -> int | None:
    """Return the time that a text names, in microseconds since 1970: of a date, or the last one of a clock in
    this machine's time zone; ``None`` if the text names none."""
    current = datetime.fromtimestamp(now / 1_000_000).astimezone()
    try:
        if _CLOCK_TIME.fullmatch(text):
            named = datetime.combine(current.date(), time.fromisoformat(text.zfill(5))).astimezone()
            named -= timedelta(days=named > current)
        else:
            named = datetime.fromisoformat(text).astimezone()
    except ValueError:
        return None
    return round(named.timestamp() * 1_000_000)


Since = Annotated[
    str | None,
    typer.Option(
        help="Only what changed within this time, e.g. 15m, 1h or 7d, or since a time, e.g. 12:00 or "
        "2026-03-01T09:30",
        callback=_check_since,
    ),
]
User = Annotated[
    str | None,
    typer.Option(help="Only threads whose metadata names this user, under user_id, owner or user"),
]
ErrorText = Annotated[
    str | None, typer.Option("--error", help="Only errors whose type or message contains this text")
]
Prefix = Annotated[str, typer.Option(help="Only threads whose id begins with this")]


class _Open(NamedTuple):
    database: SyncDatabase
    walk: ThreadWalk
    now: int


@contextmanager
def open_walk(db: str | None, tenant: str, keys: Any, prefix: str = "") -> Iterator[_Open]:
    """Open a database with a walk over a tenant's threads, and read the database's time."""
    from perdure.model.ops import Now
    from perdure.model.program import ask
    from perdure.runtime.operations.walk_by_activity import ThreadWalk

    with open_database(db, tenant, keys) as database:
        handle = handle_in(database)
        now = handle.run(ask(Now()))
        yield _Open(database, ThreadWalk(handle, tenant, prefix=prefix), now)


def since_us(since: str | None, now: int) -> int | None:
    """Return the time that is named, or is a span before now, in microseconds since 1970; ``None`` for
    none."""
    from perdure.model.retention_policy import duration_us

    if since is None:
        return None
    named = _time_in(since, now)
    return now - duration_us(since) if named is None else named


def list_runs(
    *,
    status: Annotated[
        str | None,
        typer.Option(help="open, waiting, done, failed, interrupted or rolled_back", callback=_state),
    ] = None,
    user: User = None,
    since: Since = None,
    error: ErrorText = None,
    prefix: Prefix = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The maximum number, newest first")] = 30,
    by_error: Annotated[
        bool, typer.Option("--by-error", help="Count failed runs by error instead of listing runs")
    ] = False,
    db: Db = None,
    tenant: Tenant = "",
    keys: Keys = None,
    as_json: AsJson = False,
) -> None:
    """List the runs of a tenant, newest first, each with its thread, its state and its error.

    Errors are of one group if they have the same type, and the same message but for ids, numbers and times.
    With --by-error all failed runs count that match, whatever --limit is.
    """
    from perdure.runtime.operations import entries
    from perdure.runtime.operations.run_search import RunQuery, newest

    with open_walk(db, tenant, keys, prefix) as found:
        state = "failed" if by_error else status
        query = RunQuery(state=state, user=user, since=since_us(since, found.now), error=error)
        if by_error:
            groups = run_coroutine(_group(found.walk, query))
            _print_groups(groups[:limit], as_json)
            return
        faults: list[str] = []
        listed = run_coroutine(newest(found.walk, query, limit, faults.append))
    _print_faults(faults)
    for run in listed:
        if as_json:
            print_json(entries.run_entry(run))
        else:
            out.print(escape(_line(run, found.now)), soft_wrap=True)
    if not listed and not as_json:
        out.print("No runs.")


async def _group(walk: ThreadWalk, query: RunQuery) -> list[dict[str, Any]]:
    from perdure.runtime.operations import entries, failures
    from perdure.runtime.operations.run_search import search

    failed: list[tuple[str, str, int, failures.RunFailure]] = []
    faults: list[str] = []
    async with aclosing(search(walk, query)) as steps:
        async for step in steps:
            if step.fault is not None:
                faults.append(step.fault)
            failed += [
                (run.thread_id, run.run.id, run.run.updated_at, run.failure)
                for run in step.runs
                if run.failure is not None
            ]
    _print_faults(faults)
    return [entries.group_entry(group) for group in failures.group_failures(failed)]


def _print_faults(faults: list[str]) -> None:
    for fault in faults[:_FAULTS_MAX]:
        err.print(escape(legible(f"left out, as it cannot be read: {fault}")), soft_wrap=True)
    if (more := len(faults) - _FAULTS_MAX) > 0:
        err.print(f"{several(more, 'more thread')} cannot be read: run perdure fsck")


def _print_groups(groups: list[dict[str, Any]], as_json: bool) -> None:
    for group in groups:
        if as_json:
            print_json(group)
            continue
        example = group["example"]
        line = f"{several(group['runs'], 'run')}  {legible(group['kind'] + ': ' + group['message'])}"
        out.print(escape(line), soft_wrap=True)
        last = (
            f"  last {when(group['last_at'])} in {printable(example['thread_id'])}, run {example['run_id']}"
        )
        out.print(escape(last), soft_wrap=True)
    if not groups and not as_json:
        out.print("No run has failed.")


def show(
    run_id: Annotated[str, typer.Argument(metavar="ID", help="The run's id, as `perdure runs ls` has it")],
    thread: Annotated[
        str | None, typer.Option(help="Its thread, if you know it: all threads need not be searched then")
    ] = None,
    *,
    db: Db = None,
    tenant: Tenant = "",
    keys: Keys = None,
    as_json: AsJson = False,
) -> None:
    """Show a run: its state, its error with the traceback, and from where it can be run again.

    The frames of your own code come first in the traceback. It is stored with a failed run, up to 8 kB.
    """
    from perdure.runtime.operations import entries, run_search

    with open_walk(db, tenant, keys) as found:
        detail = run_coroutine(run_search.show(found.walk, run_id, thread))
    entry = entries.detail_entry(detail)
    if as_json:
        print_json(entry)
        return
    run, failure = detail.found.run, detail.found.failure
    name = f"[bold]{escape(printable(run.id))}[/] of {escape(printable(detail.found.thread_id))}"
    out.print(name, soft_wrap=True)
    end = "last change" if run.state == "open" else "ended"
    line = f"{run.state}  graph {printable(run.graph)}  {several(run.attempts, 'attempt')}"
    line += f"  started {when(run.started_at)}  {end} {when(run.updated_at)}"
    out.print(escape(line), soft_wrap=True)
    if detail.repeats is not None:
        out.print(escape(f"runs again {printable(detail.repeats)}"), soft_wrap=True)
    if failure is not None:
        out.print(escape(legible(f"{failure.kind}: {failure.message}", keep="\n\t")), soft_wrap=True)
        if failure.traceback is not None:
            out.print(escape(legible(failure.traceback, keep="\n\t").rstrip("\n")), soft_wrap=True)
    out.print(escape(_next_step(detail)), soft_wrap=True)


def _next_step(detail: Any) -> str:
    run = detail.found.run
    if detail.repeated_by is not None:
        return f"It is run again as {printable(detail.repeated_by)}."
    if run.state != "failed":
        return "It has not failed, so there is nothing to run again."
    how = f"perdure runs rerun {printable(run.id)}"
    if not detail.found.stands:
        return f"The thread has gone on since; `{how}` tries whether it can be run again."
    if detail.goes_on_from is not None:
        return f"`{how}` goes on from its last stored step, {detail.goes_on_from[1]}."
    return (
        f"`{how}` starts again with its {several(detail.messages, 'message')}: none of its steps is stored."
    )


def rerun(
    run_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="The failed run's id")] = None,
    *,
    failed: Annotated[
        bool, typer.Option("--failed", help="All failed runs that were not made good since")
    ] = False,
    thread: Annotated[str | None, typer.Option(help="The thread of the run, if you know it")] = None,
    since: Since = None,
    error: ErrorText = None,
    user: User = None,
    prefix: Prefix = "",
    db: Db = None,
    tenant: Tenant = "",
    keys: Keys = None,
    as_json: AsJson = False,
) -> None:
    """Run a failed run again, or all of them, from the last step that is stored.

    If nothing of a run is stored, its messages are accepted again. The record of the failure stays, and each
    run is repeated once, however often it is asked for. A worker with the graph does the work. A run whose
    thread has gone on, or that other messages wait behind, stays as it is, and the exit code is 1.

    Typical: `perdure runs rerun --failed --since 1h --error RateLimit`.
    """
    from perdure.runtime.operations import run_search

    if (run_id is None) == (not failed):
        raise typer.BadParameter("name one run by its id, or pass --failed for all")
    if run_id is not None and (since or error or user or prefix):
        raise typer.BadParameter("--since, --error, --user and --prefix are for --failed")
    if failed and thread is not None:
        raise typer.BadParameter("--thread is for one run; with --failed pass --prefix")
    with open_walk(db, tenant, keys, prefix) as found:
        if run_id is not None:
            detail = run_coroutine(run_search.show(found.walk, run_id, thread))
            again, was_repeated = run_coroutine(repeat(found.database, tenant, detail.found))
            _print_rerun(
                {
                    "thread_id": detail.found.thread_id,
                    "run_id": run_id,
                    "outcome": "repeated before" if was_repeated else "accepted",
                    "again": again,
                    "reason": None,
                },
                as_json,
            )
            return
        query = run_search.RunQuery(user=user, since=since_us(since, found.now), error=error)
        counts = run_coroutine(_rerun_standing(found, query, as_json))
    if not as_json:
        out.print(f"{several(counts[0], 'run')} accepted again, {counts[1]} stay.")
    if counts[1]:
        raise typer.Exit(1)


async def _rerun_standing(found: _Open, query: RunQuery, as_json: bool) -> tuple[int, int]:
    from perdure.runtime.operations import entries, reruns

    accepted = stay = 0
    faults: list[str] = []
    again = partial(repeat, found.database, found.walk.tenant)
    async with aclosing(reruns.rerun_standing(found.walk, query, again)) as steps:
        async for step in steps:
            if step.fault is not None:
                faults.append(step.fault)
            for each in step.reruns:
                accepted += each.outcome == "accepted"
                stay += each.outcome == "stays"
                _print_rerun(entries.rerun_entry(each), as_json)
    _print_faults(faults)
    return accepted, stay + len(faults)


async def repeat(database: SyncDatabase, tenant: str, found: FoundRun) -> tuple[str, bool]:
    """Run a failed run again, for a worker; return the new run's id, and whether it had been repeated."""
    from perdure.model.records import Partition
    from perdure.runtime.operations.reruns import rerun as rerun_one

    partition = Partition(tenant, found.thread_id)
    read_asked = partial(database.checkpointer(tenant=tenant).read_asked, partition)
    return await rerun_one(handle_in(database), partition, found.run.id, read_asked)


def _print_rerun(entry: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(entry)
        return
    line = f"{printable(entry['thread_id'])}: run {printable(entry['run_id'])} "
    if entry["outcome"] == "stays":
        err.print(escape(legible(f"{line}was not repeated: {entry['reason']}")), soft_wrap=True)
        return
    was_repeated = entry["outcome"] == "repeated before"
    how = "had been scheduled to run again" if was_repeated else "is scheduled to run again"
    out.print(escape(f"{line}{how}, as {printable(entry['again'])}"), soft_wrap=True)


def _line(found: FoundRun, now: int) -> str:
    run, failure = found.run, found.failure
    line = f"{age(now - run.updated_at):>7}  {run.state:<11}  {run.id}  {printable(found.thread_id)}"
    if found.user is not None:
        line += f"  of {printable(found.user)}"
    if run.state == "failed" and not found.stands:
        line += "  (run again)" if found.is_repeated else "  (the thread went on)"
    if failure is not None:
        message = " ".join(legible(failure.message, keep="\n").split())
        cut = message if len(message) <= _MESSAGE_MAX else f"{message[: _MESSAGE_MAX - 1]}…"
        line += f"\n         {legible(failure.kind)}: {cut}"
    return line


def age(micros: int) -> str:
    """Return a span of time in its largest unit that fits: ``40s``, ``12m``, ``5h``, ``3d``."""
    seconds = max(0, micros // 1_000_000)
    for size, unit, most in ((1, "s", 120), (60, "m", 120), (3600, "h", 48)):
        if seconds < size * most:
            return f"{seconds // size}{unit}"
    return f"{seconds // 86400}d"


def when(micros: int) -> str:
    """Return a time in microseconds since 1970 as text, in UTC."""
    return to_datetime(micros).strftime("%Y-%m-%d %H:%M:%SZ")


add_listing(runs, list_runs)
runs.command()(show)
runs.command()(rerun)
