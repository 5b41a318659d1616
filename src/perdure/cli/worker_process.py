"""Life of a worker's process: opens its parts in order, runs until it is stopped, and closes them in reverse.

``perdure.cli.stop_signals`` decides when it stops.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from perdure.cli.stop_signals import watch_stop_signals
from perdure.config.resolve import add_import_folders, make_folder_of, set_variables
from perdure.config.store_database import store_database
from perdure.config.worker import HostPort, WorkerConfig
from perdure.database.asynchronous import Database
from perdure.database.base import handle_of
from perdure.database.opening import connect
from perdure.errors import BadSetting, MissingExtra
from perdure.retention.sweeper import RetentionOptions
from perdure.runtime import Agent, Channel, Logs, Observer, Runtime
from perdure.runtime.agents.loading import LoadedGraph, find, load_agent, load_channels
from perdure.runtime.garbage_collector import exempt_existing
from perdure.runtime.observers import Observers
from perdure.runtime.options import WEBHOOK
from perdure.runtime.retention_loop import RetentionLoop
from perdure.runtime.worker.node_threads import run_with_node_threads
from perdure.storage.url import redact

if TYPE_CHECKING:
    from perdure.channels.chat_channel import ChatChannel
    from perdure.server.runs.outbound_policy import OutboundPolicy
    from perdure.server.runs.webhooks import Webhooks

_log = logging.getLogger("perdure.worker")


@dataclass(frozen=True, slots=True)
class TenantScope:
    """Tenant whose messages a worker takes, or all tenants."""

    tenant: str
    all_tenants: bool


def work(config: WorkerConfig, scope: TenantScope) -> None:
    """Run graphs until the process is stopped.

    Raises:
        BadSetting: The configuration cannot be used.
        GraphLoadError: A graph or channel cannot be loaded.
    """
    if config.sources:
        _log.info("configured by %s", ", ".join(config.sources))
    if config.ignored:
        _log.warning("ignored: %s", ", ".join(config.ignored))
    set_variables(config.env)
    add_import_folders(config.import_folders)
    graphs = {name: find(graph.place, root=config.root) for name, graph in config.graphs.items()}
    channels = None
    if config.channels is not None:
        channels = find(config.channels, root=config.root)
    working = _run_worker(config, scope, graphs, channels)
    asyncio.run(run_with_node_threads(config.settings.concurrency, working))


async def _run_worker(
    config: WorkerConfig, scope: TenantScope, graphs: Mapping[str, LoadedGraph], channels: LoadedGraph | None
) -> None:
    found = {name: await load_agent(loaded) for name, loaded in graphs.items()}
    agents = config.agents.apply(found, config.root)
    reply_channels: dict[str, Channel] = {}
    if channels is not None:
        reply_channels |= await load_channels(channels)
    if WEBHOOK in reply_channels:
        raise BadSetting(f"a channel is called {WEBHOOK!r}, which is Perdure's own; give it another name")
    chats = _make_chat_channels(config)
    if twice := sorted(name for chat in chats for name in chat.channels if name in reply_channels):
        raise BadSetting(
            f"the channel {twice[0]!r} is in the configuration and in {config.channels}; leave one out"
        )
    reply_channels |= {name: channel for chat in chats for name, channel in chat.channels.items()}
    name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
    url, tally = config.database_url, RunCounts()
    make_folder_of(url)
    with watch_stop_signals() as stop:
        with _serve_metrics(config.metrics) as counting:
            async with (
                AsyncExitStack() as closing,
                connect(
                    url,
                    migrate=config.development,
                    tenant=scope.tenant,
                    encryption_key=config.keys,
                    retention=config.retention.rules,
                ) as database,
            ):
                handle_of(database).honour_thread_ttl()
                observers: tuple[Observer, ...] = (Logs(), tally, *counting)
                store = await store_database(
                    closing, config.store_url, development=config.development, key=config.keys
                )
                runtime = _make_runtime(
                    config, scope, (database, store), agents, reply_channels, observers, name=name
                )
                retention = config.retention
                options = RetentionOptions(
                    all_tenants=scope.all_tenants,
                    owner=name,
                    share=retention.share,
                    keep=config.settings.keep,
                )
                sweeps = RetentionLoop(
                    database, Observers(observers), every=retention.every, options=options, store=store
                )
                for chat in chats:
                    await closing.enter_async_context(chat)
                async with runtime, sweeps:
                    exempt_existing()
                    _log.info("worker %s runs %s on %s", name, ", ".join(agents), redact(url))
                    signal_name = await stop
                    line = "worker %s got %s: it claims nothing more and ends within %g s"
                    _log.info(line, name, signal_name, config.settings.drain)
        _log.info("worker %s has stopped: %s", name, tally)


def _make_runtime(
    config: WorkerConfig,
    scope: TenantScope,
    databases: tuple[Database, Database | None],
    agents: Mapping[str, Agent],
    channels: Mapping[str, Channel],
    observers: tuple[Observer, ...],
    *,
    name: str,
) -> Runtime:
    """Return a runtime that sends replies through these channels, and calls the webhooks of runs that a
    server accepted. ``databases`` are the one with the threads and, if the store has another database,
    that one."""
    hooks = _make_webhooks(config)
    try:
        runtime = Runtime(
            databases[0],
            agents,
            channels={**channels, **({} if hooks is None else hooks.channels(config.settings))},
            settings=config.settings,
            all_tenants=scope.all_tenants,
            observers=observers,
            name=name,
            store_ttl=config.store,
            store_index=None if config.store_index is None else config.store_index.load(config.root),
            store_database=databases[1],
        )
    except ValueError as error:
        raise BadSetting(str(error)) from error
    if hooks is not None:
        hooks.serve(runtime)
    _serve_crons(config, scope, runtime, None if hooks is None else hooks.reach)
    return runtime


def _serve_crons(
    config: WorkerConfig, scope: TenantScope, runtime: Runtime, reach: OutboundPolicy | None
) -> None:
    """Start the crons that a server's clients created. Without the extra for servers they are left to other
    processes."""
    try:
        from perdure.server.auth.identity import OpenGate
        from perdure.server.resources import ServerState
        from perdure.server.runs.crons import CronStarter
    except MissingExtra:
        return
    gate = OpenGate(scope.tenant)
    host = ServerState.over(runtime, gate, webhooks=reach, configs=config.assistants)
    CronStarter(host).serve()


def _make_chat_channels(config: WorkerConfig) -> Sequence[ChatChannel]:
    """Return the chat channels of the configuration, which send the replies of runs."""
    if not config.chats:
        return ()
    from perdure.channels.configured import configure_channels

    return configure_channels(config.chats, config.graphs)


def _make_webhooks(config: WorkerConfig) -> Webhooks | None:
    """Return the sender of webhooks, or ``None`` if they are disabled or the extra for servers is not
    installed."""
    if config.webhook_hosts is None:
        return None
    try:
        from perdure.runtime.failures.failure_location import shows_texts
        from perdure.server.runs.outbound_policy import OutboundPolicy
        from perdure.server.runs.webhooks import Webhooks
    except MissingExtra as error:
        if config.webhook_hosts:
            _log.warning("no webhook is called from here, although hosts are allowed: %s", error)
        return None
    # A webhook's notice has the error of its run, whose text is shown in development only.
    shows_texts.set(config.development)
    reach = OutboundPolicy.of(config.webhook_hosts, loopback=config.development)
    return Webhooks(reach, config.webhook_secrets)


@contextmanager
def _serve_metrics(address: HostPort | None) -> Iterator[tuple[Observer, ...]]:
    """Yield the observers that count for Prometheus while the metrics are served; none without an address."""
    if address is None:
        yield ()
        return
    from perdure.runtime.metrics import of_process, serve_metrics

    counting = of_process()
    with serve_metrics(*address) as url:
        _log.info("metrics are at %s", url)
        yield (counting,)


class RunCounts(Observer):
    """Observer that counts the outcomes of runs."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def event(self, name: str, fields: dict[str, Any]) -> None:
        kind, _, what = name.partition(".")
        if kind == "run" and what != "claimed":
            self._counts[what.replace("_", " ")] += 1

    def __str__(self) -> str:
        text = ", ".join(f"{count} {what}" for what, count in sorted(self._counts.items()))
        if text:
            return f"runs: {text}"
        return "it had no runs"
