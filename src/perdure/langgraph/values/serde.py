"""Packs values so that they can be read back, and unpacks them only into types that are allowed.

The wire form is LangGraph's own (MessagePack with the extension codes of ``JsonPlusSerializer``), so values
round-trip as they do with the stock savers, with these differences: a type that is not allowed is refused by
name, on the way in and on the way out, where the stock serializer would import and call what a row names, or
return raw data; a type that could not be read back is refused on the way in; the content of a model's fields
keeps its own type; and strings with lone surrogates keep them.
"""

from __future__ import annotations

import dataclasses
import logging
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from functools import partial
from operator import call
from threading import local
from typing import Any
from weakref import WeakSet

import ormsgpack
from langgraph.checkpoint.serde import types as langgraph_types
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_METHODS

from perdure.errors import Corrupt, TypeNotAllowed, TypeNotFound, Unreadable, Unserialisable
from perdure.langgraph.codecs import Codec
from perdure.langgraph.values.datatypes import (
    OWN_TYPES,
    Allow,
    TypeName,
    Types,
    Unfindable,
    is_data,
    is_nameable,
    name_of,
)
from perdure.langgraph.values.object_building import (
    METHOD,
    POSITIONAL,
    unpack_array,
)
from perdure.langgraph.values.object_building import build as build_object
from perdure.langgraph.values.object_packing import find_wire_form, is_array, is_whole_in_parts, split_array
from perdure.langgraph.values.payloads import (
    CODEC_EXT,
    NUMPY_EXT,
    SNAPSHOT_EXT,
    SURROGATES_EXT,
    UNPACK_OPTIONS,
    PayloadReader,
)
from perdure.langgraph.values.roundtrip import is_same
from perdure.langgraph.values.unstorable import describe
from perdure.model.values import refs

