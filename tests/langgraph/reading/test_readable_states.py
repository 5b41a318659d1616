"""A state is read without what its graph refuses, and says what that is.

Covers perdure.langgraph.reading.partial_saver.
"""

from __future__ import annotations

import asyncio
import operator
import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain_core.messages import HumanMessage, RemoveMessage
from langgraph.channels import DeltaChannel, LastValue
from langgraph.errors import EmptyChannelError, InvalidUpdateError
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command, Send, StateSnapshot
from pydantic import BaseModel
from typing_extensions import TypedDict

import perdure
from perdure.langgraph.reading.readable_states import (
    REFUSED,
    Graph,
    aread_history,
    aread_state,
    aupdate_state,
    read_state,
)


class _Own(Exception):
    pass


ERRORS = (ValueError, KeyError, InvalidUpdateError, EmptyChannelError, ZeroDivisionError, RuntimeError, _Own)


def _config(**more: Any) -> Any:
    return {"configurable": {"thread_id": "t", **more}}


def _reducer(error: type[Exception]) -> Callable[[list[str], list[str]], list[str]]:
    def joined(before: list[str], new: list[str]) -> list[str]:
        if "bad" in new:
            raise error("a secret of a user")
        return before + new

    return joined


def _graph(saver: Any, error: type[Exception] = _Own, node: Any = None, channel: Any = None) -> Graph:
    said: Any = Annotated[list[str], channel or _reducer(error)]
    state: Any = {"said": said, "notes": Annotated[list[str], operator.add], "ask": str}
    builder: Any = StateGraph(TypedDict("State", state, total=False))  # type: ignore[operator]
    builder.add_node("say", node or (lambda state: {"said": [state["ask"]], "notes": ["n"]}))
    builder.add_edge(START, "say")
    return builder.compile(checkpointer=saver)


def _refused(state: StateSnapshot) -> list[tuple[Any, ...]]:
    marks = (state.metadata or {}).get(REFUSED, [])
    assert isinstance(marks, list)
    assert all("secret" not in str(mark) for mark in marks)
    return [(mark.get("node"), tuple(mark["channels"]), mark["error"]) for mark in marks]


async def _history(graph: Graph, **more: Any) -> list[StateSnapshot]:
    return [state async for state in aread_history(graph, _config(), **more)]


@pytest.fixture
def saver() -> Any:
    with perdure.connect_sync("memory://") as database:
        yield database.checkpointer()


@pytest.mark.parametrize("error", ERRORS)
def test_an_update_of_a_node_that_a_reducer_refuses_is_left_out_and_named(saver: Any, error: Any) -> None:
    graph = _graph(saver, error)
    graph.invoke({"ask": "good"}, _config())
    with pytest.raises(error):
        graph.invoke({"ask": "bad"}, _config())
    with pytest.raises(error):
        graph.get_state(_config())
    state = read_state(graph, _config())
    awaited = asyncio.run(aread_state(graph, _config()))
    assert (awaited.values, awaited.next, _refused(awaited)) == (state.values, state.next, _refused(state))
    assert state.values == {"said": ["good"], "notes": ["n"], "ask": "bad"}
    assert state.next == ("say",)
    assert _refused(state) == [("say", ("said", "notes"), error.__name__)]
    assert error.__name__ in str(state.tasks[0].error)
    assert "secret" not in str(state.tasks[0].error)


def test_a_state_that_can_be_read_has_no_mark(saver: Any) -> None:
    graph = _graph(saver)
    graph.invoke({"ask": "good"}, _config())
    assert read_state(graph, _config()) == graph.get_state(_config())
    assert _refused(read_state(graph, _config())) == []


@pytest.mark.parametrize("given", [{"said": ["bad"], "ask": "good"}, Command(update={"said": ["bad"]})])
def test_an_input_that_a_reducer_refuses_is_left_out(saver: Any, given: Any) -> None:
    graph = _graph(saver)
    graph.invoke({"ask": "good"}, _config())
    with pytest.raises(_Own):
        graph.invoke(given, _config())
    state = read_state(graph, _config())
    assert state.values["said"] == ["good"]
    assert [(channels, error) for _, channels, error in _refused(state)] in (
        [(("said", "ask"), "_Own")],
        [(("said",), "_Own")],
    )


