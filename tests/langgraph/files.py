"""Files that a test opens as Perdure does and changes as an intruder would."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from langgraph.checkpoint.base import ChannelVersions, Checkpoint, empty_checkpoint

import perdure

THREAD = "thread-4711"


def config(thread: str = THREAD, **more: Any) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": "", **more}}


def put(
    saver: perdure.PerdureSaver, values: dict[str, Any], at: Any = None, *, name: str = "c1", **meta: Any
) -> Any:
    versions: ChannelVersions = dict.fromkeys(values, 1)
    checkpoint: Checkpoint = {
        **empty_checkpoint(),
        "id": name,
        "channel_values": values,
        "channel_versions": versions,
    }
    metadata: Any = {"source": "loop", "step": 1, "parents": {}, **meta}
    return saver.put(at or config(), checkpoint, metadata, versions)


class File:
    """A SQLite database that can be opened by Perdure and, beside it, changed as an intruder would."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.url = f"sqlite:///{path}"

    @contextlib.contextmanager
    def open(self, key: Any = None, **more: Any) -> Iterator[perdure.SyncDatabase]:
        with perdure.connect_sync(self.url, migrate=True, encryption_key=key, **more) as db:
            yield db

    def sql(self, statement: str, *values: Any) -> list[Any]:
        with contextlib.closing(sqlite3.connect(self.path)) as connection:
            rows = connection.execute(statement, values).fetchall()
            connection.commit()
            return rows

    def content(self) -> bytes:
        return b"".join(
            p.read_bytes() for p in sorted(self.path.parent.iterdir()) if p.name.startswith(self.path.name)
        )
