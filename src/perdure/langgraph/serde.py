"""Packing values so that they come back, and unpacking them only into types that were allowed.

The wire form is LangGraph's own (MessagePack with the extension codes of ``JsonPlusSerializer``), so values
round-trip as they do with the stock savers, with two differences: a type that is not on the allowlist is
refused by name, on the way in and on the way out, where the stock serializer would import and call what a
row names, or hand back raw data; and strings with lone surrogates keep them.
"""

from __future__ import annotations

import dataclasses
import decimal
import importlib
import ipaddress
import pathlib
import re
import sys
import types
import typing
from collections import deque
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta, timezone
from enum import Enum
from threading import local
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import ormsgpack
from langgraph.checkpoint.serde import types as langgraph_types
from langgraph.checkpoint.serde._msgpack import SAFE_MSGPACK_METHODS, SAFE_MSGPACK_TYPES
from langgraph.store.base import Item
from langgraph.types import Send

from perdure.errors import Corrupt, TypeNotAllowed, TypeNotFound, Unreadable, Unserialisable
from perdure.model import refs

# LangGraph's extension codes (langgraph.checkpoint.serde.jsonplus), and one of our own.
_ONE, _POSITIONAL, _KEYWORD, _METHOD, _PYDANTIC_1, _PYDANTIC_2, _NUMPY, _SNAPSHOT = range(8)
_SURROGATES = 64

_PACK = (
    ormsgpack.OPT_NON_STR_KEYS
    | ormsgpack.OPT_PASSTHROUGH_DATACLASS
    | ormsgpack.OPT_PASSTHROUGH_DATETIME
    | ormsgpack.OPT_PASSTHROUGH_ENUM
    | ormsgpack.OPT_PASSTHROUGH_UUID
)
_UNPACK = ormsgpack.OPT_NON_STR_KEYS

TypeName = tuple[str, ...]

