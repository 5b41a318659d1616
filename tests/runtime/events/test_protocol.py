"""What is told of a graph's stream to clients of the streaming protocol."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langgraph.types import Interrupt

from perdure.runtime.events.protocol import ProtocolPublisher, room_of

Part = tuple[str, Any, tuple[str, ...]]


def told(*parts: Part) -> list[tuple[str, Any]]:
    """The names and the data of what is told of these parts."""
    heard: list[tuple[str, Any]] = []

    def tell(name: str, data: Any, room: int = 1) -> None:
        heard.append((name, data))

    speaker = ProtocolPublisher(tell)
    for mode, payload, namespace in parts:
        speaker.publish_part(mode, payload, namespace)
    speaker.publish_end()
    return heard


def block(event: str, run: str, **more: Any) -> Part:
    return "messages", ({"event": event, **more}, {"run_id": run, "langgraph_node": "talk"}), ()


def test_messages_that_are_spoken_at_once_are_told_apart() -> None:
    heard = told(
        block("message-start", "r1", role="ai", id="m1"),
        block("message-start", "r2", role="ai", id="m2"),
        block("content-block-delta", "r1", index=0),
        block("content-block-delta", "r2", index=0),
        block("message-finish", "r1"),
        block("message-finish", "r2"),
    )
    assert {name for name, _ in heard} == {"protocol/messages"}
    assert [data["data"]["message_id"] for _, data in heard] == ["m1", "m2"] * 3
    assert {data["node"] for _, data in heard} == {"talk"}
    assert heard[0][1]["data"]["metadata"] == {"run_id": "r1", "langgraph_node": "talk"}


def test_a_model_s_message_that_was_not_streamed_is_told_whole_and_a_node_s_is_not() -> None:
    metadata = {"langgraph_node": "n", "langgraph_step": 2}
    by_model = {**metadata, "ls_model_type": "chat"}
    heard = told(
        ("messages", (AIMessage("whole", id="a"), by_model), ("sub:1",)),
        ("messages", (AIMessage("from a node", id="n"), metadata), ()),
        ("messages", (HumanMessage("from a node", id="h"), metadata), ()),
        ("messages", (ToolMessage("result", tool_call_id="c"), metadata), ()),
        ("messages", (RemoveMessage(id="a"), metadata), ()),
    )
    assert [name for name, _ in heard] == ["protocol/messages|sub:1"] * 5
    starts = [data["data"] for _, data in heard if data["data"]["event"] == "message-start"]
    assert [(one["id"], one["role"]) for one in starts] == [("a", "ai")]
    assert starts[0]["metadata"]["langgraph_step"] == 2


def test_a_checkpoint_comes_before_its_values() -> None:
    checkpoint = {
        "config": {"configurable": {"checkpoint_id": "c"}},
        "metadata": {"step": 1, "source": "loop"},
    }
    heard = told(
        ("values", 1, ()), ("checkpoints", checkpoint, ()), ("values", 2, ()), ("custom", "x", ("a:1",))
    )
    assert heard == [
        ("protocol/checkpoints", {"data": {"id": "c", "step": 1, "source": "loop"}}),
        ("values", 1),
        ("values", 2),
        ("custom|a:1", "x"),
    ]


def test_a_question_is_told_once_by_whom_it_is_asked_and_at_the_end() -> None:
    one, two = Interrupt("one?", id="1"), Interrupt("two?", id="2")
    heard = told(
        ("updates", {"__interrupt__": (one,)}, ("inner:1",)),
        ("updates", {"__interrupt__": (one, two)}, ()),
        ("values", {"x": 1}, ()),
        ("updates", {"__interrupt__": ()}, ()),
    )
    assert heard == [
        ("values", {"x": 1}),
        ("updates|inner:1", {"__interrupt__": [one]}),
        ("updates", {"__interrupt__": [two]}),
    ]


def test_subgraphs_begin_and_end_with_the_tasks_that_they_are() -> None:
    call = {"tool_call": {"id": "call-1"}}
    agent = {"metadata": {"lc_agent_name": "helper"}}
    heard = told(
        ("tasks", {"id": "t1", "name": "tools", "input": call, "triggers": []}, ()),
        ("tasks", {"id": "x", "name": "model", "input": {}, "triggers": [], **agent}, ("tools:t1",)),
        ("tasks", {"id": "x", "name": "model", "result": {}, "error": None, "interrupts": []}, ("tools:t1",)),
        ("tasks", {"id": "y", "name": "deep", "input": {}, "triggers": []}, ("tools:t1", "deep:x2")),
        ("tasks", {"id": "x2", "name": "deep", "result": {}, "error": "no", "interrupts": []}, ("tools:t1",)),
        ("tasks", {"id": "t1", "name": "tools", "result": {}, "error": None, "interrupts": []}, ()),
    )
    ends = [(name, data["data"]) for name, data in heard if "lifecycle" in name]
    assert ends == [
        (
            "protocol/lifecycle|tools:t1",
            {
                "event": "started",
                "graph_name": "helper",
                "trigger_call_id": "t1",
                "cause": {"type": "toolCall", "tool_call_id": "call-1"},
            },
        ),
        (
            "protocol/lifecycle|tools:t1|deep:x2",
            {"event": "started", "graph_name": "deep", "trigger_call_id": "x2"},
        ),
        ("protocol/lifecycle|tools:t1|deep:x2", {"event": "failed", "error": "no"}),
        ("protocol/lifecycle|tools:t1", {"event": "completed"}),
    ]
    assert [name for name, _ in heard].count("tasks|tools:t1") == 3


def test_the_end_of_a_subgraph_is_told_once_the_state_holds_what_it_returned() -> None:
    """Clients read the state when they hear of an end, whichever graph's it is."""
    begun: dict[str, Any] = {"input": {}, "triggers": []}
    over: dict[str, Any] = {"result": {}, "error": None, "interrupts": []}
    heard = told(
        ("tasks", {"id": "t1", "name": "sub", **begun}, ()),
        ("tasks", {"id": "x", "name": "inner", **begun}, ("sub:t1",)),
        ("tasks", {"id": "x", "name": "inner", **over}, ("sub:t1",)),
        ("tasks", {"id": "t1", "name": "sub", **over}, ()),
        ("values", {"x": 1}, ()),
        ("tasks", {"id": "t2", "name": "next", **begun}, ()),
        ("values", {"x": 2}, ()),
    )
    names = [name for name, _ in heard]
    end = names.index("protocol/lifecycle|sub:t1", names.index("protocol/lifecycle|sub:t1") + 1)
    assert names[end - 1 : end + 2] == ["values", "protocol/lifecycle|sub:t1", "tasks"]


