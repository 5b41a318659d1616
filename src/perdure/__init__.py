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
    MissingExtra,
    NotFound,
    PerdureError,
    TypeNotAllowed,
    Unavailable,
    Unmigrated,
)
from perdure.langgraph.saver import PerdureSaver
from perdure.langgraph.store import PerdureStore

__all__ = [
    "BadUrl",
    "Conflict",
    "Corrupt",
    "Database",
    "Fenced",
    "HeadConflict",
    "MissingExtra",
    "NotFound",
    "PerdureError",
    "PerdureSaver",
    "PerdureStore",
    "Thread",
    "TypeNotAllowed",
    "Unavailable",
    "Unmigrated",
    "connect",
    "connect_sync",
]
