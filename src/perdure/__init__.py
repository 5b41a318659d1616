"""Durable threads for LangGraph agents.

>>> async with perdure.connect("sqlite:///threads.db", migrate=True) as db:
...     graph = builder.compile(checkpointer=db.checkpointer())

A name is imported when it is first used, so that programs which only name an error, or print their help, do
not import LangGraph, which takes seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.config.checkpoint_lifespan import checkpoint_lifespan, compile_graph
    from perdure.database.asynchronous import Database
    from perdure.database.blocking import SyncDatabase
    from perdure.database.opening import connect, connect_sync
    from perdure.database.thread_entries import Thread
    from perdure.engine.checks.fsck_report import Damage, Finding, Repaired
    from perdure.engine.queue.stuck import Stuck, Survey
    from perdure.engine.threads.measure import ByteCount, Measure
    from perdure.engine.threads.thread_digest import Digest
    from perdure.errors import (
        BadUrl,
        Conflict,
        Corrupt,
        Fenced,
        HeadConflict,
        MigrationRequired,
        MissingExtra,
        NotFound,
        NotWaiting,
        PerdureError,
        QueueFull,
        RunInProgress,
        TypeNotAllowed,
        TypeNotFound,
        Unavailable,
    )
    from perdure.langgraph.codecs import Codec
    from perdure.langgraph.reading.plain_reading import ChannelView, CheckpointView
    from perdure.langgraph.replaces import Replaces
    from perdure.langgraph.saver import PerdureSaver
    from perdure.langgraph.search.index import SearchIndex
    from perdure.langgraph.store import PerdureStore
    from perdure.langgraph.store_for_event_loops import AsyncPerdureStore
    from perdure.model.retention_policy import Retention, RetentionRules

__all__ = [
    "AsyncPerdureStore",
    "BadUrl",
    "ByteCount",
    "ChannelView",
    "CheckpointView",
    "Codec",
    "Conflict",
    "Corrupt",
    "Damage",
    "Database",
    "Digest",
    "Fenced",
    "Finding",
    "HeadConflict",
    "Measure",
    "MigrationRequired",
    "MissingExtra",
    "NotFound",
    "NotWaiting",
    "PerdureError",
    "PerdureSaver",
    "PerdureStore",
    "QueueFull",
    "Repaired",
    "Replaces",
    "Retention",
    "RetentionRules",
    "RunInProgress",
    "SearchIndex",
    "Stuck",
    "Survey",
    "SyncDatabase",
    "Thread",
    "TypeNotAllowed",
    "TypeNotFound",
    "Unavailable",
    "checkpoint_lifespan",
    "compile_graph",
    "connect",
    "connect_sync",
]

_MODULES = {
    "AsyncPerdureStore": "langgraph.store_for_event_loops",
    "ByteCount": "engine.threads.measure",
    "ChannelView": "langgraph.reading.plain_reading",
    "CheckpointView": "langgraph.reading.plain_reading",
    "Codec": "langgraph.codecs",
    "Damage": "engine.checks.fsck_report",
    "Database": "database.asynchronous",
    "Digest": "engine.threads.thread_digest",
    "Finding": "engine.checks.fsck_report",
    "Measure": "engine.threads.measure",
    "PerdureSaver": "langgraph.saver",
    "PerdureStore": "langgraph.store",
    "Repaired": "engine.checks.fsck_report",
    "Replaces": "langgraph.replaces",
    "Retention": "model.retention_policy",
    "RetentionRules": "model.retention_policy",
    "SearchIndex": "langgraph.search.index",
    "Stuck": "engine.queue.stuck",
    "Survey": "engine.queue.stuck",
    "SyncDatabase": "database.blocking",
    "Thread": "database.thread_entries",
    "checkpoint_lifespan": "config.checkpoint_lifespan",
    "compile_graph": "config.checkpoint_lifespan",
    "connect": "database.opening",
    "connect_sync": "database.opening",
}
"""The module of each name that is not an error."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_MODULES.get(name, 'errors')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
