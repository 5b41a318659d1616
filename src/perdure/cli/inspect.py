"""Command ``perdure inspect``: pages of a database in a browser."""

from __future__ import annotations

import os
import socket
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer
from rich.markup import escape

from perdure.cli.app import Keys, Tenant, err, keys_of, read_local_prices, url_of
from perdure.errors import BadSetting, MissingExtra, NotAllowed
from perdure.storage.url import redact

if TYPE_CHECKING:
    from perdure.database.asynchronous import Database
    from perdure.database.blocking import SyncDatabase
    from perdure.inspector.access import LocalAccess
    from perdure.inspector.serve import Presentation
    from perdure.model.model_calls import Prices
    from perdure.runtime import Runtime
    from perdure.runtime.agents.agent import Agent
    from perdure.storage.key_providers import KeyProvider

ALL, REPLAY = "all", "replay"


def inspect(
    url: Annotated[
        str | None,
        typer.Argument(
            metavar="[URL]",
            envvar=["PERDURE_DB", "DATABASE_URL"],
            help="The database, e.g. sqlite:///threads.db; without it that of perdure.toml here",
        ),
    ] = None,
    *,
    graph: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[NAME=]MODULE:GRAPH",
            help="A graph, for the actions that --allow permits; "
            "without any, those of perdure.toml or langgraph.json here",
        ),
    ] = None,
    allow: Annotated[
        list[str] | None,
        typer.Option(help="Permit tag, edit, run, answer, cancel, retry, delete, export, replay, or all"),
    ] = None,
    compare: Annotated[
        str | None,
        typer.Option(metavar="[NAME=]MODULE:GRAPH", help="Another version of the graph, to replay beside it"),
    ] = None,
    work: Annotated[bool, typer.Option("--work", help="Run the graphs here, too")] = False,
    tenant: Tenant = "",
    all_tenants: Annotated[
        bool, typer.Option("--all-tenants", help="Show every tenant's threads, one tenant at a time")
    ] = False,
    host: Annotated[str, typer.Option(help="Listen on this address")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="The port; 0 takes a free one", min=0, max=65535)] = 8770,
    browser: Annotated[bool, typer.Option(help="Open the page in your browser")] = True,
    keys: Keys = None,
) -> None:
    """Look at threads in your browser: their timeline, state, changes, branches, queue and storage.

    The database is only read, so it may be a live one, or a copied file that cannot be written. No graph is
    needed. Only this machine can reach the page, unless --host says otherwise; there is no password.

    With --graph the page of a thread has the graph's picture, with the way that was taken.

    To change threads, name what may be done, and the graph unless perdure.toml or langgraph.json here has it:

      perdure inspect sqlite:///threads.db --graph ./agent.py:graph --allow tag --allow edit

    Every action is recorded in the database. New runs are for your workers; --work runs them here.

    To run recorded steps again with changed code, or with two versions beside one another, without calling
    anything and without changing the thread:

      perdure inspect sqlite:///threads.db --graph old.py:graph --compare new.py:graph --allow replay
    """
    for module in ("starlette", "uvicorn"):
        if find_spec(module) is None:
            raise MissingExtra(
                f"perdure inspect needs {module}, which is not installed; pip install 'perdure[server]'"
            )
    import asyncio

    from perdure.web.listening import listen

    database_url, allowed = url_of(url), _parse_permissions(allow or [])
    places = _find_places(graph or [], as_configured=bool(allowed))
    if (allowed and not places) or (work and not allowed):
        raise BadSetting("actions need both: --graph module:graph, and --allow with what may be done")
    if all_tenants and tenant:
        raise NotAllowed(
            f"--all-tenants and the tenant {tenant!r} exclude each other; leave one out (PERDURE_TENANT sets "
            "the tenant, too)"
        )
    if compare is not None and REPLAY not in allowed:
        raise BadSetting("--compare is for replays: permit them by --allow replay")
    if work and allowed == frozenset({REPLAY}):
        raise BadSetting("--work runs what actions start, and a replay starts nothing; leave it out")
    given = _Given(places, _choose_compared(compare, places), allowed, work, all_tenants, read_local_prices())
    key = keys_of(keys)
    with listen(host, port) as listener:
        try:
            if allowed - {REPLAY}:
                asyncio.run(_serve_for_acting(database_url, tenant, key, given, (listener, host, browser)))
            else:
                _serve_for_reading(database_url, tenant, key, given, (listener, host, browser))
        except KeyboardInterrupt:
            # uvicorn raises the signal again after its shutdown.
            err.print("Stopped.")


_Listening = tuple[socket.socket, str, bool]