def test_of_the_tasks_of_a_step_only_what_is_refused_is_left_out(saver: Any) -> None:
    class State(TypedDict):
        said: Annotated[list[str], _reducer(_Own)]
        last: str

    builder = StateGraph(State)
    words = ["a", "b", "bad", "c", "bad", "d"]
    builder.add_node("one", lambda word: {"said": [word]} if word != "d" else {"said": ["d"], "last": "d"})
    builder.add_conditional_edges(START, lambda state: [Send("one", word) for word in words])
    graph = builder.compile(checkpointer=saver)
    with pytest.raises(_Own):
        graph.invoke({"said": ["first"], "last": ""}, _config())
    state = read_state(graph, _config())
    assert state.values == {"said": ["first", "a", "b", "c", "d"], "last": "d"}
    assert _refused(state) == [("one", ("said",), "_Own")] * 2
    assert state.next == ("one", "one")


def test_of_two_tasks_that_write_a_value_of_one_the_first_is_kept(saver: Any) -> None:
    class State(TypedDict):
        x: int

    builder = StateGraph(State)
    for name, number in (("a", 1), ("b", 2)):
        builder.add_node(name, lambda state, number=number: {"x": number})
        builder.add_edge(START, name)
    graph = builder.compile(checkpointer=saver)
    with pytest.raises(InvalidUpdateError):
        graph.invoke({"x": 0}, _config())
    state = read_state(graph, _config())
    assert len(_refused(state)) == 1
    assert state.values["x"] in (1, 2)


def test_an_unknown_message_that_is_removed_in_a_subgraph_is_left_out_there(saver: Any) -> None:
    def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [RemoveMessage(id="nobody")]}

    inner = StateGraph(MessagesState)
    inner.add_node("remove", node)
    inner.add_edge(START, "remove")
    builder = StateGraph(MessagesState)
    builder.add_node("sub", inner.compile())
    builder.add_edge(START, "sub")
    graph = builder.compile(checkpointer=saver)
    with pytest.raises(ValueError, match="nobody"):
        graph.invoke({"messages": [HumanMessage("hello", id="1")]}, _config())
    state = read_state(graph, _config(), subgraphs=True)
    below = state.tasks[0].state
    assert isinstance(below, StateSnapshot)
    assert [message.text for message in below.values["messages"]] == ["hello"]
    assert _refused(state) == [("remove", ("messages",), "ValueError")]
    assert below.tasks[0].error is not None
    there = read_state(graph, below.config)
    assert there.values == below.values


def test_a_state_that_the_next_node_refuses_is_read_without_what_comes_next(saver: Any) -> None:
    class State(BaseModel):
        number: int = 0

    builder = StateGraph(State)
    builder.add_node("add", lambda state: {"number": state.number + 1})
    builder.add_edge(START, "add")
    graph: Graph = builder.compile(checkpointer=saver)
    graph.invoke({"number": 1}, _config())
    with pytest.raises(ValueError, match="number"):
        graph.invoke({"number": "none"}, _config())
    state = read_state(graph, _config())
    assert state.values == {"number": "none"}
    assert _refused(state) == [(None, (), "ValidationError")]
    states = asyncio.run(_history(graph))
    assert [each.values for each in states[1:]] == [{"number": 2}, {"number": 1}, {}] or len(states) > 3
    assert sum(bool(_refused(each)) for each in states) in (1, 2)
    asyncio.run(aupdate_state(graph, _config(), {"number": 5}, "add"))
    assert graph.get_state(_config()).values == {"number": 5}


def test_a_value_that_a_channel_does_not_take_is_left_out(saver: Any) -> None:
    class Picky(LastValue[Any]):
        def from_checkpoint(self, checkpoint: Any) -> Any:
            if checkpoint == "bad":
                raise _Own("a secret")
            return super().from_checkpoint(checkpoint)

    state_of: Any = {"word": Annotated[str, Picky(str)], "other": str}
    builder: Any = StateGraph(TypedDict("State", state_of, total=False))  # type: ignore[operator]
    builder.add_node("say", lambda state: {})
    builder.add_edge(START, "say")
    graph = builder.compile(checkpointer=saver)
    graph.invoke({"word": "bad", "other": "kept"}, _config())
    state = read_state(graph, _config())
    assert state.values == {"other": "kept"}
    assert _refused(state) == [(None, ("word",), "_Own")]
    with pytest.raises(_Own):
        asyncio.run(aupdate_state(graph, _config(), {"other": "lost?"}, "say"))
    assert read_state(graph, _config()).values == {"other": "kept"}


