"""Values made of declared types: of the type, the same each time, small ones first."""

from __future__ import annotations

import collections
import decimal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple
from uuid import UUID

import pytest
from langchain_core.messages import AnyMessage, BaseMessage, HumanMessage
from pydantic import BaseModel, Field, TypeAdapter
from typing_extensions import TypedDict

from perdure.audit.sample_values import NoSample, Samples, format_value, write_type


class Colour(Enum):
    RED = "red"


@dataclass
class Place:
    name: str
    at: datetime


class Pair(NamedTuple):
    left: int
    right: str


class Order(BaseModel):
    id: UUID
    place: Place | None
    colours: list[Colour]


class Row(TypedDict):
    order: Order
    pair: Pair


TYPES: list[Any] = [
    str, int, float, bool, bytes, None, list[int], dict[str, int], set[str], tuple[int, str], tuple[int, ...],
    frozenset[str], collections.deque[int], Sequence[str], Mapping[str, float], int | None, Literal["a", 3],
    Colour, Place, Pair, Order, Row, Annotated[int, "number"], decimal.Decimal, UUID, datetime,
]  # fmt: skip


@pytest.mark.parametrize("annotation", TYPES, ids=str)
def test_a_sample_is_of_its_type(annotation: Any) -> None:
    for seed in range(20):
        value = Samples(str(seed)).make(annotation)
        # pydantic 2.13 takes no deque for one where it is strict.
        TypeAdapter(annotation).validate_python(value, strict=not isinstance(value, collections.deque))
        assert format_value(Samples(str(seed)).make(annotation)) == format_value(value)


def test_messages_have_ids_that_meet() -> None:
    messages = [Samples(str(seed)).make(AnyMessage) for seed in range(50)]
    assert all(isinstance(message, BaseMessage) for message in messages)
    assert len({message.id for message in messages}) == 4
    assert isinstance(Samples("0").make(HumanMessage), HumanMessage)


def test_containers_hold_at_most_the_size() -> None:
    assert {len(Samples(str(seed), size=1).make(list[int])) for seed in range(50)} == {0, 1}


def test_what_cannot_be_made_is_named() -> None:
    class Even(BaseModel):
        number: int = Field(gt=1000)

    class Endless(BaseModel):
        inner: Endless

    Endless.model_rebuild()
    for annotation in (Even, Endless, type("Plain", (), {}), dict[str, Even]):
        samples = Samples("1", size=3)
        with pytest.raises(NoSample):
            [samples.make(annotation) for _ in range(50)]


def test_values_and_types_are_shown_as_they_are_written() -> None:
    assert (
        format_value([HumanMessage("hi", id="m1"), {"a": (1,)}])
        == "[HumanMessage('hi', id='m1'), {'a': (1,)}]"
    )
    assert format_value({"b", "a"}) == """set(["'a'", "'b'"])"""
    assert len(format_value("x" * 1000)) == 160
    assert write_type(list[AnyMessage] | None) == "list[AnyMessage] | None"
    assert write_type(dict[str, Any]) == "dict[str, Any]"
