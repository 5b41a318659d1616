"""Knowing that a list of messages is unchanged without serialising it, and handing out copies of it.

A watch lists every mutable container inside the elements together with the very objects that each one held.
The elements are unchanged exactly when every container still holds those objects: comparing identities of
immutable leaves cannot miss a change. An element whose inside cannot be listed completely is opaque: it is
serialised and decoded every time. The work is done in columns over the whole list, so that a check costs a
fraction of a microsecond an element.
"""

from __future__ import annotations

import datetime
import decimal
import sys
import uuid
from bisect import bisect_left
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, compress, repeat
from operator import attrgetter, eq, is_, itemgetter, le
from sys import getrefcount
from typing import Any, ClassVar
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
_DEPTH = 16
_NONE: frozenset[str] = frozenset()

_set = object.__setattr__
_inside = attrgetter("__dict__")
_extra = attrgetter("__pydantic_extra__")
_given = attrgetter("__pydantic_fields_set__")
_private = attrgetter("__pydantic_private__")
_container = itemgetter(0)
_class = attrgetter("cls")
_as_given = attrgetter("given")

Names = tuple[str, ...]
Container = tuple[Any, tuple[Any, ...] | None, tuple[Any, ...]]


class Recipe:
    """How to copy elements of one shape: their class, the fields that hold an empty dict, those that hold an
    empty list (``empty``: either), those that hold a container with something in it, and those that a model
    was given. Recipes are interned: equal shapes share one."""

    __slots__ = ("cls", "dicts", "empty", "full", "given", "lists")

    _known: ClassVar[dict[tuple[type, Names, Names, Names, frozenset[str]], Recipe]] = {}

    def __init__(self, cls: type, dicts: Names, lists: Names, full: Names, given: frozenset[str]) -> None:
        self.cls = cls
        self.dicts = dicts
        self.lists = lists
        self.empty = frozenset((*dicts, *lists))
        self.full = full
        self.given = given

    @classmethod
    def of(cls, kind: type, dicts: Names, lists: Names, full: Names, given: frozenset[str]) -> Recipe:
        key = (kind, dicts, lists, full, given)
        recipe = cls._known.get(key)
        if recipe is None:
            recipe = cls(*key)
            if len(cls._known) < 4096:
                cls._known[key] = recipe
        return recipe