@pytest.mark.parametrize("at", ["head", "middle"])
def test_a_history_has_every_state_wherever_one_is_refused(saver: Any, at: str) -> None:
    def joined(before: list[str], new: Any) -> list[str]:
        for each in new:
            if "bad" in each:
                raise _Own("a secret")
            before = [*before, *each]
        return before

    graph = _graph(saver, channel=DeltaChannel(joined))
    graph.invoke({"ask": "one"}, _config())
    count = len(list(graph.get_state_history(_config())))
    with pytest.raises(_Own):
        graph.invoke({"ask": "bad"}, _config())
    if at == "middle":
        graph.invoke({"ask": "two"}, _config())
    states = asyncio.run(_history(graph))
    ids = [found.checkpoint["id"] for found in saver.list(_config())]
    assert [(each.config.get("configurable") or {})["checkpoint_id"] for each in states] == ids
    assert len(states) > count
    state = read_state(graph, _config())
    assert state.values["said"] == ["one", "two"] if at == "middle" else ["one"]
    assert len(asyncio.run(_history(graph, limit=2))) == 2


def _ids(states: list[StateSnapshot]) -> list[str]:
    return [state.config["configurable"]["checkpoint_id"] for state in states]


@pytest.mark.parametrize("limit", [1, 8, 9, 16, 20, 1000, None])
def test_a_long_history_is_read_in_short_pages_and_is_that_of_langgraph(
    saver: Any, monkeypatch: pytest.MonkeyPatch, limit: int | None
) -> None:
    graph = _graph(saver)
    for number in range(10):
        graph.invoke({"ask": f"{number}"}, _config())
    asked: list[Any] = []
    alist = saver.alist

    def note(config: Any, *, limit: Any, **more: Any) -> Any:
        asked.append(limit)
        return alist(config, limit=limit, **more)

    every = list(graph.get_state_history(_config()))
    assert len(every) == 30
    monkeypatch.setattr(saver, "alist", note)
    assert asyncio.run(_history(graph, limit=limit)) == every[:limit]
    assert max(asked) <= 8
    assert len(asked) <= 2 + len(every[:limit]) // 8
    of_loops = {"source": "loop"}
    found = asyncio.run(_history(graph, limit=limit, filter=of_loops))
    assert found == list(graph.get_state_history(_config(), filter=of_loops, limit=limit))
    before = every[4].config
    found = asyncio.run(_history(graph, limit=limit, before=before))
    assert _ids(found) == _ids(every[5:])[:limit]


def test_a_history_whose_middle_is_removed_while_it_is_read_goes_on_with_what_is_left(saver: Any) -> None:
    graph = _graph(saver)
    for number in range(10):
        graph.invoke({"ask": f"{number}"}, _config())

    async def read() -> list[StateSnapshot]:
        states: list[StateSnapshot] = []
        async for state in aread_history(graph, _config()):
            if not states:
                await saver.aprune(["t"], strategy="keep_latest")
            states.append(state)
        return states

    every = _ids(list(graph.get_state_history(_config())))
    found = _ids(asyncio.run(read()))
    assert found == every[: len(found)]
    assert len(found) < len(every)


def test_what_comes_next_is_cleared_without_an_update_that_is_refused(saver: Any) -> None:
    graph = _graph(saver)
    graph.invoke({"ask": "good"}, _config())
    with pytest.raises(_Own):
        graph.invoke({"ask": "bad"}, _config())
    asyncio.run(aupdate_state(graph, _config(), None, END))
    state = graph.get_state(_config())
    assert (state.next, state.values["said"]) == ((), ["good"])


def test_values_that_the_graph_refuses_are_not_written(saver: Any) -> None:
    graph = _graph(saver)
    graph.invoke({"ask": "good"}, _config())
    before = graph.get_state(_config())
    with pytest.raises(_Own):
        asyncio.run(aupdate_state(graph, _config(), {"said": ["bad"]}, "say"))
    assert graph.get_state(_config()) == before


def test_an_update_that_is_refused_once_is_read_once_the_reducer_takes_it(saver: Any) -> None:
    with pytest.raises(_Own):
        _graph(saver).invoke({"ask": "bad"}, _config())
    mended = _graph(saver, channel=operator.add)
    state = read_state(mended, _config())
    assert state.values["said"] == ["bad"]
    assert _refused(state) == []


def test_no_other_module_reads_states_by_their_graphs() -> None:
    source = Path(perdure.__file__).parent
    # The last writes what a graph itself would, to another server.
    apart = (
        "langgraph/reading/readable_states.py",
        "testing/",
        "replay/",
        "imports/langgraph_server/target.py",
    )
    methods = re.compile(r"graph\.(?:a?get_state|a?get_state_history|aupdate_state)\(")
    found = [
        path
        for path in source.rglob("*.py")
        if methods.search(path.read_text()) and not str(path.relative_to(source)).startswith(apart)
    ]
    assert found == []
