"""Durable threads for LangGraph agents.

>>> async with perdure.connect("sqlite:///threads.db", migrate=True) as db:
...     graph = builder.compile(checkpointer=db.checkpointer())
"""

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
from perdure.langgraph.saver import PerdureSaver
from perdure.langgraph.store import PerdureStore

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
    "RunInProgress",
    "Thread",
    "TypeNotAllowed",
    "TypeNotFound",
    "Unavailable",
    "connect",
    "connect_sync",
]
