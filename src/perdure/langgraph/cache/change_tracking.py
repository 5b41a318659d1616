"""Copies of a list's elements, and the detection of those that come back unchanged.

A template holds decoded elements to which nothing outside the cache refers. Copies are made from it, never
from an object that a caller may change. A watch lists everything mutable inside the copies that were
returned last, and the content of each container then: an element is unchanged exactly when its containers
still hold the same objects. Only copies are watched. What a caller made itself is packed at every put, so
nothing that may change meanwhile is ever walked in Python.

The work is done in columns over the whole list: a copy costs a microsecond an element, a check a fraction.
"""

from __future__ import annotations

import datetime
import decimal
import sys
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, repeat
from operator import attrgetter, eq, is_, methodcaller, not_, setitem
from sys import getrefcount
from typing import Any, NamedTuple
from weakref import getweakrefcount

from langchain_core.messages import (
    AIMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)

_IMMUTABLE = frozenset(
    {
        str, int, float, bool, bytes, type(None),
        uuid.UUID, decimal.Decimal, datetime.datetime, datetime.date, datetime.timedelta,
    }
)  # fmt: skip
_MODELS = frozenset({AIMessage, ChatMessage, FunctionMessage, HumanMessage, SystemMessage, ToolMessage})

_IS_ATOMIC = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()
"""True if other threads see a call into C as one step. Elsewhere nothing is watched."""

_inside = attrgetter("__dict__")
_extra = attrgetter("__pydantic_extra__")
_given = attrgetter("__pydantic_fields_set__")
_private = attrgetter("__pydantic_private__")
_copy = methodcaller("copy")
_drain: Callable[[Iterable[object]], None] = deque[object](maxlen=0).extend
_new: Callable[[type], Any] = object.__new__
_set = object.__setattr__


class Template:
    """Decoded elements that only the cache refers to. Immutable; ``extended`` makes another template.

    The containers inside are numbered in one sequence across all elements. Opaque elements, which contain
    something that is neither immutable nor a plain container, are left out: they are decoded every time.
    """

    __slots__ = (
        "_bare", "_children", "_classes", "_containers", "_dicts", "_empty", "_extras", "_given", "_keys",
        "_lists", "_models", "_names", "_parents", "_roots", "_sizes", "opaque", "values",
    )  # fmt: skip

    def __init__(self) -> None:
        self.values: list[Any] = []
        self.opaque: list[int] = []
        self._containers: list[Any] = []
        # Positions of containers in others: a container's number, its parent's, and the key in the parent.
        self._children: list[int] = []
        self._parents: list[int] = []
        self._keys: list[Any] = []
        # Elements that are containers themselves, with their number.
        self._bare: list[tuple[int, int]] = []
        # Elements that are objects, and of each: its class, the numbers of its fields and of its extra
        # fields, and the names of the fields that it was given.
        self._models: list[int] = []
        self._classes: list[type] = []
        self._roots: list[int] = []
        self._extras: list[int] = []
        self._given: list[set[str]] = []
        # Containers by kind: dicts that are not empty, lists that are not, and empty ones of both.
        self._dicts: list[int] = []
        self._lists: list[int] = []
        self._empty: list[int] = []
        self._names: list[Any] = []
        self._sizes: list[int] = []

    @classmethod
    def over(cls, values: Iterable[Any]) -> Template:
        """Return the template of decoded elements that nothing else refers to."""
        return cls().extended(values)

    def extended(self, values: Iterable[Any]) -> Template:
        """Return the template of this one's elements and more."""
        new = Template()
        for name in Template.__slots__:
            setattr(new, name, getattr(self, name).copy())
        for value in values:
            new._add(value)
        return new

    def _add(self, value: Any) -> None:
        kind, place = type(value), len(self.values)
        if kind in _IMMUTABLE:
            self.values.append(value)
            return
        found = _inner(value)
        if found is None:
            self.values.append(None)
            self.opaque.append(place)
            return
        self.values.append(value)
        first = len(self._containers)
        if kind in _MODELS:
            self._models.append(place)
            self._classes.append(kind)
            self._roots.append(first)
            self._extras.append(first + 1)
            self._given.append(value.__pydantic_fields_set__)
        else:
            self._bare.append((place, first))
        for number, (container, parent, key) in enumerate(found, first):
            self._containers.append(container)
            if parent is not None:
                self._children.append(number)
                self._parents.append(first + parent)
                self._keys.append(key)
            if not container:
                self._empty.append(number)
            elif type(container) is dict:
                self._dicts.append(number)
                self._names += container
                self._sizes.append(len(container))
            else:
                self._lists.append(number)

    def copies(
        self, opaque: Callable[[int], Any], *, is_watched: bool = True
    ) -> tuple[list[Any], Watch | None]:
        """Return the elements as new objects, and the watch over them.

        Args:
            opaque: Makes the opaque element at a position.
            is_watched: Make the watch, too.

        Returns:
            The elements, and their watch: ``None`` on interpreters where nothing can be watched, too.
        """
        made = list(map(_copy, self._containers))
        at = made.__getitem__
        _drain(map(setitem, map(at, self._parents), self._keys, map(at, self._children)))
        models = list(map(_new, self._classes))
        roots, extras = list(map(at, self._roots)), list(map(at, self._extras))
        _drain(map(_set, models, repeat("__dict__"), roots))
        _drain(map(_set, models, repeat("__pydantic_fields_set__"), map(_copy, self._given)))
        _drain(map(_set, models, repeat("__pydantic_extra__"), extras))
        _drain(map(_set, models, repeat("__pydantic_private__"), repeat(None)))
        values = self.values.copy()
        _drain(map(values.__setitem__, self._models, models))
        for place, number in self._bare:
            values[place] = made[number]
        watched = values.copy()
        for place in self.opaque:
            values[place] = opaque(place)
        if not (_IS_ATOMIC and is_watched):
            return values, None
        dicts, lists = list(map(at, self._dicts)), list(map(at, self._lists))
        places = dict(zip(map(id, watched), range(len(watched)), strict=True))
        if self.opaque:
            places.pop(id(None), None)
        return values, Watch(
            places,
            watched,
            models,
            self._classes,
            self._given,
            roots,
            extras,
            list(map(at, self._empty)),
            dicts,
            self._sizes,
            self._names,
            list(chain.from_iterable(map(dict.values, dicts))),
            lists,
            list(map(len, lists)),
            list(chain.from_iterable(lists)),
        )


