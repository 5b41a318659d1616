"""Commands on a thread's queue: messages, runs and replies, failures, and repeating what failed.

Content that people wrote is shown only on request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from perdure.cli.app import (
    AsJson,
    DataPlace,
    ThreadId,
    err,
    format_count,
    handle_in,
    json_text,
    make_legible,
    new_table,
    open_database,
    out,
    print_all,
    print_table,
    quote_id,
    say,
    track,
)
from perdure.cli.runs import cut_message, print_rerun, repeat_one
from perdure.model.missing_thread import missing_thread
from perdure.model.records import THREADS, Partition
from perdure.model.times import to_datetime

if TYPE_CHECKING:
    from perdure.database.blocking import SyncDatabase
    from perdure.engine.queue.inbox import Standing
    from perdure.model.program import Program
    from perdure.model.runs.messages import Reply, Run

_PAGE = 100
_LONGEST_S = 100 * 366 * 86400


def _check_seconds(value: float) -> float:
    if not 0 <= value <= _LONGEST_S:
        raise typer.BadParameter(f"{value} is not a number of seconds up to a hundred years")
    return value


Limit = Annotated[int, typer.Option(min=1, help="The maximum number, newest first")]
Text = Annotated[bool, typer.Option("--text", help="Show the contents of messages and replies, too")]

R = TypeVar("R")


def inbox(
    thread_id: ThreadId,
    *,
    place: DataPlace,
    limit: Limit = 30,
    text: Text = False,
    as_json: AsJson = False,
) -> None:
    """List the messages of a thread, newest first, each with the run that took it."""
    from perdure.engine.queue import inbox as inboxes

    found = _read_newest(place, thread_id, limit, inboxes.read_latest, lambda each: each.message.seq)
    headings = ("number", "accepted", "graph", "channel", "mode", "state", "run", "bytes")
    _print([_describe_message(each, text) for each in found], headings, "No messages.", as_json, text)


def runs(
    thread_id: ThreadId,
    *,
    place: DataPlace,
    limit: Limit = 30,
    as_json: AsJson = False,
) -> None:
    """List the runs of a thread, newest first, each with its messages, its state and its error."""
    from perdure.engine.queue import runs as running

    found = _read_newest(place, thread_id, limit, running.read_latest, lambda each: each.first)
    headings = ("run", "messages", "state", "graph", "channel", "attempts", "started", "updated", "error")
    _print([*map(_describe_run, found)], headings, "No runs.", as_json)


def outbox(
    thread_id: ThreadId,
    *,
    place: DataPlace,
    limit: Limit = 30,
    text: Text = False,
    as_json: AsJson = False,
) -> None:
    """List the replies of a thread, newest first, sent or not, with the provider's ids and errors."""
    from perdure.engine.queue import outbox as outboxes

    found = _read_newest(place, thread_id, limit, outboxes.read_replies, lambda each: each.seq)
    headings = ("number", "key", "channel", "state", "attempts", "provider id", "created", "bytes", "error")
    _print([_describe_reply(each, text) for each in found], headings, "No replies.", as_json, text)


def dead(
    thread_id: Annotated[
        str | None, typer.Argument(help="The thread's id; by default all threads of the tenant")
    ] = None,
    *,
    repeated: Annotated[
        bool, typer.Option("--repeated", help="List failed runs that were run again, too, and as which run")
    ] = False,
    place: DataPlace,
    text: Text = False,
    as_json: AsJson = False,
) -> None:
    """List failed runs that were not run again, and replies that are dead or held in doubt.

    The beginning of each error is shown; --json and `perdure runs show` have all of it.

    Send a reply again, or run a run again, with `perdure threads retry`.
    """
    from perdure.engine.queue import inbox as inboxes
    from perdure.engine.queue.retries import find_repetitions

    rows: list[dict[str, Any]] = []
    with open_database(place) as database:
        for partition in track(_choose_partitions(database, place.tenant, thread_id), "Looking"):
            found = handle_in(database).run(inboxes.read_failures(partition))
            if thread_id is not None:
                _refuse_unknown(database, partition, [*found.runs, *found.replies])
            name = partition.thread
            again = handle_in(database).run(find_repetitions(partition, [run.id for run in found.runs]))
            rows += [
                {
                    "thread": name,
                    "what": "run",
                    **_describe_run(run),
                    "is_repeated": run.id in again,
                    "repeated_by": again.get(run.id),
                }
                for run in found.runs
                if repeated or run.id not in again
            ]
            rows += [
                {"thread": name, "what": "reply", **_describe_reply(reply, text)} for reply in found.replies
            ]
    if as_json:
        _print(rows, (), "", as_json)
        return
    print_all(rows, as_json, lambda row: say(_format_given_up(row)), "Nothing was given up.")


