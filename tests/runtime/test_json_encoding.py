"""Values of a graph as JSON: what has no form of its own in JSON gets the one that clients know."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Any

import orjson
import pytest
from langchain_core.messages import AIMessage
from langgraph.types import Interrupt
from pydantic import BaseModel, model_serializer

from perdure.runtime.json_encoding import to_json, to_plain

HALF = "cut \ud83d"


class _Model(BaseModel):
    text: str


@dataclass
class _Record:
    text: str


class _Word(StrEnum):
    CUT = HALF


class _Shown:
    def __repr__(self) -> str:
        return HALF


@pytest.mark.parametrize(
    ("value", "expected"),
    [("12", 12), ("12.00", 12), ("1.5", 1.5), ("-0.25", -0.25), ("1E+3", 1000), ("NaN", None)],
)
def test_a_decimal_is_a_number(value: str, expected: float | None) -> None:
    assert to_plain({"price": [Decimal(value)]}) == {"price": [expected]}


@pytest.mark.parametrize("is_list", [True, False])
def test_of_a_value_that_is_nested_too_deep_the_outer_part_is_shown(is_list: bool) -> None:
    value: object = "core"
    for _ in range(5000):
        value = [value] if is_list else {"a": value}
    shown = to_plain({"deep": value, "n": 1})
    assert shown["n"] == 1
    held = shown["deep"]
    while not isinstance(held, str):
        (held,) = held if isinstance(held, list) else held.values()
    assert held == "(nested deeper than 200 levels)"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (HALF, "cut �"),
        (["whole 🙂", [HALF]], ["whole 🙂", ["cut �"]]),
        (["\ud83d\ude42", "\ude42\ud83d"], ["🙂", "��"]),
        ({HALF: 1}, {"cut �": 1}),
        ((HALF,), ["cut �"]),
        (_Record(HALF), {"text": "cut �"}),
        (_Model(text=HALF), {"text": "cut �"}),
        (_Word.CUT, "cut �"),
        (_Shown(), "cut �"),
        (ValueError(HALF), {"error": "ValueError", "message": "cut �"}),
        (Interrupt(value=HALF, id="i"), {"value": "cut �", "id": "i"}),
    ],
    ids=str,
)
def test_half_of_a_character_is_replaced_in_json(value: object, expected: Any) -> None:
    # orjson refuses what Python's own parser reads: LangGraph's SDK uses it.
    assert orjson.loads(to_json(value)) == expected


def test_half_of_a_character_in_a_message_is_replaced_in_json() -> None:
    message = AIMessage(HALF, tool_calls=[{"name": "f", "args": {"to": HALF}, "id": "c"}])
    shown = orjson.loads(to_json({"messages": [message]}))["messages"][0]
    assert (shown["content"], shown["tool_calls"][0]["args"]) == ("cut �", {"to": "cut �"})


class _Unreadable(RuntimeError):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class _UnreadableModel(BaseModel):
    text: str

    @model_serializer
    def _serialize(self) -> dict[str, Any]:
        raise RuntimeError("no fields")


class _UnreadableKey:
    def __str__(self) -> str:
        raise RuntimeError("no text")


class _UnreadableMapping(UserDict[str, Any]):
    def __iter__(self) -> Iterator[str]:
        raise RuntimeError("no keys")


class _UnreadableObject:
    def __repr__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (_UnreadableObject(), "(_UnreadableObject, which cannot be read: RuntimeError)"),
        (_UnreadableModel(text=""), "(_UnreadableModel, which cannot be read: PydanticSerializationError)"),
        (_UnreadableMapping(), "(_UnreadableMapping, which cannot be read: RuntimeError)"),
        ({_UnreadableKey(): 1}, {"(_UnreadableKey, which cannot be read: RuntimeError)": 1}),
        (10**5000, "(int, which cannot be read: ValueError)"),
        (
            _Unreadable(),
            {"error": "_Unreadable", "message": "(its text cannot be read: RuntimeError)"},
        ),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("beside", ["plain", HALF])
def test_a_value_whose_methods_raise_is_named_by_its_type(value: object, expected: Any, beside: str) -> None:
    assert to_plain([value, beside])[0] == expected


def test_a_question_whose_schema_has_no_json_schema_is_shown_without_it() -> None:
    class Schema(BaseModel):
        call: Callable[[], None]

    assert to_plain(Interrupt(value="ok?", id="i", response_schema=Schema)) == {"value": "ok?", "id": "i"}
