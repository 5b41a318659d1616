"""Import from the command line: threads and the store of another saver, or an archive of Perdure's."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.markup import escape

from perdure.cli.app import (
    AsJson,
    DataPlace,
    check_new_id,
    format_count,
    keys_of,
    open_database,
    print_json,
    quote_id,
    run_coroutine,
    say,
    show_progress_bar,
    url_of,
    warn,
)
from perdure.cli.data.copy import report_interruption
from perdure.cli.data.export import ArchiveOptions, import_archive
from perdure.cli.data.langgraph_server import (
    Authorization,
    Headers,
    RecordCounts,
    RecordTarget,
    ServerOptions,
    open_server,
)
from perdure.cli.data.sessions import SessionOptions, import_sessions
from perdure.errors import NotAllowed, NotFound
from perdure.imports.kinds import SourceKind, digest_place, open_source
from perdure.storage.url import redact

if TYPE_CHECKING:
    from rich.progress import Progress

    from perdure.database.blocking import SyncDatabase
    from perdure.imports.importer import ImportCounts, Importer, ImportOptions, ThreadReport
    from perdure.imports.items import ItemCounts
    from perdure.imports.source import Source


def import_(
    source: Annotated[str, typer.Argument(help="The file, or the URL of the database, to read")],
    *,
    kind: Annotated[
        SourceKind | None,
        typer.Option("--from", metavar="KIND", help="The kind of the source, see above; detected without"),
    ] = None,
    threads: Annotated[
        list[str] | None,
        typer.Option("--thread", "--session", help="Only this thread, or session; may be repeated"),
    ] = None,
    store: Annotated[bool, typer.Option(help="Import the items of the store as well")] = True,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read and translate everything that is new; change nothing")
    ] = False,
    verify: Annotated[
        bool, typer.Option(help="Compare every checkpoint with the source's before it becomes visible")
    ] = True,
    rename: Annotated[
        str | None,
        typer.Option("--rename", help="Archive: another id for the one thread", callback=check_new_id),
    ] = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Archive, sessions: replace those of the same id that differ"),
    ] = False,
    file_keys: Annotated[
        str | None,
        typer.Option(
            metavar="KEYS", help="Archive: the provider that wraps its keys; by default that of --keys"
        ),
    ] = None,
    table: Annotated[str, typer.Option("--table", help="Sessions: the table of a SQL database")] = "sessions",
    key: Annotated[
        str, typer.Option("--key", help="Sessions: the column, or the key, of a session's id")
    ] = "session_id",
    column: Annotated[
        str | None,
        typer.Option(
            "--column",
            help="Sessions: the column of its messages; else history or messages",
        ),
    ] = None,
    graphs: Annotated[
        list[str] | None,
        typer.Option(
            "--graph",
            metavar="[NAME=]PLACE",
            help="Server: a graph of its threads, e.g. agent=./agent.py:graph; may be repeated",
        ),
    ] = None,
    headers: Headers = None,
    authorization: Authorization = None,
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """Import threads and the store from another saver, or from an archive of Perdure's.

    Typical: `perdure import old.db --db sqlite:///new.db`.

    The kind of the source is detected by its first bytes or its tables, and printed. Where that is
    not possible, pass --from KIND.

    KIND is archive, langgraph-sqlite, langgraph-postgres, langgraph-redis, langgraph-server (http://… of
    `langgraph dev`, Aegra or another server with LangGraph's API), aws-dynamodb, plain (the simple
    tables of home-made savers, on SQLite, PostgreSQL or D1), history (messages as JSON, which become threads)
    or sessions (histories without checkpoints, out of a file of `perdure export --as sessions`, or of a table
    on SQLite, PostgreSQL or DynamoDB with a history of {role, content} for each session_id).

    Every checkpoint, pending write, parent, namespace and metadata is read directly from the source, which is
    not changed; ids stay the same. No stored object is built, so nothing that a row names is imported or run.
    Each thread is read back and compared with what the source's own saver returns (its package must be
    installed; otherwise with what was read), and only then it becomes visible.

    From a server come assistants with their versions, and crons, too. JSON carries messages, text and
    numbers; with --graph all values get the types of the graph's state again, and threads that wait in the
    middle of a Send, or of a step with a finished task, can go on. Without it these are skipped.

    Stop the command at any time and run it again. Run it again later, too: threads that went on at the source
    are brought up to date, all others are left as they are. A thread that went on in both places is skipped.

    Exit code 0 when everything is at the target, 1 when something was skipped, 130 after Ctrl-C.
    """
    names = (table, key, column)
    if kind is None:
        kind = _detect_kind(source, is_of_sessions=names != _SESSION_NAMES)
    options_of_server = ServerOptions(headers or [], authorization, graphs or [])
    options_of_server.require(is_used=kind is SourceKind.LANGGRAPH_SERVER)
    if kind is SourceKind.ARCHIVE:
        import_archive(
            source,
            ArchiveOptions(threads, rename, replace, dry_run, file_keys, place),
        )
        return
    if rename is not None or file_keys is not None:
        raise NotAllowed("--rename and --file-keys belong to --from archive")
    if kind is SourceKind.SESSIONS:
        from perdure.imports.histories.session_tables import SessionTable

        import_sessions(
            source,
            SessionOptions(SessionTable(*names), threads, replace, dry_run, place, as_json),
        )
        return
    if replace:
        raise NotAllowed("--replace belongs to --from archive and --from sessions")
    from perdure.imports.importer import ImportCounts, Importer, ImportOptions

    server = None
    if kind is SourceKind.LANGGRAPH_SERVER:
        server = open_server(source, options_of_server)
    opened_source = server or open_source(kind, source)
    counts, items, records = ImportCounts(), None, None
    try:
        with open_database(place) as database, report_interruption(lambda: _describe(counts)):
            with show_progress_bar("threads, {task.fields[rows]:,} rows") as bar:
                progress = _Progress(bar, len(threads) if threads else opened_source.count())
                origin = digest_place(kind, source)
                options = ImportOptions(place.tenant, dry_run, verify, progress.add_rows, origin)
                _import_threads(Importer(opened_source, database, options), threads, counts, progress)
            if store and not threads:
                items = _import_items(opened_source, database, options)
            if server is not None and not threads:
                from perdure.cli.data.langgraph_server_records import write_records

                target = RecordTarget(url_of(place.db), place.tenant, keys_of(place.keys), dry_run)
                skipped = {each.thread for each in counts.skipped}
                records = run_coroutine(write_records(server.api, target, skipped))
    finally:
        opened_source.close()
    result = _Result(
        opened_source.name, redact(url_of(place.db)), opened_source.verifier, counts, items, dry_run, records
    )
    if as_json:
        result.print_json()
    else:
        result.print()
    if counts.skipped or (items and items.skipped) or (records and records.skipped):
        raise typer.Exit(1)


def _detect_kind(source: str, *, is_of_sessions: bool) -> SourceKind:
    """Detect the kind of a source, and print it."""
    from perdure.imports.detection import detect_kind

    if is_of_sessions:
        kind = SourceKind.SESSIONS
    else:
        kind = detect_kind(source)
    name = redact(source) if "://" in source else source
    warn(f"{quote_id(name)} is read as {kind}")
    return kind


_NAMED_MAX = 10
"""Maximum number of threads that are named for a person as deleted at the source."""

_SESSION_NAMES = ("sessions", "session_id", None)
"""Names of a table of sessions if none is passed."""


def _import_threads(
    importer: Importer, threads: list[str] | None, counts: ImportCounts, progress: _Progress
) -> None:
    for name in threads or ():
        if not importer.has(name):
            raise NotFound(f"{importer.source.name} has no thread {name!r}; nothing was imported")
    names: set[str] = set()
    for name in dict.fromkeys(threads) if threads else importer.source.threads():
        names.add(name)
        report = importer.import_thread(name)
        counts.add(report)
        progress.add_thread(report)
    if not threads:
        counts.removed = importer.find_removed(names)


def _import_items(source: Source, database: SyncDatabase, options: ImportOptions) -> ItemCounts:
    from perdure.imports.items import ItemImporter

    return ItemImporter(database, options, time.time_ns() // 1000).run(source.items())


class _Progress:
    """Progress of an import: threads, and rows that were read."""

    def __init__(self, bar: Progress, total: int | None) -> None:
        self._bar = bar
        self._task = bar.add_task("", total=total, rows=0)
        self._rows = 0

    def add_rows(self, count: int) -> None:
        self._rows += count
        self._bar.update(self._task, rows=self._rows)

    def add_thread(self, report: ThreadReport) -> None:
        self._bar.update(self._task, advance=1, description=escape(quote_id(report.thread)[:60]))


@dataclass(frozen=True, slots=True)
class _Result:
    """The result of an import, for a person or a program."""

    source: str
    target: str
    verifier: str
    counts: ImportCounts
    items: ItemCounts | None
    dry_run: bool
    records: RecordCounts | None

    def print_json(self) -> None:
        counts, items = self.counts, self.items
        for why in self.records.skipped if self.records else ():
            print_json({"record_skipped": why})
        for skipped in counts.skipped:
            print_json({"thread_id": skipped.thread, "skipped": skipped.why})
        for why in items.skipped if items else ():
            print_json({"item_skipped": why})
        for name in counts.removed:
            print_json({"thread_id": name, "only_at_target": True})
        states = ("imported", "extended", "unchanged", "skipped")
        print_json(
            {
                "dry_run": self.dry_run,
                "threads": {state: counts.states[state] for state in states},
                "threads_only_at_target": len(counts.removed),
                "checkpoints": counts.checkpoints,
                "writes": counts.writes,
                "verified": counts.verified,
                "items": items.written if items else 0,
                "items_only_at_target": items.kept if items else 0,
                **(self.records.count_written() if self.records else {}),
            }
        )

    def print(self) -> None:
        counts, items = self.counts, self.items
        for skipped in counts.skipped:
            warn(f"thread {skipped.thread!r} was skipped: {skipped.why}")
        for name in counts.removed[:_NAMED_MAX]:
            warn(f"thread {name!r} of an earlier import is not at this source any more; it stays as it is")
        if more := len(counts.removed[_NAMED_MAX:]):
            warn(f"the same holds for {format_count(more, 'more thread')}; --json names all")
        for why in (*(items.skipped if items else ()), *(self.records.skipped if self.records else ())):
            warn(f"skipped: {why}")
        verb = "Would import" if self.dry_run else "Imported"
        say(f"{verb} from {self.source} to {self.target}: {_describe(counts)}")
        if counts.verified:
            text = f"{counts.verified:,} checkpoints compared equal with {self.verifier}"
            say(text)
        if items is not None and (items.written or items.unchanged or items.expired or items.kept):
            kept = f"; {items.kept:,} only at the target stay" if items.kept else ""
            say(
                f"store: {items.written:,} items, {items.unchanged:,} were there already, "
                f"{items.expired:,} had expired{kept}"
            )
        if self.records is not None:
            records = self.records
            text = f"{format_count(records.assistants, 'assistant')}, {format_count(records.crons, 'cron')}"
            say(f"server: {text}, {format_count(records.threads, 'record')} of threads")


def _describe(counts: ImportCounts) -> str:
    states = counts.states
    rows = f"{format_count(counts.checkpoints, 'checkpoint')}, {format_count(counts.writes, 'pending write')}"
    text = f"{format_count(states['imported'], 'thread')}, {rows}"
    for state, words in (
        ("extended", "brought up to date"),
        ("unchanged", "unchanged"),
        ("skipped", "skipped"),
    ):
        if states[state]:
            text += f"; {format_count(states[state], 'thread')} {words}"
    if counts.removed:
        text += f"; {format_count(len(counts.removed), 'thread')} only at the target"
    return text
