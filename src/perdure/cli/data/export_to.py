"""Export of threads to a saver of LangGraph's, or to a server with LangGraph's API."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import typer

from perdure.cli.app import format_count, handle_in, quote_id, run_coroutine, say, warn
from perdure.cli.data.exported_threads import ChosenThreads, choose_threads, report_stateless
from perdure.cli.data.langgraph_server import ServerOptions, load_graphs
from perdure.errors import BadSetting, NotFound, PerdureError, Unavailable
from perdure.model.records import SERVER, Partition
from perdure.storage.url import redact

if TYPE_CHECKING:
    from perdure.database.blocking import SyncDatabase
    from perdure.database.handle import DatabaseHandle
    from perdure.imports.langgraph_server.api import ServerApi


@dataclass(frozen=True, slots=True)
class TargetOptions:
    """Content of an export: threads by name, or everything; and the options of a server."""

    threads: list[str]
    everything: bool
    server: ServerOptions


def export_to(url: str, database: SyncDatabase, tenant: str, options: TargetOptions) -> None:
    """Export threads to a place, and print what was written.

    A thread that cannot be exported is named, and the exit code is 1. One of --all that has no state is named
    and left out.

    Raises:
        NotFound: There is no such thread, it has no state, or none was named.
        Unavailable: The target does not answer; what was written there stays, and the export can be repeated.
    """
    chosen = choose_threads(database, tenant, options.threads, everything=options.everything)
    if url.startswith(("http://", "https://")):
        _export_to_server(url, database, tenant, chosen, options)
        return
    from perdure.imports.stock_target import export_thread, open_stock_saver

    with open_stock_saver(url) as saver:
        handle = handle_in(database)
        written = _Written(redact(url))
        for name in chosen.wanted:
            with written.of(f"thread {name!r}"):
                count = export_thread(handle, Partition(tenant, name), saver)
                written.note(f"{quote_id(name)}: {format_count(count.checkpoints, 'checkpoint')}")
    report_stateless(chosen.stateless)
    written.end("thread")


def _export_to_server(
    url: str, database: SyncDatabase, tenant: str, chosen: ChosenThreads, options: TargetOptions
) -> None:
    from perdure.imports.langgraph_server.api import ServerApi
    from perdure.imports.langgraph_server.target import ServerTarget
    from perdure.runtime.threads.rows import load_row

    if not options.server.graphs:
        raise BadSetting(
            f"{redact(url)} gets the steps of a graph: name it with --graph agent=./agent.py:graph"
        )
    loaded = run_coroutine(load_graphs(options.server.graphs))
    with closing(ServerApi(url, options.server.parse_headers())) as api:
        target, handle, written = ServerTarget(api), handle_in(database), _Written(redact(url))
        graphs = {
            name: graph.copy(update={"checkpointer": database.checkpointer()})
            for name, graph in loaded.items()
        }
        if options.everything:
            _write_assistants(handle, tenant, api, written)
        unexported = {*chosen.wanted, *chosen.stateless}
        for name in chosen.wanted:
            row = handle.run(load_row(Partition(tenant, name)))
            metadata: Mapping[str, Any] = {}
            if row is not None:
                metadata = row.metadata
            graph_id = metadata.get("graph_id") or next(iter(graphs))
            with written.of(f"thread {name!r}"):
                if graph_id not in graphs:
                    raise NotFound(f"it is of the graph {graph_id!r}; name it with --graph {graph_id}=PLACE")
                outcome = target.write_thread(graphs[graph_id], name, {**metadata, "graph_id": graph_id})
                unexported.remove(name)
                written.note(f"{quote_id(name)}: {outcome}")
        if options.everything:
            for namespace, key, value in _read_items(database):
                with written.of(f"item {key!r}"):
                    target.write_item(namespace, key, value)
            _write_crons(handle, tenant, api, written, unexported)
    report_stateless(chosen.stateless)
    written.end("thread")


def _write_assistants(handle: DatabaseHandle, tenant: str, api: ServerApi, written: _Written) -> None:
    from perdure.engine import versioned_documents
    from perdure.imports.langgraph_server.target_records import RecordsTarget

    target, place = RecordsTarget(api), Partition(tenant, "assistants", SERVER)
    for held in handle.run(versioned_documents.read_all_current(place, "assistant")):
        with written.of(f"assistant {held.name}"):
            past = handle.run(versioned_documents.list_versions(place, "assistant", held.name))
            outcome = target.write_assistant(held.name, list(reversed(past)), held.number)
            written.count("assistant", outcome)


def _write_crons(
    handle: DatabaseHandle, tenant: str, api: ServerApi, written: _Written, unexported: set[str]
) -> None:
    """Write the crons, except those of threads that were not exported: for such a cron Aegra would start a
    run at once."""
    from perdure.engine.queue import crons
    from perdure.imports.langgraph_server.target_records import RecordsTarget
    from perdure.model.ops import Now
    from perdure.model.program import ask

    target, now = RecordsTarget(api), handle.run(ask(Now()))
    for cron in handle.run(crons.read_all_crons(crons.place(tenant))):
        with written.of(f"cron {cron.id}"):
            if cron.body[crons.THREAD_ID] in unexported:
                raise NotFound(f"its thread {cron.body[crons.THREAD_ID]!r} was not exported")
            written.count("cron", target.write_cron(cron, now))


def _read_items(database: SyncDatabase) -> Iterator[tuple[tuple[str, ...], str, dict[str, Any]]]:
    store, offset = database.store(), 0
    while page := store.search((), limit=_PAGE, offset=offset):
        for item in page:
            yield item.namespace, item.key, item.value
        offset += len(page)


_PAGE = 100


class _Written:
    """Counts of the objects that were written and of those that were not."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0
        self._failed = 0
        self._records: dict[str, Counter[str]] = defaultdict(Counter)

    @contextmanager
    def of(self, what: str) -> Iterator[None]:
        """Write one object in the block: if that fails, the error is printed and the export goes on."""
        try:
            yield
        except Unavailable:
            raise
        except PerdureError as error:
            self._failed += 1
            warn(f"{what} was not exported: {error}")

    def note(self, text: str) -> None:
        """Print what was written."""
        self._count += 1
        say(text)

    def count(self, kind: str, outcome: str) -> None:
        """Count a record of a kind; the sums are printed at the end."""
        self._records[kind][outcome] += 1

    def end(self, what: str) -> None:
        """Print the sum. The exit code is 1 if something failed."""
        warn(f"{format_count(self._count, what)} at {self._name}")
        for kind, outcomes in self._records.items():
            counts = ", ".join(f"{number} {outcome}" for outcome, number in sorted(outcomes.items()))
            warn(f"{kind}s: {counts}")
        if self._failed:
            raise typer.Exit(1)
