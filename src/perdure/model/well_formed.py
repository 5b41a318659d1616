"""Refusal of keys and fields that are not what their columns hold: names with half of a character or of too
many bytes, which some databases cannot store, and values of another type.

Every backend refuses the same names: otherwise a thread could not be moved from a backend that takes its name
to one that does not.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any, cast

from perdure.errors import OverMaximum, Unserialisable
from perdure.model.arguments import require_whole
from perdure.model.ops import Commit, Drop, Expect, Fetch, Find, Get, Put, Range, Stage
from perdure.model.program import Effect
from perdure.model.records import KINDS, SESSIONS, STORE, Column, Kind

_NAMED = frozenset(kind for kind in KINDS if any(column.kind == "text" for column in kind.key))
"""Kinds with text in their keys. The keys of chunks are bytes; a request may contain thousands of these."""

_WITH_TEXT = _NAMED | {kind for kind in KINDS if any(column.kind == "text" for column in kind.fields)}
"""Kinds with text in their keys or fields: those that hold what callers pass."""

NAME_MAX = 2_000
"""Most bytes of a name in UTF-8, and of a tenant and the name of its thread or namespace together. An entry
of an index of PostgreSQL, which has all names of a record, holds 2,704 bytes."""

_NAMES_OF_SPACES = {STORE: "namespace", SESSIONS: "session"}
_TYPES = {"text": str, "integer": int, "bytes": bytes}
_Type = type | tuple[type, ...]


def _list_types(columns: Sequence[Column]) -> tuple[_Type, ...]:
    return tuple((_TYPES[c.kind], type(None)) if c.nullable else _TYPES[c.kind] for c in columns)


_KEY_TYPES: dict[Kind, tuple[_Type, ...]] = {kind: _list_types(kind.key) for kind in _WITH_TEXT}
_FIELD_TYPES: dict[Kind, tuple[_Type, ...]] = {kind: _list_types(kind.fields) for kind in _WITH_TEXT}


def require_text(names: Iterable[object]) -> None:
    """Raise ``Unserialisable`` for a name with a lone surrogate. Names that are not text are passed over."""
    texts = [name for name in names if isinstance(name, str)]
    # Nearly all names are ASCII, and Python knows that of the joined string without a scan.
    if "".join(texts).isascii():
        return
    for text in texts:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ill_formed_error(repr(text)) from error


def ill_formed_error(name: str) -> Unserialisable:
    """Return the error for a name, given in the form that the message shows."""
    return Unserialisable(
        f"the name {name} holds a lone surrogate, half of a character, and cannot be stored; names of "
        "tenants, threads, namespaces, checkpoints, channels, nodes, tasks, runs, sessions, keys and tags "
        "have to be well-formed text"
    )


def require_names(effect: Effect[Any]) -> None:
    """Check what a storage request names, counts and writes.

    Raises:
        Unserialisable: a name has a lone surrogate.
        OverMaximum: a new name has more than ``NAME_MAX`` bytes. What has such a name already can be read
            and removed.
        TypeError: a key or a field has another type than its column, or a limit is not a whole number: a
            caller passed it on unchecked. A database would report it as damage, or as an outage.
        ValueError: a limit is below 0, which some databases take for none.
    """
    require_text(_list_names(effect))
    if isinstance(effect, Find):
        _require_limit(effect.limit)
    elif isinstance(effect, Fetch):
        for item in effect.items:
            if isinstance(item, Range):
                _require_range(item)
            elif not _have_types(item.key, _KEY_TYPES.get(item.kind, ())):
                _require_types(item.kind, item.kind.key, item.key)
    elif isinstance(effect, Commit):
        is_new = False
        for op in effect.ops:
            kind = op.kind
            if (types := _KEY_TYPES.get(kind)) is None:
                continue
            if not _have_types(op.key, types):
                _require_types(kind, kind.key, op.key)
            if isinstance(op, Put):
                given = [op.fields[column.name] for column in kind.fields]
                if not _have_types(given, _FIELD_TYPES[kind]):
                    _require_types(kind, kind.fields, given)
                if isinstance(op.expect, Expect):
                    is_new = True
                    _require_lengths(op)
        if is_new:
            tenant, thread, space = effect.partition
            _require_length(_NAMES_OF_SPACES.get(space, "thread"), tenant + thread)


def _have_types(values: Sequence[object], types: Sequence[_Type]) -> bool:
    return all(map(isinstance, values, types))


def _require_types(kind: Kind, columns: Sequence[Column], values: Sequence[object]) -> None:
    # The prefix of a range has only the first parts of a key.
    for column, value in zip(columns, values, strict=False):
        if not isinstance(value, _TYPES[column.kind]) and not (value is None and column.nullable):
            raise TypeError(
                f"the {column.name} of a record of kind {kind.name!r} is {column.kind}, not "
                f"{type(value).__name__}"
            )


def _require_range(item: Range) -> None:
    kind, after = item.kind, item.after
    if not _have_types(item.prefix, _KEY_TYPES.get(kind, ())):
        _require_types(kind, kind.key, item.prefix)
    if item.by is not None and after is not None:
        _require_types(kind, [column for column in kind.fields if column.name == item.by], [after])
    elif isinstance(after, tuple):
        _require_types(kind, kind.key, after)
    if item.limit is not None:
        _require_limit(item.limit)


def _require_limit(limit: object) -> None:
    require_whole("limit", limit)
    if cast(int, limit) < 0:
        raise ValueError(f"limit is {limit}; it is 0 or more")


def _require_lengths(put: Put) -> None:
    for column, value in zip(put.kind.key, put.key, strict=True):
        if isinstance(value, str):
            _require_length(column.name, value)
    if put.kind.index is not None and isinstance(value := put.fields[put.kind.index], str):
        _require_length(put.kind.index, value)


def _require_length(what: str, text: str) -> None:
    # Most names are short: they need not be encoded to know it.
    if 4 * len(text) > NAME_MAX and (size := len(text.encode())) > NAME_MAX:
        raise OverMaximum(
            f"the {what} {text[:40]!r}… has {size} bytes, at most {NAME_MAX} are taken; nothing was stored"
        )


def _list_names(effect: Effect[Any]) -> list[object]:
    """Return the names in a storage request, and other values beside them."""
    if isinstance(effect, Find):
        parts = [getattr(effect, field.name) for field in fields(effect)]
        return [name for part in parts for name in (part if isinstance(part, tuple) else (part,))]
    if not isinstance(effect, Fetch | Commit | Stage | Drop):
        return []
    names: list[object] = list(effect.partition)
    if isinstance(effect, Fetch):
        for item in effect.items:
            if item.kind not in _NAMED:
                continue
            if isinstance(item, Get):
                names += item.key
            else:
                names += item.prefix
                if isinstance(item.after, tuple):
                    names += item.after
    elif isinstance(effect, Commit):
        for op in effect.ops:
            if op.kind in _NAMED:
                names += op.key
            if isinstance(op, Put):
                names += op.fields.values()
    elif isinstance(effect, Drop):
        for check in effect.checks:
            names += check.key
    return names
