"""A conversation whose every turn is in a process that has never seen it, beside the saver in memory.

Each turn opens the database anew, as a function or an isolate does. Messages are added, edited and removed,
large files come and go, an earlier state is forked, and the thread is pruned: after each turn the state is
that of LangGraph's own saver, and what a cold load asks for does not grow with the conversation.
Covers ``engine.chunk_reads`` and ``engine.packing`` as a whole.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph, add_messages
from typing_extensions import TypedDict

from perdure.database.opening import open_database
from perdure.model.ops import Fetch
from perdure.model.program import Effect
from perdure.storage.port import Driver, WrappingDriver
from tests.backends import BACKENDS, EMPTY

pytestmark = [pytest.mark.slow, pytest.mark.packs_late, pytest.mark.timeout(1200)]

TURNS = 200 if os.environ.get("PERDURE_CHAOS") == "full" else 60
PRUNED_AT = TURNS * 3 // 4
THREAD: Any = {"configurable": {"thread_id": "ada"}}
REQUESTS_MOST = 2
"""Fetches of a cold load: one, and another for what has been larger than a pack's chunk. That of the head is
not counted where it is asked for first."""


class Talk(TypedDict, total=False):
    messages: Annotated[list[AnyMessage], add_messages]
    file: str


class Counting(WrappingDriver):
    """Counts fetches."""

    def __init__(self, inner: Driver) -> None:
        super().__init__(inner)
        self.fetches = 0

    def perform(self, effect: Effect[Any]) -> Any:
        self.fetches += isinstance(effect, Fetch)
        return self._inner.perform(effect)

    async def aperform(self, effect: Effect[Any]) -> Any:
        self.fetches += isinstance(effect, Fetch)
        return await self._inner.aperform(effect)


def counted(driver: Driver, counting: list[Counting]) -> Driver:
    counting.append(Counting(driver))
    return counting[-1]


def answer(state: Talk) -> Talk:
    messages = state["messages"]
    number = int(messages[-1].text.split()[-1])
    said: list[Any] = [AIMessage(f"answer {number} " + "word " * (number % 90), id=f"a{number}")]
    if number % 10 == 7:
        said.append(AIMessage("edited", id=messages[len(messages) // 2].id))
    if number % 10 == 9:
        said.append(RemoveMessage(id=str(messages[0].id)))
    out: Talk = {"messages": said}
    if number % 16 == 5:
        out["file"] = f"{number} " * 20_000
    return out


def graph(saver: Any) -> Any:
    builder = StateGraph(Talk)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    return builder.compile(checkpointer=saver)


def shown(values: dict[str, Any]) -> tuple[Sequence[tuple[str, str, str]], str]:
    said = [(message.type, str(message.id), message.text) for message in values["messages"]]
    return said, values.get("file", "")


@pytest.mark.parametrize("key", [None, bytes(32)], ids=["plain", "encrypted"])
@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "memory"])
def test_each_turn_in_a_process_that_has_never_seen_the_thread(backend: str, key: bytes | None) -> None:
    theirs = graph(InMemorySaver())
    turns = TURNS if key is None else TURNS // 2
    expected: Any = None
    most = 0
    with EMPTY[backend]() as url:
        open_database(url, migrate=True, encryption_key=key).close()
        for number in range(turns):
            counting: list[Counting] = []
            database = open_database(url, encryption_key=key, wrap=partial(counted, counting=counting))
            try:
                ours = graph(database.checkpointer(warn_bytes=None))
                if number % 2:
                    # Else it is the turn itself that loads it.
                    assert shown(asyncio.run(ours.aget_state(THREAD)).values) == expected
                    most = max(most, counting[0].fetches - counting[0].capabilities.reads_heads_first)
                at: list[Any] = [THREAD, THREAD]
                if number % 20 == 13:
                    # From an earlier step on, as one who edits a message does.
                    at = [list(each.get_state_history(THREAD))[3].config for each in (ours, theirs)]
                said: Any = {"messages": [HumanMessage(f"question {number}", id=f"q{number}")]}
                expected = shown(theirs.invoke(said, at[1]))
                assert shown(ours.invoke(said, at[0])) == expected, f"turn {number}"
                if number == PRUNED_AT:
                    database.checkpointer().prune(["ada"], keep_last=8)
            finally:
                database.close()
        database = open_database(url, encryption_key=key)
        try:
            assert shown(graph(database.checkpointer(warn_bytes=None)).get_state(THREAD).values) == expected
            assert database.fsck("ada") == []
        finally:
            database.close()
    assert 0 < most <= REQUESTS_MOST
