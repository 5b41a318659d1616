"""Makes values of declared types, small ones first, from a seed: the inputs of the checks of reducers.

This generator is used instead of Hypothesis because an audit runs in CI beside the application, where only
Perdure need be installed, and gives the same result each time. With small values first, the first
counter-example is a small one, so nothing has to be shrunk.
"""

from __future__ import annotations

import collections
import collections.abc
import dataclasses
import datetime
import decimal
import enum
import pathlib
import random
import types
import typing
import uuid
from collections.abc import Callable
from typing import Any

import typing_extensions
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    SystemMessage,
    ToolMessage,
)
from pydantic import BaseModel

from perdure.langgraph.graph_facts import strip_annotations

_DEPTH_MAX = 6
_WORDS = ("a", "b", "c", "dd", "")
_NUMBERS = (0, 1, 2, 3, -1, 7)
_SHOWN_MAX = 160


class NoSample(Exception):
    """There is no way to make a value of a type; the message names the type."""


class Samples:
    """Values of types, from a seed. ``size`` is the maximum number of items in a container."""

    def __init__(self, seed: str, size: int = 2) -> None:
        self._random = random.Random(seed)
        self.size = size

    def make(self, annotation: Any, depth: int = 0) -> Any:
        """Return a value of a type.

        Raises:
            NoSample: There is no way to make one.
        """
        annotation = _resolve_aliases(annotation)
        if depth > _DEPTH_MAX:
            raise NoSample(_format_name(annotation))
        origin = typing.get_origin(annotation) or annotation
        arguments = typing.get_args(annotation)
        if origin in (typing.Union, types.UnionType):
            return self._choose_sample(arguments, depth)
        if origin is typing.Literal:
            return self._random.choice(arguments)
        if origin in _CONTAINERS:
            return self._make_container(_CONTAINERS[origin], arguments, depth)
        if origin in _MAPPINGS:
            return _MAPPINGS[origin](self._make_pairs(arguments, depth))
        if origin is tuple:
            if not arguments or arguments[-1] is Ellipsis:
                return self._make_container(tuple, arguments[:1], depth)
            return tuple(self.make(each, depth + 1) for each in arguments if each != ())
        if origin in _SCALARS:
            return _SCALARS[origin](self._random)
        if isinstance(origin, type):
            return self._make_object(origin, depth)
        raise NoSample(_format_name(annotation))

    def _choose_sample(self, options: tuple[Any, ...], depth: int) -> Any:
        order = list(options)
        self._random.shuffle(order)
        for option in order:
            try:
                return self.make(option, depth + 1)
            except NoSample:
                continue
        raise NoSample(" | ".join(map(_format_name, options)))

    def _choose_count(self) -> int:
        return self._random.randint(0, self.size)

    def _make_container(self, kind: Callable[[Any], Any], arguments: tuple[Any, ...], depth: int) -> Any:
        item = arguments[0] if arguments else str
        return kind([self.make(item, depth + 1) for _ in range(self._choose_count())])

    def _make_pairs(self, arguments: tuple[Any, ...], depth: int) -> dict[Any, Any]:
        if len(arguments) == 2:
            key, value = arguments
        else:
            key, value = (str, arguments[0] if arguments == (int,) else str)
        return {self.make(key, depth + 1): self.make(value, depth + 1) for _ in range(self._choose_count())}

    def _make_object(self, cls: type, depth: int) -> Any:
        if issubclass(cls, enum.Enum):
            return self._random.choice(list(cls))
        if issubclass(cls, BaseMessage):
            return self._make_message(cls)
        if cls is Document:
            return Document(page_content=self._choose_word(), id=self._choose_word() or "d")
        if not _has_fields(cls):
            raise NoSample(_format_name(cls))
        try:
            hints = typing.get_type_hints(cls, include_extras=True)
        except (NameError, TypeError) as error:
            raise NoSample(_format_name(cls)) from error
        hints = {name: hint for name, hint in hints.items() if typing.get_origin(hint) is not typing.ClassVar}
        if issubclass(cls, BaseModel):
            hints = {name: hint for name, hint in hints.items() if name in cls.model_fields}
        if dataclasses.is_dataclass(cls):
            taken = {each.name for each in dataclasses.fields(cls) if each.init}
            hints = {name: hint for name, hint in hints.items() if name in taken}
        values = {
            name: self.make(hint, depth + 1) for name, hint in hints.items() if not name.startswith("__")
        }
        if typing_extensions.is_typeddict(cls):
            return values
        try:
            return cls(**values)
        except Exception as error:
            # The class has conditions that random values do not meet.
            raise NoSample(_format_name(cls)) from error

    def _make_message(self, cls: type[BaseMessage]) -> BaseMessage:
        known: tuple[type[BaseMessage], ...] = (HumanMessage, AIMessage, SystemMessage)
        kind = self._random.choice(known) if cls is BaseMessage else cls
        given: dict[str, Any] = {"content": self._choose_word(), "id": f"m{self._random.randint(1, 4)}"}
        if issubclass(kind, ToolMessage):
            given["tool_call_id"] = "call"
        try:
            return kind(**given)
        except Exception as error:
            # The class needs more fields than a message has.
            raise NoSample(_format_name(kind)) from error

    def _choose_word(self) -> str:
        return self._random.choice(_WORDS)


