"""The stock serialiser's payloads, read without building an object."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.serde.jsonplus import JsonPlusSerializer

from perdure.errors import Unreadable, Unserialisable
from perdure.imports.payloads import SERDE, load, payload
from perdure.langgraph.values.serde import Serde

STOCK = JsonPlusSerializer()


@dataclass
class Mine:
    number: int

    def __post_init__(self) -> None:
        if self.number == 13:
            raise AssertionError("built")


VALUES: list[Any] = [
    None,
    b"\x00bytes",
    bytearray(b"array"),
    {"text": "ž", "list": [1, 2.5, None, True], "nested": {"at": datetime(2026, 1, 2, tzinfo=UTC)}},
    [HumanMessage("hello", id="1"), AIMessage([{"type": "text", "text": "hi"}], id="2")],
    {UUID(int=7), UUID(int=8)},
    {1: "a number for a key"},
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_is_read_by_perdure_as_by_the_stock_serialiser(value: Any) -> None:
    stored = STOCK.dumps_typed(value)
    kind, body = payload(*stored)
    assert Serde("listed").value(kind, body) == STOCK.loads_typed(stored)
    assert SERDE.payload(load(*stored)) == (kind, body)


def test_no_object_is_built() -> None:
    mine = Mine(1)
    mine.number = 13
    stored = STOCK.dumps_typed({"mine": mine})
    kind, body = payload(*stored)
    assert SERDE.payload(load(*stored)) == (kind, body)
    with pytest.raises(Unreadable, match="Mine does not take what is stored of it \\(AssertionError\\)"):
        Serde("imported").value(kind, body)


@pytest.mark.parametrize(
    ("kind", "body", "why"),
    [
        ("pickle", pickle.dumps({"a": 1}), "pickled"),
        ("msgpack+aes", b"x", "encrypted"),
        ("json", b'{"lc": 2, "type": "constructor", "id": ["os", "system"]}', "LangChain objects"),
        ("json", b"{", "cannot be read"),
        ("yaml", b"a: 1", "'yaml'"),
        ("msgpack", b"\xc1", "could not be read"),
        ("msgpack", b"", "is empty"),
    ],
)
def test_what_cannot_be_imported_is_refused_by_name(kind: str, body: bytes, why: str) -> None:
    with pytest.raises(Unserialisable, match=why):
        load(kind, body)


def test_plain_json_is_read() -> None:
    assert load("json", b'{"a": [1, null]}') == {"a": [1, None]}
