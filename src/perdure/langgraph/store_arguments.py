"""Checks of what callers pass to the store, before anything is read or written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from langgraph.store.base import (
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    SearchOp,
    TTLConfig,
    validate_op_namespace,
)

from perdure.errors import Unserialisable
from perdure.model.arguments import read_count, refuse_text, require_text
from perdure.model.store_items import span
from perdure.model.values.json_values import convert_to_plain, is_deeper

FILTER_DEPTH = 64
"""Deepest nesting of a filter, in levels. Filters are evaluated recursively."""

_OF_ONE_ITEM = (GetOp, PutOp)
_TTL_KEYS = frozenset(TTLConfig.__annotations__)
_INTERVAL = "sweep_interval_minutes"
_SWEEP_MINUTES = 5.0


def check_joint_puts(puts: Sequence[PutOp]) -> list[Op]:
    """Return the operations; raise ``ValueError`` unless one commit may hold them."""
    ops = validate_all(puts)
    if len({tuple(op.namespace) for op in puts}) != 1:
        raise ValueError("items are put together in one namespace; name at least one, and no other namespace")
    counts = Counter(op.key for op in puts)
    for key, count in counts.items():
        if count > 1:
            raise ValueError(f"the item {key!r} is put {count} times; put it once")
    return ops


def to_plain_values(seen: Mapping[str, Mapping[str, Any] | None]) -> dict[str, Any]:
    """Return the values that a caller has read as plain data, by key.

    Raises:
        TypeError: A key is not text.
        Unserialisable: A value is not plain JSON data.
    """
    for key in seen:
        _check_key(key)
    return {key: convert_to_plain(value, f"seen[{key!r}]") for key, value in seen.items()}


def validate_all(ops: Iterable[Any]) -> list[Op]:
    """Return the operations of a batch, validated as by ``validate``, each namespace of items once."""
    out: list[Op] = []
    validated: set[tuple[str, ...]] = set()
    for op in ops:
        if isinstance(op, _OF_ONE_ITEM) and _is_among(op.namespace, validated):
            _check_key(op.key)
            out.append(op)
            continue
        out.append(validate(op))
        if isinstance(op, _OF_ONE_ITEM) and op.namespace:
            validated.add(tuple(op.namespace))
    return out


def _is_among(namespace: object, validated: set[tuple[str, ...]]) -> bool:
    try:
        return namespace in validated
    except TypeError:
        # A list, or something in it that is not a label.
        return False


def validate(op: Any) -> Op:
    """Return an operation, its limit, offset and depth as numbers that every database takes. Refuse what
    could not be stored or found, before anything is read or written."""
    if isinstance(op, _OF_ONE_ITEM):
        refuse_text("namespace", op.namespace)
    elif isinstance(op, SearchOp):
        refuse_text("namespace_prefix", op.namespace_prefix)
    elif isinstance(op, ListNamespacesOp):
        for condition in op.match_conditions or ():
            if not isinstance(condition, MatchCondition):
                raise TypeError(f"match_conditions are of the type MatchCondition, not {condition!r}")
    validate_op_namespace(op)
    if isinstance(op, _OF_ONE_ITEM):
        if isinstance(op, PutOp) and not op.namespace:
            raise InvalidNamespaceError("Namespace cannot be empty.")
        _check_key(op.key)
        _check_labels(op.namespace)
        return op
    if isinstance(op, SearchOp):
        _check_labels(op.namespace_prefix)
        if op.query is not None:
            require_text("query", op.query)
        if op.filter is not None and is_deeper(op.filter, FILTER_DEPTH):
            raise ValueError(f"a filter is nested more than {FILTER_DEPTH} levels deep; write a flatter one")
        return op._replace(limit=_read_count("limit", op.limit), offset=_read_count("offset", op.offset))
    if isinstance(op, ListNamespacesOp):
        for condition in op.match_conditions or ():
            if condition.match_type not in ("prefix", "suffix"):
                raise ValueError(f"Unsupported match type: {condition.match_type}")
            refuse_text("a path of namespaces", condition.path)
            _check_labels(condition.path)
        return op._replace(
            limit=_read_count("limit", op.limit),
            offset=_read_count("offset", op.offset),
            max_depth=None if op.max_depth is None else _read_count("max_depth", op.max_depth),
        )
    raise ValueError(f"Unknown operation type: {type(op)}")


def _check_labels(labels: Iterable[str]) -> None:
    for label in labels:
        if not _is_text(label):
            raise InvalidNamespaceError(
                f"the namespace label {label!r} is not well-formed Unicode (a lone surrogate)"
            )


def _check_key(key: object) -> None:
    if not isinstance(key, str):
        raise TypeError(f"an item's key is text, not {key!r}")
    if not _is_text(key):
        raise Unserialisable(f"the key {key!r} is not well-formed Unicode (a lone surrogate)")


def _is_text(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _read_count(name: str, given: object) -> int:
    number = read_count(name, given)
    if number < 0:
        raise ValueError(f"{name} is 0 or more, not {number}")
    return number


def check_ttl(ttl: TTLConfig | None) -> TTLConfig | None:
    """Return the settings; raise ``ValueError`` for an unknown one or a time that is none, and ``TypeError``
    for one of another type."""
    if ttl is None:
        return None
    if unknown := sorted(set(ttl) - _TTL_KEYS):
        raise ValueError(f"ttl has no setting {unknown[0]!r}; it has {', '.join(sorted(_TTL_KEYS))}")
    for name, minutes in (
        ("default_ttl", ttl.get("default_ttl")),
        (_INTERVAL, ttl.get("sweep_interval_minutes")),
    ):
        if minutes is not None:
            span(minutes, name)
    refresh = ttl.get("refresh_on_read")
    if not isinstance(refresh, bool | None):
        raise TypeError(f"refresh_on_read is True or False, not {refresh!r}")
    return ttl


def read_interval(minutes: float | None, ttl: TTLConfig | None) -> float:
    """Return the seconds between two sweeps: those of the call, else of the checked settings, else 5 minutes.
    Raise ``ValueError`` or ``TypeError`` as ``check_ttl`` does."""
    if minutes is None:
        minutes = (ttl or {}).get("sweep_interval_minutes")
    if minutes is None:
        minutes = _SWEEP_MINUTES
    return span(minutes, _INTERVAL) / 1_000_000
