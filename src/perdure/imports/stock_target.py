"""Writes threads to the tables of LangGraph's own savers, so that a graph can go on with them there.

Values stay packed: the wire form is LangGraph's own, so nothing that a thread names is imported or built.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import blake2b
from typing import Any, NamedTuple
from uuid import UUID

from langgraph.checkpoint.base import BaseCheckpointSaver, CheckpointTuple

from perdure.database.handle import DatabaseHandle
from perdure.engine.threads import history
from perdure.engine.threads.chunk_reads import resolve
from perdure.engine.transfer import importing
from perdure.errors import BadUrl, Conflict, MissingExtra
from perdure.imports import verify
from perdure.imports.payloads import SERDE, StockSerde
from perdure.imports.source import CheckpointEntry
from perdure.langgraph.translate import config_of
from perdure.model.missing_thread import missing_thread
from perdure.model.program import Program
from perdure.model.records import Partition
from perdure.model.values.chunks import Digester
from perdure.model.values.joined_values import join_tree

StockSaver = BaseCheckpointSaver[Any]


class ExportCounts(NamedTuple):
    """Numbers of a thread's checkpoints and writes that were written."""

    checkpoints: int
    writes: int


@contextmanager
def open_stock_saver(url: str) -> Iterator[StockSaver]:
    """Open a saver of LangGraph's for writing; its tables are made if they are not there.

    Args:
        url: ``sqlite:///FILE`` for langgraph-checkpoint-sqlite, ``postgresql://…`` for
            langgraph-checkpoint-postgres.

    Raises:
        BadUrl: The URL is neither.
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


def export_thread(handle: DatabaseHandle, partition: Partition, saver: StockSaver) -> ExportCounts:
    """Write a thread with its whole history to a stock saver, and compare what the saver returns.

    Records that exist already are written again unchanged, so that an interrupted call can be repeated.

    Raises:
        NotFound: There is no such thread.
        Conflict: The saver has another thread with this id.
        Corrupt: The saver returns something other than was written.
    """
    found = handle.run(importing.survey(partition))
    if not found.checkpoints:
        raise missing_thread(partition)
    ids = {name for _, name in found.checkpoints}
    ids |= {_make_past_id(name) for name in ids}
    thread: Any = {"configurable": {"thread_id": partition.thread}}
    for existing in saver.list(thread):
        name = existing.config.get("configurable", {})["checkpoint_id"]
        if name not in ids:
            raise Conflict(
                f"the target has another thread {partition.thread!r}, with the checkpoint {name}; delete it "
                "there, or export to another target"
            )
    written = ExportCounts(0, 0)
    order = sorted(found.checkpoints, key=lambda key: (key[0], found.checkpoints[key]))
    for start in range(0, len(order), verify.PAGE):
        page_keys = order[start : start + verify.PAGE]
        for namespace in dict.fromkeys(namespace for namespace, _ in page_keys):
            page = [name for space, name in page_keys if space == namespace]
            loaded = handle.run(verify.load(partition, namespace, page, handle.digest))
            for name, past in handle.run(_load_pasts(partition, namespace, loaded, handle.digest)).items():
                _put_and_compare(saver, past)
                loaded[name] = loaded[name]._replace(parent_config=past.config)
            for name in page:
                count = _put_and_compare(saver, loaded[name])
                written = ExportCounts(written.checkpoints + 1, written.writes + count)
    return written


def _load_pasts(
    partition: Partition, namespace: str, loaded: Mapping[str, CheckpointTuple], digest: Digester
) -> Program[dict[str, CheckpointTuple]]:
    """Make an ancestor for each checkpoint whose own ancestors were pruned, with the values and writes from
    which its DeltaChannels are replayed: a stock saver looks for these in an ancestor."""
    out: dict[str, CheckpointTuple] = {}
    for record in (yield from history.find_all(partition, namespace, list(loaded))):
        if not record.carried:
            continue
        wanted = {(c, -1): carried.seed for c, carried in record.carried.items() if carried.seed is not None}
        wanted |= {
            (c, n): write.ref
            for c, carried in record.carried.items()
            for n, write in enumerate(carried.writes)
        }
        names = {f"{n}\0{channel}": (channel, n) for channel, n in wanted}
        trees, _ = yield from resolve(partition, {key: wanted[place] for key, place in names.items()}, digest)
        found = {names[key]: SERDE.value(*join_tree(tree)) for key, tree in trees.items()}
        seeds = {channel: value for (channel, n), value in found.items() if n < 0}
        past_id = _make_past_id(record.id)
        checkpoint: Any = {
            **loaded[record.id].checkpoint,
            "id": past_id,
            "channel_values": seeds,
            "channel_versions": {
                c: _make_past_version(record.versions[c]) for c in seeds if c in record.versions
            },
            "versions_seen": {},
            "updated_channels": None,
        }
        writes = [(past_id, c, found[c, n]) for c, n in sorted(found, key=lambda place: place[1]) if n >= 0]
        metadata: Any = {"source": "loop", "step": (record.step or 0) - 1, "parents": {}}
        config = config_of(partition, namespace, past_id)
        out[record.id] = CheckpointTuple(config, checkpoint, metadata, None, writes)
    return out


def _make_past_id(checkpoint_id: str) -> str:
    """Return the id of the ancestor that is made for a checkpoint; it sorts before all ids with a time."""
    return str(UUID(bytes=bytes(4) + blake2b(checkpoint_id.encode(), digest_size=12).digest()))


def _make_past_version(version: Any) -> Any:
    """Return a channel's version at an ancestor that is made. Text gets a further part, to differ from the
    checkpoint's own version, as savers store values by version; a number gets one by
    ``_make_stock_version``."""
    if isinstance(version, int):
        return version
    return f"{version}.0"


def _put_and_compare(saver: StockSaver, loaded: CheckpointTuple) -> int:
    count = _put(saver, loaded)
    place: dict[str, Any] = loaded.config.get("configurable", {})
    entry = CheckpointEntry(place["checkpoint_ns"], place["checkpoint_id"], None)
    verify.compare(entry, _sort_writes(saver.get_tuple(loaded.config)), _sort_writes(loaded))
    return count


def _put(saver: StockSaver, loaded: CheckpointTuple) -> int:
    config: dict[str, Any] = loaded.config.get("configurable", {})
    parent = (loaded.parent_config or {}).get("configurable", {}).get("checkpoint_id")
    place: dict[str, Any] = {
        "thread_id": config["thread_id"],
        "checkpoint_ns": config.get("checkpoint_ns", ""),
    }
    checkpoint: Any = _translate_versions(loaded.checkpoint)
    if parent:
        place["checkpoint_id"] = parent
    before: Any = {"configurable": place}
    after = saver.put(before, checkpoint, loaded.metadata, checkpoint["channel_versions"])
    by_task: dict[str, list[tuple[str, Any]]] = {}
    for task, channel, value in loaded.pending_writes or ():
        by_task.setdefault(task, []).append((channel, value))
    for task, writes in by_task.items():
        saver.put_writes(after, writes, task)
    return sum(map(len, by_task.values()))


def _translate_versions(checkpoint: Mapping[str, Any]) -> dict[str, Any]:
    """Return a checkpoint with versions in the form of the stock savers: a number, and noise that keeps the
    values of a thread's branches apart. Here the noise is derived from the value."""
    values = checkpoint["channel_values"]
    names = {
        channel: _make_stock_version(version, values.get(channel), channel in values)
        for channel, version in checkpoint["channel_versions"].items()
    }

    def convert_seen(channel: str, version: Any) -> Any:
        if checkpoint["channel_versions"].get(channel) == version:
            return names[channel]
        return _make_stock_version(version, None, False)

    return {
        **checkpoint,
        "channel_versions": names,
        "versions_seen": {
            node: {channel: convert_seen(channel, version) for channel, version in versions.items()}
            for node, versions in checkpoint["versions_seen"].items()
        },
    }


def _make_stock_version(version: Any, value: Any, has_value: bool) -> Any:
    if not isinstance(version, int):
        return version
    noise = 0
    if has_value:
        kind, body = SERDE.payload(value)
        noise = int.from_bytes(blake2b(bytes([kind]) + body, digest_size=6).digest())
    return f"{version:032}.0.{noise:016}"


def _sort_writes(loaded: CheckpointTuple | None) -> Any:
    """Return a checkpoint with its writes sorted: a stock saver orders the writes of tasks in its own way."""
    if loaded is None:
        return None
    writes = sorted(loaded.pending_writes or (), key=lambda write: (write[0], write[1]))
    return loaded._replace(pending_writes=writes)
