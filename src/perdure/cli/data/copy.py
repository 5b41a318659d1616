"""Copying from the command line: threads and the store, from one database to another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from perdure.cli.app import format_count, handle_in, open_named_keys, say, show_progress_bar, warn
from perdure.errors import BadUrl, NotFound, PerdureError, Unavailable
from perdure.model.missing_thread import missing_thread
from perdure.model.records import SERVER, SESSIONS, STORE, THREADS, Partition
from perdure.storage.url import redact

if TYPE_CHECKING:
    from perdure.database.blocking import SyncDatabase
    from perdure.engine.transfer.transfer_terms import TransferResult

INTERRUPTED = 130
"""Exit code after Ctrl-C, as in shells."""

HandOver = Annotated[
    bool,
    typer.Option("--hand-over", help="Let the target take over threads that go on by themselves"),
]

# Keys are the values of the engine's State, whose module is imported only when a command runs.
_DONE = {
    "absent": "copied",
    "partial": "finished",
    "same": "is there already",
    "different": "replaced",
}
_PLANNED = {
    "absent": "would be copied",
    "partial": "would be finished",
    "same": "is there already",
    "different": "differs at the target",
}


@dataclass(slots=True)
class CopyCounts:
    """Counts of copied and skipped partitions."""

    threads: int = 0
    namespaces: int = 0
    checkpoints: int = 0
    items: int = 0
    listings: int = 0
    sessions: int = 0
    bytes: int = 0
    left_alone: int = 0
    crons: int = 0
    failed: list[str] = field(default_factory=list)

    def count(self, partition: Partition, moved: TransferResult) -> None:
        """Add the result for one partition."""
        from perdure.engine.transfer.transfer_terms import State

        if moved.found is State.SAME:
            self.left_alone += 1
            return
        self.threads += partition.space == THREADS
        self.namespaces += partition.space == STORE
        self.listings += partition.space == SERVER
        self.sessions += partition.space == SESSIONS
        self.checkpoints += moved.digest.checkpoints
        if partition.space == STORE:
            self.items += moved.digest.items
        self.bytes += moved.digest.bytes

    def __str__(self) -> str:
        text = f"{format_count(self.threads, 'thread')} with {format_count(self.checkpoints, 'checkpoint')}"
        if self.namespaces:
            text += f", {format_count(self.namespaces, 'store namespace')}"
            text += f" with {format_count(self.items, 'item')}"
        if self.listings:
            text += f", {format_count(self.listings, 'record')} of servers"
        if self.sessions:
            text += f", {self.sessions} histories of sessions"
        text += f", {self.bytes:,} bytes"
        if self.left_alone:
            text += f"; {self.left_alone} were there already"
        return text


def copy(
    source: Annotated[
        str | None,
        typer.Argument(help="The database to read, e.g. sqlite:///threads.db", show_default=False),
    ] = None,
    target: Annotated[
        str | None,
        typer.Argument(help="The database to write, set up by `perdure migrate`", show_default=False),
    ] = None,
    *,
    from_: Annotated[str | None, typer.Option("--from", help="Another way to name the source")] = None,
    to: Annotated[str | None, typer.Option("--to", help="Another way to name the target")] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant; by default all tenants")] = None,
    threads: Annotated[
        list[str] | None, typer.Option("--thread", help="Only this thread; may be repeated")
    ] = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Bring threads and records up to date that differ at the target"),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and compare both; change nothing")] = False,
    hand_over: HandOver = False,
    from_keys: Annotated[
        str | None,
        typer.Option(metavar="KEYS", help="The provider that wraps the keys of the source, as for --keys"),
    ] = None,
    to_keys: Annotated[
        str | None,
        typer.Option(
            metavar="KEYS",
            help="The provider that wraps the keys of the target; without it the target is not encrypted",
        ),
    ] = None,
) -> None:
    """Copy threads and the store to another database, between any backends and keys.

    Typical: `perdure copy sqlite:///threads.db postgresql://me@host/app`.

    Every thread is copied with its history, pending writes, tags and head, read back, and compared by digest
    before it becomes visible. Stop the command at any time and run it again: complete threads are compared
    and skipped, partial ones are finished. A thread that differs at the target is reported and stays as it
    is, unless --replace is given. The source is not changed.

    Items of the store, and records of servers such as assistants and crons, are merged: what only the target
    has stays there, and with --replace the source's replaces what differs under the same name.

    Exit code 0 when everything is at the target, 1 when something is not, 130 after Ctrl-C.
    """
    from perdure.database.opening import connect_sync, open_for_reading

    source, target = _choose_databases(source, target, from_, to)
    from_key, to_key = open_named_keys(from_keys), open_named_keys(to_keys)
    with (
        connect_sync(source, encryption_key=from_key)
        if hand_over and not dry_run
        else closing(open_for_reading(source, encryption_key=from_key)) as source_database,
        connect_sync(target, encryption_key=to_key) as target_database,
    ):
        partitions = _choose_partitions(source_database, tenant, threads)
        tally = CopyCounts()
        with report_interruption(lambda: str(tally)), show_progress(len(partitions)) as progress:
            for partition in partitions:
                _copy_one(
                    partition,
                    source_database,
                    target_database,
                    replace=replace,
                    dry_run=dry_run,
                    hand_over=hand_over,
                    tally=tally,
                    progress=progress,
                )
    for line in tally.failed:
        warn(line)
    verb = "Would copy" if dry_run else "Copied"
    say(f"{verb} to {redact(target)}: {tally}")
    if tally.crons:
        where = "is" if tally.crons == 1 else "are"
        if dry_run:
            where = "would then be"
        warn(
            f"{format_count(tally.crons, 'cron')} of the source {where} in both databases, and workers on "
            "each start them: stop those of the source, or disable the crons there"
        )
    if tally.failed:
        raise typer.Exit(1)


@contextmanager
def report_interruption(tally: Callable[[], str]) -> Iterator[None]:
    """Print what is at the target so far if the database becomes unavailable, or after Ctrl-C, which ends the
    command with the exit code ``INTERRUPTED``."""
    try:
        yield
    except KeyboardInterrupt:
        warn(f"Stopped. At the target: {tally()}. Run the same command again to continue.")
        raise typer.Exit(INTERRUPTED) from None
    except Unavailable:
        warn(f"At the target so far: {tally()}. Run the same command again to continue.")
        raise


def _choose_databases(*named: str | None) -> tuple[str, str]:
    """Return the source and the target of a copy.

    Args:
        named: The two arguments, --from and --to. With one of the options, the first argument is the other
            database.
    """
    first, second, source, target = named
    unused = [each for each in (first, second) if each is not None]
    if source is None and unused:
        source = unused.pop(0)
    if target is None and unused:
        target = unused.pop(0)
    if unused:
        raise typer.BadParameter("arguments, --from and --to name more than two databases")
    if source is None or target is None:
        raise typer.BadParameter(
            f"which database is to be {'read' if source is None else 'written'}? Name both, e.g. "
            "`perdure copy sqlite:///threads.db postgresql://me@host/app`"
        )
    if source == target:
        raise BadUrl("source and target are the same database; there is nothing to copy")
    return source, target


def _choose_partitions(
    database: SyncDatabase, tenant: str | None, threads: list[str] | None
) -> list[Partition]:
    from perdure import admin

    partitions = admin.partitions(database, tenant)
    if not threads:
        return partitions
    chosen = [p for p in partitions if p.space == THREADS and p.thread in threads]
    for name in threads:
        if not any(p.thread == name for p in chosen):
            raise missing_thread(Partition(tenant or "", name))
    return chosen


def _copy_one(
    partition: Partition,
    source_database: SyncDatabase,
    target_database: SyncDatabase,
    *,
    replace: bool,
    dry_run: bool,
    hand_over: bool,
    tally: CopyCounts,
    progress: ProgressReport,
) -> None:
    from perdure import admin
    from perdure.engine.transfer.transfer_terms import State

    name = label(partition)
    try:
        moved = admin.move(
            source_database,
            partition,
            target_database,
            replace=replace,
            dry_run=dry_run,
            hand_over=hand_over,
            report=progress.bytes,
        )
    except Unavailable:
        raise
    except NotFound:
        # The partition was deleted since it was listed, or never held more than its name.
        progress.line(f"{name}: is empty")
        return
    except PerdureError as error:
        tally.failed.append(str(error))
        progress.line(f"{name}: not copied")
        return
    text = (_PLANNED if dry_run else _DONE)[moved.found.value]
    if dry_run and moved.found is State.DIFFERENT:
        if replace:
            text = "would be replaced"
        else:
            tally.failed.append(f"{name} {text}; pass --replace to bring it up to date")
    tally.count(partition, moved)
    counts = {
        THREADS: f"{moved.digest.checkpoints} checkpoints",
        SERVER: f"{moved.digest.documents} documents",
    }
    much = counts.get(partition.space, f"{moved.digest.items} items")
    if moved.kept:
        much += f", {moved.kept} only at the target stay"
    tally.crons += _count_crons(source_database, partition)
    progress.line(f"{name}: {text}, {much}, {moved.digest.bytes:,} bytes, digest {moved.digest.hex}")


def _count_crons(database: SyncDatabase, partition: Partition) -> int:
    """Return the number of crons in a partition that start runs by themselves."""
    from perdure.engine.queue import crons
    from perdure.model.runs.queue import CRONS

    if partition.space != SERVER or partition.thread != CRONS:
        return 0
    return sum(cron.due_at is not None for cron in handle_in(database).run(crons.read_all_crons(partition)))


def label(partition: Partition) -> str:
    """Return the name of a thread, a namespace of the store or a server's list, for the screen."""
    from perdure.model.store_items import labels_of

    tenant = ""
    if partition.tenant:
        tenant = f" of tenant {partition.tenant!r}"
    if partition.space == STORE:
        return f"store {'/'.join(map(repr, labels_of(partition.thread)))}{tenant}"
    if partition.space == SERVER:
        return f"a server's list of {partition.thread}{tenant}"
    if partition.space == SESSIONS:
        return f"history of session {partition.thread!r}{tenant}"
    return f"thread {partition.thread!r}{tenant}"


@dataclass(frozen=True, slots=True)
class ProgressReport:
    """Callbacks for progress: ``line`` is called after each thread, ``bytes`` with the number of bytes just
    read."""

    line: Callable[[str], None]
    bytes: Callable[[int], None]


@contextmanager
def show_progress(total: int) -> Iterator[ProgressReport]:
    """Show progress: a bar on a terminal, otherwise a line for each thread."""
    with show_progress_bar("{task.fields[megabytes]:,.1f} MB") as bar:
        if bar.disable:
            yield ProgressReport(say, lambda count: None)
            return
        task = bar.add_task("", total=total, megabytes=0.0)
        read = 0

        def add_bytes(count: int) -> None:
            nonlocal read
            read += count
            bar.update(task, megabytes=read / 1e6)

        yield ProgressReport(
            lambda line: bar.update(task, advance=1, description=escape(line[:60])), add_bytes
        )
