"""An object that can never be stored is refused with what it is and what to keep; a codec is proposed only
where one would help."""

from __future__ import annotations

import asyncio
import logging
import operator
import queue
import socket
import sqlite3
import sys
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextvars import ContextVar
from functools import partial
from io import BytesIO, StringIO
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from pydantic import BaseModel

import perdure
from perdure.errors import Unserialisable
from perdure.langgraph.values.serde import Serde


class Plain:
    """A class that is not a data type."""

    def method(self) -> None:
        """Do nothing."""


class Model(BaseModel):
    """A data type."""


class Engine(threading.Thread):
    """A class of the application's that derives from one of the process."""


class Cursor:
    """An iterator of the application's, which a codec could store."""

    def __iter__(self) -> Cursor:
        return self

    def __next__(self) -> int:
        raise StopIteration


def generated() -> Iterator[int]:
    yield 1


async def generated_later() -> AsyncIterator[int]:
    yield 1


def refusal(value: Any) -> str:
    with pytest.raises(Unserialisable) as refused:
        Serde().payload({"held": [value]})
    return str(refused.value)


NAME = "keep its name in the state"
LIST = "keep a list of what it yields in the state"
MADE = "make it in the node that uses it"


@pytest.mark.parametrize(
    ("make", "what", "remedy"),
    [
        (lambda: lambda x: x, f"it is a function, {__name__}.<lambda>", NAME),
        (lambda: generated, f"it is a function, {__name__}.generated", NAME),
        (
            lambda: Plain().method,
            f"it is a function, {__name__}.Plain.method",
            NAME,
        ),
        (lambda: len, "it is a function, builtins.len", NAME),
        (lambda: [].append, "it is a function, list.append", NAME),
        (
            lambda: partial(generated),
            f"it is a function, {__name__}.generated",
            NAME,
        ),
        (lambda: Plain, f"it is a type, {__name__}.Plain", NAME),
        (lambda: Model, f"it is a type, {__name__}.Model", NAME),
        (lambda: list[int], "it is a type, builtins.list", NAME),
        (lambda: int | None, "it is a type, int | None", NAME),
        (lambda: sys, "it is the module sys", NAME),
        (generated, "it is an iterator", LIST),
        (generated_later, "it is an iterator", LIST),
        (lambda: iter([]), "it is an iterator", LIST),
        (lambda: map(len, []), "it is an iterator", LIST),
        (Future, "it is not finished", "wait for it in the node"),
        (threading.Lock, "it is a lock", MADE),
        (threading.RLock, "it is a lock", MADE),
        (threading.Event, "it is an object that threads share", MADE),
        (Engine, "it is an object that threads share", MADE),
        (asyncio.Lock, "it is an object of an event loop", MADE),
        (queue.Queue, "it is a queue", MADE),
        (lambda: logging.getLogger("x"), "it is a logger", MADE),
        (lambda: weakref.ref(Plain), "it is a reference", MADE),
        (lambda: ContextVar("x"), "it is a variable of this process", MADE),
        (BytesIO, "it is a buffer", "keep its getvalue() in the state"),
        (StringIO, "it is a buffer", "keep its getvalue() in the state"),
    ],
)
def test_an_object_that_no_codec_can_store_is_refused_with_what_to_keep(
    make: Callable[[], Any], what: str, remedy: str
) -> None:
    told = refusal(make())
    assert what in told
    assert remedy in told
    assert "Codec" not in told


def test_what_has_to_be_closed_is_refused_with_what_to_keep(tmp_path: Path) -> None:
    async def later() -> None:
        """Do nothing."""

    call = later()
    with (
        (tmp_path / "file").open("w") as file,
        socket.socket() as connection,
        sqlite3.connect(":memory:") as database,
    ):
        assert "it is an open file" in refusal(file)
        assert "it is an open connection" in refusal(connection)
        assert "it is an open connection" in refusal(database)
    database.close()
    assert "it is not finished; wait for it in the node" in refusal(call)
    call.close()


@pytest.mark.parametrize("make", [Plain, Cursor, lambda: operator.itemgetter(1), lambda: 1j])
def test_an_object_that_a_codec_can_store_is_refused_with_the_codec(make: Callable[[], Any]) -> None:
    value = make()
    assert f"codecs=[perdure.Codec({type(value).__name__}, dump, load)]" in refusal(value)


def test_no_codec_is_proposed_for_a_class_that_a_program_cannot_name() -> None:
    class Local:
        """A class that is made while the program runs."""

    values: list[Any] = [{}.keys(), Local(), ...]
    for value in values:
        told = refusal(value)
        assert "keep plain data in the state" in told
        assert "Codec" not in told


def test_a_codec_that_is_there_is_used_also_for_functions() -> None:
    codec = perdure.Codec(type(generated), lambda function: function.__name__, lambda name: globals()[name])
    serde = Serde(codecs=[codec])
    assert serde.value(*serde.payload([generated])) == [generated]


def test_a_lambda_in_the_state_of_a_graph_is_refused_with_its_channel() -> None:
    class State(TypedDict):
        held: Any

    with perdure.connect_sync("memory://") as db:
        builder = StateGraph(State).add_node("hold", lambda state: {"held": lambda: 1})
        graph = builder.add_edge(START, "hold").compile(checkpointer=db.checkpointer())
        with pytest.raises(Unserialisable, match=r"channel 'held': .* it is a function, .*<lambda>, which"):
            graph.invoke({"held": None}, {"configurable": {"thread_id": "ada"}})
