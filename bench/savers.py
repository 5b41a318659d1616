"""The candidates: how each saver is opened, and what has to be said when one cannot be."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from langgraph.checkpoint.base import BaseCheckpointSaver

Saver: TypeAlias = BaseCheckpointSaver[Any]
Opened: TypeAlias = AbstractAsyncContextManager[Saver | None]

_KEY = bytes(range(32))
DATABASE = "threads.db"


@asynccontextmanager
async def _nothing(_: Path) -> AsyncIterator[None]:
    yield None


@asynccontextmanager
async def _memory(_: Path) -> AsyncIterator[Saver]:
    from langgraph.checkpoint.memory import InMemorySaver

    yield InMemorySaver()


@asynccontextmanager
async def _sqlite_sync(folder: Path) -> AsyncIterator[Saver]:
    from langgraph.checkpoint.sqlite import SqliteSaver

    with SqliteSaver.from_conn_string(str(folder / DATABASE)) as saver:
        yield saver


@asynccontextmanager
async def _sqlite(folder: Path) -> AsyncIterator[Saver]:
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with AsyncSqliteSaver.from_conn_string(str(folder / DATABASE)) as saver:
        yield saver


def _perdure(*, encrypted: bool) -> Callable[[Path], Opened]:
    @asynccontextmanager
    async def opened(folder: Path) -> AsyncIterator[Saver]:
        perdure: Any = importlib.import_module("perdure")
        options = {"encryption_key": _KEY} if encrypted else {}
        async with perdure.connect(_url(folder), migrate=True, **options) as db:
            yield db.checkpointer()

    return opened


@asynccontextmanager
async def _perdure_sync(folder: Path) -> AsyncIterator[Saver]:
    perdure: Any = importlib.import_module("perdure")
    with perdure.connect_sync(_url(folder), migrate=True) as db:
        yield db.checkpointer()


def _url(folder: Path) -> str:
    return f"sqlite:///{(folder / DATABASE).resolve()}"


def _perdure_missing() -> str | None:
    try:
        perdure = importlib.import_module("perdure")
    except ImportError as error:
        return f"perdure cannot be imported ({error})"
    return None if hasattr(perdure, "connect") else "perdure has no connect() yet"


def _encryption_missing() -> str | None:
    if importlib.util.find_spec("cryptography") is None:
        return "the package cryptography is not installed: pip install 'perdure[encryption]'"
    return _perdure_missing()


@dataclass(frozen=True)
class Candidate:
    """One line of every table. `sync` savers are driven with `invoke`, the others with `ainvoke`."""

    name: str
    label: str
    colour: str
    open: Callable[[Path], Opened]
    sync: bool = False
    delta: bool = False
    on_disk: bool = True
    keeps: bool = True
    ours: bool = False
    missing: Callable[[], str | None] = lambda: None


CANDIDATES: dict[str, Candidate] = {
    candidate.name: candidate
    for candidate in (
        Candidate("none", "no checkpointer", "#8a8f98", _nothing, on_disk=False, keeps=False),
        Candidate("memory", "InMemorySaver", "#b58900", _memory, on_disk=False),
        Candidate("sqlite-sync", "SqliteSaver", "#e8a0a0", _sqlite_sync, sync=True),
        Candidate("sqlite", "AsyncSqliteSaver", "#c0392b", _sqlite),
        Candidate("delta", "DeltaChannel on AsyncSqliteSaver", "#7d4fa8", _sqlite, delta=True),
        Candidate(
            "perdure", "Perdure", "#0b6e99", _perdure(encrypted=False), ours=True, missing=_perdure_missing
        ),
        Candidate(
            "perdure-sync",
            "Perdure, sync",
            "#6db6d6",
            _perdure_sync,
            sync=True,
            ours=True,
            missing=_perdure_missing,
        ),
        Candidate(
            "perdure-encrypted",
            "Perdure, encrypted",
            "#0b8f6a",
            _perdure(encrypted=True),
            ours=True,
            missing=_encryption_missing,
        ),
    )
}

STOCK = "sqlite"
OURS = "perdure"