def _format_given_up(row: dict[str, Any]) -> str:
    """Return a failed run or a reply on one line."""
    line = f"{quote_id(row['thread'])}  "
    if row["what"] == "reply":
        line += f"reply {row['number']} of "
    line += f"run {row['run']}  {row['state']}  {format_count(row['attempts'], 'attempt')}"
    line += f"  {_format_cell(row.get('updated', row.get('created')))}"
    if row["channel"]:
        line += f"  to {quote_id(row['channel'])}"
    if row.get("repeated_by"):
        line += f"  (run again as {row['repeated_by']})"
    elif row.get("is_repeated"):
        line += "  (run again)"
    if row["error"]:
        line += f"  {cut_message(row['error'])}"
    if "payload" in row:
        line += f"  {make_legible(json_text(row['payload'], ascii_only=False))}"
    return line


def stuck(
    older: Annotated[
        float,
        typer.Option(
            min=0,
            metavar="SECONDS",
            help="Count queues that have been due for longer",
            callback=_check_seconds,
        ),
    ] = 60.0,
    *,
    all_tenants: Annotated[
        bool, typer.Option("--all-tenants", help="Look at every tenant's threads")
    ] = False,
    most: Annotated[
        int, typer.Option(min=1, help="The maximum number of queues to look at, those due longest first")
    ] = 10_000,
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """Count threads on which no worker makes progress, by the name of the graph or channel, and say what can
    be done.

    Threads that wait have been due for long because no running worker has the graph or channel. Threads that
    fail are retried, and the workers log the errors. For damaged threads run `perdure fsck`.
    """
    from perdure.runtime.operations.entries import make_stuck_entry

    with open_database(place) as database:
        found = database.find_stuck(older, all_tenants=all_tenants, most=most)
    rows: list[dict[str, Any]] = []
    for one in found.stuck:
        entry = make_stuck_entry(one)
        since = _format_time(entry.pop("since"))
        rows.append({**entry, "oldest": since})
    headings = ("problem", "what", "name", "threads", "oldest", "attempts", "tenant", "example")
    _print(rows, headings, "Nothing is stuck.", as_json)
    if not as_json:
        for row in rows:
            named = make_legible(f"{row['problem']} {row['what']} {row['name']}".rstrip())
            say(f"{named}: {make_legible(row['advice'])}")
        out.print("`perdure threads dead` has what was given up, `perdure questions ls` what asks people.")
    if not found.is_whole:
        err.print(f"There is more than {most} queues; pass --most to look at more of them.")


def retry(
    thread_id: Annotated[
        str | None, typer.Argument(help="The thread's id; with --failed by default all threads of the tenant")
    ] = None,
    reply: Annotated[
        int | None,
        typer.Option(metavar="NUMBER", help="The reply's number, as `perdure threads outbox` lists it"),
    ] = None,
    run: Annotated[
        str | None,
        typer.Option(metavar="RUN", help="The failed run's id, as `perdure threads dead` lists it"),
    ] = None,
    failed: Annotated[
        bool, typer.Option("--failed", help="Run every failed run again, the oldest of a thread first")
    ] = False,
    *,
    place: DataPlace,
) -> None:
    """Send a dead reply, or one that is held in doubt, again, or run a failed run again.

    A reply is sent after all others of its thread, under the same key, so that a provider that recognises the
    key delivers it once. A run goes on from its last stored step; if nothing of it is stored, its messages
    are accepted again. The record of the failure stays, and each run is repeated once. A worker with the
    channel or graph does the work.
    """
    if [reply is not None, run is not None, failed].count(True) != 1 or (thread_id is None and not failed):
        raise typer.BadParameter("name a thread with --reply NUMBER or --run RUN, or pass --failed")
    with open_database(place) as database:
        if reply is not None and thread_id is not None:
            _resend(database, Partition(place.tenant, thread_id), reply)
        elif run is not None and thread_id is not None:
            print_rerun(repeat_one(database, Partition(place.tenant, thread_id), run), as_json=False)
        else:
            _run_all_again(database, place.tenant, thread_id)


def _resend(database: SyncDatabase, partition: Partition, reply: int) -> None:
    from perdure.engine.queue import outbox as outboxes
    from perdure.model.ops import Now
    from perdure.model.program import ask

    now = handle_in(database).run(ask(Now()))
    again = handle_in(database).run(outboxes.retry(partition, reply, now))
    line = f"{quote_id(partition.thread)}: reply {reply} is to be sent again, as number {again.seq} under "
    say(f"{line}the key {quote_id(again.id)}")


def _run_all_again(database: SyncDatabase, tenant: str, thread_id: str | None) -> None:
    """Run failed runs again; one that cannot be run again does not stop the others."""
    from perdure.engine.queue import inbox as inboxes
    from perdure.errors import PerdureError, Unavailable

    tried = refused = 0
    for partition in _choose_partitions(database, tenant, thread_id):
        found = handle_in(database).run(inboxes.read_failures(partition))
        if thread_id is not None:
            _refuse_unknown(database, partition, found.runs)
        for run in reversed(found.runs):
            try:
                entry = repeat_one(database, partition, run.id)
            except Unavailable:
                raise
            except PerdureError as error:
                names = {"thread_id": partition.thread, "run_id": run.id}
                entry = {**names, "outcome": "stays", "reason": error}
            refused += entry["outcome"] == "stays"
            tried += entry["outcome"] == "accepted"
            print_rerun(entry, as_json=False)
    out.print(f"{tried} runs are scheduled to run again, {refused} are not.")
    if refused:
        raise typer.Exit(1)


def _choose_partitions(database: SyncDatabase, tenant: str, thread_id: str | None) -> list[Partition]:
    """Return the thread that is named, or else all threads of the tenant."""
    from perdure import admin

    if thread_id is not None:
        return [Partition(tenant, thread_id)]
    return [each for each in admin.partitions(database, tenant) if each.space == THREADS]


def _read_newest(
    place: DataPlace,
    thread_id: str,
    limit: int,
    read_page: Callable[[Partition, int, int | None], Program[tuple[R, ...]]],
    number_of: Callable[[R], int],
) -> list[R]:
    """Return at most ``limit`` entries of a thread's queue, the highest numbers first, read in pages, as each
    may be large."""
    partition, below = Partition(place.tenant, thread_id), None
    results: list[R] = []
    with open_database(place) as database:
        while count := min(limit - len(results), _PAGE):
            found = handle_in(database).run(read_page(partition, count, below))
            results += found
            if len(found) < count:
                break
            below = number_of(found[-1])
        _refuse_unknown(database, partition, results)
    return results


def _refuse_unknown(database: SyncDatabase, partition: Partition, found: Sequence[object]) -> None:
    """Raise ``NotFound`` for a thread that does not exist; an empty list would hide a mistyped id."""
    from perdure import admin

    if not found and partition not in admin.partitions(database, partition.tenant):
        raise missing_thread(partition)


def _describe_message(standing: Standing, text: bool) -> dict[str, Any]:
    message, run = standing.message, standing.run
    return {
        "number": message.seq,
        "id": message.id,
        "accepted": _format_time(message.accepted_at),
        "graph": message.graph,
        "channel": message.channel,
        "mode": message.mode,
        "state": "pending" if run is None else run.state,
        "run": run and run.id,
        **_describe_payload(message.payload, text),
    }


def _describe_run(run: Run) -> dict[str, Any]:
    return {
        "run": run.id,
        "messages": f"{run.first}-{run.last}" if run.last > run.first else str(run.first),
        "state": run.state,
        "graph": run.graph,
        "channel": run.channel,
        "attempts": run.attempts,
        "started": _format_time(run.started_at),
        "updated": _format_time(run.updated_at),
        "error": run.note.get("error"),
    }


def _describe_reply(reply: Reply, text: bool) -> dict[str, Any]:
    return {
        "number": reply.seq,
        "key": reply.id,
        "run": reply.run_id,
        "channel": reply.channel,
        "state": reply.state,
        "attempts": reply.attempts,
        "provider id": reply.provider_id,
        "created": _format_time(reply.created_at),
        "error": reply.error,
        **_describe_payload(reply.payload, text),
    }


def _print(
    rows: Sequence[dict[str, Any]], headings: Sequence[str], nothing: str, as_json: bool, text: bool = False
) -> None:
    if text:
        headings = (*headings, "payload")
    table = new_table(*headings)
    for column in table.columns:
        # Ids are never cut; wide cells continue on the next line.
        column.overflow = "fold"

    def cells(row: dict[str, Any]) -> Iterable[str]:
        shown = {**row, "error": row.get("error") and cut_message(row["error"])}
        if text:
            shown["payload"] = json_text(row["payload"], ascii_only=False)
        return (_format_cell(shown.get(heading)) for heading in headings)

    if as_json:
        rows = [{name.replace(" ", "_"): value for name, value in row.items()} for row in rows]
    print_table(rows, as_json, table, cells, nothing)


def _format_cell(cell: Any) -> str:
    """Return a cell's text."""
    if cell is None:
        return ""
    if isinstance(cell, _Time):
        return cell[:19]
    return make_legible(str(cell), keep="\n")


class _Time(str):
    """Time in ISO 8601; a table shows it to the second."""

    __slots__ = ()


def _format_time(micros: int) -> _Time:
    return _Time(to_datetime(micros).isoformat(timespec="milliseconds"))


def _describe_payload(payload: Any, text: bool) -> dict[str, Any]:
    from perdure.model.runs.messages import encode

    size = {"bytes": len(encode(payload, "payload"))}
    if text:
        return {**size, "payload": payload}
    return size