DeltaSnapshot = langgraph_types._DeltaSnapshot  # pyright: ignore[reportPrivateUsage]
"""What LangGraph stores for a DeltaChannel now and then: its whole value."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Surrogates:
    """A string with lone surrogates, which MessagePack cannot hold."""

    text: str


class _Hook(local):
    """What went wrong in a hook, by thread: MessagePack reports that one failed, and not how."""

    error: Exception | None = None

    def failed(self) -> Exception | None:
        """The last failure; it is told once."""
        error, self.error = self.error, None
        return error


_hook = _Hook()


def is_snapshot(value: object) -> bool:
    """Whether a value is a DeltaChannel's snapshot; its ``value`` is then the channel's."""
    return type(value) is DeltaSnapshot


class Serde:
    """Packs and unpacks single values. Immutable; safe to share between threads."""

    def __init__(self, allow: Iterable[type | TypeName] = ()) -> None:
        self._allowed: frozenset[TypeName] = frozenset(_names(allow))
        self._unpack_ext = self._make_unpack_ext()

    def allowing(self, extra: Iterable[type | TypeName]) -> Serde:
        """The same with more types allowed."""
        return Serde((*self._allowed, *extra))

    def payload(self, value: Any) -> tuple[int, bytes]:
        """A whole value as payload type and bytes."""
        if value is None:
            return refs.NULL, b""
        if isinstance(value, bytes):
            return refs.BYTES, bytes(value)
        if isinstance(value, bytearray):
            return refs.BYTEARRAY, bytes(value)
        return refs.MSGPACK, self.pack(value)

    def value(self, payload_type: int, body: bytes) -> Any:
        """The value of a payload."""
        if payload_type == refs.MSGPACK:
            return self.unpack(body)
        if payload_type == refs.NULL:
            return None
        if payload_type == refs.BYTES:
            return body
        if payload_type == refs.BYTEARRAY:
            return bytearray(body)
        raise Corrupt(f"a payload of the unknown type {payload_type}")

    def pack(self, value: Any) -> bytes:
        """One packed value; ``TypeNotAllowed`` or ``Unserialisable`` when it would not come back."""
        try:
            return ormsgpack.packb(value, default=self._default, option=_PACK)
        except (ormsgpack.MsgpackEncodeError, TypeError, ValueError, RecursionError) as error:
            cause = _hook.failed()
            if isinstance(cause, TypeNotAllowed | Unserialisable):
                raise cause from None
            if cause is None and "surrogates" in str(error):
                return self._pack_surrogates(value)
            # What a value's own code says may quote the value: of that only the kind is repeated.
            why = str(error) if cause is None else type(cause).__name__
            raise Unserialisable(f"a value of type {type(value).__qualname__} cannot be stored: {why}") from (
                cause or error
            )

    def key(self, name: str) -> bytes:
        """A dict's key, packed by itself: where ``pack`` would keep a lone surrogate, a key is refused."""
        try:
            return ormsgpack.packb(name)
        except (ormsgpack.MsgpackEncodeError, TypeError) as error:
            raise _misplaced_surrogate({}) from error

    def unpack(self, body: bytes) -> Any:
        """The value of a packed one; ``TypeNotAllowed`` when it names a type that is not allowed."""
        try:
            return ormsgpack.unpackb(body, ext_hook=self._unpack_ext, option=_UNPACK)
        except (ormsgpack.MsgpackDecodeError, ValueError) as error:
            cause = _hook.failed()
            if isinstance(cause, Unreadable | Corrupt):
                raise cause from cause.__cause__
            raise Corrupt(f"a stored value cannot be unpacked: {error}") from (cause or error)

    def is_allowed(self, name: TypeName) -> bool:
        return name in SAFE_MSGPACK_TYPES or name in self._allowed

    def _check(self, module: str, name: str) -> None:
        if not self.is_allowed((module, name)):
            raise TypeNotAllowed(
                f"the type {module}.{name} is not allowed in a checkpoint; if it is yours and safe to build "
                f"from stored data, pass it: db.checkpointer(allow=[{name}])"
            )

    def _ext(self, code: int, obj: object, argument: Any, *more: str) -> Any:
        cls = type(obj)
        self._check(cls.__module__, cls.__name__)
        return ormsgpack.Ext(code, self.pack((cls.__module__, cls.__name__, argument, *more)))

    def _default(self, obj: Any) -> Any:
        try:
            return self._pack_ext(obj)
        except Exception as error:
            _hook.error = error
            raise

    def _pack_ext(self, obj: Any) -> Any:
        if is_snapshot(obj):
            return ormsgpack.Ext(_SNAPSHOT, self.pack(obj.value))
        if isinstance(obj, _Surrogates):
            return ormsgpack.Ext(_SURROGATES, obj.text.encode("utf-8", "surrogatepass"))
        if callable(dump := getattr(obj, "model_dump", None)):
            return self._ext(_PYDANTIC_2, obj, dump(), "model_validate_json")
        if callable(secret := getattr(obj, "get_secret_value", None)):
            return self._ext(_ONE, obj, secret())
        if callable(old_dump := getattr(obj, "dict", None)):
            return self._ext(_PYDANTIC_1, obj, old_dump())
        if callable(as_dict := getattr(obj, "_asdict", None)):
            return self._ext(_KEYWORD, obj, as_dict())
        if isinstance(obj, datetime):
            return self._ext(_METHOD, obj, obj.isoformat(), "fromisoformat")
        for kinds, pack in _BY_TYPE:
            if isinstance(obj, kinds):
                code, argument = pack(obj)
                return self._ext(code, obj, argument)
        if isinstance(obj, re.Pattern):
            self._check("re", "compile")
            return ormsgpack.Ext(_POSITIONAL, self.pack(("re", "compile", (obj.pattern, obj.flags))))
        if isinstance(obj, Enum):
            return self._ext(_ONE, obj, obj.value)
        if isinstance(obj, Send):
            extra = (obj.timeout,) if getattr(obj, "timeout", None) is not None else ()
            return self._ext(_POSITIONAL, obj, (obj.node, obj.arg, *extra))
        if dataclasses.is_dataclass(obj) and not isinstance(obj, type):
            fields = dataclasses.fields(obj)
            if not all(f.init for f in fields):
                raise Unserialisable(
                    f"an object of type {type(obj).__qualname__} cannot be stored: it has fields that its "
                    "constructor does not take, so it could not be built again"
                )
            return self._ext(_KEYWORD, obj, {f.name: getattr(obj, f.name) for f in fields})
        if isinstance(obj, Item):
            return self._ext(_KEYWORD, obj, {k: getattr(obj, k) for k in obj.__slots__})
        if _is_array(obj):
            return self._pack_array(obj)
        if isinstance(obj, BaseException):
            return repr(obj)
        raise Unserialisable(f"an object of type {type(obj).__qualname__} cannot be stored in a checkpoint")

    def _pack_array(self, array: Any) -> Any:
        if array.dtype.hasobject:
            raise Unserialisable("a numpy array of Python objects cannot be stored in a checkpoint")
        flags = array.flags
        order = "F" if flags.f_contiguous and not flags.c_contiguous else "C"
        return ormsgpack.Ext(
            _NUMPY, self.pack((array.dtype.str, array.shape, order, array.tobytes(order="A")))
        )

    def _pack_surrogates(self, value: Any) -> bytes:
        escaped = _Escaping(self._allowed)
        try:
            return escaped.pack(value)
        except (ormsgpack.MsgpackEncodeError, TypeError, ValueError, RecursionError) as error:
            cause = _hook.failed()
            if isinstance(cause, TypeNotAllowed | Unserialisable):
                raise cause from None
            raise _misplaced_surrogate(value) from (cause or error)

    def _make_unpack_ext(self) -> Callable[[int, bytes], Any]:
        def hook(code: int, data: bytes) -> Any:
            try:
                return build(code, data)
            except Exception as error:
                # Of nested failures the innermost says what happened.
                _hook.error = _hook.error or error
                raise

        def build(code: int, data: bytes) -> Any:
            if code == _SURROGATES:
                return data.decode("utf-8", "surrogatepass")
            inner = ormsgpack.unpackb(data, ext_hook=hook, option=_UNPACK)
            if code == _SNAPSHOT:
                return DeltaSnapshot(inner)
            if code == _NUMPY:
                return _unpack_array(*inner)
            module, name, argument, *more = inner
            if code == _METHOD:
                if (module, name, *more) not in SAFE_MSGPACK_METHODS:
                    raise TypeNotAllowed(f"the stored call {module}.{name}.{more} is not allowed")
                return getattr(_resolve(module, name), more[0])(argument)
            self._check(module, name)
            return _build(code, _resolve(module, name), argument)

        return hook


