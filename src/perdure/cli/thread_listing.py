"""Commands that list threads: all by id, and the largest by bytes."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.app import AsJson, Db, KeyFile, Tenant, err, opened, out, print_json, printable
from perdure.errors import Contention, Corrupt
from perdure.model.records import INTERNAL

if TYPE_CHECKING:
    from perdure.database.blocking import SyncDatabase
    from perdure.database.thread_entries import Thread

_TIME_WIDTH = len("2026-01-01T00:00:00.000000+00:00")
_STATUS_WIDTH = len("interrupted")
_BYTES_WIDTH = len("999,999,999,999")
_UNREADABLE = "unreadable: run perdure fsck"


def list_threads(
    *,
    sizes: Annotated[bool, typer.Option("--bytes", help="Measure each thread, by reading all of it")] = False,
    db: Db = None,
    tenant: Tenant = "",
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """List the threads of a tenant, by id, with the time of their last change and their status.

    Threads of the runtime itself, on which the memory of users is extracted, are left out. The status is
    idle, busy, interrupted or error; it is empty where only reading the thread would tell.
    """
    with opened(db, tenant, key_file) as database:
        count = 0
        of_users = (each for each in database.threads() if not each.thread_id.startswith(INTERNAL))
        for count, thread in enumerate(of_users, 1):
            size = _size(database, thread) if sizes else None
            if as_json:
                print_json(_entry(thread, size, sizes))
                continue
            if count == 1:
                heading = f"{'bytes':>{_BYTES_WIDTH}}  " if sizes else ""
                typer.echo(f"{'last change':<{_TIME_WIDTH}}  {'status':<{_STATUS_WIDTH}}  {heading}thread")
            shown = (thread.updated_at or "") if thread.error is None else _UNREADABLE
            measured = f"{'?' if size is None else f'{size:,}':>{_BYTES_WIDTH}}  " if sizes else ""
            typer.echo(
                f"{shown:<{_TIME_WIDTH}}  {thread.status or '':<{_STATUS_WIDTH}}  {measured}"
                f"{printable(thread.thread_id)}"
            )
        if not count and not as_json:
            out.print("No threads yet.")


def top(
    *,
    limit: Annotated[int, typer.Option("--limit", "-n", min=1, help="The number of threads to show")] = 20,
    db: Db = None,
    tenant: Tenant = "",
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """List a tenant's largest threads, by their bytes in the database, each with its largest channel.

    Every thread is read; that takes a while where there are many.
    """
    from rich.progress import track

    with opened(db, tenant, key_file) as database:
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


def _entry(thread: Thread, size: int | None, sizes: bool) -> dict[str, Any]:
    entry = {name: value for name, value in asdict(thread).items() if name != "tenant"}
    if thread.error is None:
        del entry["error"]
    return {**entry, "bytes": size} if sizes else entry


def _size(database: SyncDatabase, thread: Thread) -> int | None:
    """Return the bytes of a thread, ``None`` if they cannot be read."""
    try:
        return database.measure(thread.thread_id).total
    except (Corrupt, Contention):
        return None
