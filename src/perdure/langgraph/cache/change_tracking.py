"""Copies of a list's elements, and the detection of those that come back unchanged.

A template holds decoded elements to which nothing outside the cache refers. Copies are made from it, never
from an object that a caller may change. A watch lists everything mutable inside the copies that were returned
last, and the content of each container then: an element is unchanged exactly when its containers still hold
the same objects. Only copies are watched. Objects that a caller made are packed at every put, so no object
that another OS thread may change is ever walked in Python.

The work is done in columns over the whole list: a copy costs a microsecond an element, a check a fraction.
"""

from __future__ import annotations

import datetime
import decimal
import sys
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, repeat, takewhile
from operator import add, attrgetter, eq, is_, not_, setitem
from typing import Any, NamedTuple

from langchain_core.messages import (
    AIMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

from perdure.langgraph.values.object_building import set_extra, set_fields, set_given, set_private

_IMMUTABLE = frozenset(
    {
        str, int, float, bool, bytes, type(None),
        uuid.UUID, decimal.Decimal, datetime.datetime, datetime.date, datetime.timedelta,
    }
)  # fmt: skip
_MODELS = frozenset({AIMessage, ChatMessage, FunctionMessage, HumanMessage, SystemMessage, ToolMessage})

_IS_ATOMIC = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()
"""True if other OS threads see a call into C as one step. On other interpreters nothing is watched."""

_OPAQUE: Any = object()
"""Placeholder of an opaque element in a watch; no list of a caller holds it."""

_get_fields = attrgetter("__dict__")
_get_extra = attrgetter("__pydantic_extra__")
_get_given = attrgetter("__pydantic_fields_set__")
_IS_TEXT = frozenset({str}).__contains__
_drain: Callable[[Iterable[object]], None] = deque[object](maxlen=0).extend
_new: Callable[[type], Any] = object.__new__


class Template(NamedTuple):
    """Decoded elements that only the cache refers to, in columns. The cycle collector scans whatever lives as
    long as a template again and again. So the columns are tuples: it skips those that hold nothing mutable.

    The containers inside are numbered across all elements: dicts from 0 upwards, lists from -1 downwards, so
    that dicts and, behind them, lists in reverse are one sequence, each kind copied in one call. Opaque
    elements, which contain something that is neither immutable nor a plain container, are left out: they are
    decoded every time.

    Attributes:
        values: the elements, ``None`` for opaque ones.
        opaque: positions of the opaque ones.
        dicts: all dicts.
        lists: all lists.
        children: numbers of the containers that are inside others.
        parents: for each child, the number of the container that it is in.
        keys: for each child, its key there.
        bare: elements that are containers themselves: position and number.
        models: positions of the elements that are objects.
        roots: number of the fields of each object; its extra fields have the number after it.
        filled_dicts: numbers of the dicts that are not empty.
        names: keys of the dicts that are not empty, one dict after another.
        sizes: number of keys of each of these dicts.
        filled_lists: numbers of the lists that are not empty.
        lengths: number of items of each of these lists.
        empty: numbers of the dicts and lists that are empty.
    """

    values: tuple[Any, ...] = ()
    opaque: tuple[int, ...] = ()
    dicts: tuple[dict[Any, Any], ...] = ()
    lists: tuple[list[Any], ...] = ()
    children: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    keys: tuple[Any, ...] = ()
    bare: tuple[tuple[int, int], ...] = ()
    models: tuple[int, ...] = ()
    roots: tuple[int, ...] = ()
    filled_dicts: tuple[int, ...] = ()
    names: tuple[Any, ...] = ()
    sizes: tuple[int, ...] = ()
    filled_lists: tuple[int, ...] = ()
    lengths: tuple[int, ...] = ()
    empty: tuple[int, ...] = ()

    def extend(self, values: Iterable[Any]) -> Template:
        """Return a template of these elements and of more ``values``, to which nothing else may refer."""
        columns = _make_columns(values, len(self.values), len(self.dicts), len(self.lists))
        return Template(*_append_columns(self, map(tuple, columns)))

    def select_objects(self, values: Sequence[Any]) -> Sequence[Any]:
        """Return those of the elements, or of their copies, that are objects."""
        if len(self.models) == len(values):
            return values
        return [values[place] for place in self.models]

    def make_copies(
        self, opaque: Callable[[int], Any], *, is_watched: bool = True
    ) -> tuple[list[Any], Watch | None]:
        """Return the elements as new objects, and the watch over them.

        Args:
            opaque: Makes the opaque element at a position.
            is_watched: Make the watch, too.

        Returns:
            The elements, and their watch: ``None`` without ``is_watched``, and on interpreters where nothing
            is watched.
        """
        made: list[Any] = list(map(dict.copy, self.dicts))
        made += reversed(list(map(list.copy, self.lists)))
        get_made = made.__getitem__
        _drain(map(setitem, map(get_made, self.parents), self.keys, map(get_made, self.children)))
        originals = self.select_objects(self.values)
        models = list(map(_new, map(type, originals)))
        roots, extras = (
            tuple(map(get_made, self.roots)),
            tuple(map(get_made, map(add, self.roots, repeat(1)))),
        )
        _drain(map(set_fields, models, roots))
        _drain(map(set_given, models, map(set.copy, map(_get_given, originals))))
        _drain(map(set_extra, models, extras))
        _drain(map(set_private, models, repeat(None)))
        values = list(self.values)
        _drain(map(values.__setitem__, self.models, models))
        for place, number in self.bare:
            values[place] = made[number]
        for place in self.opaque:
            values[place] = _OPAQUE
        watched = tuple(values)
        for place in self.opaque:
            values[place] = opaque(place)
        if not (_IS_ATOMIC and is_watched):
            return values, None
        dicts, lists = tuple(map(get_made, self.filled_dicts)), tuple(map(get_made, self.filled_lists))
        return values, Watch(
            self,
            watched,
            roots,
            extras,
            tuple(map(get_made, self.empty)),
            dicts,
            tuple(chain.from_iterable(map(dict.values, dicts))),
            lists,
            tuple(chain.from_iterable(lists)),
        )


def _append_columns(columns: Iterable[Any], more: Iterable[Any]) -> Iterator[Any]:
    """Yield each of the columns with more behind it."""
    return map(add, columns, more)


class Watch(NamedTuple):
    """Copies that were returned to a caller, with everything mutable inside them as it was when
    they were returned.

    The watch keeps the copies alive, so that no identity is used again. ``empty`` holds the dicts and lists
    without content; the content of the others is kept in columns, and their keys and sizes in the
    ``template`` of the same elements.
    """

    template: Template
    values: tuple[Any, ...]
    roots: tuple[dict[str, Any], ...]
    extras: tuple[dict[str, Any], ...]
    empty: tuple[Any, ...]
    dicts: tuple[dict[Any, Any], ...]
    dict_items: tuple[Any, ...]
    lists: tuple[list[Any], ...]
    list_items: tuple[Any, ...]

    def count_common_start(self, values: list[Any]) -> int:
        """Count the copies with which a list starts."""
        # Most lists start with all of them.
        if len(values) >= len(self.values) and all(map(is_, values, self.values)):
            return len(self.values)
        return sum(takewhile(bool, map(is_, values, self.values)))

    def find_places(self, values: list[Any]) -> list[int | None]:
        """Return for each element its position among the copies, ``None`` if it is not one of them."""
        places = dict(zip(map(id, self.values), range(len(self.values)), strict=True))
        return list(map(places.get, map(id, values)))

    def find_unchanged(self) -> Iterator[bool]:
        """Yield for each thing whether it is unchanged. If one call into C exhausts the iterator, all answers
        are of one moment."""
        template = self.template
        models = template.select_objects(self.values)
        columns: tuple[Iterator[bool], ...] = (
            map(is_, map(type, models), map(type, template.select_objects(template.values))),
            map(is_, map(_get_fields, models), self.roots),
            map(is_, map(_get_extra, models), self.extras),
            map(not_, map(any, (self.empty,))),
            # Sizes first: a container whose size has changed would shift the columns that follow.
            map(eq, map(len, self.dicts), template.sizes),
            map(eq, map(len, self.lists), template.lengths),
            # All keys are text, of which equal ones are the same, so that they can be compared in one step.
            map(eq, map(tuple, (chain.from_iterable(self.dicts),)), (template.names,)),
            map(is_, chain.from_iterable(map(dict.values, self.dicts)), self.dict_items),
            map(is_, chain.from_iterable(self.lists), self.list_items),
        )
        return map(all, columns)


def _make_columns(values: Iterable[Any], start: int, dicts: int, lists: int) -> tuple[list[Any], ...]:
    """Return the columns of a template's further elements.

    Args:
        values: The elements.
        start: The position of the first of them.
        dicts: The number of dicts before them.
        lists: The number of lists before them.
    """
    columns = elements, opaque, new_dicts, new_lists, children, parents, keys, *inside = tuple(
        list[Any]() for _ in Template._fields
    )
    bare, models, roots, filled_dicts, names, sizes, filled_lists, lengths, empty = inside
    for place, value in enumerate(values, start):
        kind = type(value)
        found = () if kind in _IMMUTABLE else _inner(value)
        if found is None:
            elements.append(None)
            opaque.append(place)
            continue
        elements.append(value)
        numbers: list[int] = []
        for container, parent, key in found:
            is_dict = type(container) is dict
            if is_dict:
                number = dicts + len(new_dicts)
            else:
                number = ~(lists + len(new_lists))
            numbers.append(number)
            (new_dicts if is_dict else new_lists).append(container)
            if parent is not None:
                children.append(number)
                parents.append(numbers[parent])
                keys.append(key)
            if not container:
                empty.append(number)
            elif is_dict:
                filled_dicts.append(number)
                names += container
                sizes.append(len(container))
            else:
                filled_lists.append(number)
                lengths.append(len(container))
        if kind in _MODELS:
            models.append(place)
            roots.append(numbers[0])
        elif numbers:
            bare.append((place, numbers[0]))
    return columns


Inner = tuple[Any, int | None, Any]


def _inner(value: Any) -> list[Inner] | None:
    """Return the containers inside a decoded element, each with the position in this list of the one that
    contains it, and the key there; ``None`` if something inside is neither immutable nor a plain
    container, or a key is not text."""
    kind = type(value)
    found: list[Inner] = []
    if kind in _MODELS:
        if type(value.__pydantic_extra__) is not dict or value.__pydantic_private__:
            return None
        found += (value.__dict__, None, None), (value.__pydantic_extra__, None, None)
    elif kind is dict or kind is list:
        found.append((value, None, None))
    else:
        return None
    # Containers are appended to the list while it is walked.
    for at, (container, _, _) in enumerate(found):
        if type(container) is dict and not all(map(_IS_TEXT, map(type, container))):
            return None
        for key, inner in container.items() if type(container) is dict else enumerate(container):
            inner_kind = type(inner)
            if inner_kind in _IMMUTABLE:
                continue
            if inner_kind is not dict and inner_kind is not list:
                return None
            found.append((inner, at, key))
    return found