def format_value(value: object) -> str:
    """Return a value for a counter-example: messages by id and content, long texts cut."""
    text = _format(value)
    if len(text) <= _SHOWN_MAX:
        return text
    return f"{text[: _SHOWN_MAX - 1]}…"


def write_type(annotation: Any) -> str:
    """Return a type as it would be written, without modules; LangChain's union of messages is one name."""
    annotation = strip_annotations(annotation)
    if annotation is type(None):
        return "None"
    if annotation == strip_annotations(AnyMessage):
        return "AnyMessage"
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (typing.Union, types.UnionType):
        return " | ".join(map(write_type, arguments))
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, arguments))}]"
    if annotation is Ellipsis:
        return "..."
    name = getattr(origin or annotation, "__name__", str(annotation))
    if origin is not None and arguments:
        return f"{name}[{', '.join(map(write_type, arguments))}]"
    return name


def _format(value: object) -> str:
    if isinstance(value, BaseMessage):
        return f"{type(value).__name__}({value.content!r}, id={value.id!r})"
    if type(value) is list:
        return f"[{', '.join(map(_format, value))}]"
    if type(value) is tuple:
        return f"({', '.join(map(_format, value))}{',' if len(value) == 1 else ''})"
    if type(value) is dict:
        return "{" + ", ".join(f"{_format(key)}: {_format(held)}" for key, held in value.items()) + "}"
    if isinstance(value, set | frozenset):
        return f"{type(value).__name__}({sorted(map(_format, value))})"
    return repr(value)


def _resolve_aliases(annotation: Any) -> Any:
    """Return a type without ``Annotated``, and with the types that aliases and type variables stand for."""
    while True:
        before = annotation
        annotation = strip_annotations(annotation)
        if isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif isinstance(annotation, typing.TypeVar):
            annotation = annotation.__bound__ or next(iter(annotation.__constraints__), Any)
        elif isinstance(annotation, typing_extensions.TypeAliasType):
            annotation = annotation.__value__
        if annotation is before:
            return annotation


def _has_fields(cls: type) -> bool:
    return (
        typing_extensions.is_typeddict(cls)
        or dataclasses.is_dataclass(cls)
        or issubclass(cls, BaseModel)
        or (issubclass(cls, tuple) and hasattr(cls, "_fields"))
    )


def _format_name(annotation: Any) -> str:
    if isinstance(annotation, type):
        return f"{annotation.__module__}.{annotation.__qualname__}".removeprefix("builtins.")
    return str(annotation)


_CONTAINERS: dict[Any, Callable[[Any], Any]] = {
    list: list,
    set: set,
    frozenset: frozenset,
    collections.deque: collections.deque,
    collections.abc.Sequence: list,
    collections.abc.MutableSequence: list,
    collections.abc.Iterable: list,
    collections.abc.Collection: list,
    collections.abc.Set: set,
    collections.abc.MutableSet: set,
}
_MAPPINGS: dict[Any, Callable[[Any], Any]] = {
    dict: dict,
    collections.abc.Mapping: dict,
    collections.abc.MutableMapping: dict,
    collections.defaultdict: lambda pairs: collections.defaultdict(str, pairs),
    collections.OrderedDict: collections.OrderedDict,
    collections.Counter: lambda pairs: collections.Counter(list(pairs)),
}
_SCALARS: dict[Any, Callable[[random.Random], Any]] = {
    str: lambda r: r.choice(_WORDS),
    int: lambda r: r.choice(_NUMBERS),
    float: lambda r: r.choice(_NUMBERS) / 2,  # halves add up exactly
    complex: lambda r: complex(r.choice(_NUMBERS)),
    bool: lambda r: r.random() < 0.5,
    bytes: lambda r: r.choice(_WORDS).encode(),
    type(None): lambda _: None,
    None: lambda _: None,
    Any: lambda r: r.choice(_WORDS),
    object: lambda r: r.choice(_WORDS),
    decimal.Decimal: lambda r: decimal.Decimal(r.choice(_NUMBERS)),
    uuid.UUID: lambda r: uuid.UUID(int=r.getrandbits(128)),
    pathlib.Path: lambda r: pathlib.Path(r.choice(_WORDS) or "."),
    datetime.datetime: lambda r: datetime.datetime(2024, 1, r.randint(1, 28), tzinfo=datetime.UTC),
    datetime.date: lambda r: datetime.date(2024, 1, r.randint(1, 28)),
    datetime.time: lambda r: datetime.time(r.randint(0, 23)),
    datetime.timedelta: lambda r: datetime.timedelta(hours=r.randint(0, 9)),
}