class Watch:
    """A snapshot of the mutable inside of a list's elements, by element: its value, and its recipe (``None``
    for an opaque one). The cycle collector walks whatever lives for as long as a watch, again and again: so
    there are few columns, most of them tuples, of which it leaves out those that hold nothing mutable."""

    __slots__ = (
        "_at",
        "_containers",
        "_empty",
        "_fields",
        "_leaves",
        "_marks",
        "_models",
        "_sizes",
        "recipes",
        "values",
    )

    def __init__(
        self,
        values: list[Any],
        recipes: list[Recipe | None],
        containers: tuple[Container, ...],
        marks: tuple[int, ...],
        fields: tuple[str, ...],
        leaves: tuple[Any, ...],
        at: tuple[int, ...],
        sizes: tuple[int, ...],
    ) -> None:
        """By element: ``marks``, how many containers there are up to its end. By watched element: the names
        of its ``fields`` and what they hold, ``leaves``, one element after another, and their number,
        ``sizes``. ``at``: which of the leaves are empty containers."""
        self.values = values
        self.recipes = recipes
        self._containers = containers
        self._marks = marks
        self._fields = fields
        self._leaves = leaves
        self._at = at
        self._sizes = sizes
        self._empty = tuple(map(leaves.__getitem__, at))
        # The elements that are objects, not dicts.
        self._models = values
        if not all(recipes) or not all(map(_MODELS.__contains__, map(type, values))):
            self._models = [v for v, r in zip(values, recipes, strict=True) if r and r.cls is not dict]

    @classmethod
    def over(cls, values: list[Any]) -> Watch:
        """The watch of a list."""
        return cls([], [], (), (), (), (), (), ()).extended(values)

    def extended(self, values: list[Any]) -> Watch:
        """The watch of a list that starts with this one's elements, still unchanged."""
        recipes, containers, marks = self.recipes.copy(), [*self._containers], [*self._marks]
        roots: list[dict[str, Any]] = []
        empty, size = [*self._at], len(self._leaves)
        for value in values[len(recipes) :]:
            held = _root(value)
            # Taken at once: whoever holds it may change it at any moment.
            root = None if held is None else dict.copy(held)
            recipe = None if root is None else _recipe(value, root, containers)
            recipes.append(recipe)
            marks.append(len(containers))
            if root is not None and recipe is not None:
                roots.append(root)
                empty += [at for at, name in enumerate(root, size) if name in recipe.empty]
                size += len(root)
        return Watch(
            values,
            recipes,
            tuple(containers),
            tuple(marks),
            self._fields + tuple(chain.from_iterable(roots)),
            self._leaves + tuple(chain.from_iterable(map(dict.values, roots))),
            tuple(empty),
            (*self._sizes, *map(len, roots)),
        )

    def is_unchanged(self) -> bool:
        """Whether every element is what it was when it was watched."""
        watched, roots = compress(self.values, self.recipes), self._roots()
        return (
            all(map(is_, map(type, watched), map(_class, filter(None, self.recipes))))
            # The columns alone do not say where one element ends and the next begins.
            and tuple(map(len, roots)) == self._sizes
            and tuple(chain.from_iterable(roots)) == self._fields
            and all(map(is_, chain.from_iterable(map(dict.values, roots)), self._leaves))
            and not any(self._empty)
            and not any(map(_extra, self._models))
            and all(map(_holds, self._containers))
        )

    def is_alone(self) -> bool:
        """Whether nobody but this watch holds the elements or anything mutable inside them, so that they may
        be handed out again as they are. Where references are not counted exactly the answer is no."""
        models = self._models
        return (
            _COUNTS
            and models is self.values
            and all(map(eq, map(_given, models), map(_as_given, self.recipes)))
            and not any(map(_private, models))
            and all(map(is_, map(type, self._roots()), repeat(dict)))
            and not any(map(getweakrefcount, chain(models, map(_given, models))))
            and all(map(le, self.holders(), _ALONE))
        )

    def holders(self) -> tuple[int, ...]:
        """The most references that any element, and any mutable thing of each sort inside one, has."""
        models = self._models
        inside = (self._roots(), self._empty, map(_container, self._containers))
        return tuple(
            max(map(getrefcount, things), default=0)
            for things in (models, *inside, map(_extra, models), map(_given, models))
        )

    def part(self, begin: int, end: int) -> Watch:
        """The watch of some of the elements themselves."""
        if begin == 0 and end == len(self.values):
            return self
        marks = (0, *self._marks)
        start, stop = (place - self.recipes[:place].count(None) for place in (begin, end))
        first, last = sum(self._sizes[:start]), sum(self._sizes[:stop])
        return Watch(
            self.values[begin:end],
            self.recipes[begin:end],
            self._containers[marks[begin] : marks[end]],
            tuple(mark - marks[begin] for mark in self._marks[begin:end]),
            self._fields[first:last],
            self._leaves[first:last],
            tuple(at - first for at in self._at[bisect_left(self._at, first) : bisect_left(self._at, last)]),
            self._sizes[start:stop],
        )

    def copies(self, count: int, opaque: Callable[[int], Any]) -> Watch:
        """The first ``count`` elements as they were when they were watched, whatever became of them since, as
        objects of their own. ``opaque`` makes an opaque one anew, by position."""
        values: list[Any] = []
        roots: list[dict[str, Any]] = []
        containers: list[Container] = []
        seen, sizes, at = iter(self._containers), iter(self._sizes), 0
        recipes = self.recipes if count == len(self.recipes) else self.recipes[:count]
        for place, recipe in enumerate(recipes):
            if recipe is None:
                values.append(opaque(place))
                continue
            end = at + next(sizes)
            root = _made(recipe, self._fields[at:end], self._leaves[at:end], seen)
            at = end
            for name in recipe.full:
                _list_inside(root[name], containers, 0)
            roots.append(root)
            values.append(root if recipe.cls is dict else _model(recipe, root, self.values[place]))
        leaves = tuple(chain.from_iterable(map(dict.values, roots)))
        return Watch(
            values,
            recipes,
            tuple(containers),
            self._marks[:count],
            self._fields[:at],
            leaves,
            self._at[: bisect_left(self._at, at)],
            self._sizes[: len(roots)],
        )

    def is_given(self, place: int) -> bool:
        """Whether a watched element says of the same fields as then that they were given."""
        recipe, value = self.recipes[place], self.values[place]
        return recipe is not None and (recipe.cls is dict or _given(value) == recipe.given)

    def _roots(self) -> list[dict[str, Any]]:
        """The dict that holds the fields of each watched element, as it is now."""
        if self._models is self.values:
            return list(map(_inside, self.values))
        watched = zip(self.values, self.recipes, strict=True)
        return [v if r.cls is dict else v.__dict__ for v, r in watched if r is not None]


