"""A worker process: runs graphs for accepted messages until it is told to stop, then lets go in order.

The first SIGTERM or SIGINT asks: nothing more is claimed, what is under way may go on for a while, and what
is left then is handed over. The second one ends the process at once; its runs go on elsewhere when their
leases are over.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from perdure.cli.app import Db, KeyFile, Tenant, key_of, url_of
from perdure.database import connect
from perdure.errors import BadSetting, BadUrl, MissingExtra, NotAllowed
from perdure.storage.url import backend_of, redacted

if TYPE_CHECKING:
    from perdure.runtime import Settings
    from perdure.runtime.loading import Loaded
    from perdure.server.webhooks import Webhooks

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_THREADS_END_S = 1.0
_ONE_REQUEST_S = 0.5
"""Signals this close together are one request: a launcher passes on what its whole group gets as well."""

_log = logging.getLogger("perdure.worker")


class LogLevel(StrEnum):
    """From which level on the worker's own log is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class OnFailure(StrEnum):
    """What a run that has failed leaves of itself."""

    ROLLBACK = "rollback"
    KEEP = "keep"


def worker(
    graphs: Annotated[
        list[str],
        typer.Argument(
            metavar="[NAME=]MODULE:GRAPH",
            help="A graph, compiled or not, an Agent, or a function that returns one; without a name it is "
            "called agent",
        ),
    ],
    channels: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:CHANNELS", help="How replies get to people: a mapping of names to Channel"
        ),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="Work on so many runs at once", show_default="32")
    ] = None,
    lease: Annotated[
        float | None,
        typer.Option(help="Seconds after a crash until a run goes on elsewhere", show_default="30"),
    ] = None,
    poll: Annotated[
        float | None, typer.Option(help="Look for due messages every so many seconds", show_default="1")
    ] = None,
    attempts: Annotated[
        int | None, typer.Option(help="Try a run so often before it has failed", show_default="5")
    ] = None,
    on_failure: Annotated[
        OnFailure | None,
        typer.Option(
            help="What a failed run leaves: the thread as it was, or what the run stored",
            show_default="rollback",
        ),
    ] = None,
    per_tenant: Annotated[
        int | None, typer.Option(help="Work on so many runs of one tenant at once", show_default="no limit")
    ] = None,
    keep: Annotated[
        float | None,
        typer.Option(help="Seconds for which what became of a message is remembered", show_default="a week"),
    ] = None,
    deadline: Annotated[
        float | None, typer.Option(help="Seconds that a run may take in all", show_default="no limit")
    ] = None,
    drain: Annotated[
        float | None,
        typer.Option(help="Seconds that runs may go on for when told to stop", show_default="25"),
    ] = None,
    all_tenants: Annotated[
        bool, typer.Option("--all-tenants", help="Work for every tenant, in turn")
    ] = False,
    log_level: Annotated[
        LogLevel, typer.Option(help="Log from this level on; debug has a line a run")
    ] = LogLevel.INFO,
    db: Db = None,
    tenant: Tenant = "",
    key_file: KeyFile = None,
) -> None:
    """Run graphs for accepted messages, in a process of its own.

    With a graph in ./app.py, and messages that other processes accept:

      perdure worker app:graph --db postgresql://me@host/threads

    Several graphs have names, as those who accept messages call them:

      perdure worker sales=app:sales support=desk.agents:support

    Start as many workers as you need. SIGTERM or Ctrl-C stops one: it claims
    nothing more, lets its runs go on for --drain seconds, hands over what is
    left, and ends with exit code 0; leave it that time before you kill it. A
    second signal ends it at once, with 143 or 130. Nothing is lost then
    either: its runs go on elsewhere after --lease seconds.
    """
    url = url_of(db)
    if all_tenants and tenant:
        raise NotAllowed(
            f"--all-tenants and the tenant {tenant!r} exclude each other; leave one out (PERDURE_TENANT sets "
            "the tenant, too)"
        )
    if not backend_of(url).SCHEMA_VERSION:
        raise BadUrl(
            f"{redacted(url)} is this process's alone: no message would ever get here. Name a database that "
            "others can reach"
        )
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("perdure").setLevel(log_level.upper())
    key = key_of(key_file)

    from perdure.runtime import Settings, loading

    chosen: dict[str, Any] = {
        "concurrency": concurrency,
        "lease": lease,
        "poll": poll,
        "attempts": attempts,
        "on_failure": None if on_failure is None else on_failure.value,
        "per_tenant": per_tenant,
        "keep": keep,
        "deadline": deadline,
        "drain": drain,
    }
    try:
        settings = replace(Settings(), **{name: value for name, value in chosen.items() if value is not None})
    except ValueError as error:
        raise BadSetting(str(error)) from error
    found = {name: loading.find(place) for name, place in loading.named(graphs).items()}
    replying = None if channels is None else loading.find(channels)
    asyncio.run(_work(url, key, found, replying, _webhooks(), settings, tenant, all_tenants))


