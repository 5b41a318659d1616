"""LangGraph's client in JavaScript, as it is, in Node.js, through a relay that can cut the line."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from tests.server.acceptance.saying import heard, said
from tests.server.acceptance.serving import near
from tests.server.gates import GATES
from tests.server.js.node import Client, Failed, eventually

Parts = list[dict[str, Any]]


def names(parts: Parts) -> list[str]:
    return [part["event"] for part in parts]


def steps(parts: Parts) -> list[int]:
    return [part["data"]["step"] for part in parts if part["event"] == "custom"]


def ids(parts: Parts) -> list[int]:
    """The client gives an event without an id that of the one before it."""
    return [int(part["id"]) for part in parts]


def until_noted(js: Client, thread_id: str) -> None:
    """Wait until the second node of the slow graph is at it."""
    eventually(lambda: "noted" in heard(js.call("threads.getState", thread_id)["values"]), "the first node")


def test_t20_a_thread_is_created_found_patched_and_deleted(js: Client) -> None:
    mark = str(uuid.uuid4())
    made = js.call("threads.create", {"metadata": {"mark": mark}, "graphId": "chat"})
    assert made["status"] == "idle"
    assert made["metadata"] == {"mark": mark, "graph_id": "chat"}
    thread_id = made["thread_id"]
    assert js.call("threads.get", thread_id) == made
    with pytest.raises(Failed) as refused:
        js.call("threads.create", {"threadId": thread_id})
    assert refused.value.status == 409
    again = js.call("threads.create", {"threadId": thread_id, "ifExists": "do_nothing"})
    assert again == made
    patched = js.call("threads.update", thread_id, {"metadata": {"mood": "calm"}})
    assert patched["metadata"] == {"mark": mark, "graph_id": "chat", "mood": "calm"}
    found = js.call("threads.search", {"metadata": {"mark": mark}})
    assert [thread["thread_id"] for thread in found] == [thread_id]
    assert js.call("threads.count", {"metadata": {"mark": mark}}) == 1
    js.call("threads.delete", thread_id)
    with pytest.raises(Failed) as refused:
        js.call("threads.get", thread_id)
    assert refused.value.status == 404
    assert thread_id in str(refused.value)


def test_t20_wait_answers_values_and_the_second_turn_appends(js: Client) -> None:
    thread_id = js.new()
    assert heard(js.call("runs.wait", thread_id, "chat", {"input": said("one")})) == ["one", "echo one"]
    values = js.call("runs.wait", thread_id, "chat", {"input": said("two")})
    assert heard(values) == ["one", "echo one", "two", "echo two"]
    assert js.call("threads.getState", thread_id)["values"] == values


TOLD: dict[str, tuple[str, Any, list[str]]] = {
    "values": ("chat", said("x"), ["values", "values"]),
    "updates": ("chat", said("x"), ["updates"]),
    "messages-tuple": ("chat", said("x"), ["messages"] * 3),
    "messages": ("chat", said("x"), ["messages/metadata", *["messages/partial"] * 3]),
    "custom": ("walk", {"steps": 2}, ["custom", "custom"]),
    "tasks": ("chat", said("x"), ["tasks", "tasks"]),
    "checkpoints": ("chat", said("x"), ["checkpoints"] * 3),
    "debug": ("chat", said("x"), ["debug"] * 5),
}


@near
@pytest.mark.parametrize("mode", TOLD)
def test_t20_a_mode_tells_its_events_after_metadata(js: Client, mode: str) -> None:
    graph, given, expected = TOLD[mode]
    thread_id = js.new()
    told = js.stream("runs.stream", (thread_id, graph), {"input": given, "streamMode": mode})
    assert names(told) == ["metadata", *expected]
    (made,) = js.call("runs.list", thread_id)
    assert told[0]["data"] == {"run_id": made["run_id"], "attempt": 1}
    assert made["status"] == "success"


@near
def test_t20_langchains_events(js: Client) -> None:
    told = js.stream("runs.stream", (js.new(), "chat"), {"input": said("x"), "streamMode": "events"})
    assert names(told) == ["metadata", *["events"] * (len(told) - 1)]
    assert [part["data"]["event"] for part in told[1:]].count("on_chat_model_stream") == 3


def test_t20_modes_together_are_one_request(js: Client) -> None:
    modes = ["messages-tuple", "values", "updates", "custom"]
    told = js.stream("runs.stream", (js.new(), "chat"), {"input": said("x"), "streamMode": modes})
    assert names(told) == [
        "metadata", "values", "messages", "messages", "messages", "updates", "values"
    ]  # fmt: skip
    assert "".join(part["data"][0]["content"] for part in told[2:5]) == "echo x"
    assert [(asked["method"], asked["status"]) for asked in js.requests] == [("POST", 200)]


@near
def test_t20_subgraphs_are_told_by_their_names(js: Client) -> None:
    options = {"input": said("x"), "streamMode": ["updates"], "streamSubgraphs": True}
    told = js.stream("runs.stream", (js.new(), "deep"), options)
    first, second = names(told)[1:]
    assert first.startswith("updates|inner:")
    assert second == "updates"


@near
def test_t20_a_failure_is_told_in_every_way(js: Client) -> None:
    thread_id = js.new()
    told = js.stream("runs.stream", (thread_id, "boom"), {"input": said("x")})
    assert names(told) == ["metadata", "values", "error"]
    assert told[2]["data"] == {"error": "ValueError", "message": "it broke"}
    with pytest.raises(Failed, match="ValueError: it broke"):
        js.call("runs.wait", thread_id, "boom", {"input": said("x")})
    thread = js.call("threads.get", thread_id)
    assert (thread["status"], thread["error"]["message"]) == ("error", "it broke")
    assert js.call("threads.getState", thread_id)["tasks"][0]["error"] == "ValueError('it broke')"


def test_t20_a_question_is_asked_and_answered(js: Client) -> None:
    thread_id = js.new()
    values = js.call("runs.wait", thread_id, "ask", {"input": said("hello")})
    assert values["__interrupt__"][0]["value"] == {"question": "really?"}
    assert js.call("threads.get", thread_id)["status"] == "interrupted"
    told = js.stream("runs.stream", (thread_id, "ask"), {"command": {"resume": "yes"}})
    assert heard(told[-1]["data"]) == ["hello", "you said yes"]
    assert js.call("threads.get", thread_id)["status"] == "idle"


def test_t20_a_state_edited_in_the_past_is_a_fork_that_a_run_goes_on(js: Client) -> None:
    thread_id = js.new()
    for text in ("one", "two"):
        js.call("runs.wait", thread_id, "chat", {"input": said(text)})
    history = js.call("threads.getHistory", thread_id, {"limit": 50})
    old = next(s for s in history if heard(s["values"]) == ["one", "echo one"] and not s["next"])
    edit = {"values": said("instead"), "asNode": "__start__", "checkpoint": old["checkpoint"]}
    forked = js.call("threads.updateState", thread_id, edit)
    at = forked["checkpoint"]
    assert js.call("threads.getState", thread_id, at)["next"] == ["talk"]
    assert js.call("threads.getState", thread_id, at["checkpoint_id"])["next"] == ["talk"]
    values = js.call("runs.wait", thread_id, "chat", {"input": None, "checkpoint": at})
    assert heard(values) == ["one", "echo one", "instead", "echo instead"]
    history = js.call("threads.getHistory", thread_id, {"limit": 50})
    said_in = [heard(state["values"]) for state in history]
    assert ["one", "echo one", "two", "echo two"] in said_in
    before = js.call("threads.getHistory", thread_id, {"limit": 50, "before": history[2]["checkpoint"]})
    assert before == history[3:]


@near
def test_t20_a_run_is_rejected_or_waits_its_turn(js: Client) -> None:
    GATES.clear()
    thread_id = js.new()
    going = js.call("runs.create", thread_id, "slow", {"input": said("gate")})
    with pytest.raises(Failed) as refused:
        js.call("runs.create", thread_id, "chat", {"input": said("no"), "multitaskStrategy": "reject"})
    assert refused.value.status == 409
    made = [js.call("runs.create", thread_id, "chat", {"input": said(text)}) for text in "ab"]
    GATES["slow"].set()
    values = js.call("runs.join", thread_id, made[-1]["run_id"])
    assert heard(values) == ["gate", "noted", "rested", "a", "echo a", "b", "echo b"]
    assert js.call("runs.get", thread_id, going["run_id"])["status"] == "success"


@near
def test_t20_a_run_takes_the_place_of_another_and_keeps_it_or_not(js: Client) -> None:
    for strategy, left in (("interrupt", ["30", "noted"]), ("rollback", [])):
        thread_id = js.new()
        old = js.call("runs.create", thread_id, "slow", {"input": said("30")})
        until_noted(js, thread_id)
        new = {"input": said("instead"), "multitaskStrategy": strategy}
        told = js.stream("runs.stream", (thread_id, "chat"), new)
        assert heard(told[-1]["data"]) == [*left, "instead", "echo instead"]
        if left:
            assert js.call("runs.get", thread_id, old["run_id"])["status"] == "interrupted"
            continue
        with pytest.raises(Failed) as refused:
            js.call("runs.get", thread_id, old["run_id"])
        assert refused.value.status == 404


@near
def test_t20_a_run_is_created_listed_cancelled_and_deleted(js: Client) -> None:
    thread_id = js.new()
    made = js.call("runs.create", thread_id, "slow", {"input": said("30"), "metadata": {"why": "test"}})
    assert (made["status"], made["metadata"]["why"]) == ("pending", "test")
    until_noted(js, thread_id)
    running = js.call("runs.list", thread_id, {"status": "running", "select": ["run_id"]})
    assert running == [{"run_id": made["run_id"]}]
    js.call("runs.cancel", thread_id, made["run_id"], True)
    assert js.call("runs.get", thread_id, made["run_id"])["status"] == "interrupted"
    js.call("runs.delete", thread_id, made["run_id"])
    assert js.call("runs.list", thread_id) == []
    waiting = js.call("runs.create", thread_id, "slow", {"input": said("30")})
    js.call("runs.cancelMany", {"threadId": thread_id, "runIds": [waiting["run_id"]], "action": "rollback"})


def test_t20_a_line_that_is_cut_loses_and_repeats_nothing(js: Client) -> None:
    thread_id = js.new()
    options = {
        "input": {"steps": 25, "pause": 0.03},
        "config": {"recursion_limit": 60},
        "streamMode": ["custom", "values"],
        "streamResumable": True,
    }
    told = js.stream("runs.stream", (thread_id, "walk"), options, cut=(9, 20, 21))
    assert len(js.requests) >= 3
    assert steps(told) == list(range(25))
    assert "end" not in names(told)
    assert names(told).count("metadata") == 1
    assert ids(told) == sorted(set(ids(told)))
    assert js.statuses(thread_id) == ["success"]


@near
def test_t20_a_client_that_comes_back_names_the_last_event_that_it_saw(js: Client) -> None:
    thread_id = js.new()
    options = {
        "input": {"steps": 12, "pause": 0.05},
        "streamMode": "custom",
        "streamResumable": True,
        "onRunCreated": True,
    }
    told = js.stream("runs.stream", (thread_id, "walk"), options, cut=(4,))
    first, second = js.requests
    assert (first["method"], first["path"]) == ("POST", f"/threads/{thread_id}/runs/stream")
    run_id = js.created[0]["run_id"]
    assert second["method"] == "GET"
    assert second["path"].startswith(f"/threads/{thread_id}/runs/{run_id}/stream")
    assert second["last"] in [part["id"] for part in told[3:]]
    assert steps(told) == list(range(12))


@near
def test_t20_a_run_is_joined_from_the_beginning_the_middle_and_after_its_end(js: Client) -> None:
    thread_id = js.new()
    options = {
        "input": {"steps": 8, "pause": 0.05},
        "streamMode": ["custom", "values"],
        "streamResumable": True,
    }
    run_id = js.call("runs.create", thread_id, "walk", options)["run_id"]
    target = (thread_id, run_id)
    whole = js.stream("runs.joinStream", target, {"lastEventId": "-1"})
    assert names(whole)[0] == "metadata"
    assert "end" not in names(whole)
    assert steps(whole) == list(range(8))
    assert js.stream("runs.joinStream", target, {"lastEventId": "-1"}) == whole
    rest = js.stream("runs.joinStream", target, {"lastEventId": whole[6]["id"]})
    assert [(part["event"], part["data"]) for part in rest] == [
        (part["event"], part["data"]) for part in whole[7:]
    ]
    some = js.stream("runs.joinStream", target, {"lastEventId": "-1", "streamMode": "custom"})
    assert set(names(some)) == {"metadata", "custom"}
    some = js.stream("runs.joinStream", target, {"lastEventId": "-1", "streamMode": ["custom", "updates"]})
    assert set(names(some)) == {"metadata", "custom"}
    assert set(names(js.stream("runs.joinStream", target))) == set()
    after = js.stream("runs.joinStream", target, {"lastEventId": whole[-1]["id"]})
    assert set(names(after)) == set()


@pytest.mark.parametrize(("then", "status"), [("cancel", "interrupted"), ("continue", "success")])
@near
def test_t20_a_client_that_leaves_ends_the_run_or_not(js: Client, then: str, status: str) -> None:
    thread_id = js.new()
    GATES.clear()
    options = {"input": {"steps": 12, "gated": 5}, "streamMode": "custom", "onDisconnect": then}
    js.stream("runs.stream", (thread_id, "walk"), options, leave=3)
    if then == "continue":
        GATES["walk"].set()
    eventually(lambda: js.statuses(thread_id) == [status], f"the run is {status}")


def test_t20_every_way_to_begin_a_run_tells_its_ids(js: Client) -> None:
    thread_id = js.new()
    options = {"input": said("x"), "onRunCreated": True}
    begun = []
    js.call("runs.create", thread_id, "chat", options)
    begun += js.created
    js.call("runs.wait", thread_id, "chat", options)
    begun += js.created
    js.stream("runs.stream", (thread_id, "chat"), options)
    begun += js.created
    assert [told["thread_id"] for told in begun] == [thread_id] * 3
    runs = js.call("runs.list", thread_id)
    assert [told["run_id"] for told in begun] == [run["run_id"] for run in reversed(runs)]


@near
def test_t20_runs_without_a_thread(js: Client) -> None:
    options = {"input": said("x"), "onRunCreated": True}
    assert heard(js.call("runs.wait", None, "chat", options)) == ["x", "echo x"]
    assert js.created[0]["run_id"]
    told = js.stream("runs.stream", (None, "chat"), {**options, "streamMode": "updates"})
    assert names(told) == ["metadata", "updates"]
    resumable = {
        "input": {"steps": 10, "pause": 0.05},
        "streamMode": "custom",
        "streamResumable": True,
    }
    told = js.stream("runs.stream", (None, "walk"), resumable, cut=(3,))
    assert steps(told) == list(range(10))
    assert "end" not in names(told)
    made = js.call("runs.create", None, "chat", {**options, "streamResumable": True})
    (ids_of,) = js.created
    assert ids_of["run_id"] == made["run_id"]
    told = js.stream("runs.joinStream", (made["thread_id"], made["run_id"]), {"lastEventId": "-1"})
    assert names(told) == ["metadata", "values", "values"]


@near
def test_t20_the_store_and_the_assistants(js: Client) -> None:
    mark = str(uuid.uuid4())
    js.call("store.putItem", [mark, "notes"], "one", {"text": "hello"})
    assert js.call("store.getItem", [mark, "notes"], "one")["value"] == {"text": "hello"}
    assert js.call("store.getItem", [mark, "notes"], "two") is None
    found = js.call("store.searchItems", [mark], {"filter": {"text": "hello"}})["items"]
    assert [item["key"] for item in found] == ["one"]
    spaces = js.call("store.listNamespaces", {"prefix": [mark]})
    assert spaces["namespaces"] == [[mark, "notes"]]
    js.call("store.deleteItem", [mark, "notes"], "one")
    assert js.call("store.getItem", [mark, "notes"], "one") is None
    (assistant,) = js.call("assistants.search", {"graphId": "chat"})
    assert js.call("assistants.get", assistant["assistant_id"]) == assistant
    drawn = js.call("assistants.getGraph", "chat")
    assert {node["id"] for node in drawn["nodes"]} == {"__start__", "talk", "__end__"}
    assert js.call("assistants.getSchemas", "chat")["graph_id"] == "chat"
