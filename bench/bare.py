"""A saver that does the least, to show what a turn costs at the floor.

Each call stores one row with what is new in it, and returns when that is durable; calls that arrive together
share a transaction. The head of a thread is compared and set, rows have checksums, and any process can read
the whole history. It has no forks, subgraphs, pruning, encryption or compression, believes that nobody
changes a value in place, and knows of lists only what is appended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, NamedTuple
from zlib import crc32

import apsw
import ormsgpack
from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

_SCHEMA = (
    "CREATE TABLE IF NOT EXISTS step (thread TEXT, seq INTEGER, id TEXT, crc INTEGER, body BLOB,"
    " PRIMARY KEY (thread, seq)) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS head (thread TEXT PRIMARY KEY, seq INTEGER, id TEXT, parent TEXT,"
    " updated INTEGER) WITHOUT ROWID",
    "CREATE INDEX IF NOT EXISTS listing ON head (updated)",
)
_HEAD = "SELECT seq, id FROM head WHERE thread = ?"
_CHECKPOINT, _WRITES = 0, 1


class Row(NamedTuple):
    """A row to be stored, on top of the checkpoint ``after`` if it is one itself."""

    thread: str
    id: str
    after: str | None
    body: bytes
    is_checkpoint: bool


class Known:
    """The state of a thread as it was stored or loaded last."""

    def __init__(self) -> None:
        self.seq = 0
        self.id = ""
        self.head = b""
        self.packed: dict[str, list[bytes] | bytes] = {}
        self.lists: dict[str, list[Any]] = {}
        self.writes: list[bytes] = []


class HeadMoved(Exception):
    """Raised when another checkpoint was stored on the same one."""


class BareSaver(BaseCheckpointSaver[Any]):
    """See the module."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path
        self._known: dict[str, Known] = {}
        self._queue: SimpleQueue[tuple[asyncio.Future[int], Row] | None] = SimpleQueue()
        self._reader = _connect(path)
        self._writer = Thread(target=self._write)
        self._writer.start()

    def close(self) -> None:
        self._queue.put(None)
        self._writer.join()
        self._reader.close()

    # The writer's thread

    def _write(self) -> None:
        with closing(_connect(self._path)) as connection:
            while (job := self._queue.get()) is not None:
                group = [job]
                is_over = False
                while not is_over:
                    try:
                        more = self._queue.get_nowait()
                    except Empty:
                        break
                    is_over = more is None
                    if more is not None:
                        group.append(more)
                with connection:
                    outcomes = [_store(connection, row) for _, row in group]
                loop = group[0][0].get_loop()
                loop.call_soon_threadsafe(_answer, [future for future, _ in group], outcomes)
                if is_over:
                    return

    async def _store_row(self, row: Row) -> int:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._queue.put((future, row))
        return await future

    # Values

    def _pack(self, value: Any) -> bytes:
        return self.serde.dumps_typed(value)[1]

    def _unpack(self, packed: bytes) -> Any:
        return self.serde.loads_typed(("msgpack", packed)) if packed else None

    # The methods of a saver

    async def aget_tuple(self, config: Any) -> CheckpointTuple | None:
        thread = config["configurable"]["thread_id"]
        found = self._reader.execute(_HEAD, (thread,)).fetchone()
        if found is None:
            return None
        known = self._known.get(thread)
        if known is None or known.seq != found[0]:
            known = self._known[thread] = self._load(thread)
        values = {
            name: [self._unpack(each) for each in body] if isinstance(body, list) else self._unpack(body)
            for name, body in known.packed.items()
        }
        known.lists = {name: list(value) for name, value in values.items() if isinstance(value, list)}
        checkpoint, metadata = self._unpack(known.head)
        checkpoint["channel_values"] = values
        writes = [self._unpack(each) for each in known.writes]
        return CheckpointTuple(_config(thread, known.id), checkpoint, metadata, None, writes)

    def _load(self, thread: str) -> Known:
        known = Known()
        rows = self._reader.execute(
            "SELECT seq, id, crc, body FROM step WHERE thread = ? ORDER BY seq", (thread,)
        )
        for seq, name, crc, body in rows:
            if crc32(body) != crc:
                raise ValueError(f"row {seq} of {thread} is damaged")
            kind, *rest = ormsgpack.unpackb(body)
            known.seq = seq
            if kind == _WRITES:
                known.writes += rest[0]
                continue
            known.id, known.head, known.writes = name, rest[0], []
            for channel, (kept, new) in rest[1].items():
                before = known.packed.get(channel)
                known.packed[channel] = (
                    [*before[:kept], *new] if isinstance(before, list) and kept is not None else new
                )
        return known

    async def aput(self, config: Any, checkpoint: Any, metadata: Any, new_versions: Any) -> Any:
        thread = config["configurable"]["thread_id"]
        known = self._known.setdefault(thread, Known())
        changes: dict[str, tuple[int | None, list[bytes] | bytes]] = {}
        for channel in new_versions:
            value = checkpoint["channel_values"].get(channel)
            if isinstance(value, list):
                changes[channel] = self._append(known, channel, value)
            elif channel in checkpoint["channel_values"]:
                known.packed[channel] = body = self._pack(value)
                changes[channel] = (None, body)
        rest = {name: value for name, value in checkpoint.items() if name != "channel_values"}
        known.id, known.head, known.writes = checkpoint["id"], self._pack((rest, dict(metadata))), []
        body = ormsgpack.packb((_CHECKPOINT, known.head, changes))
        after = config["configurable"].get("checkpoint_id") or ""
        known.seq = max(known.seq, await self._store_row(Row(thread, known.id, after, body, True)))
        return _config(thread, checkpoint["id"])

    def _append(self, known: Known, channel: str, value: list[Any]) -> tuple[int, list[bytes]]:
        """Return how many elements of a list are kept, and those that follow them, packed."""
        before, packed = known.lists.get(channel, []), known.packed.get(channel)
        kept = 0
        while kept < min(len(before), len(value)) and before[kept] is value[kept]:
            kept += 1
        new = [self._pack(each) for each in value[kept:]]
        known.packed[channel] = [*packed[:kept], *new] if isinstance(packed, list) else new
        known.lists[channel] = list(value)
        return kept, new

    async def aput_writes(
        self, config: Any, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        at = config["configurable"]
        body = ormsgpack.packb((_WRITES, [self._pack((task_id, *write)) for write in writes]))
        seq = await self._store_row(Row(at["thread_id"], at["checkpoint_id"], None, body, False))
        if (known := self._known.get(at["thread_id"])) is not None:
            known.seq = max(known.seq, seq)


def _connect(path: Path) -> apsw.Connection:
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(30_000)
    for setting in (
        "page_size = 1024",
        "journal_mode = WAL",
        "synchronous = FULL",
        "wal_autocheckpoint = 4096",
    ):
        connection.execute(f"PRAGMA {setting}")
    for statement in _SCHEMA:
        connection.execute(statement)
    return connection


def _store(connection: apsw.Connection, row: Row) -> int | Exception:
    found = connection.execute(_HEAD, (row.thread,)).fetchone()
    seq, head = (int(found[0]), found[1]) if found else (0, "")
    if row.after is not None and row.after != head:
        return HeadMoved(f"the head of {row.thread} is not {row.after!r}")
    seq += 1
    connection.execute(
        "INSERT INTO step VALUES (?, ?, ?, ?, ?)", (row.thread, seq, row.id, crc32(row.body), row.body)
    )
    connection.execute(
        "INSERT INTO head VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (thread) DO UPDATE SET seq = ?2, id = ?3,"
        " parent = ?4, updated = ?5",
        (row.thread, seq, row.id if row.is_checkpoint else head, head, time.time_ns() // 1000),
    )
    return seq


def _answer(futures: Sequence[asyncio.Future[int]], outcomes: Sequence[int | Exception]) -> None:
    for future, outcome in zip(futures, outcomes, strict=True):
        if future.done():
            continue
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def _config(thread: str, checkpoint_id: str) -> Any:
    return {"configurable": {"thread_id": thread, "checkpoint_ns": "", "checkpoint_id": checkpoint_id}}