def _webhooks() -> Webhooks | None:
    """What tells the ends of runs that a server accepted with a webhook; nothing without the extra, with
    which servers are made."""
    try:
        from perdure.server.webhooks import of_variables
    except MissingExtra:
        return None
    return of_variables(os.environ)


async def _work(
    url: str,
    key: bytes | None,
    graphs: Mapping[str, Loaded],
    channels: Loaded | None,
    webhooks: Webhooks | None,
    settings: Settings,
    tenant: str,
    all_tenants: bool,
) -> None:
    from perdure.runtime import Runtime
    from perdure.runtime.loading import load_agent, load_channels
    from perdure.runtime.observe import Logs
    from perdure.runtime.options import WEBHOOK

    # Nodes that are plain functions run in threads; as many as runs, or they would wait for each other.
    threads = ThreadPoolExecutor(settings.concurrency + 4, thread_name_prefix="node")
    asyncio.get_running_loop().set_default_executor(threads)
    agents = {name: await load_agent(loaded) for name, loaded in graphs.items()}
    replying = {} if channels is None else await load_channels(channels)
    if WEBHOOK in replying:
        raise BadSetting(f"a channel is called {WEBHOOK!r}, which is Perdure's own; give it another name")
    if webhooks is not None:
        replying = {**replying, **webhooks.channels(settings)}
    name = f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(3)}"
    tally = Tally()
    with _asked_to_stop() as stop:
        async with connect(url, tenant=tenant, encryption_key=key) as database:
            try:
                runtime = Runtime(
                    database,
                    agents,
                    channels=replying,
                    settings=settings,
                    all_tenants=all_tenants,
                    observers=(Logs(), tally),
                    name=name,
                )
            except ValueError as error:
                raise BadSetting(str(error)) from error
            if webhooks is not None:
                webhooks.serve(runtime)
            async with runtime:
                _log.info("worker %s runs %s on %s", name, ", ".join(agents), redacted(url))
                asked = await stop
                said = "worker %s got %s: it claims nothing more and ends within %g s"
                _log.info(said, name, asked, settings.drain)
        _log.info("worker %s has stopped: %s", name, tally)
        _leave(threads)


class Tally:
    """Counts what became of runs."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def event(self, name: str, fields: dict[str, Any]) -> None:
        kind, _, what = name.partition(".")
        if kind == "run" and what != "claimed":
            self._counts[what.replace("_", " ")] += 1

    @contextmanager
    def span(self, name: str, fields: dict[str, Any]) -> Iterator[None]:
        yield

    def __str__(self) -> str:
        said = ", ".join(f"{count} {what}" for what, count in sorted(self._counts.items()))
        return f"runs: {said}" if said else "it had no runs"


@contextmanager
def _asked_to_stop() -> Iterator[asyncio.Future[str]]:
    """Comes true with the name of the first signal; the second one ends the process.

    The handlers are the interpreter's, not the event loop's: a node that blocks the loop blocks no second
    signal.
    """
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[str] = loop.create_future()
    first: float | None = None

    def handle(number: int, _: FrameType | None) -> None:
        nonlocal first
        if first is None:
            first = time.monotonic()
            loop.call_soon_threadsafe(asked.set_result, signal.Signals(number).name)
        elif time.monotonic() - first > _ONE_REQUEST_S:
            _end(128 + number)

    before = {number: signal.signal(number, handle) for number in _SIGNALS}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave(threads: ThreadPoolExecutor) -> None:
    """End the process if nodes that cannot be interrupted still hold threads: their runs were handed over,
    and nothing that they return is stored."""
    threads.shutdown(wait=False, cancel_futures=True)
    waiting = threading.Thread(target=threads.shutdown, daemon=True)
    waiting.start()
    waiting.join(_THREADS_END_S)
    if waiting.is_alive():
        _log.warning("nodes that cannot be interrupted are left behind; their runs were handed over")
        _end(0)


def _end(code: int) -> NoReturn:
    """End without waiting for anything; logging writes each line at once, so nothing said is lost."""
    os._exit(code)
