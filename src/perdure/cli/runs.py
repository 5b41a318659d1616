"""Commands on runs of all threads: which there are, which failed and why, and running them again."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import aclosing, contextmanager
from datetime import datetime, time, timedelta
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from rich.markup import escape

from perdure.cli.app import (
    AsJson,
    DataPlace,
    add_listing,
    err,
    format_count,
    handle_in,
    json_text,
    make_legible,
    new_group,
    open_database,
    out,
    print_all,
    print_json,
    print_result,
    quote_id,
    run_coroutine,
    say,
    warn,
)
from perdure.errors import NotFound
from perdure.model.records import Partition
from perdure.model.times import to_datetime

if TYPE_CHECKING:
    from perdure.database.blocking import SyncDatabase
    from perdure.runtime.operations.run_search import FoundRun, RunQuery
    from perdure.runtime.operations.walk_by_activity import ThreadWalk

runs = new_group(
    "runs",
    "Look at the runs of all threads: which failed and why, and what will run. Run them again, or stop them.",
)

_MESSAGE_MAX = 100
_FAULTS_MAX = 10
_SECOND, _MINUTE, _HOUR = 1_000_000, 60_000_000, 3_600_000_000


_CLOCK_TIME = re.compile(r"\d{1,2}:\d{2}")
_NAMED_TIMES = {"noon": "12:00", "midnight": "00:00", "today": "00:00"}


def check_span(value: str | None) -> str | None:
    """Return a span of time as it was given; raise ``BadParameter`` if it is not one."""
    if value is not None:
        from perdure.model.retention_policy import parse_duration

        try:
            parse_duration(value)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    return value


def _check_state(value: str | None) -> str | None:
    from perdure.runtime.operations.run_search import STATES

    if value is not None and value not in STATES:
        raise typer.BadParameter(f"a run is {', '.join(STATES[:-1])} or {STATES[-1]}, not {value!r}")
    return value


def _check_since(value: str | None) -> str | None:
    """Return a span or a time as it was given; raise ``BadParameter`` if it is neither."""
    if value is not None and _parse_time(value, 0) is not None:
        return value
    return check_span(value)


def _parse_time(text: str, now: int) -> int | None:
    """Return the time that a text names, in microseconds since 1970: that of a date, or for a clock time the
    last moment with it in this machine's time zone. ``yesterday`` and ``today`` are their first moments.
    Return ``None`` for other text."""
    current = datetime.fromtimestamp(now / 1_000_000).astimezone()
    text = _NAMED_TIMES.get(text, text)
    try:
        if text == "yesterday":
            named = datetime.combine(current.date() - timedelta(days=1), time()).astimezone()
        elif _CLOCK_TIME.fullmatch(text):
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
        help="Only what changed within this time, e.g. 15m, 1h or 7d, or since a time of this machine: noon, "
        "today, yesterday, 9:30 or 2026-03-01T09:30",
        callback=_check_since,
    ),
]
User = Annotated[
    str | None,
    typer.Option(
        help="Only what is of this user: the owner of the thread in its metadata (user_id, "
        "langgraph_auth_user_id, owner or user), or else the user of the run"
    ),
]
ErrorText = Annotated[
    str | None, typer.Option("--error", help="Only errors whose type or message contains this text")
]
GraphName = Annotated[str | None, typer.Option("--graph", help="Only runs of this graph")]
GraphVersion = Annotated[
    str | None, typer.Option("--graph-version", help="Only runs of this version of their graph")
]
Prefix = Annotated[str, typer.Option(help="Only threads whose id begins with this")]


class _OpenedWalk(NamedTuple):
    database: SyncDatabase
    walk: ThreadWalk
    now: int


@contextmanager
def open_walk(place: DataPlace, prefix: str = "") -> Iterator[_OpenedWalk]:
    """Open a database with a walk over a tenant's threads, and read the database's time."""
    from perdure.model.ops import Now
    from perdure.model.program import ask
    from perdure.runtime.operations.walk_by_activity import ThreadWalk

    with open_database(place) as database:
        handle = handle_in(database)
        now = handle.run(ask(Now()))
        yield _OpenedWalk(database, ThreadWalk(handle, place.tenant, prefix=prefix), now)


def parse_since(since: str | None, now: int) -> int | None:
    """Return the time, in microseconds since 1970, that a text names as a time or as a span before now;
    ``None`` without a text."""
    from perdure.model.retention_policy import parse_duration

    if since is None:
        return None
    named = _parse_time(since, now)
    if named is None:
        return now - parse_duration(since)
    return named


def list_runs(
    *,
    status: Annotated[
        str | None,
        typer.Option(help="open, waiting, done, failed, interrupted or rolled_back", callback=_check_state),
    ] = None,
    user: User = None,
    since: Since = None,
    error: ErrorText = None,
    graph: GraphName = None,
    version: GraphVersion = None,
    prefix: Prefix = "",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The maximum number, newest first")] = 30,
    by_error: Annotated[
        bool, typer.Option("--by-error", help="Count failed runs by error instead of listing runs")
    ] = False,
    by_duration: Annotated[
        bool, typer.Option("--slowest", help="The slowest of all matching runs first")
    ] = False,
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """List the runs of a tenant, newest first, each with its state, thread, graph, duration and error.

    The duration counts from the start of a run, which may have waited before. `perdure threads show` has the
    durations of a thread's nodes.

    Errors are in one group if they have the same type, and the same message except for ids, numbers and
    times. --by-error counts all matching failed runs, whatever --limit is.
    """
    from perdure.runtime.operations import entries
    from perdure.runtime.operations.run_search import RunQuery, find_newest, find_slowest

    if by_error and by_duration:
        raise typer.BadParameter("--by-error counts runs, and --slowest lists them; leave one out")
    with open_walk(place, prefix) as found:
        state = "failed" if by_error else status
        query = RunQuery(
            state=state,
            user=user,
            since=parse_since(since, found.now),
            error=error,
            graph=graph,
            version=version,
        )
        if by_error:
            groups = run_coroutine(_load_groups(found.walk, query))
            print_all(groups[:limit], as_json, _print_group, "No run has failed.")
            if groups and not as_json:
                count = format_count(sum(group["runs"] for group in groups), "failed run")
                out.print(f"{count}, those that were run again or whose thread went on too.")
                out.print("`perdure runs rerun --failed --dry-run` counts those that need attention.")
            return
        faults: list[str] = []
        first = find_slowest if by_duration else find_newest
        listed = run_coroutine(first(found.walk, query, limit, faults.append))
    _print_faults(faults)
    for run in listed:
        print_result(as_json, entries.run_entry(run), _format_run(run, found.now))
    if not listed and not as_json:
        say("No runs.")


async def _load_groups(walk: ThreadWalk, query: RunQuery) -> list[dict[str, Any]]:
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
        warn(make_legible(f"left out, as it cannot be read: {fault}"))
    if (more := len(faults) - _FAULTS_MAX) > 0:
        err.print(f"{format_count(more, 'more thread')} cannot be read: run perdure fsck")


def _show_node(node: str) -> str:
    return quote_id(node.replace("|", " > "))


def _print_group(group: dict[str, Any]) -> None:
    example = group["example"]
    say(f"{format_count(group['runs'], 'run')}  {make_legible(group['kind'] + ': ' + group['message'])}")
    if group["nodes"]:
        say(f"  in {', '.join(map(_show_node, group['nodes']))}")
    last = f"  first {format_time(group['first_at'])}, last {format_time(group['last_at'])}"
    say(f"{last} in {quote_id(example['thread_id'])}, run {example['run_id']}")
    if group["versions"]:
        counts = (f"{quote_id(name)} ({count:,})" for name, count in group["versions"].items())
        say(f"  of the graph's version {', '.join(counts)}")


def show(
    run_id: Annotated[
        str,
        typer.Argument(
            metavar="ID",
            help="The run's id, as `perdure runs ls` has it, or its first characters, at least 6",
        ),
    ],
    thread: Annotated[
        str | None, typer.Option(help="Its thread, if you know it: all threads need not be searched then")
    ] = None,
    *,
    text: Annotated[bool, typer.Option("--text", help="Show the contents of its messages, too")] = False,
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """Show a run: its state, its error with the traceback, and from where it can be run again.

    The frames of your own code come first in the traceback. It is stored with a failed run, up to 8 kB. The
    last lines name the command that shows the steps of the thread, with the one before the error. A beginning
    of the id, of 6 characters or more, is enough if one run has it; all threads are searched for it.
    """
    from perdure.runtime.operations import entries, run_search

    with open_walk(place) as found:
        detail = run_coroutine(run_search.show(found.walk, run_id, thread))
        messages = run_coroutine(run_search.load_input(found.walk, detail)) if text else []
    entry = entries.make_detail_entry(detail)
    if text:
        entry["input"] = messages
    if as_json:
        print_json(entry)
        return
    run, failure = detail.found.run, detail.found.failure
    thread_id = escape(quote_id(detail.found.thread_id))
    out.print(f"[bold]{escape(quote_id(run.id))}[/] of {thread_id}", soft_wrap=True)
    end = "last change" if run.state == "open" else "ended"
    line = f"{run.state}  graph {quote_id(run.graph)}"
    if run.graph_version is not None:
        line += f", version {quote_id(run.graph_version)}"
    line += f"  {format_count(run.attempts, 'attempt')}"
    line += f"  started {format_time(run.started_at)}  {end} {format_time(run.updated_at)}"
    say(line)
    if detail.repeats is not None:
        say(f"runs again {quote_id(detail.repeats)}")
    if failure is not None:
        error = f"{failure.kind}: {failure.message}"
        if failure.traceback is None or not failure.traceback.startswith(error):
            say(make_legible(error, keep="\n\t"))
        if failure.traceback is not None:
            say(make_legible(failure.traceback, keep="\n\t").rstrip("\n"))
    for message in messages:
        say(f"input {make_legible(json_text(message, ascii_only=False))}")
    say(_describe_next_step(detail))
    way = f"`perdure threads show {shlex.quote(quote_id(detail.found.thread_id))}` shows the thread's steps"
    say(f"{way}." if text else f"{way}; with --text this command shows the input, too.")


def _describe_next_step(detail: Any) -> str:
    run = detail.found.run
    if detail.repeated_by is not None:
        return f"It is run again as {quote_id(detail.repeated_by)}."
    if run.state != "failed":
        return "It has not failed, so there is nothing to run again."
    how = f"perdure runs rerun {shlex.quote(quote_id(run.id))}"
    if not detail.found.stands:
        return f"The thread has gone on since; `{how}` tries whether it can be run again."
    if detail.goes_on_from is not None:
        return f"`{how}` goes on from its last stored step, {detail.goes_on_from[1]}."
    messages = format_count(detail.messages, "message")
    return f"`{how}` starts again with its {messages}: none of its steps is stored."


def rerun(
    run_id: Annotated[
        str | None,
        typer.Argument(metavar="[ID]", help="The failed run's id, or its first characters, at least 6"),
    ] = None,
    *,
    failed: Annotated[
        bool,
        typer.Option(
            "--failed", help="All failed runs that were not run again, and whose thread has not gone on"
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Count what --failed would run again, by error, and change nothing"),
    ] = False,
    thread: Annotated[str | None, typer.Option(help="The thread of the run, if you know it")] = None,
    since: Since = None,
    error: ErrorText = None,
    user: User = None,
    graph: GraphName = None,
    prefix: Prefix = "",
    place: DataPlace,
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
    if run_id is not None and (since or error or user or graph or prefix):
        raise typer.BadParameter("--since, --error, --user, --graph and --prefix are for --failed")
    if run_id is not None and dry_run:
        raise typer.BadParameter("--dry-run is for --failed; `perdure runs show` says what one run would do")
    if failed and thread is not None:
        raise typer.BadParameter("--thread is for one run; with --failed pass --prefix")
    with open_walk(place, prefix) as found:
        if run_id is not None:
            detail = run_coroutine(run_search.show(found.walk, run_id, thread))
            one = Partition(place.tenant, detail.found.thread_id)
            print_rerun(repeat_one(found.database, one, detail.found.run.id), as_json)
            return
        earliest = parse_since(since, found.now)
        query = run_search.RunQuery(user=user, since=earliest, error=error, graph=graph)
        if dry_run:
            groups = run_coroutine(_load_groups(found.walk, query._replace(state="failed", stands=True)))
            print_all(groups, as_json, _print_group, "No failed run would run again.")
            if groups and not as_json:
                count = sum(group["runs"] for group in groups)
                out.print(f"{format_count(count, 'run')} would run again; nothing was changed.")
            return
        counts = run_coroutine(_rerun_standing(found, query, as_json))
    if not as_json:
        out.print(f"{format_count(counts[0], 'run')} accepted again, {counts[1]} stay.")
    if counts[1]:
        raise typer.Exit(1)


async def _rerun_standing(found: _OpenedWalk, query: RunQuery, as_json: bool) -> tuple[int, int]:
    from perdure.runtime.operations import entries, reruns

    accepted = stay = 0
    faults: list[str] = []

    async def repeat_found(run: FoundRun) -> tuple[str, bool]:
        return await repeat(found.database, Partition(found.walk.tenant, run.thread_id), run.run.id)

    async with aclosing(reruns.rerun_standing(found.walk, query, repeat_found)) as steps:
        async for step in steps:
            if step.fault is not None:
                faults.append(step.fault)
            for each in step.reruns:
                accepted += each.outcome == "accepted"
                stay += each.outcome == "stays"
                print_rerun(entries.rerun_entry(each), as_json)
    _print_faults(faults)
    return accepted, stay + len(faults)


def stop(
    run_id: Annotated[str | None, typer.Argument(metavar="[ID]", help="The run's id")] = None,
    *,
    user: User = None,
    all_runs: Annotated[bool, typer.Option("--all", help="All open and waiting runs")] = False,
    prefix: Prefix = "",
    rollback: Annotated[
        bool, typer.Option("--rollback", help="Remove what the runs stored in their threads, too")
    ] = False,
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """Stop an open or waiting run, those of a user, or all of them.

    A worker ends an open run when it hears of it, within seconds; what the run stored stays. A run that waits
    never begins. Questions that wait for an answer stay open.

    Typical: `perdure runs stop --user ada`.
    """
    if [run_id is not None, user is not None, all_runs].count(True) != 1:
        raise typer.BadParameter("name one run by its id, or pass --user USER, or --all")
    if run_id is not None and prefix:
        raise typer.BadParameter("--prefix is for --user and --all")
    from perdure.runtime.operations.stops import stop_runs

    async def end_all(walk: ThreadWalk) -> int:
        count = 0
        async with aclosing(stop_runs(walk, user=user, run_id=run_id, rollback=rollback)) as found:
            async for each in found:
                count += 1
                line = quote_id(each.thread_id)
                if each.user is not None:
                    line += f" of {quote_id(each.user)}"
                line += f": run {quote_id(each.run_id)} "
                line += "is stopped" if each.was_open else "had not begun, and never does"
                print_result(as_json, each._asdict(), line)
        return count

    with open_walk(place, prefix) as found:
        count = run_coroutine(end_all(found.walk))
    if run_id is not None and not count:
        raise NotFound(
            f"no run {run_id!r} is open or waits; `perdure runs ls --status open` has those that are"
        )
    if not as_json and run_id is None:
        out.print(f"{format_count(count, 'run')} stopped.")


async def repeat(database: SyncDatabase, partition: Partition, run_id: str) -> tuple[str, bool]:
    """Accept a failed run again, for a worker to run; return the new run's id, and whether the failed run was
    repeated before."""
    from perdure.runtime.operations.reruns import rerun as rerun_one

    read_asked = partial(database.checkpointer(tenant=partition.tenant).read_asked, partition)
    return await rerun_one(handle_in(database), partition, run_id, read_asked)


def repeat_one(database: SyncDatabase, partition: Partition, run_id: str) -> dict[str, Any]:
    """Accept a failed run again, as ``repeat`` does; return the outcome as JSON data."""
    again, was_repeated = run_coroutine(repeat(database, partition, run_id))
    return {
        "thread_id": partition.thread,
        "run_id": run_id,
        "outcome": "repeated before" if was_repeated else "accepted",
        "again": again,
        "reason": None,
    }


def print_rerun(entry: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(entry)
        return
    line = f"{quote_id(entry['thread_id'])}: run {quote_id(entry['run_id'])} "
    if entry["outcome"] == "stays":
        warn(make_legible(f"{line}was not repeated: {entry['reason']}"))
        return
    how = "had been" if entry["outcome"] == "repeated before" else "is"
    say(f"{line}{how} scheduled to run again, as {quote_id(entry['again'])}")


def _format_run(found: FoundRun, now: int) -> str:
    run, failure = found.run, found.failure
    line = f"{format_age(now - run.updated_at):>7}  {run.state:<11}  {run.id}  {quote_id(found.thread_id)}"
    line += f"  {quote_id(run.graph)} "
    if run.state == "open":
        line += f"for {format_duration(now - run.started_at)}"
    else:
        line += f"took {format_duration(run.updated_at - run.started_at)}"
    if found.user is not None:
        line += f"  of {quote_id(found.user)}"
    if run.state == "failed" and not found.stands:
        line += "  (run again)" if found.is_repeated else "  (the thread went on)"
    if failure is not None:
        line += f"\n         {make_legible(failure.kind)}: {cut_message(failure.message)}"
        if failure.node is not None:
            line += f"  in {_show_node(failure.node)}"
    return line


def cut_message(text: str) -> str:
    """Return the beginning of an error's text on one line."""
    message = " ".join(make_legible(text, keep="\n").split())
    return message if len(message) <= _MESSAGE_MAX else f"{message[: _MESSAGE_MAX - 1]}…"


