"""Values that cannot be shown: whoever follows a run does not decide how it ends."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langgraph.config import get_stream_writer
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import Field

from perdure.engine.queue.events import Event
from perdure.runtime import Options, StreamOptions
from tests.runtime.graphs import Storage, go, working


class _Unreadable(RuntimeError):
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


class _OneIdModel(BaseChatModel):
    """Gives all its messages one id, and each a time of its own."""

    times: list[float] = Field(default_factory=lambda: [0.1, 0.2])

    @property
    def _llm_type(self) -> str:
        return "one id"

    def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
        raise NotImplementedError

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        about = {"took": self.times.pop(0)}
        yield ChatGenerationChunk(message=AIMessageChunk(content="hi", id="one", response_metadata=about))


async def _write(state: MessagesState) -> dict[str, Any]:
    get_stream_writer()(_Unreadable())
    return {}


async def _raise(state: MessagesState) -> dict[str, Any]:
    raise _Unreadable


_INNER = StateGraph(MessagesState).add_node("raise", _raise).add_edge(START, "raise").compile()


async def _recover(state: MessagesState) -> dict[str, Any]:
    with pytest.raises(_Unreadable):
        await _INNER.ainvoke(state)
    return {}


async def _call_twice(state: MessagesState) -> dict[str, Any]:
    model = _OneIdModel()
    for _ in range(2):
        async for _ in model.astream("hello"):
            pass
    return {}


@pytest.mark.parametrize("node", [_write, _recover, _call_twice], ids=lambda node: node.__name__)
@pytest.mark.parametrize(
    "modes",
    [
        ("values",),
        ("custom", "tasks", "updates"),
        ("debug", "messages"),
        ("messages-tuple",),
        ("events",),
        ("protocol",),
    ],
    ids="+".join,
)
def test_a_run_ends_the_same_however_it_is_followed(memory: Storage, node: Any, modes: Any) -> None:
    graph = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()

    async def main() -> None:
        async with working(memory.database(), graph) as runtime:
            options = Options(stream=StreamOptions(modes=modes, subgraphs=True), attempts=1)
            ticket = await runtime.submit("ada", {"messages": []}, options=options)
            heard = [item async for item in runtime.follow("ada", ticket.id)]
            run = await runtime.wait(ticket, 20)
            assert (run.state, run.note.get("error")) == ("done", None)
            for item in heard:
                if isinstance(item, Event):
                    json.loads(item.data)

    go(main())
