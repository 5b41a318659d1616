"""Writes threads to the tables of LangGraph's own savers, so that a graph goes on with them there.

Values stay packed: the wire form is LangGraph's own, so nothing that a thread names is imported or built.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, NamedTuple

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from perdure.database.handle import DatabaseHandle
from perdure.engine.transfer import importing
from perdure.errors import BadUrl, Conflict, MissingExtra
from perdure.imports import verify
from perdure.imports.payloads import SERDE, StockSerde
from perdure.imports.source import CheckpointEntry
from perdure.model.missing_thread import missing_thread
from perdure.model.records import Partition

StockSaver = BaseCheckpointSaver[Any]


class Departure(NamedTuple):
    """Counts of what was written of a thread."""

    checkpoints: int
    writes: int


@contextmanager
def open_stock_saver(url: str) -> Iterator[StockSaver]:
    """Open a saver of LangGraph's for writing; its tables are made if they are not there.

    Args:
        url: ``sqlite:///FILE`` for langgraph-checkpoint-sqlite, ``postgresql://…`` for
            langgraph-checkpoint-postgres.

    Raises:
        BadUrl: It is neither.
        MissingExtra: The package of the saver is not installed.
    """
    serde: Any = StockSerde()
    if url.startswith("sqlite:///"):
        with _require_package("sqlite"):
            import sqlite3

            from langgraph.checkpoint.sqlite import SqliteSaver
        connection = sqlite3.connect(url.removeprefix("sqlite:///"), check_same_thread=False)
        try:
            lite = SqliteSaver(connection, serde=serde)
            lite.setup()
            yield lite
        finally:
            connection.close()
        return
    if not url.startswith(("postgresql://", "postgres://")):
        raise BadUrl("a stock saver is sqlite:///FILE or postgresql://…, a LangGraph server http://…")
    with _require_package("postgres"):
        from langgraph.checkpoint.postgres import PostgresSaver
    with PostgresSaver.from_conn_string(url) as saver:
        saver.serde = serde
        saver.setup()
        yield saver


@contextmanager
def _require_package(name: str) -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise MissingExtra(
            f"this target needs LangGraph's own package: pip install langgraph-checkpoint-{name}"
        ) from error


def depart(handle: DatabaseHandle, partition: Partition, saver: StockSaver) -> Departure:
    """Write a thread with its whole history to a stock saver, and compare what the saver returns.

    What is there already is written again as it is, so that a call that was stopped can be repeated.

    Raises:
        NotFound: There is no such thread.
        Conflict: The saver has checkpoints of this thread that are not of this one.
        Corrupt: The saver returns something else than was written.
    """
    found = handle.run(importing.survey(partition))
    if not found.checkpoints:
        raise missing_thread(partition)
    ids = {name for _, name in found.checkpoints}
    thread: Any = {"configurable": {"thread_id": partition.thread}}
    for held in saver.list(thread):
        name = held.config.get("configurable", {})["checkpoint_id"]
        if name not in ids:
            raise Conflict(
                f"the target has another thread {partition.thread!r}, with the checkpoint {name}; delete it "
                "there, or export to another target"
            )
    written = Departure(0, 0)
    order = sorted(found.checkpoints, key=lambda key: (key[0], found.checkpoints[key]))
    for start in range(0, len(order), verify.PAGE):
        some = order[start : start + verify.PAGE]
        for namespace in dict.fromkeys(namespace for namespace, _ in some):
            page = [name for space, name in some if space == namespace]
            loaded = handle.run(verify.load(partition, namespace, page, handle.digest))
            for name in page:
                count = _put(saver, loaded[name])
                written = Departure(written.checkpoints + 1, written.writes + count)
                there = saver.get_tuple(loaded[name].config)
                entry = CheckpointEntry(namespace, name, None)
                verify.compare(entry, _without_order(there), _without_order(loaded[name]))
    return written


def _put(saver: StockSaver, held: CheckpointTuple) -> int:
    config: dict[str, Any] = held.config.get("configurable", {})
    parent = (held.parent_config or {}).get("configurable", {}).get("checkpoint_id")
    place: dict[str, Any] = {
        "thread_id": config["thread_id"],
        "checkpoint_ns": config.get("checkpoint_ns", ""),
    }
    checkpoint: Any = _stock_versions(held.checkpoint)
    before: Any = {"configurable": {**place, **({"checkpoint_id": parent} if parent else {})}}
    after = saver.put(before, checkpoint, held.metadata, checkpoint["channel_versions"])
    by_task: dict[str, list[tuple[str, Any]]] = {}
    for task, channel, value in held.pending_writes or ():
        by_task.setdefault(task, []).append((channel, value))
    for task, writes in by_task.items():
        saver.put_writes(after, writes, task)
    return sum(map(len, by_task.values()))


def _stock_versions(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checkpoint with the versions that the stock savers count with: a number, and noise by which
    the branches of a thread keep values of their own. Here the noise follows from the value."""
    values = checkpoint["channel_values"]
    names = {
        channel: _stock(version, values.get(channel), channel in values)
        for channel, version in checkpoint["channel_versions"].items()
    }

    def convert_seen(channel: str, version: Any) -> Any:
        if checkpoint["channel_versions"].get(channel) == version:
            return names[channel]
        return _stock(version, None, False)

    return {
        **checkpoint,
        "channel_versions": names,
        "versions_seen": {
            node: {channel: convert_seen(channel, version) for channel, version in versions.items()}
            for node, versions in checkpoint["versions_seen"].items()
        },
    }


def _stock(version: Any, value: Any, has_value: bool) -> Any:
    if not isinstance(version, int):
        return version
    noise = 0
    if has_value:
        kind, body = SERDE.payload(value)
        noise = int.from_bytes(blake2b(bytes([kind]) + body, digest_size=6).digest())
    return f"{version:032}.0.{noise:016}"


def _without_order(held: CheckpointTuple | None) -> Any:
    """Return a checkpoint with its writes in one order: a stock saver has one of its own for tasks."""
    if held is None:
        return None
    writes = sorted(held.pending_writes or (), key=lambda write: (write[0], write[1]))
    return held._replace(pending_writes=writes)
