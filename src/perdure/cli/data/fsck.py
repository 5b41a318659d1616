"""Command ``perdure fsck``: checks the database and its threads, and repairs what can be repaired."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from perdure.cli.app import AsJson, DataPlace, err, format_count, open_database, out, print_json, track, warn
from perdure.errors import Conflict, Corrupt, Unreadable
from perdure.model.missing_thread import missing_thread
from perdure.model.records import INTERNAL, SESSIONS, THREADS, Partition

if TYPE_CHECKING:
    from perdure.database.blocking import SyncDatabase
    from perdure.engine.checks.fsck_report import Finding
    from perdure.langgraph.saver import PerdureSaver


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
    all_tenants: Annotated[
        bool, typer.Option("--all-tenants", help="Check the threads and histories of all tenants")
    ] = False,
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """Check the database and its threads: links, heads, tags, references, checksums, and the queue; and that
    every history can be read.

    The threads are those of one tenant, and the others are counted; with --all-tenants they are those of all.
    With --types, a thread is also reported whose latest state the graph cannot build: because a class is gone
    or not allowed, or because a newer schema version stored it. Exit code 0 when everything is sound (or was
    repaired), 1 when damage is left. With --json, one object for each finding, and nothing if there is none.
    """
    from perdure import admin

    if all_tenants and (thread_ids or place.tenant):
        raise typer.BadParameter("checks all threads of all tenants: leave out --tenant and the threads' ids")
    with open_database(place) as database:
        report = _Report(as_json, names_tenants=all_tenants)
        whose = None if all_tenants else place.tenant
        if repair and not thread_ids:
            _accept_losses(database, whose, report)
        if thread_ids:
            places = [Partition(place.tenant, name) for name in thread_ids]
        else:
            for detail in admin.examine(database, all_tenants=all_tenants):
                report.add_damage_of_database(detail)
            places = admin.partitions(database, whose)
        threads = [each for each in places if each.space == THREADS]
        histories = [each for each in places if each.space == SESSIONS]
        _check_threads(database, threads, report, _Checks(bool(thread_ids), repair, types))
        for each in histories:
            _check_history(database, each, report)
        others = 0
        if not (thread_ids or as_json or all_tenants):
            others = len(admin.tenants(database).keys() - {place.tenant})
    if not as_json and not report.damaged:
        out.print(_describe_sound(threads, histories, len({each.tenant for each in places})))
    _print_others(others)
    if report.damaged:
        raise typer.Exit(1)


@dataclass(frozen=True)
class _Checks:
    """Options of the check of threads: whether the user has named them, and what is done besides the
    check."""

    are_named: bool
    repair: bool
    types: str | None


class _Report:
    """Findings as lines for people or as JSON, printed as they come; ``damaged`` counts the objects with
    findings."""

    def __init__(self, as_json: bool, *, names_tenants: bool) -> None:
        self.damaged = 0
        self._as_json = as_json
        self._names_tenants = names_tenants

    def add_damage_of_database(self, detail: str) -> None:
        line = f"database: {detail}"
        if "`perdure " not in detail:
            line += "; restore it from a backup"
        self._print(line, {"thread_id": None, "kind": "database", "detail": detail})
        self.damaged += 1

    def add_thread(self, partition: Partition, kind: str, line: str, detail: str) -> None:
        self._print(line, {"thread_id": partition.thread, "kind": kind, "detail": detail}, partition)

    def add_finding(self, partition: Partition, finding: Finding, *, is_repaired: bool = False) -> None:
        entry = {**asdict(finding), "kind": finding.kind.value, "repaired": is_repaired}
        line = f"repaired: {finding}" if is_repaired else str(finding)
        self._print(line, entry, partition, on_out=is_repaired)

    def add_accepted(self, partition: Partition, detail: str) -> None:
        entry = {"thread_id": None, "kind": "changed", "detail": detail, "repaired": True}
        self._print(f"repaired: {detail}", entry, partition, on_out=True)

    def add_history(self, partition: Partition, detail: str) -> None:
        self._print(detail, {"session_id": partition.thread, "kind": "history", "detail": detail}, partition)
        self.damaged += 1

    def _print(
        self, line: str, entry: dict[str, Any], partition: Partition | None = None, *, on_out: bool = False
    ) -> None:
        if partition is not None and self._names_tenants:
            line, entry = f"tenant {partition.tenant!r}: {line}", {"tenant": partition.tenant, **entry}
        if self._as_json:
            print_json(entry)
        else:
            (out if on_out else err).print(escape(line), soft_wrap=True)


def _check_threads(
    database: SyncDatabase, threads: Sequence[Partition], report: _Report, checks: _Checks
) -> None:
    tenant, of_tenant, saver = None, database, None
    for partition in track(threads, "Checking"):
        if partition.tenant != tenant:
            tenant, of_tenant = partition.tenant, _with_tenant(database, partition.tenant)
            if checks.types is not None:
                saver = _make_saver_for(of_tenant, checks.types)
        try:
            findings = _find_faults(of_tenant, partition, is_named=checks.are_named)
            repaired = None
            if findings and checks.repair:
                repaired = of_tenant.repair(partition.thread)
        except (Corrupt, Conflict) as error:
            # One thread that cannot be checked must not prevent the check of the others.
            report.add_thread(
                partition, "not checked", f"thread {partition.thread!r} was not checked: {error}", str(error)
            )
            report.damaged += 1
            continue
        if repaired is not None:
            for finding in repaired.fixed:
                report.add_finding(partition, finding, is_repaired=True)
            findings = list(repaired.left)
        for finding in findings:
            report.add_finding(partition, finding)
        unreadable = None
        if saver is not None:
            unreadable = _find_unreadable(saver, partition.thread)
        if unreadable is not None:
            report.add_thread(partition, "types", f"thread {partition.thread!r}: {unreadable}", unreadable)
        report.damaged += bool(findings) or unreadable is not None


def _with_tenant(database: SyncDatabase, tenant: str) -> SyncDatabase:
    """Return the database with another tenant, over the same connections."""
    from perdure.database.base import handle_of
    from perdure.database.blocking import SyncDatabase
    from perdure.database.handle import DatabaseHandle

    if tenant == database.tenant:
        return database
    handle = handle_of(database)
    return SyncDatabase(DatabaseHandle(handle.driver, tenant=tenant, digest=handle.digest))


def _find_faults(database: SyncDatabase, partition: Partition, *, is_named: bool) -> list[Finding]:
    """Return the faults of a thread; raise ``NotFound`` for a named one that does not exist, as a mistyped id
    must not count as sound."""
    from perdure import admin

    findings = database.fsck(partition.thread)
    if is_named and not findings and partition not in admin.partitions(database, partition.tenant):
        raise missing_thread(partition)
    return findings


def _accept_losses(database: SyncDatabase, tenant: str | None, report: _Report) -> None:
    """Accept what is left of stores, histories and a server's records as complete."""
    from perdure import admin
    from perdure.cli.data.copy import label
    from perdure.database.base import handle_of
    from perdure.storage.port import NOT_LATEST

    for partition in admin.partitions(database, tenant):
        if partition.space != THREADS and handle_of(database).trust(partition):
            report.add_accepted(
                partition, f"{label(partition)}: {NOT_LATEST}; what is left counts from now on"
            )


