"""Histories of sessions from the command line: their import from a file or a table, and their export."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import typer
from rich.markup import escape

from perdure.cli.app import (
    DataPlace,
    format_count,
    open_database,
    print_json,
    quote_id,
    say,
    show_progress_bar,
    url_of,
    warn,
)
from perdure.cli.data.copy import report_interruption
from perdure.errors import NotFound
from perdure.storage.url import redact

if TYPE_CHECKING:
    from perdure.database.blocking import SyncDatabase
    from perdure.imports.histories.session_tables import SessionTable
    from perdure.imports.histories.sessions import SessionCounts, SessionState


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Options of an import of sessions, as the command takes them."""

    table: SessionTable
    sessions: list[str] | None
    replace: bool
    dry_run: bool
    place: DataPlace
    as_json: bool


def import_sessions(where: str, options: SessionOptions) -> None:
    """Import sessions, and print the results."""
    from perdure.imports.histories.session_sources import open_sessions
    from perdure.imports.histories.sessions import SessionCounts, SessionImporter

    source = open_sessions(where, options.table)
    counts = SessionCounts()
    wanted = set(options.sessions or ())
    seen: set[str] = set()
    try:
        with open_database(options.place) as database, report_interruption(lambda: _describe(counts)):
            importer = SessionImporter(database.history(), replaces=options.replace, dry_run=options.dry_run)
            found = (each for each in source.sessions() if not wanted or each.id in wanted)
            with show_progress_bar("sessions") as bar:
                task = bar.add_task("", total=len(wanted) or None)
                for report in importer.run(found):
                    counts.add(report)
                    seen.add(report.session)
                    bar.update(task, advance=1, description=escape(quote_id(report.session)[:60]))
    finally:
        source.close()
    if missing := sorted(wanted - seen):
        done = "would import" if options.dry_run else "imported"
        raise NotFound(f"{source.name} has no session {missing[0]!r}; {done} {_describe(counts)}")
    _print(source.name, counts, options)
    if counts.skipped:
        raise typer.Exit(1)


def export_sessions(database: SyncDatabase, session_ids: list[str] | None, everything: bool) -> None:
    """Print a line for each session."""
    from perdure.imports.histories.sessions import export_session

    histories = database.history()
    if not everything and not session_ids:
        raise NotFound("which session? Name one or more, or pass --all")
    for name in histories.sessions() if everything else dict.fromkeys(session_ids or ()):
        line = export_session(histories, name)
        if line is not None:
            print_json(line)
        elif not everything:
            raise NotFound(f"there is no session {name!r}")


def _print(source: str, counts: SessionCounts, options: SessionOptions) -> None:
    if options.as_json:
        for skipped in counts.skipped:
            print_json({"session_id": skipped.session, "skipped": skipped.why})
        states: tuple[SessionState, ...] = ("imported", "extended", "replaced", "unchanged", "skipped")
        print_json(
            {
                "dry_run": options.dry_run,
                "sessions": {state: counts.states[state] for state in states},
                "messages": counts.messages,
            }
        )
        return
    for skipped in counts.skipped:
        warn(f"session {skipped.session!r} was skipped: {skipped.why}")
    verb, target = "Would import" if options.dry_run else "Imported", redact(url_of(options.place.db))
    say(f"{verb} from {source} to {target}: {_describe(counts)}")


def _describe(counts: SessionCounts) -> str:
    text = f"{format_count(counts.states['imported'], 'session')}, {format_count(counts.messages, 'message')}"
    for state, count in counts.states.items():
        if count and state != "imported":
            words = "brought up to date" if state == "extended" else state
            text += f"; {format_count(count, 'session')} {words}"
    return text
