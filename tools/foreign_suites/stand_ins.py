"""pytest plugin for suites written elsewhere: Perdure's saver and store in the place of theirs.

Loaded by name into the suite's own process (``-p stand_ins``). ``PERDURE_SUITE_URL`` is the database to use,
``PERDURE_SUITE_SEALED_URL`` the one of savers that the suite encrypts; without them the suite runs unchanged.
``PERDURE_SUITE_POSTGRES`` is the server for what the suite itself does with PostgreSQL. Outcomes are appended
to the file ``PERDURE_SUITE_OUTCOMES``, a JSON array a line: node id, outcome, the first line of the error.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from types import ModuleType
from typing import Any

import pytest

IS_REPLACED = "PERDURE_SUITE_URL" in os.environ
POSTGRES = os.environ.get("PERDURE_SUITE_POSTGRES")
OUTCOMES = os.environ.get("PERDURE_SUITE_OUTCOMES")
_ORDER = {"failed": 2, "skipped": 1, "passed": 0}
_outcomes: dict[str, tuple[str, str]] = {}


# Outcomes


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the worst outcome of a test's set-up, call and teardown; of one that is tried again, the last."""
    if report.outcome not in _ORDER:
        return
    known, _ = _outcomes.get(report.nodeid, ("passed", ""))
    if report.nodeid not in _outcomes or _ORDER[report.outcome] > _ORDER[known]:
        _outcomes[report.nodeid] = (report.outcome, _reason(report) if report.failed else "")


def pytest_collectreport(report: pytest.CollectReport) -> None:
    """A module that cannot be collected is a failure under the module's own id."""
    if report.failed:
        _outcomes[report.nodeid] = ("failed", _reason(report))


def pytest_sessionstart() -> None:
    """Open the database that the suite's savers use."""
    if IS_REPLACED:
        _ours().open_databases()


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


# Replacing


def _ours() -> Any:
    # Beside this file, which is not a part of a package where suites are run.
    return importlib.import_module("replacements")


def _replace_classes() -> None:
    """Replace the stock classes, as far as they are installed, wherever suites import them from."""
    ours = _ours()
    stand_ins: dict[str, dict[str, type]] = {
        "langgraph.checkpoint.memory": {"InMemorySaver": ours.InMemoryStandIn},
        "langgraph.checkpoint.sqlite": {"SqliteSaver": ours.SqliteStandIn},
        "langgraph.checkpoint.sqlite.aio": {"AsyncSqliteSaver": ours.AsyncSqliteStandIn},
        "langgraph.checkpoint.postgres": {"PostgresSaver": ours.PostgresStandIn},
        "langgraph.checkpoint.postgres.aio": {"AsyncPostgresSaver": ours.AsyncPostgresStandIn},
        "langgraph.store.memory": {"InMemoryStore": ours.StoreStandIn},
        "langgraph.store.sqlite": {
            "SqliteStore": ours.StoreStandIn,
            "AsyncSqliteStore": ours.AsyncStoreStandIn,
        },
        "langgraph.store.postgres": {
            "PostgresStore": ours.StoreStandIn,
            "AsyncPostgresStore": ours.AsyncStoreStandIn,
        },
    }
    replaced: dict[type, type] = {}
    for name, classes in stand_ins.items():
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        replaced.update((getattr(module, attribute), stand_in) for attribute, stand_in in classes.items())
    for name, module in sys.modules.copy().items():
        if name.startswith("langgraph."):
            for attribute, value in vars(module).copy().items():
                if isinstance(value, type) and value in replaced:
                    setattr(module, attribute, replaced[value])


def _opens(make: Callable[[], Any], is_async: bool) -> Callable[..., Any]:
    @contextmanager
    def open_one(*_: Any, **__: Any) -> Iterator[Any]:
        yield make()

    @asynccontextmanager
    async def aopen_one(*_: Any, **__: Any) -> AsyncIterator[Any]:
        yield make()

    return aopen_one if is_async else open_one


def _replace_openers(module: ModuleType) -> None:
    """Replace what a conftest, or what it imports, opens savers and stores with."""
    ours = _ours()
    for name in vars(module).copy():
        is_async = "_aio" in name
        # The memory ones are made of the classes above, by checks of the suite that are worth keeping.
        if name.startswith("_checkpointer_") and not name.startswith("_checkpointer_memory"):
            kind = ours.AsyncPostgresStandIn if is_async else ours.PostgresStandIn
            make = partial(kind, encrypted=name.endswith("_aes"), shared=False)
            setattr(module, name, _opens(make, is_async))
        elif name.startswith("_store_"):
            setattr(module, name, _opens(ours.StoreStandIn, is_async))


def pytest_plugin_registered(plugin: object) -> None:
    """Replace in a suite's conftest as soon as it is imported, before any test module is."""
    if not isinstance(plugin, ModuleType) or not str(getattr(plugin, "__file__", "")).endswith("conftest.py"):
        return
    related = [plugin] + [m for n, m in sys.modules.items() if n.rpartition(".")[2].startswith("conftest_")]
    for module in related:
        for name in ("DEFAULT_POSTGRES_URI", "DEFAULT_URI"):
            if POSTGRES and hasattr(module, name):
                setattr(module, name, POSTGRES + ("postgres" if name == "DEFAULT_URI" else ""))
        if IS_REPLACED:
            _replace_openers(module)


if IS_REPLACED:
    _replace_classes()
