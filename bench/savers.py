"""The candidates: how each saver is opened, and what has to be said when one cannot be."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from typing import Any

from bench.candidate import Candidate, Opened, Place, Saver, perdure_missing
from bench.remote import REMOTE

_KEY = bytes(range(32))


@asynccontextmanager
async def _nothing(_: Place) -> AsyncIterator[None]:
    yield None


@asynccontextmanager
async def _memory(_: Place) -> AsyncIterator[Saver]:
    from langgraph.checkpoint.memory import InMemorySaver

    yield InMemorySaver()


@asynccontextmanager
async def _sqlite_sync(place: Place) -> AsyncIterator[Saver]:
    from langgraph.checkpoint.sqlite import SqliteSaver

    with SqliteSaver.from_conn_string(str(place.file)) as saver:
        yield saver


@asynccontextmanager
async def _sqlite(place: Place) -> AsyncIterator[Saver]:
    from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

    async with AsyncSqliteSaver.from_conn_string(str(place.file)) as saver:
        yield saver


@asynccontextmanager
async def _bare(place: Place) -> AsyncIterator[Saver]:
    from bench.bare import BareSaver

    with closing(BareSaver(place.file)) as saver:
        yield saver


def _perdure(*, encrypted: bool) -> Callable[[Place], Opened]:
    @asynccontextmanager
    async def open_saver(place: Place) -> AsyncIterator[Saver]:
        perdure: Any = importlib.import_module("perdure")
        options = {"encryption_key": _KEY} if encrypted else {}
        async with perdure.connect(_url(place), migrate=True, **options) as db:
            yield db.checkpointer()

    return open_saver


@asynccontextmanager
async def _perdure_sync(place: Place) -> AsyncIterator[Saver]:
    perdure: Any = importlib.import_module("perdure")
    with perdure.connect_sync(_url(place), migrate=True) as db:
        yield db.checkpointer()


def _url(place: Place) -> str:
    return f"sqlite:///{place.file.resolve()}"


def _encryption_missing() -> str | None:
    if importlib.util.find_spec("cryptography") is None:
        return "the package cryptography is not installed: pip install 'perdure[encryption]'"
    return perdure_missing()


CANDIDATES: dict[str, Candidate] = {
    candidate.name: candidate
    for candidate in (
        Candidate("none", "no checkpointer", "#8a8f98", _nothing, on_disk=False, keeps=False),
        Candidate("memory", "InMemorySaver", "#b58900", _memory, on_disk=False),
        Candidate("sqlite-sync", "SqliteSaver", "#e8a0a0", _sqlite_sync, sync=True),
        Candidate("sqlite", "AsyncSqliteSaver", "#c0392b", _sqlite),
        Candidate("bare", "a bare saver", "#5d6d7e", _bare, bare=True),
        Candidate("delta", "DeltaChannel on AsyncSqliteSaver", "#7d4fa8", _sqlite, delta=True),
        Candidate(
            "perdure", "Perdure", "#0b6e99", _perdure(encrypted=False), ours=True, missing=perdure_missing
        ),
        Candidate(
            "perdure-sync",
            "Perdure, sync",
            "#6db6d6",
            _perdure_sync,
            sync=True,
            ours=True,
            missing=perdure_missing,
        ),
        Candidate(
            "perdure-encrypted",
            "Perdure, encrypted",
            "#0b8f6a",
            _perdure(encrypted=True),
            ours=True,
            missing=_encryption_missing,
        ),
        *REMOTE,
    )
}

STOCK = "sqlite"
OURS = "perdure"