def format_age(micros: int) -> str:
    """Return a span of time in its largest unit that fits: ``40s``, ``12m``, ``5h``, ``3d``."""
    seconds = max(0, micros // 1_000_000)
    for size, unit, most in ((1, "s", 120), (60, "m", 120), (3600, "h", 48)):
        if seconds < size * most:
            return f"{seconds // size}{unit}"
    return f"{seconds // 86400}d"


def format_duration(micros: int) -> str:
    """Return a duration as people read it: ``1.5 ms``, ``12.3 s``, ``4 min 5 s``."""
    if micros < _SECOND:
        if micros < 10_000:
            return f"{micros / 1000:.3g} ms"
        return f"{micros // 1000} ms"
    if micros < _MINUTE:
        return f"{micros // 100_000 / 10:.1f} s"
    if micros < _HOUR:
        return f"{micros // _MINUTE} min {micros % _MINUTE // _SECOND} s"
    return f"{micros // _HOUR} h {micros % _HOUR // _MINUTE} min"


def format_time(micros: int) -> str:
    """Return a time in microseconds since 1970 as text, in UTC."""
    return to_datetime(micros).strftime("%Y-%m-%d %H:%M:%SZ")


add_listing(runs, list_runs)
runs.command()(show)
runs.command()(rerun)
runs.command()(stop)
