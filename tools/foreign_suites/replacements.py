"""Perdure's saver and store in the shapes of the stock ones: how they are made, opened and set up."""

from __future__ import annotations

import itertools
import os
import secrets
from collections.abc import Iterator
from contextlib import ExitStack
from functools import cache
from typing import Any, Self

from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from perdure import AsyncPerdureStore, PerdureSaver, PerdureStore, SyncDatabase
from perdure.database.base import DEFAULT_METADATA_KEYS
from perdure.database.opening import open_database

_KEY = bytes(range(32))
_METADATA_KEYS = (*DEFAULT_METADATA_KEYS, "test_config_1", "test_config_2", "test_config_3", "test_config_4")
"""Stock savers keep every configurable value with a checkpoint, Perdure those it is asked to keep."""
_numbers = itertools.count(1)
_process = secrets.token_hex(4)


def open_databases() -> None:
    """Open the database before the first test: opening blocks, and suites have their event loops watched."""
    _database(False)


@cache
def _database(encrypted: bool) -> SyncDatabase:
    """The database of this process; each saver and each store has a tenant in it."""
    url = os.environ["PERDURE_SUITE_SEALED_URL" if encrypted else "PERDURE_SUITE_URL"]
    return open_database(url, migrate=True, encryption_key=_KEY if encrypted else None)


def _tenant(place: str | None) -> str:
    """A tenant of its own, or with a place that of all who name the same place in the same test."""
    if place is None or place == ":memory:":
        return f"{_process}-{next(_numbers)}"
    test = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")[0]
    return f"{_process}-{test}-{place}"


class _Opened:
    """Opened as the stock ones are: by `with` or `async with`, and set up by hand."""

    stack: ExitStack

    def setup(self) -> _Done:
        """The database is migrated already; may be awaited."""
        return _Done()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.stack.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        self.stack.close()


class _Done:
    """What needs no waiting for."""

    def __await__(self) -> Iterator[None]:
        return iter(())


class _Cursor:
    """Takes the statement by which a fixture makes a stock store set itself up again, and no other."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        return None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        return None

    def execute(self, statement: str, *_: object) -> _Done:
        if statement != "DROP TABLE IF EXISTS store_migrations":
            raise NotImplementedError("Perdure's store is not read or written by SQL")
        return _Done()


class StandIn(_Opened, PerdureSaver):
    """Perdure's saver, made as the stock ones are; arguments concern only their storage.

    ``place`` is a stock saver's connection string. ``shared``: all of one test are on one database.
    """

    shared = False
    # For suites that copy checkpoints by it; what is stored is Perdure's own matter.
    serde: Any = JsonPlusSerializer()

    def __init__(
        self,
        *_: Any,
        place: str | None = None,
        encrypted: bool = False,
        shared: bool | None = None,
        **__: Any,
    ) -> None:
        if self.shared if shared is None else shared:
            place = "shared"
        tenant = _tenant(place)
        made = _database(encrypted).checkpointer(
            tenant=tenant, may_list_all_threads=True, metadata_keys=_METADATA_KEYS
        )
        self.__dict__.update(vars(made))
        self.stack = ExitStack()

    @classmethod
    def from_conn_string(cls, place: str, **_: Any) -> Self:
        """Opened as a stock saver is."""
        return cls(place=place)


class InMemoryStandIn(StandIn):
    """In the place of `InMemorySaver`, for tests that subclass it or ask for it.

    Awaited methods of that one call the blocking ones, and tests that override one of these expect it.
    """

    async def aget_tuple(self, config: Any) -> Any:
        if type(self).get_tuple is not PerdureSaver.get_tuple:
            return self.get_tuple(config)
        return await super().aget_tuple(config)

    async def aput(self, *args: Any) -> Any:
        if type(self).put is not PerdureSaver.put:
            return self.put(*args)
        return await super().aput(*args)

    # With the parameters' names: LangGraph gives a task's path to savers that name it.
    async def aput_writes(self, config: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        if type(self).put_writes is not PerdureSaver.put_writes:
            return self.put_writes(config, writes, task_id, task_path)
        return await super().aput_writes(config, writes, task_id, task_path)

    async def aget_delta_channel_history(self, **given: Any) -> Any:
        if type(self).get_delta_channel_history is not PerdureSaver.get_delta_channel_history:
            return self.get_delta_channel_history(**given)
        return await super().aget_delta_channel_history(**given)


class SqliteStandIn(StandIn):
    """In the place of `SqliteSaver`."""


class AsyncSqliteStandIn(StandIn):
    """In the place of `AsyncSqliteSaver`."""


class PostgresStandIn(StandIn):
    """In the place of `PostgresSaver`."""

    shared = True


class AsyncPostgresStandIn(StandIn):
    """In the place of `AsyncPostgresSaver`."""

    shared = True


_INDEX = ("dims", "embed", "fields", "distance_type", "ann_index_config")


class StoreStandIn(_Opened, PerdureStore):
    """Perdure's store, made as the stock ones are, with an index that compares vectors."""

    # Fixtures of the stock stores adapt these before they set a store up.
    MIGRATIONS: Any = ()

    def __init__(
        self, *_: Any, place: str | None = None, ttl: Any = None, index: Any = None, **__: Any
    ) -> None:
        known: Any = None if index is None else {name: index[name] for name in _INDEX if name in index}
        if known is not None and index.get("text_fields"):
            known["fields"] = index["text_fields"]  # as SqliteStore names them
        self.__dict__.update(vars(_database(False).store(tenant=_tenant(place), ttl=ttl, index=known)))
        self.stack = ExitStack()
        self.stack.callback(self.close)

    def _cursor(self) -> _Cursor:
        return _Cursor()

    @classmethod
    def from_conn_string(cls, place: str, **options: Any) -> Self:
        """Opened as a stock store is."""
        return cls(place=place, **options)


class AsyncStoreStandIn(StoreStandIn, AsyncPerdureStore):
    """In the place of the stock stores of an event loop, whose sweepers are started by `await`."""
