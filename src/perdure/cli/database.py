"""Commands on a whole database: set-up and checking."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from perdure.cli.app import AsJson, Db, KeyFile, Tenant, err, opened, out, print_json, several, url_of
from perdure.errors import Conflict, Corrupt, MigrationRequired, Unreadable
from perdure.model.missing_thread import missing_thread
from perdure.model.records import SESSIONS, THREADS, Partition
from perdure.storage.url import backend_of, redacted

if TYPE_CHECKING:
    from perdure.database.blocking import SyncDatabase
    from perdure.engine.fsck_report import Finding
    from perdure.langgraph.saver import PerdureSaver


def migrate(
    db: Db = None,
    check: Annotated[
        bool, typer.Option("--check", help="Change nothing; exit code 1 when there is something to do")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing; print what would be done")
    ] = False,
) -> None:
    """Create or upgrade the schema. Safe to run again, and from many processes at once."""
    url = url_of(db)
    backend, after, name = backend_of(url), backend_of(url).SCHEMA_VERSION, redacted(url)
    if check or dry_run:
        found = backend.schema_version(url)
        if found > after:
            raise MigrationRequired(
                f"{name} has schema version {found}, this release knows {after}; upgrade perdure"
            )
        steps = backend.pending(url)
        for step in steps if dry_run else ():
            out.print(escape(step), soft_wrap=True)
        if steps:
            advice = "" if dry_run else "; run `perdure migrate` with this URL"
            needed = f"this release needs {after}" if found < after else "but parts of it are missing"
            err.print(escape(f"{name} is at schema version {found}, {needed}{advice}"), soft_wrap=True)
            raise typer.Exit(1 if check else 0)
        out.print(f"{name} is at schema version {after} already")
        return
    is_short = bool(backend.pending(url))
    before = backend.migrate(url)
    if before == after and is_short:
        out.print(f"{name} was at schema version {after} already; parts of it that were missing were added")
    elif before == after:
        out.print(f"{name} is at schema version {after} already")
    elif before == 0:
        out.print(f"{name} is ready, at schema version {after}")
    else:
        out.print(f"{name} went from schema version {before} to {after}")


def fsck(
    thread_ids: Annotated[
        list[str] | None, typer.Argument(help="The threads' ids; all of the tenant without")
    ] = None,
    *,
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair gaps and heads; lost bytes are reported")
    ] = False,
    types: Annotated[
        str | None,
        typer.Option(
            "--types",
            metavar="PLACE",
            help="A graph, e.g. app:graph, or its name in perdure.toml or langgraph.json: report the threads "
            "whose latest state it cannot build with the schema of these files or of its Agent",
        ),
    ] = None,
    db: Db = None,
    tenant: Tenant = "",
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Check the database and its threads: links, heads, tags, references, checksums, and the queue; and that
    every history can be read.

    The threads are those of one tenant; the others are counted. With --types, a thread is also reported whose
    latest state the graph cannot build: because a class is gone or not allowed, or because a newer schema
    version stored it. Exit code 0 when everything is sound (or was repaired), 1 when damage is left. With
    --json, one object for each finding, and nothing if there is none.
    """
    from rich.progress import track

    from perdure import admin

    with opened(db, tenant, key_file) as database:
        places = [] if thread_ids else admin.partitions(database, tenant)
        names = thread_ids or [place.thread for place in places if place.space == THREADS]
        histories = [place for place in places if place.space == SESSIONS]
        damaged = 0
        for detail in [] if thread_ids else admin.examine(database):
            if as_json:
                print_json({"thread_id": None, "kind": "database", "detail": detail})
            else:
                advice = "" if "`perdure " in detail else "; restore it from a backup"
                err.print(f"database: {escape(detail)}{advice}", soft_wrap=True)
            damaged += 1
        saver = None if types is None else _saver_of(database, types)
        hidden = len(names) == 1 or as_json or not sys.stderr.isatty()
        for name in track(names, "Checking", console=err, transient=True, disable=hidden):
            try:
                findings = _findings(database, Partition(tenant, name), is_named=bool(thread_ids))
                repaired = database.repair(name) if findings and repair else None
            except (Corrupt, Conflict) as error:
                # One thread that cannot be checked must not prevent the check of the others.
                if as_json:
                    print_json({"thread_id": name, "kind": "not checked", "detail": str(error)})
                else:
                    err.print(f"thread {name!r} was not checked: {escape(str(error))}", soft_wrap=True)
                damaged += 1
                continue
            if repaired is not None:
                for finding in repaired.fixed:
                    if as_json:
                        print_json(_finding(finding, is_repaired=True))
                    else:
                        out.print(f"repaired: {escape(str(finding))}", soft_wrap=True)
                findings = list(repaired.left)
            for finding in findings:
                if as_json:
                    print_json(_finding(finding))
                else:
                    err.print(escape(str(finding)), soft_wrap=True)
            unreadable = None if saver is None else _unreadable(saver, name)
            if unreadable is not None:
                if as_json:
                    print_json({"thread_id": name, "kind": "types", "detail": unreadable})
                else:
                    err.print(f"thread {name!r}: {escape(unreadable)}", soft_wrap=True)
            damaged += bool(findings) or unreadable is not None
        damaged += _damaged_histories(database, histories, as_json=as_json)
        others = 0 if thread_ids or as_json else len(admin.tenants(database).keys() - {tenant})
    if damaged:
        _print_others(others)
        raise typer.Exit(1)
    if not as_json:
        out.print(_sound(len(names), len(histories)))
    _print_others(others)