class _Given(NamedTuple):
    """The graphs' places by name, the place of the graph to compare with, by its name; the permissions;
    whether to run graphs here; whether every tenant's threads are shown; and the prices of models."""

    places: dict[str, str]
    compared: dict[str, str]
    allowed: frozenset[str]
    works: bool
    all_tenants: bool
    prices: Prices

    @property
    def rights(self) -> str:
        if self.allowed:
            return f"allowed: {', '.join(sorted(self.allowed))}"
        return "only read"


def _serve_for_reading(
    url: str, tenant: str, key: KeyProvider | None, given: _Given, listening: _Listening
) -> None:
    import asyncio

    from perdure.database.opening import open_for_reading
    from perdure.inspector.serve import serve

    database = open_for_reading(url, tenant=tenant, encryption_key=key)
    try:
        agents = asyncio.run(_load({**given.places, **given.compared}))
        access = _make_access(database, tenant, url, given, agents)
        asyncio.run(serve(access, listening[0], _make_presentation(url, listening, given.rights)))
    finally:
        database.close()


async def _load(places: dict[str, str]) -> dict[str, Agent]:
    if not places:
        return {}
    from perdure.runtime.agents.loading import find, load_agent

    return {name: await load_agent(find(each)) for name, each in places.items()}


async def _serve_for_acting(
    url: str, tenant: str, key: KeyProvider | None, given: _Given, listening: _Listening
) -> None:
    from perdure.database.opening import connect
    from perdure.inspector.serve import serve
    from perdure.runtime import Runtime

    agents, compared = await _load(given.places), await _load(given.compared)
    async with (
        connect(url, tenant=tenant, encryption_key=key) as database,
        Runtime(database, agents, works=given.works, all_tenants=given.all_tenants) as runtime,
    ):
        access = _make_access(database, tenant, url, given, {**agents, **compared}, runtime)
        await serve(access, listening[0], _make_presentation(url, listening, given.rights))


def _make_access(
    database: Database | SyncDatabase,
    tenant: str,
    url: str,
    given: _Given,
    agents: dict[str, Agent],
    runtime: Runtime | None = None,
) -> LocalAccess:
    """Return the access to a database; ``agents`` are those of the graphs and of the compared one."""
    from perdure.database.base import handle_of
    from perdure.inspector.access import LocalAccess, LocalReplays

    return LocalAccess(
        handle_of(database),
        tenant,
        all_tenants=given.all_tenants,
        url=url,
        runtime=runtime,
        replays=LocalReplays(database, agents, next(iter(given.compared), None)) if agents else None,
        allowed=given.allowed,
        prices=given.prices,
    )


def _make_presentation(url: str, listening: _Listening, rights: str) -> Presentation:
    from perdure.config.hosts import format_for_url, is_loopback

    listener, host, browser = listening
    near = is_loopback(host)
    address = f"http://{format_for_url(host)}:{listener.getsockname()[1]}/inspect/"

    def show_ready() -> None:
        err.print(f"[bold]Perdure inspector[/] {address}", soft_wrap=True)
        err.print(f"[dim]database[/] {escape(redact(url))}, {rights}", soft_wrap=True)
        if not near:
            err.print("[yellow]Anyone who reaches this port can see every thread, and do what is allowed.[/]")

    from perdure.inspector.serve import Presentation

    return Presentation(near, show_ready, address if browser else None)


def _parse_permissions(names: list[str]) -> frozenset[str]:
    from perdure.inspector.access import PERMISSIONS

    unknown = [name for name in names if name not in (*PERMISSIONS, ALL)]
    if unknown:
        raise BadSetting(f"--allow takes {', '.join(PERMISSIONS)} or all, not {unknown[0]!r}")
    return frozenset(PERMISSIONS if ALL in names else names)


def _choose_compared(word: str | None, places: dict[str, str]) -> dict[str, str]:
    """Return the place of the graph to compare with, by the graph's name, which is the place if none is
    given."""
    if word is None:
        return {}
    name, is_named, place = word.partition("=")
    if not is_named:
        name = place = word
    if not name or name in places:
        raise BadSetting(f"--compare needs a name of its own, such as --compare new={place}")
    return {name: place}


def _find_places(words: list[str], *, as_configured: bool) -> dict[str, str]:
    """Return the graphs' places by name: those that are named or, if wanted, those of the configuration."""
    from perdure.config.sources import LANGGRAPH, OWN

    if not words and as_configured and (Path(OWN).is_file() or Path(LANGGRAPH).is_file()):
        from perdure.config.resolve import add_import_folders, resolve_config, set_variables

        configured = resolve_config(file=None, graphs=(), flags={}, environ=os.environ, has_key=True)
        set_variables(configured.env)
        add_import_folders(configured.import_folders())
        graphs = configured.graphs("perdure inspect --graph ./agent.py:graph")
        return {name: place.place for name, place in graphs.items()}
    if not words:
        return {}
    from perdure.runtime.agents.loading import parse_places

    return parse_places(words)