_PACK = (
    ormsgpack.OPT_NON_STR_KEYS
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
_TRIES = 1000
_TOO_DEEP = "Recursion limit reached"
"""Text of MessagePack's error for a value that is nested too deeply."""
_NOT_PLAIN = (ormsgpack.MsgpackEncodeError, TypeError, ValueError, RecursionError)

packed_plain: Callable[[Any], bytes] = partial(ormsgpack.packb, option=_PACK)
"""Pack plain data in one call into C, which no other OS thread interrupts; raise one of ``_NOT_PLAIN`` on the
first object that needs a hook."""

DeltaSnapshot = langgraph_types._DeltaSnapshot  # pyright: ignore[reportPrivateUsage]
"""LangGraph's snapshot of a DeltaChannel: its whole value, stored from time to time."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Surrogates:
    """A string with lone surrogates, which MessagePack cannot hold."""

    text: str


class _Hook(local):
    """Outcomes of hooks, by OS thread: MessagePack reports that a hook failed, but not its exception."""

    error: Exception | None = None
    simplified: int = 0
    """Number of objects that were packed as plain data."""

    def take_error(self) -> Exception | None:
        """Return the last failure and forget it."""
        error, self.error = self.error, None
        return error


_hook = _Hook()
_log = logging.getLogger("perdure.langgraph")
_warned: set[TypeName] = set()
_WARNED_MOST = 1000


def is_snapshot(value: object) -> bool:
    """Return True if a value is a DeltaChannel's snapshot; its ``value`` is then the channel's."""
    return type(value) is DeltaSnapshot


class Serde(PayloadReader):
    """Packs and unpacks single values. Immutable; safe to share between threads."""

    def __init__(self, allow: Allow | Types = "imported", *, codecs: Collection[Codec] = ()) -> None:
        if isinstance(allow, Types):
            self.types = allow
        else:
            self.types = Types(allow)
        self.codecs = tuple(codecs)
        self._dumps = {codec.type: codec for codec in codecs}
        self._loads = {codec.name: codec for codec in codecs}
        if len(self._dumps) < len(self.codecs) or len(self._loads) < len(self.codecs):
            raise ValueError("two codecs are for one type, or have one name; pass one of them")
        self._proved: WeakSet[type] = WeakSet()
        self._unpack_ext = self._make_unpack_ext()

    def with_earlier_names(self, renamed: Mapping[str, str]) -> Serde:
        """Return the same serializer, which also finds types by earlier names: module and name with dots."""
        return Serde(self.types.with_earlier_names(renamed), codecs=self.codecs)

    def with_types(self, extra: Iterable[type | TypeName]) -> Serde:
        """Return the same serializer with more types allowed."""
        return Serde(self.types.with_types(extra), codecs=self.codecs)

    def with_imported_types(self) -> Serde:
        """Return the same serializer with every imported data type allowed."""
        return Serde(self.types.with_imported_types(), codecs=self.codecs)

    def find_missing(self, value: Any) -> list[TypeName]:
        """Return the types in a value that are not allowed, each once."""
        collecting = _Collecting(self.types, codecs=self.codecs)
        with suppress(Unserialisable, TypeNotAllowed):
            collecting.payload(value)
        return list(collecting.found)

    def unreadable(self, payload_type: int, body: bytes) -> list[Unreadable]:
        """Return an error for each type in a payload that is not allowed or not found, or if all are found,
        for the first that does not accept its stored data."""
        found: dict[Any, Unreadable] = {}

        def note_error(code: int, data: bytes) -> Any:
            if code == SURROGATES_EXT:
                return ""
            inner = ormsgpack.unpackb(data, ext_hook=note_error, option=UNPACK_OPTIONS)
            if code not in (SNAPSHOT_EXT, NUMPY_EXT, METHOD) and isinstance(inner, list) and len(inner) > 1:
                try:
                    self._find_codec(inner[0]) if code == CODEC_EXT else self.types.find(inner[0], inner[1])
                except Unreadable as error:
                    found.setdefault(repr(inner[:2]) if code != CODEC_EXT else inner[0], error)
            return None

        if payload_type == refs.MSGPACK:
            # Keys may be objects, and they all become ``None`` here: only the types matter.
            with suppress(ormsgpack.MsgpackDecodeError, TypeError):
                ormsgpack.unpackb(body, ext_hook=note_error, option=UNPACK_OPTIONS)
        if not found:
            try:
                self.value(payload_type, body)
            except Unreadable as error:
                return [error]
            except Corrupt:
                return []
        return list(found.values())

    def payload(self, value: Any) -> tuple[int, bytes]:
        """Return a whole value as payload type and bytes."""
        if value is None:
            return refs.NULL, b""
        if isinstance(value, bytes):
            return refs.BYTES, bytes(value)
        if isinstance(value, bytearray):
            return refs.BYTEARRAY, bytes(value)
        return refs.MSGPACK, self.pack(value)

    def pack(self, value: Any) -> bytes:
        """Pack one value, as it is at one moment of the call.

        Another OS thread may change the value meanwhile. Plain data is packed in one call that no other OS
        thread interrupts. Values that need a hook are packed from copies of the containers around them, so
        that a container that changes size neither raises nor leaves bytes that cannot be unpacked.

        Raises:
            TypeNotAllowed: The value contains a type that is not allowed.
            Unserialisable: The value could not be read back.
        """
        try:
            if isinstance(value, dict | list | tuple):
                return packed_plain(value)
            detached = value
        except _NOT_PLAIN:
            try:
                detached = _detach(value)
            except RecursionError as error:
                raise _too_deep_error(value) from error
        try:
            return ormsgpack.packb(detached, default=self._encode_default, option=_PACK)
        except _NOT_PLAIN as error:
            cause = _hook.take_error()
            if isinstance(cause, TypeNotAllowed | Unserialisable):
                raise cause from None
            if isinstance(cause or error, RecursionError) or _TOO_DEEP in str(error):
                raise _too_deep_error(value) from (cause or error)
            if cause is None and "surrogates" in str(error):
                return self._pack_surrogates(value)
            # An exception from a value's own code may quote the value: only its type is repeated.
            if cause is None:
                why = str(error)
            else:
                why = type(cause).__name__
            raise Unserialisable(f"a value of type {type(value).__qualname__} cannot be stored: {why}") from (
                cause or error
            )

    def pack_each(
        self, values: list[Any], holds: Callable[[], Iterable[object]] = tuple
    ) -> list[bytes] | None:
        """Pack each item of a list.

        Args:
            values: The items.
            holds: Makes an iterable of conditions. Where the items are plain data and the conditions run no
                Python code, items and conditions are evaluated as one step.

        Returns:
            The packed items, ``None`` if a condition is false.
        """
        steps: tuple[Callable[[], Any], ...] = (
            partial(all, holds()),
            partial(list, map(packed_plain, values)),
        )
        answers: list[Any] = []
        with suppress(*_NOT_PLAIN):
            # One call into C: no other OS thread runs between the conditions and the packing.
            answers.extend(map(call, steps))
        # If an item is not plain data, packing ends after the conditions, whose answer is used.
        is_held = answers[0] if answers else all(holds())
        if not is_held:
            return None
        return answers[1] if len(answers) > 1 else [self.pack(value) for value in values.copy()]

    def unpack_plain(self, body: bytes) -> Any:
        """Return a packed value as dicts, lists and scalars that nothing else refers to; packed again they
        are the same bytes. Objects stay packed, except for a DeltaChannel's snapshot."""
        try:
            return ormsgpack.unpackb(body, ext_hook=_read_plain_ext, option=UNPACK_OPTIONS)
        except (ormsgpack.MsgpackDecodeError, ValueError, TypeError) as error:
            raise Unserialisable(
                f"a value cannot be stored, as it could not be read again: {error}"
            ) from error

    def pack_key(self, name: str) -> bytes:
        """Pack a dict's key by itself: a lone surrogate, which ``pack`` would keep, is refused here."""
        try:
            return ormsgpack.packb(name)
        except (ormsgpack.MsgpackEncodeError, TypeError) as error:
            raise _misplaced_surrogate_error({}) from error

    def unpack(self, body: bytes) -> Any:
        """Unpack a value; raise ``TypeNotAllowed`` if it names a type that is not allowed."""
        try:
            return ormsgpack.unpackb(body, ext_hook=self._unpack_ext, option=UNPACK_OPTIONS)
        except (ormsgpack.MsgpackDecodeError, ValueError) as error:
            cause = _hook.take_error()
            if isinstance(cause, Unreadable | Corrupt):
                raise cause from cause.__cause__
            raise Corrupt(f"a stored value cannot be unpacked: {error}") from (cause or error)

    def _name(self, cls: type) -> TypeName:
        return self.types.name(cls)

    def _ext(self, code: int, obj: object, argument: Any, *more: str) -> Any:
        cls = type(obj)
        try:
            name = self._name(cls)
        except Unfindable:
            if not is_data(cls):
                raise
            _warn_simplified(cls)
            _hook.simplified += 1
            return argument
        simplified = _hook.simplified
        body = self.pack((*name, argument, *more))
        if cls not in OWN_TYPES and cls not in self._proved and simplified == _hook.simplified:
            self._prove(code, obj, body, lambda: self.pack((*self._name(cls), argument, *more)))
        return ormsgpack.Ext(code, body)

    def _prove(self, code: int, obj: Any, body: bytes, again: Callable[[], bytes]) -> None:
        """Read back an object of a type that was not seen before.

        Raises:
            Unserialisable: Reading it fails, or yields a different object.
        """
        cls = type(obj)
        try:
            is_proved = is_same(obj, self._unpack_ext(code, body))
        except Exception as error:
            _hook.take_error()
            if isinstance(error, TypeNotAllowed | TypeNotFound):
                raise
            if isinstance(error, Unreadable):
                cause = error.__cause__
            else:
                cause = error
            raise Unserialisable(
                f"an object of type {cls.__module__}.{cls.__qualname__} cannot be stored: reading it back "
                f"fails with {type(cause).__name__}; {self._advice(cls)}"
            ) from error
        if is_proved:
            self._proved.add(cls)
        elif body == again():
            # If the bytes differ now, the object was changed meanwhile, which proves nothing.
            raise Unserialisable(
                f"an object of type {cls.__module__}.{cls.__qualname__} cannot be stored: read back it would "
                f"be another; {self._advice(cls)}"
            )

    def _advice(self, cls: type) -> str:
        if not is_nameable(cls):
            return "keep plain data in the state"
        codec = self.types.place.format(f"codecs=[perdure.Codec({cls.__name__}, dump, load)]")
        return f"keep plain data in the state, or say how to store it: {codec}"

    def _find_codec(self, name: object) -> Codec:
        if isinstance(name, str):
            codec = self._loads.get(name)
        else:
            codec = None
        if codec is None:
            raise TypeNotFound(
                f"a stored value was written by a codec for {name}, which this checkpointer does not have; "
                f"pass it: {self.types.place.format('codecs=[…]')}"
            )
        return codec

    def _encode_default(self, obj: Any) -> Any:
        tries = 0
        while True:
            try:
                return self._pack_ext(obj)
            except Exception as error:
                tries += 1
                # An object's own code may walk a container that another OS thread changes meanwhile.
                if tries == _TRIES or "during iteration" not in f"{error} {error.__cause__}":
                    _hook.error = error
                    raise
                _hook.error = None

    def _pack_ext(self, obj: Any) -> Any:
        if is_snapshot(obj):
            return ormsgpack.Ext(SNAPSHOT_EXT, self.pack(obj.value))
        if isinstance(obj, _Surrogates):
            return ormsgpack.Ext(SURROGATES_EXT, obj.text.encode("utf-8", "surrogatepass"))
        if (codec := self._dumps.get(type(obj))) is not None:
            return self._pack_by(codec, obj)
        if isinstance(obj, type):
            # A class has the attributes of its objects, so that a form of its objects would be chosen.
            raise _never_stored_error(obj, describe(obj))
        if (form := find_wire_form(obj)) is not None:
            return self._ext(form.code, obj, form.argument, *form.more)
        if isinstance(obj, re.Pattern):
            return ormsgpack.Ext(POSITIONAL, self.pack(("re", "compile", (obj.pattern, obj.flags))))
        kind = type(obj)
        if dataclasses.is_dataclass(kind):
            raise Unserialisable(
                f"an object of type {kind.__qualname__} cannot be stored: it has fields that its constructor "
                f"does not take, so it could not be built again; {self._advice(kind)}"
            )
        if is_array(obj):
            if not is_whole_in_parts(obj):
                raise Unserialisable(
                    f"an array of type {kind.__module__}.{kind.__qualname__} and dtype {obj.dtype} cannot be "
                    f"stored: read back it would be another; {self._advice(kind)}"
                )
            return ormsgpack.Ext(NUMPY_EXT, self.pack(split_array(obj)))
        if isinstance(obj, BaseException):
            return repr(obj)
        raise _never_stored_error(obj, describe(obj) or self._advice(kind))

    def _pack_by(self, codec: Codec, obj: Any) -> Any:
        body = self.pack((codec.name, codec.dump_value(obj)))
        if codec.type not in self._proved:
            try:
                read = self._unpack_ext(CODEC_EXT, body)
            except Exception as error:
                _hook.take_error()
                raise Unserialisable(
                    f"the codec of {codec.name} could not load what it dumped: {type(error).__name__}"
                ) from error
            if type(read) is not codec.type:
                raise Unserialisable(
                    f"the codec of {codec.name} loaded an object of type {type(read).__qualname__}"
                )
            self._proved.add(codec.type)
        return ormsgpack.Ext(CODEC_EXT, body)

    def _pack_surrogates(self, value: Any) -> bytes:
        escaped = _Escaping(self.types, codecs=self.codecs)
        try:
            return escaped.pack(value)
        except _NOT_PLAIN as error:
            cause = _hook.take_error()
            if isinstance(cause, TypeNotAllowed | Unserialisable):
                raise cause from None
            if isinstance(cause or error, RecursionError) or _TOO_DEEP in str(error):
                raise _too_deep_error(value) from (cause or error)
            raise _misplaced_surrogate_error(value) from (cause or error)

    def _make_unpack_ext(self) -> Callable[[int, bytes], Any]:
        def hook(code: int, data: bytes) -> Any:
            try:
                if code == SURROGATES_EXT:
                    return data.decode("utf-8", "surrogatepass")
                inner = ormsgpack.unpackb(data, ext_hook=hook, option=UNPACK_OPTIONS)
                if code == SNAPSHOT_EXT:
                    return DeltaSnapshot(inner)
                if code == NUMPY_EXT:
                    return unpack_array(*inner)
                if code == CODEC_EXT:
                    return _load(self._find_codec(inner[0]), inner[1])
                module, name, argument, *more = inner
                if code == METHOD:
                    if (module, name, *more) not in SAFE_MSGPACK_METHODS:
                        raise TypeNotAllowed(f"the stored call {module}.{name}.{more} is not allowed")
                    return datetime.fromisoformat(argument)
                return build_object(code, self.types.find(module, name), argument)
            except Exception as error:
                # The innermost of nested failures is the cause.
                _hook.error = _hook.error or error
                raise

        return hook


class _Escaping(Serde):
    """A serializer that escapes strings with lone surrogates, also in nested values."""

    def pack(self, value: Any) -> bytes:
        return ormsgpack.packb(_escape(value), default=self._encode_default, option=_PACK)


class _Collecting(Serde):
    """A serializer that collects the types that are not allowed, instead of raising."""

    def __init__(self, types: Types, *, codecs: Collection[Codec]) -> None:
        super().__init__(types, codecs=codecs)
        self.found: dict[TypeName, None] = {}

    def _name(self, cls: type) -> TypeName:
        try:
            return super()._name(cls)
        except TypeNotAllowed:
            self.found[name_of(cls)] = None
            return name_of(cls)

    def _prove(self, code: int, obj: Any, body: bytes, again: Callable[[], bytes]) -> None:
        """Do nothing: objects are not read back."""


def _load(codec: Codec, dumped: Any) -> Any:
    try:
        return codec.load(dumped)
    except Exception as error:
        raise Unreadable(
            f"the codec of {codec.name} does not load what it has dumped before ({type(error).__name__}): "
            "let it read its earlier form too"
        ) from error


def _escape(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        if value.isascii() or not _has_surrogate(value):
            return value
        return _Surrogates(value)
    if kind is list or kind is tuple:
        return [_escape(v) for v in tuple(value)]
    if kind is dict:
        return {k: _escape(v) for k, v in value.copy().items()}
    return value


def _detach(value: Any) -> Any:
    """Return a value whose containers are copies, each made in one call; the objects in them are the same."""
    if isinstance(value, dict):
        copied = dict.copy(value)
        return {k: _detach(v) for k, v in copied.items()}
    if isinstance(value, list):
        return [_detach(v) for v in list.copy(value)]
    if type(value) is tuple:
        return tuple(map(_detach, value))
    return value


def _read_plain_ext(code: int, data: bytes) -> Any:
    if code == SNAPSHOT_EXT:
        return DeltaSnapshot(ormsgpack.unpackb(data, ext_hook=_read_plain_ext, option=UNPACK_OPTIONS))
    return ormsgpack.Ext(code, data)


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in text)


def _warn_simplified(cls: type) -> None:
    name = name_of(cls)
    if name in _warned:
        return
    if len(_warned) < _WARNED_MOST:
        _warned.add(name)
    _log.warning(
        "%s.%s is made while the program runs, so that no other process finds it: its objects are stored as "
        "plain data, and are read back as dicts; move the class to the top level of its module, or store "
        "model_dump() of its objects",
        *name,
    )


def _never_stored_error(obj: Any, advice: str | None) -> Unserialisable:
    kind = type(obj)
    return Unserialisable(
        f"an object of type {kind.__module__}.{kind.__qualname__} cannot be stored in a checkpoint; {advice}"
    )


def _too_deep_error(value: Any) -> Unserialisable:
    return Unserialisable(
        f"a value of type {type(value).__qualname__} cannot be stored: it is nested too deeply, or contains "
        "itself"
    )


def _misplaced_surrogate_error(value: Any) -> Unserialisable:
    return Unserialisable(
        f"a lone surrogate stands where it cannot be stored, in a value of type {type(value).__qualname__}; "
        "dict keys and names have to be well-formed text: correct them in the node that returns them"
    )
