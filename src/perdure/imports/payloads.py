"""Translates the stock serialiser's payloads to Perdure's without building an object: the wire form is the
same, so the bytes of every typed value stay as they are, and no type has to be imported or allowed."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from perdure.errors import Unserialisable
from perdure.langgraph.values.serde import Serde
from perdure.model.values import refs

_KINDS = {"null": refs.NULL, "bytes": refs.BYTES, "bytearray": refs.BYTEARRAY, "msgpack": refs.MSGPACK}

_NAMES = {kind: name for name, kind in _KINDS.items()}


class PackedSerde(Serde):
    """A serializer whose unpacked values are plain data: typed objects stay packed."""

    def unpack(self, body: bytes) -> Any:
        return self.unpack_plain(body)


SERDE = PackedSerde("listed")
"""The serializer of every import."""


class StockSerde:
    """The serializer for a stock saver that is read for comparison: it builds no object either."""

    def dumps_typed(self, obj: Any) -> tuple[str, bytes]:
        """Return the payload of plain data, for values that a saver translates while it reads."""
        kind, body = SERDE.payload(obj)
        return _NAMES[kind], body

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        return load(*data)


def payload(kind: str | None, body: bytes | memoryview | str | None) -> tuple[int, bytes]:
    """Return a stock payload in Perdure's form: its kind and its bytes.

    Raises:
        Unserialisable: the payload is pickled, encrypted, or JSON of LangChain objects.
    """
    if isinstance(body, str):
        body = body.encode()
    raw = bytes(body or b"")
    found = _KINDS.get(kind or "null")
    if found == refs.MSGPACK and not raw:
        raise Unserialisable("a value is empty: the source is damaged")
    if found is not None:
        return found, raw
    if kind == "json":
        return SERDE.payload(_read_json(raw))
    raise _make_unreadable_error(kind)


def load(kind: str | None, body: bytes | memoryview | str | None) -> Any:
    """Return the value of a stock payload as plain data; raise ``Unserialisable`` as ``payload`` does."""
    return SERDE.value(*payload(kind, body))


_EMPTY: Any = object()
"""Stands for the value of an empty channel."""


class ChannelCache:
    """The last value of each channel: it belongs to all checkpoints until the channel's version changes."""

    def __init__(self) -> None:
        self._values: dict[tuple[str, str], tuple[str, Any]] = {}

    def read(
        self,
        namespace: str,
        versions: Mapping[str, Any],
        read_blobs: Callable[[Mapping[str, str]], Mapping[str, Any]],
    ) -> dict[str, Any]:
        """Return the values of channels at their versions.

        Args:
            namespace: The namespace of the checkpoint.
            versions: The channels' versions.
            read_blobs: Returns the values of channels that are not here, given with their versions; it leaves
                out empty channels.
        """
        cache = self._values
        lacking = {
            channel: str(version)
            for channel, version in versions.items()
            if cache.get((namespace, channel), ("",))[0] != str(version)
        }
        if lacking:
            found = read_blobs(lacking)
            for channel, version in lacking.items():
                cache[namespace, channel] = version, found.get(channel, _EMPTY)
        values = {channel: cache[namespace, channel][1] for channel in versions}
        return {channel: value for channel, value in values.items() if value is not _EMPTY}


def _make_unreadable_error(kind: str | None) -> Unserialisable:
    if kind == "pickle":
        return Unserialisable(
            "a value is pickled, and reading a pickle runs what it names. Load the thread in your own "
            "program with the old saver, and put it with db.checkpointer() and a perdure.Codec for that type"
        )
    if kind and "+" in kind:
        return Unserialisable(
            f"a value is encrypted ({kind}) by the saver's EncryptedSerializer. Load the thread in your own "
            "program with the old saver and its key, and put it with db.checkpointer()"
        )
    return Unserialisable(f"a value has the serialised form {kind!r}, which is not one of LangGraph's")


def _read_json(raw: bytes) -> Any:
    try:
        value = json.loads(raw)
    except ValueError as error:
        raise Unserialisable("a value in JSON cannot be read") from error
    if _holds_objects(value):
        raise Unserialisable(
            "a value is in the JSON of LangGraph before 0.3, with LangChain objects in it. Load and put the "
            "thread once with the old saver of a newer release, which rewrites it, and import it again"
        )
    return value


def _holds_objects(value: Any) -> bool:
    if isinstance(value, dict):
        return "lc" in value or any(map(_holds_objects, value.values()))
    return isinstance(value, list) and any(map(_holds_objects, value))