def test_the_end_of_a_subgraph_is_not_held_back_while_another_runs_beside_it() -> None:
    begun: dict[str, Any] = {"input": {}, "triggers": []}
    over: dict[str, Any] = {"result": {}, "error": None, "interrupts": []}
    heard = told(
        ("tasks", {"id": "t1", "name": "sub", **begun}, ()),
        ("tasks", {"id": "t2", "name": "slow", **begun}, ()),
        ("tasks", {"id": "x", "name": "inner", **begun}, ("sub:t1",)),
        ("tasks", {"id": "x", "name": "inner", **over}, ("sub:t1",)),
        ("tasks", {"id": "t1", "name": "sub", **over}, ()),
        ("tasks", {"id": "t2", "name": "slow", **over}, ()),
        ("values", {"x": 1}, ()),
    )
    assert [name for name, _ in heard][-3:] == ["protocol/lifecycle|sub:t1", "tasks", "values"]


def test_tools_are_told_as_they_are() -> None:
    started = {"event": "tool-started", "tool_call_id": "c", "tool_name": "t"}
    assert told(("tools", started, ("a:1",))) == [("protocol/tools|a:1", {"data": started})]


def test_updates_take_a_number_for_each_event_that_they_become() -> None:
    assert room_of("updates", {"a": 1, "b": 2}) == 2
    assert room_of("updates", {"__interrupt__": [1, 2, 3]}) == 3
    assert room_of("updates", {"__interrupt__": []}) == room_of("updates", {}) == room_of("values", {}) == 1
