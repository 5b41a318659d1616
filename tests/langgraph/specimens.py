"""Values of every kind that a state may hold, how to change them in place, and how to compare them."""

from __future__ import annotations

import dataclasses
import datetime
import enum
import ipaddress
import pathlib
import random
import re
import zoneinfo
from collections import deque
from typing import Any

import pydantic
from hypothesis import strategies as st
from langchain_core.documents import Document
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    ChatMessage,
    FunctionMessage,
    HumanMessage,
    RemoveMessage,
    SystemMessage,
    ToolMessage,
)
from langgraph.types import Interrupt, Send


class Colour(enum.Enum):
    RED = "red"
    BLUE = 2


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 9


class Address(pydantic.BaseModel):
    street: str
    numbers: list[int] = []
    colour: Colour = Colour.RED


class Person(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    name: str
    born: datetime.date | None = None
    home: Address | None = None


@dataclasses.dataclass
class Point:
    x: Any
    y: Any = None


@dataclasses.dataclass(frozen=True)
class Fixed:
    label: str


OWN: tuple[type, ...] = (Colour, Level, Address, Person, Point, Fixed)


def made(cls: Any, **fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Objects of a class, by its fields: without guesses about those that are not given."""
    return st.fixed_dictionaries(fields).map(lambda given: cls(**given))


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
LONG = st.builds(lambda word, times: word * times, TEXT, st.sampled_from([1, 1, 30, 900]))
INTEGERS = st.integers(-(2**63), 2**64 - 1)
PLAIN = st.one_of(st.none(), st.booleans(), INTEGERS, st.floats(), LONG)
JSON = st.recursive(
    PLAIN, lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5), max_leaves=15
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=3)
ZONES = st.sampled_from(
    [None, datetime.UTC, datetime.timezone(datetime.timedelta(hours=5, minutes=30)), zoneinfo.ZoneInfo("UTC")]
)
HASHABLE = st.one_of(TEXT, st.integers(-9, 9), st.uuids(), st.dates(), st.decimals(allow_nan=False))
SCALARS = st.one_of(
    PLAIN,
    st.binary(max_size=80),
    st.binary(max_size=9).map(bytearray),
    st.uuids(),
    st.decimals(),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.datetimes(timezones=ZONES),
    st.sampled_from([*Colour, *Level]),
    st.ip_addresses(),
    st.sampled_from(
        [
            ipaddress.ip_network("10.0.0.0/8"),
            ipaddress.ip_interface("10.1.0.1/8"),
            ipaddress.ip_interface("::1"),
        ]
    ),
    st.lists(st.sampled_from(["a", "b c", "..", "ü"]), max_size=3).map(lambda parts: pathlib.Path(*parts)),
    st.sets(HASHABLE, max_size=4),
    st.frozensets(HASHABLE, max_size=4),
    st.just(re.compile("a+", re.IGNORECASE)),
    st.just(zoneinfo.ZoneInfo("UTC")),
)
BLOCKS = st.lists(
    st.one_of(
        LONG,
        st.builds(lambda text: {"type": "text", "text": text}, LONG),
        st.builds(lambda url: {"type": "image_url", "image_url": {"url": url, "detail": "low"}}, TEXT),
        st.builds(
            lambda data: {"type": "image", "base64": data, "mime_type": "image/png", "extras": {}}, TEXT
        ),
    ),
    max_size=3,
)
CONTENT = st.one_of(LONG, BLOCKS)
IDS = st.one_of(st.none(), TEXT, st.uuids().map(str))
COMMON: dict[str, Any] = {
    "content": CONTENT, "id": IDS, "name": st.one_of(st.none(), TEXT),
    "additional_kwargs": OBJECTS, "response_metadata": OBJECTS,
}  # fmt: skip
CALLS = st.lists(
    st.fixed_dictionaries({"name": TEXT, "args": OBJECTS, "id": IDS, "type": st.just("tool_call")}),
    max_size=2,
)
USAGE = st.one_of(
    st.none(),
    st.fixed_dictionaries(
        {"input_tokens": st.just(1), "output_tokens": st.just(2), "total_tokens": st.just(3)}
    ),
)
MESSAGES: st.SearchStrategy[BaseMessage] = st.one_of(
    made(HumanMessage, **COMMON),
    made(SystemMessage, **COMMON),
    made(AIMessage, **COMMON, tool_calls=CALLS, usage_metadata=USAGE),
    made(ChatMessage, **COMMON, role=TEXT),
    made(FunctionMessage, content=TEXT, name=TEXT, id=IDS),
    made(
        ToolMessage,
        **COMMON,
        tool_call_id=TEXT,
        artifact=JSON,
        status=st.sampled_from(["success", "error"]),
    ),
    made(AIMessageChunk, content=TEXT, id=IDS, response_metadata=OBJECTS),
    made(RemoveMessage, id=TEXT),
    st.builds(lambda text, more: HumanMessage(text, odd=more), TEXT, JSON),
)
ADDRESSES = st.builds(
    Address, street=TEXT, numbers=st.lists(st.integers(0, 9), max_size=3), colour=st.sampled_from(Colour)
)
OBJECTS_OF_CLASSES = st.one_of(
    ADDRESSES,
    st.builds(Person, name=TEXT, born=st.one_of(st.none(), st.dates()), home=st.one_of(st.none(), ADDRESSES)),
    st.builds(Fixed, TEXT),
    made(Document, page_content=LONG, metadata=OBJECTS, id=IDS),
    st.builds(lambda node, arg: Send(node, arg), TEXT, JSON),
    st.builds(lambda value: Interrupt(value=value, id="i"), JSON),
)
LEAVES = st.one_of(SCALARS, MESSAGES, OBJECTS_OF_CLASSES)


def _nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=6),
        st.dictionaries(TEXT, inner, max_size=6),
        st.dictionaries(st.one_of(st.integers(-9, 9), st.booleans(), st.none(), TEXT), inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.lists(inner, max_size=3).map(deque),
        st.builds(Point, inner, inner),
    )


VALUES = st.recursive(LEAVES, _nested, max_leaves=12)
ELEMENTS = st.one_of(MESSAGES, MESSAGES, OBJECTS, VALUES)
LISTS = st.lists(ELEMENTS, max_size=8)


def likeness(value: Any) -> Any:
    """A value as plain tuples: equal exactly when types, contents, order and form are."""
    kind = type(value)
    if isinstance(value, pydantic.BaseModel):
        inside = {**value.__dict__, **(value.__pydantic_extra__ or {})}
        return (kind, sorted(value.__pydantic_fields_set__), likeness(inside))
    if isinstance(value, dict):
        return (kind, [(likeness(k), likeness(v)) for k, v in value.items()])
    if isinstance(value, list | tuple | deque):
        return (kind, [likeness(v) for v in value])
    if isinstance(value, set | frozenset):
        return (kind, sorted(map(repr, value)))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return (kind, [likeness(getattr(value, f.name)) for f in dataclasses.fields(value)])
    if isinstance(value, Send):
        return (kind, value.node, likeness(value.arg))
    if hasattr(value, "dtype"):
        return (kind, value.dtype.str, value.shape, value.tobytes(), value.flags.f_contiguous)
    return (kind, repr(value))


def _insides(value: Any, found: list[Any]) -> list[Any]:
    """Everything in a value that can be changed in place."""
    if isinstance(value, pydantic.BaseModel):
        found.append(value)
        for held in (*value.__dict__.values(), *(value.__pydantic_extra__ or {}).values()):
            _insides(held, found)
    elif isinstance(value, dict):
        found.append(value)
        for held in value.values():
            _insides(held, found)
    elif isinstance(value, list | deque):
        found.append(value)
        for held in value:
            _insides(held, found)
    elif isinstance(value, Point):
        found.append(value)
        _insides(value.x, found)
    return found


def change(value: Any, rng: random.Random) -> None:
    """Change something, anywhere inside, in place."""
    inside = _insides(value, [])
    if not inside:
        return
    target = rng.choice(inside)
    new = rng.choice(["new", 7, None, {"deep": [1, {"er": []}]}, [], {}, ["x"], "y" * 200])
    if isinstance(target, BaseMessage):
        _change_message(target, new, rng)
    elif isinstance(target, pydantic.BaseModel):
        name = rng.choice(list(target.__dict__))
        target.__dict__[name] = (
            rng.choice(["new", "other"]) if name in ("street", "name") else target.__dict__[name]
        )
    elif isinstance(target, dict):
        _change_dict(target, new, rng)
    elif isinstance(target, list):
        _change_list(target, new, rng)
    elif isinstance(target, deque):
        target.append(new)
    else:
        target.x = new


def _change_message(message: BaseMessage, new: Any, rng: random.Random) -> None:
    how = rng.randrange(8)
    if how == 0:
        contents: list[str | list[str | dict[Any, Any]]] = [
            "changed",
            ["changed", {"type": "text", "text": "x"}],
        ]
        message.content = rng.choice(contents)
    elif how == 1:
        message.additional_kwargs["k" + str(rng.randrange(3))] = new
    elif how == 2:
        message.response_metadata = {"m": new}
    elif how == 3:
        object.__setattr__(message, "__dict__", {**message.__dict__, "content": "replaced"})
    elif how == 4:
        message.__dict__["id"] = "id" + str(rng.randrange(99))
    elif how == 5 and not isinstance(message, RemoveMessage):
        message.extra_field = new  # type: ignore[attr-defined]
    elif how == 6 and isinstance(message, AIMessage):
        message.tool_calls.append({"name": "t", "args": {"a": new}, "id": "c", "type": "tool_call"})
    elif how == 7 and type(message) is HumanMessage:
        message.__dict__["type"] = "system"
        message.__class__ = SystemMessage  # type: ignore[assignment]
    else:
        message.name = "n" + str(rng.randrange(99))


def _change_dict(target: dict[Any, Any], new: Any, rng: random.Random) -> None:
    how = rng.randrange(6)
    keys = list(target)
    if how == 0 and keys:
        del target[rng.choice(keys)]
    elif how == 1 and len(keys) > 1:
        target[keys[0]] = target.pop(keys[0])
    elif how == 2:
        target.clear()
    elif how == 3 and keys:
        held = dict(target)
        target.clear()
        target.update({"first": new, **held})
    else:
        target[rng.choice([*keys, "k"])] = new


def _change_list(target: list[Any], new: Any, rng: random.Random) -> None:
    how = rng.randrange(9)
    if how == 0 or not target:
        target.append(new)
    elif how == 1:
        target.pop(rng.randrange(len(target)))
    elif how == 2:
        target.reverse()
    elif how == 3:
        target.append(target[0])  # the same object twice
    elif how == 4:
        target[rng.randrange(len(target))] = new
    elif how == 5:
        target.insert(0, new)
    elif how == 6:
        rng.shuffle(target)
    elif how == 7:
        dicts = [v for v in target if type(v) is dict]
        if len(dicts) > 1 and dicts[0]:
            # An item wanders from one element to its neighbour: together they hold what they held.
            key, held = dicts[0].popitem()
            rest = dict(dicts[1])
            dicts[1].clear()
            dicts[1].update({key: held, **rest})
    else:
        del target[: rng.randrange(len(target)) + 1]


def mutable_inside(value: Any) -> set[int]:
    """The identities of everything in a value that could be changed."""
    if isinstance(value, list):
        return {id(value)}.union(*map(mutable_inside, value))
    if isinstance(value, dict):
        return {id(value)}.union(*map(mutable_inside, value.values()))
    if isinstance(value, AIMessage | HumanMessage):
        parts = (value.__dict__, value.model_fields_set, value.__pydantic_extra__)
        return {id(value), *map(id, parts)}.union(*map(mutable_inside, value.__dict__.values()))
    return set()