def copier(value: Any) -> Callable[[], Any] | None:
    """What makes copies of a value, as it is now, that share nothing mutable with it; ``None`` for an opaque
    value."""
    root = _root(value)
    containers: list[Container] = []
    recipe = None if root is None else _recipe(value, root, containers)
    if root is None or recipe is None:
        return None
    return partial(_copy, recipe, tuple(root), tuple(root.values()), containers, value)


def _copy(recipe: Recipe, fields: Names, leaves: tuple[Any, ...], seen: list[Container], like: Any) -> Any:
    new = _made(recipe, fields, leaves, iter(seen))
    return new if recipe.cls is dict else _model(recipe, new, like)


def _root(value: Any) -> dict[str, Any] | None:
    """The dict that holds an element's fields, if elements of its kind can be watched."""
    kind = type(value)
    if kind is dict:
        return value  # type: ignore[no-any-return]
    if kind not in _MODELS or value.__pydantic_extra__ or value.__pydantic_private__:
        return None
    return value.__dict__  # type: ignore[no-any-return]


def _recipe(value: Any, root: dict[str, Any], containers: list[Container]) -> Recipe | None:
    dicts: list[str] = []
    lists: list[str] = []
    full: list[str] = []
    found: list[Container] = []
    if not all(type(name) is str for name in root):
        return None
    for name, held in root.items():
        inner = type(held)
        if inner in _IMMUTABLE:
            continue
        if inner in (dict, list) and not held:
            (dicts if inner is dict else lists).append(name)
        elif inner in (dict, list) and _list_inside(held, found, 0):
            full.append(name)
        else:
            return None
    containers.extend(found)
    kind = type(value)
    given = _NONE if kind is dict else frozenset(value.__pydantic_fields_set__)
    return Recipe.of(kind, tuple(dicts), tuple(lists), tuple(full), given)


def _made(
    recipe: Recipe, fields: Names, leaves: tuple[Any, ...], seen: Iterator[Container]
) -> dict[str, Any]:
    """The dict of an element's fields as they were seen, the containers inside it one after another."""
    new = dict(zip(fields, leaves, strict=True))
    for name in recipe.dicts:
        new[name] = {}
    for name in recipe.lists:
        new[name] = []
    for name in recipe.full:
        new[name] = _as_seen(seen)
    return new


def _model(recipe: Recipe, root: dict[str, Any], like: Any) -> Any:
    new: Any = object.__new__(recipe.cls)
    _set(new, "__dict__", root)
    _set(new, "__pydantic_fields_set__", set(recipe.given))
    _set(new, "__pydantic_extra__", None if like.__pydantic_extra__ is None else {})
    _set(new, "__pydantic_private__", None)
    return new


def _list_inside(value: Any, found: list[Container], depth: int) -> bool:
    """List the mutable containers inside a value; false when something in it cannot be listed."""
    kind = type(value)
    if kind in _IMMUTABLE:
        return True
    if depth > _DEPTH:
        return False
    if kind is dict:
        at_once = value.copy()
        keys, values = tuple(at_once), tuple(at_once.values())
        if not all(type(k) in _IMMUTABLE for k in keys):
            return False
    elif kind is list:
        keys, values = None, tuple(value)
    else:
        return False
    found.append((value, keys, values))
    return all(_list_inside(v, found, depth + 1) for v in values if type(v) not in _IMMUTABLE)


def _holds(seen: Container) -> bool:
    container, keys, values = seen
    if len(container) != len(values):
        return False
    if keys is None:
        return all(map(is_, container, values))
    return all(map(is_, container.values(), values)) and all(map(is_, container, keys))


def _as_seen(seen: Iterator[Container]) -> Any:
    """A container as it was listed, with those inside it, which were listed behind it."""
    _, keys, values = next(seen)
    inside = [v if type(v) in _IMMUTABLE else _as_seen(seen) for v in values]
    return inside if keys is None else dict(zip(keys, inside, strict=True))


# What a watch alone comes to, counted on elements that nobody else can hold: empty containers, full ones, and
# full ones inside others. Only an interpreter that counts every reference at once can be asked.
_COUNTS = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()
_ALONE = Watch.over(
    [AIMessage("a", id="1", response_metadata={"usage": {"tokens": [1]}}), HumanMessage("b", id="2")]
).holders()
