"""LangGraph's filters over metadata, by which an authorization handler restricts the objects a user sees.

    {"owner": "u1"}                              the value is this
    {"owner": {"$eq": "u1"}}                     the same
    {"people": {"$contains": "u1"}}              the value is a list with this in it
    {"people": {"$contains": ["u1", "u2"]}}      the value is a list with all of these in it
    {"$or": [{…}, {…}]}, {"$and": [{…}, {…}]}    one, or each, of these filters

All conditions of a filter have to be met. A name that the metadata lacks meets no condition. ``{}`` restricts
nothing. A filter that cannot be understood raises an error before any object is compared: it never grants
access.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.runtime.threads.metadata_patterns import Patterns, any_of, patterns_of
from perdure.server.auth.json_data import json_data, same

Filter = Mapping[str, Any]

_GROUPS = ("$or", "$and")
_OPERATORS = ("$eq", "$contains")


class BadFilter(ValueError):
    """A handler returned a filter that cannot be used; the handler has to be fixed."""


def parse_conditions(conditions: Mapping[Any, Any]) -> Filter | None:
    """Return the filter as JSON data, or None if it restricts nothing. ``BadFilter`` if it cannot be
    understood."""
    try:
        data: dict[str, Any] = json_data(conditions, "the filter")
    except TypeError as error:
        raise BadFilter(str(error)) from error
    _check_conditions(data, "the filter")
    return data or None


def matches(conditions: Filter | None, metadata: Mapping[str, Any] | None) -> bool:
    """Return True if an object with this metadata may be seen. None as a filter restricts nothing; the
    metadata is JSON data. ``BadFilter`` for a filter that did not pass ``parse_conditions`` and cannot be
    understood."""
    return conditions is None or _matches(conditions, {} if metadata is None else metadata)


def find_patterns(conditions: Filter | None) -> Patterns:
    """Return patterns of the metadata that match a filter."""
    found: list[tuple[bytes, ...]] = []
    for name, condition in (conditions or {}).items():
        if name == "$and":
            found += (group for part in condition for group in find_patterns(part))
        elif name == "$or":
            found += any_of([find_patterns(part) for part in condition])
        elif isinstance(condition, Mapping):
            for operator, operand in condition.items():
                is_one = operator == "$contains" and not isinstance(operand, list)
                found += patterns_of({name: [operand] if is_one else operand})
        else:
            found += patterns_of({name: condition})
    return tuple(found)


def may_write_metadata(conditions: Filter | None, metadata: Mapping[str, Any] | None) -> bool:
    """Return True if an object may be written with this metadata: its writer must be able to see it
    afterwards. The metadata is all that the object has after the write. It may contain values set by a
    handler that are not JSON data yet, such as a UUID."""
    if conditions is None:
        return True
    try:
        return matches(conditions, json_data(metadata or {}, "metadata"))
    except TypeError as error:
        raise BadFilter(str(error)) from error


def merge(*filters: Filter | None) -> Filter | None:
    """Return the filter that matches those objects which all of these filters match."""
    given = [each for each in filters if each]
    if len(given) < 2:
        if given:
            return given[0]
        return None
    return {"$and": given}


def _check_conditions(conditions: Mapping[str, Any], where: str) -> None:
    for name, condition in conditions.items():
        place = f"{where}[{name!r}]"
        if name in _GROUPS:
            if not isinstance(condition, list) or not condition:
                raise BadFilter(f"{place} has to be a list of filters with at least one in it")
            for n, part in enumerate(condition):
                if not isinstance(part, dict) or not part:
                    raise BadFilter(f"{place}[{n}] has to be a filter with at least one condition")
                _check_conditions(part, f"{place}[{n}]")
        elif name.startswith("$"):
            raise BadFilter(f"{place}: {name} is not an operator here; use {' or '.join(_GROUPS)}")
        elif isinstance(condition, dict):
            if not condition:
                raise BadFilter(f"{place} has no operator; use {' or '.join(_OPERATORS)}")
            for operator in condition:
                if operator not in _OPERATORS:
                    known = " or ".join(_OPERATORS)
                    raise BadFilter(f"{place}: {operator!r} is not an operator; use {known}")


def _matches(conditions: Mapping[str, Any], metadata: Mapping[str, Any]) -> bool:
    return all(_meets(metadata, name, condition) for name, condition in conditions.items())


def _meets(metadata: Mapping[str, Any], name: str, condition: Any) -> bool:
    if name == "$or":
        return any(_matches(part, metadata) for part in condition)
    if name == "$and":
        return all(_matches(part, metadata) for part in condition)
    if name.startswith("$"):
        raise BadFilter(f"{name} is not an operator here; use {' or '.join(_GROUPS)}")
    if name not in metadata:
        return False
    if isinstance(condition, Mapping):
        return bool(condition) and all(
            _holds(operator, metadata[name], operand) for operator, operand in condition.items()
        )
    return same(metadata[name], condition)


def _holds(operator: str, value: Any, operand: Any) -> bool:
    if operator == "$eq":
        return same(value, operand)
    if operator == "$contains":
        if isinstance(operand, list):
            wanted: list[Any] = operand
        else:
            wanted = [operand]
        return isinstance(value, list) and all(any(same(one, part) for part in value) for one in wanted)
    raise BadFilter(f"{operator!r} is not an operator; use {' or '.join(_OPERATORS)}")
