"""Checkpointer of the configured database for applications of any kind, and graphs compiled with it.

    async with checkpoint_lifespan() as saver:
        graph = compile_graph(builder, checkpointer=saver)

Nothing is opened before the block, and everything is closed at its end. No web framework is imported; an
application with FastAPI finds its own form of ``checkpoint_lifespan`` in ``perdure.server``.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias, cast

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import StateGraph
from langgraph.pregel import Pregel
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore

from perdure.config.resolve import DEVELOPMENT_URL, make_folder_of
from perdure.config.settings import SETTINGS
from perdure.config.sources import GivenValue, value_of
from perdure.database.opening import connect
from perdure.errors import BadSetting
from perdure.langgraph.saver import PerdureSaver
from perdure.storage.key_providers import EncryptionKey, open_provider
from perdure.storage.url import find_plain_url, redact

Graph: TypeAlias = Pregel[Any, Any, Any, Any]
Builder: TypeAlias = StateGraph[Any, Any, Any, Any]

_log = logging.getLogger("perdure.server")
_RUNTIME = "__pregel_runtime"
"""Key of the configuration under which LangGraph looks for the store before it takes the graph's own."""


@asynccontextmanager
async def checkpoint_lifespan(
    db_url: str | None = None,
    *,
    migrate: bool | None = None,
    tenant: str = "",
    encryption_key: EncryptionKey | None = None,
) -> AsyncIterator[PerdureSaver]:
    """Open the database for a block, and yield a checkpointer over it.

    Args:
        db_url: The database; by default ``PERDURE_DB`` or ``DATABASE_URL``. Without any it is an error,
            except in development (``LANGGRAPH_DEV=true``), where threads are kept in ``.perdure/dev.db``.
            The driver in a URL of SQLAlchemy is ignored.
        migrate: Migrate a database without this release's schema; by default true in development alone. If
            false, such a database raises ``MigrationRequired``, which names the command.
        tenant: The tenant that owns the threads.
        encryption_key: The wrapping key or its provider, as for ``connect``; by default that of
            ``PERDURE_KEYS``.

    Raises:
        BadSetting: No database is set.
        MigrationRequired: The database does not have this release's schema.
    """
    url, key = url_of(db_url), keys_of(encryption_key)
    is_migrated = is_development() if migrate is None else migrate
    async with connect(url, migrate=is_migrated, tenant=tenant, encryption_key=key) as database:
        _log.info("threads are kept in %s", redact(url))
        yield database.checkpointer()


def compile_graph(
    builder: Builder | Graph,
    *,
    checkpointer: BaseCheckpointSaver[Any],
    store: BaseStore | None = None,
    allow_in_memory: bool = False,
    **options: Any,
) -> Graph:
    """Return a graph with a checkpointer: a builder is compiled; a compiled graph is copied, and keeps its
    store unless one is given.

    In development within ``langgraph dev``, which keeps threads itself and loads no graph that has a
    checkpointer or a store, the graph gets no checkpointer, and a line of the log says so. Its nodes get the
    store as everywhere else.

    Args:
        builder: a graph builder, or a compiled graph.
        checkpointer: the checkpointer, which the caller closes.
        store: the store.
        allow_in_memory: accept a checkpointer that keeps threads in memory, which development accepts anyway.
        options: arguments of the builder's ``compile``.

    Raises:
        BadSetting: there is no checkpointer, or it keeps threads in this process's memory and that is not
            allowed.
    """
    if not isinstance(cast(object, checkpointer), BaseCheckpointSaver):
        raise BadSetting(
            f"compile_graph needs a checkpointer, not {checkpointer!r}: without one nothing is kept; pass "
            "that of checkpoint_lifespan, or db.checkpointer()"
        )
    is_in_memory = isinstance(checkpointer, InMemorySaver) or (
        isinstance(checkpointer, PerdureSaver) and not checkpointer.is_kept
    )
    if is_in_memory and not allow_in_memory and not is_development():
        raise BadSetting(
            f"this {type(checkpointer).__name__} keeps threads in memory: a restart loses them, and no other "
            "process sees them; use one over a database, or pass allow_in_memory=True"
        )
    graph: Graph
    if isinstance(builder, StateGraph):
        graph = builder.compile(checkpointer, store=store, **options)
    elif options:
        raise TypeError(f"{', '.join(sorted(options))}: options are for a builder; this graph is compiled")
    else:
        update: dict[str, Any] = {"checkpointer": checkpointer}
        graph = builder.copy(update if store is None else {**update, "store": store})
    # The server of ``langgraph dev``, which has this name, refuses graphs with persistence.
    is_langgraph_dev = getattr(sys.modules.get("langgraph_api.config"), "API_VARIANT", None) == "local_dev"
    if is_langgraph_dev and is_development():
        return _remove_persistence(graph)
    return graph


def _remove_persistence(graph: Graph) -> Graph:
    """Return a graph as ``langgraph dev`` loads it, without a checkpointer and a store of its own: its runs
    get the store by their configuration."""
    _tell_of_langgraph_dev(graph.get_name())
    bare = graph.copy({"checkpointer": None, "store": None})
    if graph.store is None:
        return bare
    configurable = {**(graph.config or {}).get("configurable", {}), _RUNTIME: Runtime(store=graph.store)}
    return bare.with_config(configurable=configurable)


@cache
def _tell_of_langgraph_dev(name: str) -> None:
    """Log once for each graph: a function that makes a graph is called for each run."""
    _log.warning(
        "DEVELOPMENT: graph %s has no checkpointer of Perdure's within langgraph dev: LangGraph's own server "
        "keeps its threads, for this machine alone; perdure serve --dev keeps them in a database",
        name,
    )


def keys_of(given: EncryptionKey | None) -> EncryptionKey | None:
    """Return the key or provider that wraps the keys of stored data: the caller's, or the one that the
    environment names.

    Raises:
        BadSetting: There is no provider of this name.
    """
    named = _read_variable("keys")
    if given is None and named:
        return open_provider(named)
    return given


def _read_variable(setting: str) -> str | None:
    """Return the text of the first variable of a setting that is set and not empty."""
    return next((os.environ[name] for name in SETTINGS[setting].variables if os.environ.get(name)), None)


def url_of(given: str | None = None) -> str:
    """Return the URL of the database: the given one, or that of the environment.

    Args:
        given: The URL, if the caller names one.

    Raises:
        BadSetting: No URL is given or set.
    """
    url = given or _read_variable("database_url")
    if url is None and not is_development():
        raise BadSetting(
            "which database? DATABASE_URL is not set; set it to e.g. postgresql://user@host/database, or "
            f"pass db_url to checkpoint_lifespan; with LANGGRAPH_DEV=true it is {DEVELOPMENT_URL}"
        )
    if url is None:
        url = DEVELOPMENT_URL
        make_folder_of(url)
        _log.warning(
            "DEVELOPMENT: DATABASE_URL is not set, so threads are kept in %s, on this machine alone; set it "
            "where this is deployed",
            url,
        )
    if url.startswith("memory:"):
        _log.warning("threads are kept in memory: a restart loses them, and no other process sees them")
    return find_plain_url(url)


def is_development(environ: Mapping[str, str] | None = None) -> bool:
    """Return True if the environment, by default the process's own, says that this is development."""
    environ = os.environ if environ is None else environ
    setting = SETTINGS["development"]
    name = next((name for name in setting.variables if environ.get(name)), None)
    return name is not None and bool(
        value_of(setting, GivenValue(environ[name], name, name, Path(), is_text=True))
    )
