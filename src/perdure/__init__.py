"""Durable threads for LangGraph agents.

>>> async with perdure.connect("sqlite:///threads.db", migrate=True) as db:
...     graph = builder.compile(checkpointer=db.checkpointer())
"""

from perdure.database import Database, Thread, connect, connect_sync
from perdure.errors import (
    BadUrl,
    Busy,
    Conflict,
    Corrupt,
    Fenced,
    HeadConflict,
    MissingExtra,
    NotFound,
    NotWaiting,
    PerdureError,
    TryLater,
    TypeNotAllowed,
    TypeNotFound,
    Unavailable,
    Unmigrated,
)
from perdure.langgraph.codecs import Codec
from perdure.langgraph.saver import PerdureSaver
from perdure.langgraph.store import PerdureStore

__all__ = [
    "BadUrl",
    "Busy",
    "Codec",
    "Conflict",
    "Corrupt",
    "Database",
    "Fenced",
    "HeadConflict",
    "MissingExtra",
    "NotFound",
    "NotWaiting",
    "PerdureError",
    "PerdureSaver",
    "PerdureStore",
    "Thread",
    "TryLater",
    "TypeNotAllowed",
    "TypeNotFound",
    "Unavailable",
    "Unmigrated",
    "connect",
    "connect_sync",
]
