"""A saver without a runtime, whose graph refuses an update: LangGraph shows the thread as it does with its
saver, its way out works, and everything of Perdure's that reads threads reads this one and all others."""

from __future__ import annotations

import asyncio
import gc
import time
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, RemoveMessage
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command
from typing_extensions import TypedDict

import perdure
from perdure.langgraph.reading.readable_states import REFUSED, Graph, aread_history, read_state
from tests.langgraph.savers import opened

UNKNOWN = "nobody-knows-this"


def _talk(state: MessagesState) -> Any:
    match str(state["messages"][-1].text):
        case "remove":
            return {"messages": [RemoveMessage(id=UNKNOWN)]}
        case "command":
            return Command(update={"messages": [RemoveMessage(id=UNKNOWN)]})
        case "number":
            return {"messages": 5}
        case _:
            return {"messages": [AIMessage("ok")]}


def _joined(before: list[str], new: list[str]) -> list[str]:
    if UNKNOWN in new:
        raise KeyError(UNKNOWN)
    return before + new


class _Notes(TypedDict, total=False):
    messages: Annotated[list[str], _joined]
    ask: str


def _only(state: Any, node: Any) -> StateGraph[Any, Any, Any, Any]:
    builder = StateGraph(state)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    return builder


def _said(text: str) -> dict[str, Any]:
    return {"messages": [("user", text)]}


TALK = _only(MessagesState, _talk)
REMOVAL = {"messages": [RemoveMessage(id=UNKNOWN)]}
CASES: dict[str, tuple[StateGraph[Any, Any, Any, Any], Any, Any]] = {
    "node": (TALK, _said("hello"), _said("remove")),
    "node's command": (TALK, _said("hello"), _said("command")),
    "type": (TALK, _said("hello"), _said("number")),
    "input": (TALK, _said("hello"), REMOVAL),
    "command": (TALK, _said("hello"), Command(update=REMOVAL)),
    "command with goto": (TALK, _said("hello"), Command(update=REMOVAL, goto="node")),
    "subgraph": (_only(MessagesState, TALK.compile()), _said("hello"), _said("remove")),
    "reducer": (
        _only(_Notes, lambda state: {"messages": [state["ask"]]}),
        {"ask": "hello"},
        {"ask": UNKNOWN},
    ),
    "update_state": (TALK, _said("hello"), None),
}


def _config(thread_id: str) -> Any:
    return {"configurable": {"thread_id": thread_id}}


def _texts(values: Any) -> list[str]:
    return [getattr(each, "text", each) for each in values.get("messages", [])]


def _outcome(call: Any) -> Any:
    """What a call returns, or the kind of its error."""
    try:
        return call()
    except Exception as error:
        return type(error)


async def _refuse(graph: Graph, config: Any, bad: Any, is_async: bool) -> None:
    refused = pytest.raises(Exception, match=f"{UNKNOWN}|Unsupported message type")
    if bad is None:
        with refused:
            graph.update_state(config, REMOVAL)
    elif is_async:
        with refused:
            await graph.ainvoke(bad, config)
    else:
        with refused:
            graph.invoke(bad, config)


async def _settle(graph: Graph, config: Any, bad: Any) -> None:
    """Wait for the writes of a command, which LangGraph leaves to a thread or task when it is refused."""
    assert isinstance(graph.checkpointer, BaseCheckpointSaver)
    until = time.monotonic() + 30
    while isinstance(bad, Command):
        gc.collect()
        await asyncio.sleep(0.02)
        found = graph.checkpointer.get_tuple(config)
        if found is not None and found.pending_writes:
            return
        assert time.monotonic() < until, "the refused update is not stored"


def _views(graph: Graph, config: Any, good: Any) -> list[Any]:
    """What LangGraph shows of a thread, and the next runs on it."""
    return [
        _outcome(lambda: _texts(graph.get_state(config).values)),
        _outcome(lambda: [_texts(state.values) for state in graph.get_state_history(config)]),
        _outcome(lambda: _texts(graph.invoke(None, config))),
        _outcome(lambda: _texts(graph.invoke(good, config))),
        _outcome(lambda: _texts(graph.get_state(config).values)),
    ]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # LangGraph's executor
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize("name", CASES)
def test_it_looks_as_with_langgraph_s_saver_and_is_cleared_alike(
    name: str, is_async: bool, tmp_path: Path
) -> None:
    builder, good, bad = CASES[name]

    async def prepare(saver: BaseCheckpointSaver[Any]) -> Graph:
        graph = builder.compile(checkpointer=saver)
        for thread_id in ("sound", "seen", "cleared"):
            graph.invoke(good, _config(thread_id))
        for thread_id in ("seen", "cleared"):
            await _refuse(graph, _config(thread_id), bad, is_async)
            await _settle(graph, _config(thread_id), bad)
        return graph

    with opened("sqlite", tmp_path) as db:
        theirs = asyncio.run(prepare(InMemorySaver()))
        ours = asyncio.run(prepare(db.checkpointer()))
        _assert_all_else_reads_it(db, ours)
        views = _views(ours, _config("seen"), good)
        assert views == _views(theirs, _config("seen"), good)
        state, history, resumed, again, _ = map(isinstance, views, [list] * 5)
        assert (state, resumed) == {
            "subgraph": (True, False),
            "update_state": (True, True),
        }.get(name, (False, False))
        assert history == again == (not name.startswith("command"))
        for graph in (theirs, ours):
            before = _texts(next(iter(graph.get_state_history(_config("sound")))).values)
            graph.update_state(_config("cleared"), None)
            assert _texts(graph.get_state(_config("cleared")).values)[: len(before)] == before
            assert _texts(graph.invoke(good, _config("cleared")))
        assert _texts(ours.get_state(_config("sound")).values) == _texts(
            theirs.get_state(_config("sound")).values
        )


def _assert_all_else_reads_it(db: perdure.SyncDatabase, graph: Graph) -> None:
    saver = db.checkpointer(may_list_all_threads=True)
    assert {found.config["configurable"]["thread_id"] for found in saver.list(None)} == {
        "sound",
        "seen",
        "cleared",
    }
    saver.copy_thread("seen", "copied")
    assert db.digest("copied") == db.digest("seen")
    assert sorted(each.thread_id for each in db.threads()) == ["cleared", "copied", "seen", "sound"]
    assert db.export("seen")["checkpoints"]
    assert db.fsck() == []
    state = read_state(graph, _config("copied"))
    assert _texts(state.values)[:1]

    async def history() -> list[Any]:
        return [each async for each in aread_history(graph, _config("copied"))]

    states = asyncio.run(history())
    assert states
    assert all(UNKNOWN not in str(each.metadata.get(REFUSED)) for each in states if each.metadata)
    saver.delete_thread("copied")
