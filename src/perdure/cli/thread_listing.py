"""Commands that list threads: all by id, those that are searched for, and the largest by bytes."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Set
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from perdure.cli.app import (
    AsJson,
    DataPlace,
    format_count,
    handle_in,
    make_legible,
    open_database,
    out,
    print_json,
    quote_id,
    read_local_prices,
    run_coroutine,
    say,
    track,
    warn,
)
from perdure.cli.runs import ErrorText, Prefix, Since, format_age, open_walk, parse_since
from perdure.cli.thread_steps import money
from perdure.errors import Contention, Corrupt
from perdure.model.times import to_datetime

if TYPE_CHECKING:
    from perdure.database.blocking import SyncDatabase
    from perdure.runtime.operations.thread_search import ThreadMatch, ThreadQuery
    from perdure.runtime.operations.walk_by_activity import ThreadWalk
    from perdure.runtime.threads.rows import ThreadRow

_AGE_WIDTH = len("9999d")
_TITLE_MAX = 80
_STATUS_WIDTH = len("interrupted")
_BYTES_WIDTH = len("999,999,999,999")
THREAD_BYTES = (
    "A thread's bytes are those of its checkpoints, values and writes, each stored piece once; the database "
    "has messages, runs, replies, events and the store, too."
)
"""The meaning of the bytes of a thread, and the reason why those of all threads are not the bytes of the
database."""
_UNREADABLE = "unreadable: run perdure fsck"


def _check_status(value: str | None) -> str | None:
    from perdure.model.runs.lifecycle import Status

    if value is not None and value not in get_args(Status):
        raise typer.BadParameter(f"a thread is {', '.join(get_args(Status))}, not {value!r}")
    return value


def _check_cost(value: float | None) -> float | None:
    if value is not None and not 0 <= value < math.inf:
        raise typer.BadParameter(f"a cost is a number from 0 on, not {value}")
    return value


def list_threads(
    *,
    status: Annotated[
        str | None, typer.Option(help="idle, busy, interrupted or error", callback=_check_status)
    ] = None,
    user: Annotated[
        str | None,
        typer.Option(
            help="Only threads of this user: the owner in their metadata, or a user of any of their runs"
        ),
    ] = None,
    graph: Annotated[
        str | None,
        typer.Option(help="Only threads of this graph, as their metadata or their newest run names it"),
    ] = None,
    title: Annotated[str | None, typer.Option(help="Only titles that contain this")] = None,
    words: Annotated[
        str | None, typer.Option(help="Only conversations with all of these words in a message, or the title")
    ] = None,
    error: ErrorText = None,
    tag: Annotated[str | None, typer.Option(help="Only threads with this tag")] = None,
    cost: Annotated[
        float | None,
        typer.Option(
            help="Only threads whose calls of models cost at least this much, by the prices of perdure.toml",
            callback=_check_cost,
        ),
    ] = None,
    since: Since = None,
    prefix: Prefix = "",
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            min=1,
            help="The maximum number, latest activity first; by default all",
        ),
    ] = None,
    sizes: Annotated[bool, typer.Option("--bytes", help="Measure each thread, by reading all of it")] = False,
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """List the threads of a tenant, with the time since their last change, their status, title and user.

    They are ordered by id. With --limit or --status the latest activity comes first, unless --prefix is given
    or the database is Redis or DynamoDB, which have no order by time. Threads of the runtime itself, on which
    the memory of users is extracted, are left out. The title is the title or name in the metadata.
    """
    from perdure.model.model_calls import NO_PRICES
    from perdure.runtime.operations.thread_search import ThreadQuery

    with open_walk(place, prefix) as found:
        walk = found.walk._replace(status=status, is_by_id=limit is None and status is None)  # type: ignore[arg-type]
        prices = NO_PRICES
        if cost is not None:
            prices = read_local_prices()
        query = ThreadQuery(
            title=title,
            user=user,
            graph=graph,
            error=error,
            tag=tag,
            since=parse_since(since, found.now),
            words=words,
            cost=cost,
            prices=prices,
        )

        def show(match: ThreadMatch, row: ThreadRow, number: int) -> None:
            size = _count_bytes(found.database, row.thread_id) if sizes else None
            if as_json:
                entry = _make_entry(row)
                if sizes:
                    entry["bytes"] = size
                if match.cost is not None:
                    entry |= {"cost": match.cost, "currency": prices.currency}
                if user is not None:
                    entry["users"] = sorted(match.users)
                if words is not None:
                    entry |= {"excerpt": match.excerpt, "speaker": match.speaker}
                print_json(entry)
                return
            if number == 1:
                typer.echo(_align("age", "status", "bytes", sizes) + "thread")
            status = row.status if row.fault is None else _UNREADABLE
            # A thread whose first message still waits has no time of a change.
            age = format_age(found.now - row.updated_at) if row.updated_at else ""
            line = _align(age, status, "?" if size is None else f"{size:,}", sizes)
            line += _name_thread(row, match.users)
            if match.cost is not None:
                line += f"  cost {money(match.cost, prices.currency)}"
            typer.echo(line)
            if match.excerpt:
                spoken = [match.speaker, match.excerpt] if match.speaker else [match.excerpt]
                typer.echo(f"  {': '.join(map(make_legible, spoken))}")

        count = run_coroutine(_list_matching(walk, query, limit, show))
    if not count and not as_json:
        has_conditions = any((status, user, graph, title, words, error, tag, since, prefix, cost is not None))
        out.print("No thread matches." if has_conditions else "No threads yet.")


async def _list_matching(
    walk: ThreadWalk,
    query: ThreadQuery,
    limit: int | None,
    show: Callable[[ThreadMatch, ThreadRow, int], None],
) -> int:
    from perdure.runtime.operations.thread_search import search

    count = 0
    async with aclosing(search(walk, query, enough=limit)) as steps:
        async for step in steps:
            if step.row is not None:
                count += 1
                show(step, step.row, count)
            if count == limit:
                break
    return count


def _align(age: str, status: str, size: str, sizes: bool) -> str:
    """Return the beginning of a line of the listing, with the size if sizes are shown."""
    line = f"{age:<{_AGE_WIDTH}}  {status:<{_STATUS_WIDTH}}  "
    if sizes:
        line += f"{size:>{_BYTES_WIDTH}}  "
    return line


def _name_thread(row: ThreadRow, users: Set[str]) -> str:
    """Return a thread's id, title and users: ``users``, or else the one whom its metadata name."""
    from perdure.runtime.threads.user_and_title import find_title, find_user

    line = quote_id(row.thread_id)
    if title := find_title(row.metadata):
        line += f"  {make_legible(title[:_TITLE_MAX])}"
    if not users and (user := find_user(row.metadata)) is not None:
        users = {user}
    if users:
        line += f"  of {', '.join(map(quote_id, sorted(users)))}"
    return line


