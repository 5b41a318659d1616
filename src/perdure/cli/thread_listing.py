"""Commands that list threads: all by id, and the largest by bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from perdure.cli.app import (
    AsJson,
    Db,
    Keys,
    Tenant,
    err,
    legible,
    open_database,
    out,
    print_json,
    printable,
    run_coroutine,
)
from perdure.cli.runs import ErrorText, Prefix, Since, User, age, open_walk, since_us
from perdure.errors import Contention, Corrupt
from perdure.model.times import to_datetime

if TYPE_CHECKING:
    from perdure.database.blocking import SyncDatabase
    from perdure.runtime.operations.thread_search import ThreadQuery
    from perdure.runtime.operations.walk_by_activity import ThreadWalk
    from perdure.runtime.threads.rows import ThreadRow

_AGE_WIDTH = len("9999d")
_TITLE_MAX = 80
_STATUS_WIDTH = len("interrupted")
_BYTES_WIDTH = len("999,999,999,999")
_UNREADABLE = "unreadable: run perdure fsck"


def _status(value: str | None) -> str | None:
    from perdure.model.runs.lifecycle import Status

    if value is not None and value not in get_args(Status):
        raise typer.BadParameter(f"a thread is {', '.join(get_args(Status))}, not {value!r}")
    return value


def list_threads(
    *,
    status: Annotated[
        str | None, typer.Option(help="idle, busy, interrupted or error", callback=_status)
    ] = None,
    user: User = None,
    title: Annotated[str | None, typer.Option(help="Only titles that contain this")] = None,
    words: Annotated[
        str | None, typer.Option(help="Only conversations with all of these words in a message, or the title")
    ] = None,
    error: ErrorText = None,
    tag: Annotated[str | None, typer.Option(help="Only threads with this tag")] = None,
    since: Since = None,
    prefix: Prefix = "",
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            "-n",
            min=1,
            help="The maximum number, latest activity first; by default all, ordered by id",
        ),
    ] = None,
    sizes: Annotated[bool, typer.Option("--bytes", help="Measure each thread, by reading all of it")] = False,
    db: Db = None,
    tenant: Tenant = "",
    keys: Keys = None,
    as_json: AsJson = False,
) -> None:
    """List the threads of a tenant, with the time since their last change, their status, title and user.

    They come by id; with --limit, the ones with the latest activity come first, except on Redis and DynamoDB,
    which have no order by time, and for a --prefix. Threads of the runtime itself, on which the memory of
    users is extracted, are left out. The title is the title or name in the metadata.
    """
    from perdure.runtime.operations.thread_search import ThreadQuery

    with open_walk(db, tenant, keys, prefix) as found:
        walk = found.walk._replace(status=status, is_by_id=limit is None)  # type: ignore[arg-type]
        query = ThreadQuery(
            title=title, user=user, error=error, tag=tag, since=since_us(since, found.now), words=words
        )

        def show(row: ThreadRow, number: int) -> None:
            size = _size(found.database, row.thread_id) if sizes else None
            if as_json:
                print_json(_entry(row, size, sizes))
                return
            if number == 1:
                measured = f"{'bytes':>{_BYTES_WIDTH}}  " if sizes else ""
                typer.echo(f"{'age':<{_AGE_WIDTH}}  {'status':<{_STATUS_WIDTH}}  {measured}thread")
            typer.echo(_line(row, found.now, size, sizes))

        count = run_coroutine(_list_matching(walk, query, limit, show))
    if not count and not as_json:
        has_conditions = any((status, user, title, words, error, tag, since, prefix))
        out.print("No thread matches." if has_conditions else "No threads yet.")


async def _list_matching(
    walk: ThreadWalk, query: ThreadQuery, limit: int | None, show: Callable[[ThreadRow, int], None]
) -> int:
    from perdure.runtime.operations.thread_search import search

    count = 0
    async with aclosing(search(walk, query, enough=limit)) as steps:
        async for step in steps:
            if step.row is not None:
                count += 1
                show(step.row, count)
            if count == limit:
                break
    return count


def _line(row: ThreadRow, now: int, size: int | None, sizes: bool) -> str:
    from perdure.runtime.threads.user_and_title import title_in, user_in

    shown = _UNREADABLE if row.fault is not None else row.status
    measured = f"{'?' if size is None else f'{size:,}':>{_BYTES_WIDTH}}  " if sizes else ""
    line = f"{age(now - row.updated_at):<{_AGE_WIDTH}}  {shown:<{_STATUS_WIDTH}}  {measured}"
    line += printable(row.thread_id)
    if title := title_in(row.metadata):
        line += f"  {legible(title[:_TITLE_MAX])}"
    if (user := user_in(row.metadata)) is not None:
        line += f"  of {printable(user)}"
    return line


def top(
    *,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The number of threads to show")] = 20,
    db: Db = None,
    tenant: Tenant = "",
    keys: Keys = None,
    as_json: AsJson = False,
) -> None:
    """List a tenant's largest threads, by their bytes in the database, each with its largest channel.

    Every thread is read; that takes a while where there are many.
    """
    from rich.progress import track

    with open_database(db, tenant, keys) as database:
        names = [thread.thread_id for thread in database.threads()]
        found: list[tuple[int, str, str]] = []
        hidden = as_json or not sys.stderr.isatty()
        for name in track(names, "Measuring", console=err, transient=True, disable=hidden):
            try:
                measured = database.measure(name)
            except (Corrupt, Contention) as error:
                err.print(f"thread {name!r} was not measured: {error}", soft_wrap=True, markup=False)
                continue
            largest = max(measured.channels, key=lambda c: measured.channels[c].bytes, default="")
            found.append((measured.total, name, largest))
    found.sort(key=lambda each: (-each[0], each[1]))
    if not names and not as_json:
        out.print("No threads yet.")
    elif not as_json:
        typer.echo(f"{'bytes':>{_BYTES_WIDTH}}  {'largest channel':<20}  thread")
    for total, name, channel in found[:limit]:
        if as_json:
            print_json({"thread_id": name, "bytes": total, "largest_channel": channel})
        else:
            typer.echo(f"{total:>{_BYTES_WIDTH},}  {printable(channel):<20}  {printable(name)}")


def _entry(row: ThreadRow, size: int | None, sizes: bool) -> dict[str, Any]:
    from perdure.runtime.threads.user_and_title import title_in, user_in

    entry = {
        "thread_id": row.thread_id,
        "updated_at": _iso(row.updated_at),
        "created_at": _iso(row.created_at),
        "status": row.status,
        "title": title_in(row.metadata),
        "user": user_in(row.metadata),
    }
    if row.fault is not None:
        entry["error"] = str(row.fault)
    return {**entry, "bytes": size} if sizes else entry


def _iso(micros: int) -> str | None:
    return to_datetime(micros).isoformat() if micros else None


def _size(database: SyncDatabase, thread_id: str) -> int | None:
    """Return the bytes of a thread, ``None`` if they cannot be read."""
    try:
        return database.measure(thread_id).total
    except (Corrupt, Contention):
        return None
