"""The graphs that are run and what is said in them: one node, a known number of new bytes a turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import _messages_delta_reducer, add_messages

from bench.corpus import text

Payload: TypeAlias = dict[str, Any]
Node: TypeAlias = Callable[[Any], Payload]

MESSAGE_BYTES = 400
FILES = 200
FILE_BYTES = 2000
KEPT = 200


def merge(left: dict[str, str], right: dict[str, str]) -> dict[str, str]:
    return {**left, **right}


def keep_last(left: list[AnyMessage], right: list[AnyMessage]) -> list[AnyMessage]:
    joined: Any = add_messages(left, right)  # type: ignore[arg-type]
    return list(joined)[-KEPT:]


class Chat(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    summary: str


class DeltaChat(TypedDict):
    messages: Annotated[list[AnyMessage], DeltaChannel(_messages_delta_reducer)]
    summary: str


class TrimmedChat(TypedDict):
    messages: Annotated[list[AnyMessage], keep_last]
    summary: str


class Workspace(TypedDict):
    files: Annotated[dict[str, str], merge]
    request: str


def _answer(state: Any) -> Payload:
    said = str(state["messages"][-1].content)
    return {
        "messages": [AIMessage(text("answer to " + said, MESSAGE_BYTES))],
        "summary": f"{len(state['messages'])} messages, the last about: {said[:40]}",
    }


def _answer_and_edit(state: Any) -> Payload:
    update = _answer(state)
    middle = state["messages"][len(state["messages"]) // 2]
    revised = type(middle)(content=text("revised " + str(middle.content), MESSAGE_BYTES), id=middle.id)
    return {**update, "messages": [*update["messages"], revised]}


def _rewrite_file(state: Any) -> Payload:
    name = state["request"].split()[1]
    return {"files": {name: text(state["request"], FILE_BYTES)}}


def _say(thread: str, turn: int) -> Payload:
    return {"messages": [HumanMessage(text(f"{thread} turn {turn}", MESSAGE_BYTES))]}


def _long_chat(thread: str) -> Payload:
    pairs = range(KEPT // 2)
    said: list[AnyMessage] = []
    for turn in pairs:
        said.append(HumanMessage(text(f"{thread} before {turn}", MESSAGE_BYTES)))
        said.append(AIMessage(text(f"{thread} answered {turn}", MESSAGE_BYTES)))
    return {"messages": [*said, *_say(thread, -1)["messages"]]}


def _all_files(thread: str) -> Payload:
    files = {f"file_{number:03}": text(f"{thread} file {number}", FILE_BYTES) for number in range(FILES)}
    return {"files": files, "request": "rewrite file_000 first"}


@dataclass(frozen=True)
class Scenario:
    """A graph, the input of each turn, and the channel whose serialised size is the real data."""

    title: str
    schema: type
    node: Node
    payload: Callable[[str, int], Payload]
    channel: str
    new_bytes: int
    opening: Callable[[str], Payload] | None = None
    delta_schema: type | None = None

    def graph(self, *, sync: bool, delta: bool = False, pause: float = 0.0) -> StateGraph[Any]:
        schema = self.delta_schema if delta and self.delta_schema is not None else self.schema
        builder: StateGraph[Any] = StateGraph(schema)
        act: Any = _make_blocking(self.node, pause) if sync else _make_awaiting(self.node, pause)
        builder.add_node("respond", act)
        builder.add_edge(START, "respond")
        builder.add_edge("respond", END)
        return builder

    def rehearse(self, thread: str, turns: int) -> list[Payload]:
        """The inputs of a thread's turns. The texts of the answers are made as well: what a model would
        write elsewhere costs this process nothing then."""
        payloads = [self.payload(thread, turn) for turn in range(turns)]
        for payload in payloads:
            self.node(payload)
        return payloads


def _make_blocking(node: Node, pause: float) -> Node:
    def respond(state: Any) -> Payload:
        if pause:
            time.sleep(pause)
        return node(state)

    return respond


def _make_awaiting(node: Node, pause: float) -> Callable[[Any], Awaitable[Payload]]:
    async def respond(state: Any) -> Payload:
        if pause:
            await asyncio.sleep(pause)
        return node(state)

    return respond


SCENARIOS: dict[str, Scenario] = {
    "chat": Scenario(
        "a conversation", Chat, _answer, _say, "messages", 2 * MESSAGE_BYTES, delta_schema=DeltaChat
    ),
    "files": Scenario(
        f"{FILES} files of {FILE_BYTES // 1000} kB in a dict, one rewritten a turn",
        Workspace,
        _rewrite_file,
        lambda thread, turn: {"request": f"rewrite file_{turn * 37 % FILES:03} for {thread} in turn {turn}"},
        "files",
        FILE_BYTES,
        _all_files,
    ),
    "trimmed": Scenario(
        f"the last {KEPT} messages kept, the front cut off every turn",
        TrimmedChat,
        _answer,
        _say,
        "messages",
        2 * MESSAGE_BYTES,
        _long_chat,
    ),
    "edited": Scenario(
        "a growing list, the message in the middle edited every turn",
        Chat,
        _answer_and_edit,
        _say,
        "messages",
        3 * MESSAGE_BYTES,
        _long_chat,
    ),
}