def top(
    *,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The number of threads to show")] = 20,
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """List a tenant's largest threads, by their bytes in the database, each with its largest channel, and the
    bytes of all of its threads and of the database.

    Every thread is read; that takes a while where there are many. The database has the other tenants, the
    store and indexes, too; its size is not known on each kind of database. With --json the sums are in the
    last line.
    """
    total = count = 0

    def measure_each(database: SyncDatabase, names: list[str]) -> Iterator[tuple[int, str, str]]:
        nonlocal total, count
        for name in track(names, "Measuring", is_hidden=as_json):
            try:
                measured = database.measure(name)
            except (Corrupt, Contention) as error:
                warn(f"thread {name!r} was not measured: {error}")
                continue
            largest = max(measured.channels, key=lambda c: measured.channels[c].bytes, default="")
            total += measured.total
            count += 1
            yield measured.total, name, largest

    with open_database(place) as database:
        names = [thread.thread_id for thread in database.threads()]
        found = heapq.nsmallest(limit, measure_each(database, names), key=lambda each: (-each[0], each[1]))
        database_bytes = run_coroutine(handle_in(database).acount_bytes())
    if as_json:
        for size, name, channel in found:
            print_json({"thread_id": name, "bytes": size, "largest_channel": channel})
        print_json({"threads": count, "bytes": total, "database_bytes": database_bytes})
        return
    if not names:
        out.print("No threads yet.")
        return
    typer.echo(f"{'bytes':>{_BYTES_WIDTH}}  {'largest channel':<20}  thread")
    for size, name, channel in found:
        typer.echo(f"{size:>{_BYTES_WIDTH},}  {quote_id(channel):<20}  {quote_id(name)}")
    typer.echo(f"{total:>{_BYTES_WIDTH},}  {'':<20}  all, in {format_count(count, 'thread')}")
    if database_bytes is not None:
        typer.echo(f"{database_bytes:>{_BYTES_WIDTH},}  {'':<20}  the database, with indexes and free space")
    say(THREAD_BYTES)


def _make_entry(row: ThreadRow) -> dict[str, Any]:
    from perdure.runtime.threads.user_and_title import find_title, find_user

    entry = {
        "thread_id": row.thread_id,
        "updated_at": format_iso(row.updated_at),
        "created_at": format_iso(row.created_at),
        "status": row.status,
        "title": find_title(row.metadata),
        "user": find_user(row.metadata),
    }
    if row.fault is not None:
        entry["error"] = str(row.fault)
    return entry


def format_iso(micros: int) -> str | None:
    """Return a time in microseconds since 1970 in ISO 8601, ``None`` for 0."""
    if micros:
        return to_datetime(micros).isoformat()
    return None


def _count_bytes(database: SyncDatabase, thread_id: str) -> int | None:
    """Return the bytes of a thread, ``None`` if they cannot be read."""
    try:
        return database.measure(thread_id).total
    except (Corrupt, Contention):
        return None
