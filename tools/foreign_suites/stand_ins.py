"""pytest plugin for suites written elsewhere: Perdure's saver and store in the place of theirs.

Loaded by name into the suite's own process (``-p stand_ins``). ``PERDURE_SUITE_URL`` is the database to use,
``PERDURE_SUITE_SEALED_URL`` the one of savers that the suite encrypts; without them the suite runs unchanged.
``PERDURE_SUITE_POSTGRES`` is the server for what the suite itself does with PostgreSQL. Outcomes are appended
to the file ``PERDURE_SUITE_OUTCOMES``, a JSON array a line: node id, outcome, the first line of the error.
"""

from __future__ import annotations

import itertools
import json
import os
import secrets
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from functools import cache, partial
from types import ModuleType
from typing import Any

import pytest

URL = os.environ.get("PERDURE_SUITE_URL")
SEALED_URL = os.environ.get("PERDURE_SUITE_SEALED_URL")
POSTGRES = os.environ.get("PERDURE_SUITE_POSTGRES")
OUTCOMES = os.environ.get("PERDURE_SUITE_OUTCOMES")
_KEY = bytes(range(32))
_ORDER = {"failed": 2, "skipped": 1, "passed": 0}
_outcomes: dict[str, tuple[str, str]] = {}


# Outcomes


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the worst outcome of a test's set-up, call and teardown."""
    known, _ = _outcomes.get(report.nodeid, ("passed", ""))
    if report.nodeid not in _outcomes or _ORDER[report.outcome] > _ORDER[known]:
        _outcomes[report.nodeid] = (report.outcome, _reason(report) if report.failed else "")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A module that cannot be collected is a failure under the module's own id."""
    if report.failed:
        _outcomes[report.nodeid] = ("failed", _reason(report))


def pytest_sessionfinish() -> None:
    """Write what happened."""
    if OUTCOMES:
        with open(OUTCOMES, "a", encoding="utf-8") as file:
            for node, (outcome, reason) in _outcomes.items():
                file.write(json.dumps([node, outcome, reason]) + "\n")


def _reason(report: pytest.TestReport | pytest.CollectReport) -> str:
    crash = getattr(report.longrepr, "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    return next((line.strip()[:300] for line in text.splitlines() if line.strip()), "")


# Replacing savers and stores

if URL is not None:
    import langgraph.checkpoint.memory as stock_savers
    import langgraph.store.memory as stock_stores

    from perdure import Database, PerdureSaver, PerdureStore
    from perdure.database import open_database

    _numbers = itertools.count(1)
    _process = secrets.token_hex(4)
    _StockStore = stock_stores.InMemoryStore

    @cache
    def _database(encrypted: bool = False) -> Database:
        """The database of this process; each saver and each store is a tenant of its own in it."""
        return open_database(
            str(SEALED_URL if encrypted else URL), migrate=True, encryption_key=_KEY if encrypted else None
        )

    def _tenant() -> str:
        return f"{_process}-{next(_numbers)}"

    class StandIn(PerdureSaver):
        """Perdure's saver, made as the stock ones are; arguments concern only their storage."""

        def __init__(self, *args: Any, encrypted: bool = False, **_: Any) -> None:
            made = _database(encrypted).checkpointer(tenant=_tenant(), may_list_all_threads=True)
            self.__dict__.update(vars(made))
            self.stack = ExitStack()

        @classmethod
        def from_conn_string(cls, *_: Any, **__: Any) -> StandIn:
            """Opened as the stock ones are, with `with` or `async with`."""
            return cls()

        def setup(self) -> Any:
            """The database is migrated already; may be awaited."""
            return _Done()

        def __enter__(self) -> StandIn:
            return self

        def __exit__(self, *error: object) -> None:
            self.stack.close()

        async def __aenter__(self) -> StandIn:
            return self

        async def __aexit__(self, *error: object) -> None:
            self.stack.close()

    class InMemoryStandIn(StandIn):
        """In the place of `InMemorySaver`, for tests that subclass it or ask for it."""

    class _Done:
        def __await__(self) -> Iterator[None]:
            return iter(())

    class StandInStore(PerdureStore):
        """Perdure's store, made as the stock ones are; with an ``index``, which it has not, a stock one."""

        def __new__(cls, *args: Any, **options: Any) -> Any:
            if options.get("index"):
                return _StockStore(**options)
            return super().__new__(cls)

        def __init__(self, *args: Any, ttl: Any = None, **_: Any) -> None:
            self.__dict__.update(vars(_database().store(tenant=_tenant(), ttl=ttl)))

    stock_savers.InMemorySaver = InMemoryStandIn  # type: ignore[assignment,misc]
    stock_savers.MemorySaver = InMemoryStandIn  # type: ignore[assignment]
    stock_stores.InMemoryStore = StandInStore  # type: ignore[assignment,misc]

    def _opens(make: Callable[[], Any], is_async: bool) -> Callable[..., Any]:
        @contextmanager
        def opened(*_: Any, **__: Any) -> Iterator[Any]:
            yield make()

        @asynccontextmanager
        async def aopened(*_: Any, **__: Any) -> AsyncIterator[Any]:
            yield make()

        return aopened if is_async else opened

    def _replace_in(module: ModuleType) -> None:
        """Replace what a conftest, or what it imports, opens savers and stores with."""
        for name in vars(module).copy():
            is_async = "_aio" in name
            if name.startswith("_checkpointer_") and name != "_checkpointer_memory":
                if "migrate" in name:
                    continue
                make = partial(StandIn, encrypted=name.endswith("_aes"))
                setattr(module, name, _opens(make, is_async))
            elif name.startswith("_store_"):
                setattr(module, name, _opens(StandInStore, is_async))


def pytest_plugin_registered(plugin: object) -> None:
    """Replace in a suite's conftest as soon as it is imported, before any test module is."""
    if not isinstance(plugin, ModuleType) or not str(getattr(plugin, "__file__", "")).endswith("conftest.py"):
        return
    related = [plugin] + [m for n, m in sys.modules.items() if n.rpartition(".")[2].startswith("conftest_")]
    for module in related:
        if POSTGRES and hasattr(module, "DEFAULT_POSTGRES_URI"):
            setattr(module, "DEFAULT_POSTGRES_URI", POSTGRES)  # noqa: B010 - it has no such attribute for mypy
        if URL is not None:
            _replace_in(module)
