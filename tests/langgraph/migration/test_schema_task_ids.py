"""Ids of tasks are computed as LangGraph computes them, and follow the names of nodes."""

from __future__ import annotations

import operator
from typing import Annotated, Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import Send, interrupt
from typing_extensions import TypedDict

from perdure.langgraph.migration.schema_task_ids import TaskMoves, TaskPlace
from perdure.model.checkpoint import CheckpointRecord, PendingWrite
from perdure.schema import Schema, rename_node


class State(TypedDict):
    seen: Annotated[list[str], operator.add]


def record_of(found: Any, step: int) -> CheckpointRecord:
    """The record of a checkpoint, as far as ids are computed from it."""
    checkpoint = found.checkpoint
    return CheckpointRecord(
        "", checkpoint["id"], 1, None, None, "loop", step, checkpoint["v"], checkpoint["ts"],
        checkpoint["channel_versions"], {}, checkpoint["versions_seen"], None, b"",
    )  # fmt: skip


def parked(kind: str, name: str) -> Any:
    """A graph whose node asks, reached by an edge, by several at once, or by ``Send``."""

    def ask(state: State) -> State:
        return {"seen": [interrupt("why?")]}

    def fine(state: State) -> State:
        return {"seen": ["fine"]}

    builder = StateGraph(State).add_node(name, ask).add_node("a", fine).add_node("b", fine)
    builder.add_edge(START, "a").add_edge(START, "b")
    if kind == "join":
        builder.add_edge(["a", "b"], name)
    elif kind == "send":
        builder.add_conditional_edges("a", lambda _: [Send(name, {"seen": []}), Send(name, {"seen": []})])
    else:
        builder.add_edge("a", name)
    return builder.compile(checkpointer=InMemorySaver())


@pytest.mark.parametrize("kind", ["edge", "join", "send"])
@pytest.mark.parametrize("has_path", [True, False], ids=["path", "no-path"])
def test_a_parked_task_gets_the_id_that_langgraph_computes(kind: str, has_path: bool) -> None:
    graph, config = parked(kind, "ask"), {"configurable": {"thread_id": "t"}}
    graph.invoke({"seen": []}, config)
    found = graph.checkpointer.get_tuple(config)
    step = found.metadata["step"]
    sends = found.checkpoint["channel_values"].get("__pregel_tasks", [])
    record = record_of(found, step)
    tasks = graph.get_state(config).tasks
    assert tasks
    changes = Schema(2, [rename_node(2, "ask", "question"), rename_node(2, "b", "c")]).since(1)
    moves = TaskMoves(record, changes, old="", new="", sends=sends)
    for task in tasks:
        number = f"{task.path[1]:010d}" if kind == "send" else task.path[1]
        path = f"~{task.path[0]}, {number}{', False' if kind == 'send' else ''}" if has_path else ""
        moves.add_writes([PendingWrite("", record.id, task.id, -3, "__interrupt__", path, "", b"")])
    assert set(moves.ids) == {task.id for task in tasks}
    for number, task in enumerate(tasks):
        places = {
            "edge": TaskPlace("question", ("branch:to:question",)),
            "join": TaskPlace("question", ("branch:to:question", "join:a+c:question")),
            "send": TaskPlace("question", (), number),
        }
        assert moves.ids[task.id] == places[kind].task_id(record, "")
        assert moves.namespaces[f"ask:{task.id}"] == f"question:{moves.ids[task.id]}"


def test_a_task_that_is_of_another_checkpoint_is_left_alone() -> None:
    graph, config = parked("edge", "ask"), {"configurable": {"thread_id": "t"}}
    graph.invoke({"seen": []}, config)
    found = graph.checkpointer.get_tuple(config)
    record = record_of(found, found.metadata["step"] + 1)
    changes = Schema(2, [rename_node(2, "ask", "question")]).since(1)
    moves = TaskMoves(record, changes, old="", new="", sends=[])
    moves.add_writes(
        PendingWrite("", record.id, t.id, -3, "x", "", "", b"") for t in graph.get_state(config).tasks
    )
    assert moves.ids == {}