class Watch(NamedTuple):
    """Copies that were returned to a caller, with everything mutable inside them as it was then.

    ``places`` maps the identity of each copy to its position; the watch keeps the copies alive, so that no
    identity is used again. ``empty`` holds the dicts and lists without content; the content of the others is
    kept in columns.
    """

    places: dict[int, int]
    values: list[Any]
    models: list[Any]
    classes: list[type]
    given: list[set[str]]
    roots: list[dict[str, Any]]
    extras: list[dict[str, Any]]
    empty: list[Any]
    dicts: list[dict[Any, Any]]
    sizes: list[int]
    names: list[Any]
    dict_items: list[Any]
    lists: list[list[Any]]
    lengths: list[int]
    list_items: list[Any]

    def joined(self, more: Watch) -> Watch:
        """Return the watch over these copies and more."""
        places = self.places.copy()
        places.update(zip(more.places, map(len(self.values).__add__, more.places.values()), strict=True))
        columns: Iterator[Any] = map(list.__add__, self[1:], more[1:])
        return Watch(places, *columns)

    def unchanged(self) -> Iterator[bool]:
        """Yield True for everything that is unchanged. Exhausted by one call into C, it is one snapshot."""
        columns: tuple[Iterator[bool], ...] = (
            map(is_, map(type, self.models), self.classes),
            map(is_, map(_inside, self.models), self.roots),
            map(is_, map(_extra, self.models), self.extras),
            map(not_, map(any, (self.empty,))),
            # Sizes first: a container whose size has changed would shift the columns that follow.
            map(eq, map(len, self.dicts), self.sizes),
            map(eq, map(len, self.lists), self.lengths),
            map(is_, chain.from_iterable(self.dicts), self.names),
            map(is_, chain.from_iterable(map(dict.values, self.dicts)), self.dict_items),
            map(is_, chain.from_iterable(self.lists), self.list_items),
        )
        return map(all, columns)

    def is_free(self) -> bool:
        """Return True if the copies are unchanged and nothing else refers to them, so that they may be
        returned again as they are. Only messages are examined; for other elements, and where references
        cannot be counted, the answer is False."""
        if not _COUNTS or len(self.models) != len(self.values):
            return False
        # Most that are held at all are held whole: their messages are counted first.
        if max(map(getrefcount, self.models), default=0) > _REFERENCES[0] or self.references() != _REFERENCES:
            return False
        given = list(map(_given, self.models))
        return (
            given == self.given
            and not any(map(getweakrefcount, chain(self.models, given)))
            and not any(map(_private, self.models))
            and all(self.unchanged())
        )

    def references(self) -> tuple[int, int, int]:
        """Return the most references to a message, to a container inside one, and to the set of the fields
        that one was given."""
        containers = max(map(getrefcount, chain(self.empty, self.dicts, self.lists)), default=0)
        given = max(map(getrefcount, map(_given, self.models)), default=0)
        return max(map(getrefcount, self.models), default=0), containers, given


Inner = tuple[Any, int | None, Any]


def _inner(value: Any) -> list[Inner] | None:
    """Return the containers inside a decoded element, each with the position in this list of the one that
    contains it, and the key there; ``None`` if something inside is neither immutable nor a plain
    container."""
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
    # More are appended while they are walked.
    for at, (container, _, _) in enumerate(found):
        for key, inner in container.items() if type(container) is dict else enumerate(container):
            within = type(inner)
            if within in _IMMUTABLE:
                continue
            if within is not dict and within is not list:
                return None
            found.append((inner, at, key))
    return found


_REFERENCES = (3, 4, 2)
"""References to objects that only one watch holds, counted by a call into C, which holds one itself. A
message: ``values`` and ``models``. A container: its kind's column, its parent, and one more column
(``roots``, ``extras`` or the parent's content). The set of given fields: its message."""


def _is_counted() -> bool:
    """Return True if references are counted as expected, tried on messages that only this function holds.
    False under a tracer that keeps frames, or on an interpreter that counts otherwise."""
    messages = [
        AIMessage("a", id="1", response_metadata={"usage": {"tokens": [1]}}, tool_calls=[]),
        HumanMessage(["b", {"type": "text"}], id="2", odd=1),
    ]
    watch = Template.over(messages).copies(messages.__getitem__)[1]
    return watch is not None and watch.references() == _REFERENCES


_COUNTS = _is_counted()
