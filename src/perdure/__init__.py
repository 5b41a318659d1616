"""Durable threads for LangGraph agents.

>>> async with perdure.connect("sqlite:///threads.db", migrate=True) as db:
...     graph = builder.compile(checkpointer=db.checkpointer())

A name is imported when it is first used, so that programs which only name an error, or print their help, do
not import LangGraph, which takes seconds.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.database import Database, Thread, connect, connect_sync
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
    from perdure.langgraph.replaces import Replaces
    from perdure.langgraph.saver import PerdureSaver
    from perdure.langgraph.store import PerdureStore
    from perdure.model.retention_policy import Retention, RetentionRules

__all__ = [
    "BadUrl",
    "Codec",
    "Conflict",
    "Corrupt",
    "Database",
    "Fenced",
    "HeadConflict",
    "MigrationRequired",
    "MissingExtra",
    "NotFound",
    "NotWaiting",
    "PerdureError",
    "PerdureSaver",
    "PerdureStore",
    "QueueFull",
    "Replaces",
    "Retention",
    "RetentionRules",
    "RunInProgress",
    "Thread",
    "TypeNotAllowed",
    "TypeNotFound",
    "Unavailable",
    "connect",
    "connect_sync",
]

_MODULES = {
    "Codec": "langgraph.codecs",
    "Database": "database",
    "PerdureSaver": "langgraph.saver",
    "PerdureStore": "langgraph.store",
    "Replaces": "langgraph.replaces",
    "Retention": "model.retention_policy",
    "RetentionRules": "model.retention_policy",
    "Thread": "database",
    "connect": "database",
    "connect_sync": "database",
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