def _findings(database: SyncDatabase, partition: Partition, *, is_named: bool) -> list[Finding]:
    """Return what is wrong with a thread; raise ``NotFound`` for a named one that does not exist, as a
    mistyped id must not count as sound."""
    from perdure import admin

    findings = database.fsck(partition.thread)
    if is_named and not findings and partition not in admin.partitions(database, partition.tenant):
        raise missing_thread(partition)
    return findings


def _damaged_histories(database: SyncDatabase, places: Sequence[Partition], *, as_json: bool) -> int:
    """Read every history, report those that are damaged, and return their number."""
    from perdure.database.base import handle_of
    from perdure.engine import session_histories

    damaged = 0
    for place in places:
        try:
            # As of the beginning of time: expired ones are checked, too.
            handle_of(database).run(session_histories.load(place, 0))
        except Corrupt as error:
            damaged += 1
            if as_json:
                print_json({"session_id": place.thread, "kind": "history", "detail": str(error)})
            else:
                err.print(escape(str(error)), soft_wrap=True)
    return damaged


def _sound(threads: int, histories: int) -> str:
    counts = [f"{threads} thread{'s' * (threads != 1)}"]
    if histories:
        counts.append(f"{histories} {'history' if histories == 1 else 'histories'}")
    return f"{' and '.join(counts)} {'is' if threads + histories == 1 else 'are'} sound"


def _print_others(count: int) -> None:
    """Print that other tenants were not checked, as the threads of one look like all of the database."""
    if count:
        err.print(
            f"{several(count, 'other tenant')} not checked: `perdure tenants ls` lists them, --tenant NAME "
            "checks one",
            soft_wrap=True,
        )


def _saver_of(database: SyncDatabase, place: str) -> PerdureSaver:
    """Return the checkpointer that the runtime makes for the graph at a place."""
    import asyncio

    from perdure.config.graph_choice import choose_graphs
    from perdure.runtime.graph_factories import Factory
    from perdure.runtime.graphs import saver_for

    (chosen,) = choose_graphs([place], file=None, environ=os.environ)
    agent = asyncio.run(chosen.load())
    graphs = [] if isinstance(agent.graph, Factory) else [agent.graph]
    return saver_for(database, [agent], graphs)


def _unreadable(saver: PerdureSaver, thread_id: str) -> str | None:
    """Return the reason for which the latest state of a thread cannot be built, or ``None``."""
    try:
        saver.get_tuple({"configurable": {"thread_id": thread_id}})
    except Unreadable as error:
        return str(error)
    except Corrupt:
        # The check of the records reports it.
        return None
    return None


def _finding(finding: Finding, *, is_repaired: bool = False) -> dict[str, Any]:
    return {**asdict(finding), "kind": finding.kind.value, "repaired": is_repaired}