def _check_history(database: SyncDatabase, partition: Partition, report: _Report) -> None:
    """Read a history, and report it if it is damaged."""
    from perdure.database.base import handle_of
    from perdure.engine import session_histories

    try:
        # Load as of the year 1970, so that expired histories are checked, too.
        handle_of(database).run(session_histories.load(partition, 0))
    except Corrupt as error:
        report.add_history(partition, str(error))


def _describe_sound(threads: Sequence[Partition], histories: Sequence[Partition], tenants: int) -> str:
    """Return the summary of a check without findings. The runtime's own threads are counted separately, as
    `perdure threads ls` leaves them out."""
    of_runtime = sum(partition.thread.startswith(INTERNAL) for partition in threads)
    counts = [format_count(len(threads) - of_runtime, "thread")]
    if histories:
        counts.append(f"{len(histories)} {'history' if len(histories) == 1 else 'histories'}")
    if of_runtime:
        counts.append(f"{format_count(of_runtime, 'thread')} of the runtime itself")
    subject = " and ".join(counts)
    if tenants > 1:
        subject += f" of {tenants} tenants"
    return f"{subject} {'is' if len(threads) + len(histories) == 1 else 'are'} sound"


def _print_others(count: int) -> None:
    """Print that other tenants were not checked, as one tenant's threads look like all of the database."""
    if count:
        warn(
            f"{format_count(count, 'other tenant')} not checked: `perdure tenants ls` lists them, --tenant "
            "NAME checks one, --all-tenants all"
        )


def _make_saver_for(database: SyncDatabase, place: str) -> PerdureSaver:
    """Return the checkpointer that the runtime makes for the graph at a place."""
    import asyncio

    from perdure.config.graph_choice import choose_graphs
    from perdure.runtime.agents.graph_factories import Factory
    from perdure.runtime.agents.graphs import make_saver

    (chosen,) = choose_graphs([place], file=None, environ=os.environ)
    agent = asyncio.run(chosen.load())
    graphs = [agent.graph] if not isinstance(agent.graph, Factory) else []
    return make_saver(database, [agent], graphs)


def _find_unreadable(saver: PerdureSaver, thread_id: str) -> str | None:
    """Return the reason for which the latest state of a thread cannot be built, or ``None``."""
    try:
        saver.get_tuple({"configurable": {"thread_id": thread_id}})
    except Unreadable as error:
        return str(error)
    except Corrupt:
        # The check of the records reports this damage.
        return None
    return None
