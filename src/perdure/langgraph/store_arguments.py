"""Checks of what callers pass to the store, before anything is read or written."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from langgraph.store.base import (
    GetOp,
    InvalidNamespaceError,
    ListNamespacesOp,
    Op,
    PutOp,
    SearchOp,
    TTLConfig,
    validate_op_namespace,
)

from perdure.errors import Unserialisable
from perdure.model.arguments import refuse_text
from perdure.model.store_items import span
from perdure.model.values.json_values import convert_to_plain, is_deeper

FILTER_DEPTH = 64
"""Deepest nesting of a filter, in levels. Filters are evaluated recursively."""

_OF_ONE_ITEM = (GetOp, PutOp)
_TTL_KEYS = frozenset(TTLConfig.__annotations__)


def check_joint_puts(puts: Sequence[PutOp]) -> list[Op]:
    """Return the operations; raise ``ValueError`` unless one commit may hold them."""
    ops: list[Op] = list(puts)
    validate_all(ops)
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


def validate_all(ops: Iterable[Any]) -> None:
    """Validate the operations of a batch as ``validate`` does, each namespace of items once."""
    validated: set[tuple[str, ...]] = set()
    for op in ops:
        if isinstance(op, _OF_ONE_ITEM) and _is_among(op.namespace, validated):
            _check_key(op.key)
            continue
        validate(op)
        if isinstance(op, _OF_ONE_ITEM) and op.namespace:
            validated.add(tuple(op.namespace))


def _is_among(namespace: object, validated: set[tuple[str, ...]]) -> bool:
    try:
        return namespace in validated
    except TypeError:
        # A list, or something in it that is not a label.
        return False


def validate(op: Any) -> None:
    """Refuse what could not be stored or found, before anything is read or written."""
    if isinstance(op, _OF_ONE_ITEM):
        refuse_text("namespace", op.namespace)
    elif isinstance(op, SearchOp):
        refuse_text("namespace_prefix", op.namespace_prefix)
    validate_op_namespace(op)
    if isinstance(op, _OF_ONE_ITEM):
        if isinstance(op, PutOp) and not op.namespace:
            raise InvalidNamespaceError("Namespace cannot be empty.")
        _check_key(op.key)
        _check_labels(op.namespace)
    elif isinstance(op, SearchOp):
        _check_labels(op.namespace_prefix)
        _check_not_negative(limit=op.limit, offset=op.offset)
        if op.filter is not None and is_deeper(op.filter, FILTER_DEPTH):
            raise ValueError(f"a filter is nested more than {FILTER_DEPTH} levels deep; write a flatter one")
    elif isinstance(op, ListNamespacesOp):
        for condition in op.match_conditions or ():
            if condition.match_type not in ("prefix", "suffix"):
                raise ValueError(f"Unsupported match type: {condition.match_type}")
            refuse_text("a path of namespaces", condition.path)
            _check_labels(condition.path)
        _check_not_negative(limit=op.limit, offset=op.offset, max_depth=op.max_depth or 0)
    else:
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


def _check_not_negative(**numbers: int) -> None:
    for name, number in numbers.items():
        if number < 0:
            raise ValueError(f"{name} is 0 or more, not {number}")


def check_ttl(ttl: TTLConfig | None) -> TTLConfig | None:
    """Return the settings; raise ``ValueError`` for an unknown one, or a text that is not a time."""
    if ttl is None:
        return None
    if unknown := sorted(set(ttl) - _TTL_KEYS):
        raise ValueError(f"ttl has no setting {unknown[0]!r}; it has {', '.join(sorted(_TTL_KEYS))}")
    default = ttl.get("default_ttl")
    if default is not None:
        span(default)
    return ttl
