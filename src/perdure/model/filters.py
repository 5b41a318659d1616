"""Filters of a store search: LangGraph's operators and more, with a defined result for values that do not
compare.

A condition is a plain value to equal, a list of conditions for a list's parts, or a dict: of operators on the
value, or of conditions for the fields of a nested dict. An ordering (``$gt`` and the like) holds between two
numbers, a number and text that reads as one, or two texts; any other pair is in no order, and the item is not
accepted. ``$in`` and ``$nin`` have a list of values; ``$and`` and ``$or`` have a list of conditions and
``$not`` has one, beside operators or beside fields. The filter itself is a condition of fields.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import Any

from perdure.errors import Unserialisable
from perdure.model.ops import Bound
from perdure.model.values.json_values import DEPTH, convert_to_plain, pack_data

_ORDERS: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
_EXACT = 1 << 53
_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}", re.ASCII)
_SLACK = 1e-12
_LISTS = ("$in", "$nin")
_JOINS = ("$and", "$or")
_LOGICAL = frozenset((*_JOINS, "$not"))
_OPERATORS = ("$eq", "$ne", *_ORDERS, *_LISTS, *_JOINS, "$not")
_PATTERNS_MOST = 40
_BOUNDS_MOST = 20
"""Limits of what a database is asked to compare: D1 takes 100 parameters in a statement, and conditions 100
deep. Comparing more in the database would also cost more than reading the items."""
_TEXT_MOST = 256
"""Limit of a pattern in bytes, and of a bound in characters, as a filter may hold texts of any length."""

Filter = Mapping[str, Any]


def parse_filter(conditions: Any) -> Filter:
    """Return the filter in plain data.

    Raises:
        TypeError: The filter is not a dict.
        ValueError: An operator is unknown, has an operand of a wrong kind, or compares no field.
        Unserialisable: No stored value can equal a condition.
    """
    if not isinstance(conditions, Mapping):
        raise TypeError(f"a filter is a dict of conditions by field, not {conditions!r}")
    data: dict[str, Any] = convert_to_plain(_make_finite(conditions), "filter")
    try:
        pack_data(data)
    except UnicodeEncodeError as error:
        raise Unserialisable("filter holds text that is not well-formed Unicode") from error
    data = _restore_infinite(data, conditions)
    _check_fields(data, "filter")
    return data


def has_more_than(most: int, conditions: Any) -> bool:
    """Return True if a filter, checked or not, has more than ``most`` conditions and values in all."""
    number, unread = 0, [conditions]
    while unread and number <= most:
        part = unread.pop()
        if isinstance(part, Mapping):
            unread += part.values()
            number += len(part)
        elif isinstance(part, list | tuple):
            unread += part
            number += len(part)
    return number > most


def find_patterns(conditions: Filter) -> tuple[tuple[bytes, ...], ...]:
    """Return byte patterns for a prefilter: a value that meets the checked filter contains one of each group
    in its stored form.

    Conditions without such a pattern are left out, and so are those with more patterns than a database
    takes. So a value that contains a pattern of each group may still not meet the filter.
    """
    out: list[tuple[bytes, ...]] = []
    room = _PATTERNS_MOST
    for part in _find_required_parts(conditions):
        for name, condition in part.items():
            wanted: list[Any] = [condition]
            if isinstance(condition, dict):
                (sign, operand), *others = condition.items() or [("", [])]
                if others or sign not in ("$eq", "$in"):
                    continue
                wanted = operand if sign == "$in" else [operand]
            if not 0 < len(wanted) <= room:
                continue
            forms_by_value = [_list_forms(value) for value in wanted]
            group = [form for equal_forms in forms_by_value for form in equal_forms]
            if all(forms_by_value) and len(group) <= room:
                room -= len(group)
                out.append(tuple(pack_data({name: form})[1:-1][:_TEXT_MOST] for form in group))
    return tuple(out)


def bounds(conditions: Filter) -> tuple[Bound, ...]:
    """Return bounds on top-level fields, not more than a database takes: every value that meets a checked
    filter keeps all of them.

    A bound that is a number is a little wider than the filter's, as databases read decimals less exactly than
    Python. A value that keeps all bounds may still not meet the filter.
    """
    out: list[Bound] = []
    fields = [pair for part in _find_required_parts(conditions) for pair in part.items()]
    for name, condition in fields:
        if not _PLAIN_NAME.fullmatch(name):
            continue
        for sign, operand in (condition if isinstance(condition, dict) else {"$eq": condition}).items():
            is_lower = sign in ("$gt", "$gte")
            if sign in _ORDERS and isinstance(operand, str):
                # Text that reads as a number is compared with numbers too.
                is_short = len(operand) <= _TEXT_MOST
                if is_short and _read_number(operand) is None and "\0" not in operand:
                    out.append(Bound(name, is_lower, operand))
            elif sign in ("$eq", *_ORDERS) and isinstance(operand, int | float) and abs(operand) < _EXACT:
                slack = abs(operand) * _SLACK + _SLACK
                if is_lower or sign == "$eq":
                    out.append(Bound(name, True, operand - slack))
                if not is_lower:
                    out.append(Bound(name, False, operand + slack))
    return tuple(out[:_BOUNDS_MOST])


def _find_required_parts(conditions: Filter) -> Iterator[Filter]:
    """Yield the parts of a checked filter that each value has to meet, without their logical operators."""
    yield {name: condition for name, condition in conditions.items() if name not in _LOGICAL}
    for part in conditions.get("$and", ()):
        yield from _find_required_parts(part)


def _list_forms(wanted: Any) -> list[Any]:
    """Return the values equal to a scalar that are stored differently; empty if they cannot be listed."""
    if isinstance(wanted, str):
        return [wanted]
    # From this limit on, one float stands for several integers. NaN is not below the limit either.
    if not isinstance(wanted, int | float) or not abs(wanted) < _EXACT:
        return []
    forms: list[Any] = [wanted]
    if wanted == int(wanted):
        forms = [int(wanted), float(wanted)]
        if wanted in (0, 1):
            forms.append(bool(wanted))
        if wanted == 0:
            forms.append(-0.0)
    return forms


def _make_finite(value: Any, depth: int = 0) -> Any:
    """Replace the numbers that JSON does not have by 0, as deep as data may be nested."""
    if isinstance(value, float) and not isfinite(value):
        return 0
    if depth > DEPTH:
        return value
    if isinstance(value, Mapping):
        return {name: _make_finite(part, depth + 1) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_make_finite(part, depth + 1) for part in value]
    return value


def _restore_infinite(data: Any, given: Any) -> Any:
    """Restore the numbers that JSON does not have, from the value that the data was made of."""
    if isinstance(given, float):
        if isfinite(given):
            return data
        return float(given)
    if isinstance(data, dict):
        return {name: _restore_infinite(part, given[name]) for name, part in data.items()}
    if isinstance(data, list):
        return [_restore_infinite(part, original) for part, original in zip(data, given, strict=True)]
    return data


def accepts(conditions: Filter, value: Mapping[str, Any]) -> bool:
    """Return True if a value meets every condition of a checked filter. Absent fields count as None."""
    return _meets(value, conditions)


def _check_fields(condition: Any, where: str) -> None:
    """Check a condition on a whole item: of its fields, which logical operators may join."""
    if not isinstance(condition, dict):
        raise ValueError(f"{where} is a dict of conditions by field, not {condition!r}")
    for name, part in condition.items():
        place = f"{where}[{name!r}]"
        if name in _JOINS:
            for n, each in enumerate(_require_conditions(part, place)):
                _check_fields(each, f"{place}[{n}]")
        elif name == "$not":
            _check_fields(part, place)
        elif name in _OPERATORS:
            raise ValueError(f"{where}: {name} compares a field; write {{'a_field': {{{name!r}: …}}}}")
        elif name.startswith("$"):
            raise ValueError(f"{where}: {name!r} is not an operator; between fields use $and, $or or $not")
        else:
            _check_condition(part, place)


def _require_conditions(operand: Any, where: str) -> list[Any]:
    if not isinstance(operand, list) or not operand:
        raise ValueError(f"{where} has a list of at least one condition, not {operand!r}")
    return operand


def _check_condition(condition: Any, where: str) -> None:
    if isinstance(condition, list):
        for n, part in enumerate(condition):
            _check_condition(part, f"{where}[{n}]")
    if not isinstance(condition, dict):
        return
    # True if the condition compares the value itself, false if it has conditions for its fields.
    has_operators = any(name.startswith("$") and name not in _LOGICAL for name in condition)
    for name, operand in condition.items():
        if name in _JOINS:
            for n, part in enumerate(_require_conditions(operand, f"{where}[{name!r}]")):
                _check_condition(part, f"{where}[{name!r}][{n}]")
        elif name == "$not" or not has_operators:
            _check_condition(operand, f"{where}[{name!r}]")
        elif name not in _OPERATORS:
            raise ValueError(f"{where}: {name!r} is not an operator; use one of {', '.join(_OPERATORS)}")
        elif name in _LISTS and not isinstance(operand, list):
            raise ValueError(f"{where}: {name} has a list of values, not {operand!r}")
        elif name in _ORDERS and not isinstance(operand, str | int | float):
            raise ValueError(f"{where}: {name} compares with a number or text, not {operand!r}")


def _meets(value: Any, condition: Any) -> bool:
    if isinstance(condition, dict):
        if not isinstance(value, dict) and not (condition and all(name in _OPERATORS for name in condition)):
            return False
        return all(
            _holds(name, value, part) if name in _OPERATORS else _meets(value.get(name), part)
            for name, part in condition.items()
        )
    if isinstance(condition, list):
        return (
            isinstance(value, list)
            and len(value) == len(condition)
            and all(_meets(part, wanted) for part, wanted in zip(value, condition, strict=True))
        )
    return bool(value == condition)


def _holds(name: str, value: Any, operand: Any) -> bool:
    if name == "$eq":
        return bool(value == operand)
    if name == "$ne":
        return bool(value != operand)
    if name in _LISTS:
        return (value in operand) is (name == "$in")
    if name == "$not":
        return not _meets(value, operand)
    if name in _JOINS:
        return (all if name == "$and" else any)(_meets(value, part) for part in operand)
    pair = _make_comparable(value, operand)
    return pair is not None and _ORDERS[name](*pair)


def _make_comparable(value: Any, operand: Any) -> tuple[Any, Any] | None:
    left, right = _read_number(value), _read_number(operand)
    if left is not None and right is not None:
        return left, right
    if isinstance(value, str) and isinstance(operand, str):
        return value, operand
    return None


def _read_number(value: Any) -> int | float | None:
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return None
    if isinstance(value, int | float):
        return value
    return None
