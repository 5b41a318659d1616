"""Reads the keys of langgraph-checkpoint-plainredis: its timelines, checkpoints, blobs and pending writes."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import redis

from perdure.errors import BadUrl, Contention, Corrupt, Unserialisable
from perdure.imports.payloads import SERDE, ChannelCache, StockSerde, load
from perdure.imports.source import (
    CheckpointEntry,
    Outline,
    SourceCheckpoint,
    SourceWrite,
    StockSource,
    WriteSlot,
    translate_errors,
)
from perdure.storage.url import redact

PACKAGE = "langgraph-checkpoint-plainredis"
PREFIX = "lg"
_PAGE = 100
_FORM = "redis://user:password@host:6379/0, with ?prefix=… unless the saver's is lg"
_reading = translate_errors(redis.RedisError)


class RedisSource(StockSource):
    """A Redis of langgraph-checkpoint-plainredis, read with plain commands.

    Args:
        url: A ``redis://`` URL; ``prefix`` is the saver's, by default ``lg``.

    Raises:
        BadUrl: The URL cannot be used, or there are no keys of the saver.
        Unavailable: The server does not answer.
    """

    package = PACKAGE

    def __init__(self, url: str) -> None:
        self.name = redact(url)
        parts = urlsplit(url)
        query = dict(parse_qsl(parts.query))
        self._prefix = query.pop("prefix", PREFIX).rstrip(":")
        try:
            self._client = redis.Redis.from_url(
                urlunsplit(parts._replace(query=urlencode(query))),
                socket_timeout=30,
                socket_connect_timeout=5,
            )
        except ValueError:
            raise BadUrl(f"{self.name}: not a Redis URL; write {_FORM}") from None
        self._check()
        self._namespaces: dict[str, list[str]] = {}
        self._registry_size = 0
        self.saver = self._open_stock_saver()

    @_reading
    def _check(self) -> None:
        if self._client.exists(self._make_key("threads")):
            return
        if any(True for _ in self._client.scan_iter(match="checkpoint:*", count=1000)):
            raise BadUrl(
                f"{self.name} has keys of langgraph-checkpoint-redis, which needs the modules RedisJSON and "
                "RediSearch to be read and is not supported; copy its threads with its own saver to a "
                f"langgraph-checkpoint-sqlite file, or to {PACKAGE}, and import that"
            )
        raise BadUrl(f"{self.name} has no keys of {PACKAGE} under the prefix {self._prefix!r}; write {_FORM}")

    def _open_stock_saver(self) -> Any:
        if find_spec("langgraph_checkpoint_plainredis") is None:
            return None
        from langgraph_checkpoint_plainredis import RedisSaver

        return RedisSaver(self._client, prefix=self._prefix, serde=StockSerde())

    @_reading
    def threads(self) -> Iterator[str]:
        """Return the ids of the threads in order."""
        return iter(sorted(self._read_registry()))

    @_reading
    def outline(self, thread: str) -> Outline:
        """Return the outline of a thread. Writes without a checkpoint are not in the saver's lists,
        and are left out."""
        outline = Outline()
        for namespace in self._read_registry().get(thread, ()):
            names = self._list_timeline(thread, namespace)
            for start in range(0, len(names), _PAGE):
                page = names[start : start + _PAGE]
                pipe = self._client.pipeline(transaction=False)
                for name in page:
                    pipe.get(self._make_key("cp", thread, namespace, name))
                    pipe.hkeys(self._make_key("wr", thread, namespace, name))
                answers = pipe.execute()
                for name, raw, fields in zip(page, answers[::2], answers[1::2], strict=True):
                    if raw is None:
                        continue  # expired
                    parent = _parse_checkpoint(raw).get("parent_id")
                    outline.checkpoints.append(CheckpointEntry(namespace, name, parent or None))
                    outline.writes += [_make_slot(namespace, name, field.decode()) for field in fields]
        outline.checkpoints.sort(key=lambda entry: entry.id)
        return outline

    def checkpoints(self, thread: str, wanted: Sequence[CheckpointEntry]) -> Iterator[SourceCheckpoint]:
        """Yield checkpoints in the given order."""
        cache = ChannelCache()
        for entry in wanted:
            yield self._read_checkpoint(thread, entry, cache)

    @_reading
    def _read_checkpoint(self, thread: str, entry: CheckpointEntry, cache: ChannelCache) -> SourceCheckpoint:
        raw = self._client.get(self._make_key("cp", thread, entry.namespace, entry.id))
        if raw is None:
            raise Contention(f"checkpoint {entry.id} is gone from {self.name}")
        found = _parse_checkpoint(raw)
        checkpoint = dict(found["checkpoint"])
        versions: Mapping[str, Any] = checkpoint.get("channel_versions") or {}
        read_blobs = partial(self._read_blobs, thread, entry.namespace)
        checkpoint["channel_values"] = cache.read(entry.namespace, versions, read_blobs)
        return SourceCheckpoint(entry, checkpoint, dict(found.get("metadata") or {}))

    def _read_blobs(self, thread: str, namespace: str, wanted: Mapping[str, str]) -> dict[str, Any]:
        """Return the values of channels, given with their versions, without those of empty channels."""
        keys = [self._make_key("blob", thread, namespace, *pair) for pair in wanted.items()]
        blobs: Any = self._client.mget(keys)
        parsed = {c: _parse_value(blob) for c, blob in zip(wanted, blobs, strict=True) if blob is not None}
        return {channel: load(kind, body) for channel, (kind, body) in parsed.items() if kind != "empty"}

    def writes(self, thread: str, wanted: Sequence[WriteSlot]) -> Iterator[SourceWrite]:
        """Yield pending writes in the given order."""
        for slot in wanted:
            yield self._read_write(thread, slot)

    @_reading
    def _read_write(self, thread: str, slot: WriteSlot) -> SourceWrite:
        key = self._make_key("wr", thread, slot.namespace, slot.checkpoint_id)
        raw: Any = self._client.hget(key, f"{slot.task_id}:{slot.idx}")
        if raw is None:
            raise Contention(f"a write of checkpoint {slot.checkpoint_id} is gone from {self.name}")
        found = load(*_parse_value(raw))
        if not isinstance(found, list) or len(found) != 3:
            raise Corrupt(f"a write of checkpoint {slot.checkpoint_id} is damaged at the source")
        return SourceWrite(slot, "", found[1], *SERDE.payload(found[2]))

    @_reading
    def slots_of(self, thread: str, entry: CheckpointEntry) -> list[WriteSlot]:
        """Return the slots of a checkpoint's pending writes."""
        fields: Any = self._client.hkeys(self._make_key("wr", thread, *entry[:2]))
        return [_make_slot(*entry[:2], field.decode()) for field in fields]

    read_stock = _reading(StockSource.read_stock)

    @_reading
    def latest(self, thread: str, namespace: str, outline: Outline) -> str:
        """Return the checkpoint that was written last, as the saver does."""
        outlined_ids = {entry.id for entry in outline.checkpoints if entry.namespace == namespace}
        return next(name for name in reversed(self._list_timeline(thread, namespace)) if name in outlined_ids)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _read_registry(self) -> dict[str, list[str]]:
        """Return the namespaces by thread. The registry is one hash of all threads, so it is read again
        only when its size has changed."""
        size: Any = self._client.hlen(self._make_key("threads"))
        if size != self._registry_size:
            found: Any = self._client.hvals(self._make_key("threads"))
            self._namespaces = {}
            for value in found:
                entry = json.loads(value)
                self._namespaces.setdefault(entry["thread"], []).append(entry["ns"])
            self._registry_size = len(found)
        return self._namespaces

    def _list_timeline(self, thread: str, namespace: str) -> list[str]:
        found: Any = self._client.zrange(self._make_key("idx", thread, namespace), 0, -1)
        return [name.decode() for name in found]

    def _make_key(self, *parts: str) -> str:
        return ":".join((self._prefix, *parts))


def _make_slot(namespace: str, checkpoint_id: str, field: str) -> WriteSlot:
    task, _, idx = field.rpartition(":")
    return WriteSlot(namespace, checkpoint_id, task, int(idx))


def _parse_value(raw: Any) -> tuple[str, bytes]:
    try:
        found = json.loads(raw)
        return found["t"], base64.b64decode(found["d"])
    except (ValueError, KeyError, TypeError) as error:
        raise Unserialisable("a value has not the form of the saver's") from error


def _parse_checkpoint(raw: Any) -> dict[str, Any]:
    found = load(*_parse_value(raw))
    if not isinstance(found, dict) or not isinstance(found.get("checkpoint"), dict):
        raise Unserialisable("a checkpoint has not the form of the saver's")
    return found