class _Escaping(Serde):
    """A serializer whose nested values are escaped as well."""

    def pack(self, value: Any) -> bytes:
        return ormsgpack.packb(_escape(value), default=self._default, option=_PACK)


def _escape(value: Any) -> Any:
    kind = type(value)
    if kind is str:
        return value if value.isascii() or not _has_surrogate(value) else _Surrogates(value)
    if kind is list or kind is tuple:
        return [_escape(v) for v in value]
    if kind is dict:
        return {k: _escape(v) for k, v in value.items()}
    return value


def _has_surrogate(text: str) -> bool:
    return any("\ud800" <= c <= "\udfff" for c in text)


def _misplaced_surrogate(value: Any) -> Unserialisable:
    return Unserialisable(
        f"a lone surrogate stands where it cannot be stored, in a value of type {type(value).__qualname__}; "
        "dict keys and names have to be well-formed text"
    )


def _is_array(obj: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(obj, numpy.ndarray)


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if type(value) is list else value


def _build(code: int, cls: Any, argument: Any) -> Any:
    if code == _ONE:
        # A tuple is stored as a list, which no set can hold.
        return cls(map(_hashable, argument)) if cls in (set, frozenset) else cls(argument)
    if code == _POSITIONAL:
        return cls(*argument)
    if code == _KEYWORD:
        return cls(**argument)
    if code == _PYDANTIC_1:
        try:
            return cls(**argument)
        except Exception:
            return cls.construct(**argument)
    if code == _PYDANTIC_2:
        # What was stored without validation, such as a field set later, is handed back without it.
        try:
            return cls(**argument)
        except Exception:
            return cls.model_construct(**argument)
    raise Corrupt(f"a stored value has the unknown extension code {code}")


def _resolve(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as error:
        raise TypeNotFound(
            f"a stored value is of type {module}.{name}, which this program does not have: {error}; give the "
            "type its name back, or keep an alias under the old one"
        ) from error


def _unpack_array(dtype: str, shape: list[int], order: typing.Literal["C", "F"], data: bytes) -> Any:
    try:
        import numpy
    except ImportError as error:
        raise Corrupt("a stored value is a numpy array; install numpy to read it") from error
    return numpy.frombuffer(data, dtype=numpy.dtype(dtype)).reshape(tuple(shape), order=order)


_BY_TYPE: tuple[tuple[Any, Callable[[Any], tuple[int, Any]]], ...] = (
    (pathlib.PurePath, lambda o: (_POSITIONAL, o.parts)),
    (UUID, lambda o: (_ONE, o.hex)),
    (decimal.Decimal, lambda o: (_ONE, str(o))),
    ((set, frozenset, deque), lambda o: (_ONE, tuple(o))),
    (
        (
            ipaddress.IPv4Address, ipaddress.IPv4Interface, ipaddress.IPv4Network,
            ipaddress.IPv6Address, ipaddress.IPv6Interface, ipaddress.IPv6Network,
        ),
        lambda o: (_ONE, str(o)),
    ),
    (
        time,
        lambda o: (
            _KEYWORD,
            {
                "hour": o.hour, "minute": o.minute, "second": o.second,
                "microsecond": o.microsecond, "tzinfo": o.tzinfo, "fold": o.fold,
            },
        ),
    ),
    (date, lambda o: (_POSITIONAL, (o.year, o.month, o.day))),
    (timedelta, lambda o: (_POSITIONAL, (o.days, o.seconds, o.microseconds))),
    (timezone, lambda o: (_POSITIONAL, o.__getinitargs__())),
    (ZoneInfo, lambda o: (_ONE, o.key)),
)  # fmt: skip


def _names(types_: Iterable[type | TypeName]) -> Iterable[TypeName]:
    for item in types_:
        if isinstance(item, tuple):
            yield item
        else:
            yield from _names_within(item, set())


def _names_within(annotation: Any, seen: set[int]) -> Iterable[TypeName]:
    """The names of a type and of the types that its fields can hold."""
    if id(annotation) in seen:
        return
    seen.add(id(annotation))
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is not None:
        for argument in typing.get_args(annotation):
            yield from _names_within(argument, seen)
        return
    if not isinstance(annotation, type) or annotation.__module__ == "builtins":
        return
    yield (annotation.__module__, annotation.__name__)
    try:
        hints = typing.get_type_hints(annotation)
    except (NameError, TypeError):
        hints = {}
    for hint in hints.values():
        yield from _names_within(hint, seen)
