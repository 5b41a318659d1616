"""``client.threads.stream()`` of LangGraph's client in JavaScript: the event streaming protocol."""

from __future__ import annotations

from tests.server.acceptance.saying import heard, said
from tests.server.acceptance.serving import near
from tests.server.js.node import Client


def test_t20_turns_are_told_token_by_token(js: Client) -> None:
    came = js.talk("turns", graph="chat", inputs=[said("one"), said("two")])
    first, second = came["told"]
    assert first["tokens"] == [["echo", " ", "one"]]
    assert first["spoken"] == [{"text": "echo one", "node": "talk"}]
    assert first["values"] == [["one"], ["one", "echo one"]]
    assert first["output"] == ["one", "echo one"]
    assert second["tokens"] == [["echo", " ", "two"]]
    assert second["output"] == ["one", "echo one", "two", "echo two"]
    runs = js.call("runs.list", came["threadId"])
    assert [run["run_id"] for run in runs] == [second["runId"], first["runId"]]
    assert {run["status"] for run in runs} == {"success"}


@near
def test_t20_events_of_a_run_come_in_order_each_once(js: Client) -> None:
    channels = ["values", "updates", "messages", "tasks", "checkpoints"]
    seen = js.talk("events", graph="chat", input=said("x"), channels=channels)["seen"]
    assert seen[0]["params"]["data"] == {"event": "running", "graph_name": "chat"}
    assert seen[-1]["params"]["data"]["event"] == "completed"
    assert {event["method"] for event in seen} == {*channels, "lifecycle"}
    numbers = [event["seq"] for event in seen]
    assert numbers == sorted(set(numbers))
    assert len({event["event_id"] for event in seen}) == len(seen)
    spoken = [event["params"]["data"] for event in seen if event["method"] == "messages"]
    assert [said_["event"] for said_ in spoken] == [
        "message-start",
        "content-block-start",
        *["content-block-delta"] * 3,
        "content-block-finish",
        "message-finish",
    ]


@near
def test_t20_a_failure_ends_the_run_with_its_error(js: Client) -> None:
    came = js.talk("events", graph="boom", input=said("x"), channels=["values"])
    last = came["seen"][-1]["params"]["data"]
    assert last["event"] == "failed"
    assert "it broke" in last["error"]
    assert js.call("threads.get", came["threadId"])["status"] == "error"


def test_t20_a_question_is_answered_by_the_page_that_heard_it_or_by_another(js: Client) -> None:
    for elsewhere in (False, True):
        came = js.talk("question", graph="ask", input=said("x"), response="yes", elsewhere=elsewhere)
        (asked,) = came["asked"]
        assert asked["payload"] == {"question": "really?"}
        assert asked["namespace"] == []
        assert came["before"] == ["x"]
        assert came["after"] == ["x", "you said yes"]
        assert came["again"] == "no_such_interrupt"


@near
def test_t20_a_question_of_a_subgraph_is_answered_there(js: Client) -> None:
    came = js.talk("question", graph="nested", input=said("x"), response="yes", elsewhere=False)
    (asked,) = came["asked"]
    assert asked["payload"] == "deep?"
    assert asked["namespace"][0].startswith("inner:")
    assert came["after"] == ["x", "echo x", "within: yes", "outside"]


def test_t20_events_go_on_where_a_cut_line_left_them(js: Client) -> None:
    came = js.talk("walkedOverCuts", steps=40, pause=0.05, cuts=[3, 8])
    assert came["seen"] == list(range(40))
    assert came["trail"] == list(range(40))
    assert len(set(came["ids"])) == len(came["ids"])
    assert came["reconnects"] >= 2


@near
def test_t20_a_page_that_comes_late_is_told_the_run_from_its_beginning(js: Client) -> None:
    came = js.talk("joined", graph="slow", input=said("0.8"), seconds=0.3)
    assert came["outputs"] == [["0.8", "noted", "rested"]] * 2
    assert came["spoken"] == []  # no model spoke
    assert len(js.call("runs.list", came["threadId"])) == 1


def test_t20_a_thread_is_looked_at_and_forked(js: Client) -> None:
    came = js.talk("looked", graph="chat", inputs=[said("one"), said("two")])
    assert came["tree"] == {"namespace": [], "status": "completed", "graph_name": "chat", "children": []}
    assert came["values"] == ["one", "echo one", "two", "echo two"]
    assert came["checkpoints"] == came["history"]
    assert came["output"] == ["one", "echo one", "instead", "echo instead"]
    assert came["unknown"] == "unknown_command"
    newest = js.call("runs.list", came["threadId"])[0]
    assert newest["run_id"] == came["runId"]


@near
def test_t20_a_subgraph_is_found(js: Client) -> None:
    (found,) = js.talk("below", graph="deep", input=said("x"))
    assert found["name"] == "inner"
    assert found["namespace"][0].startswith("inner:")


@near
def test_t20_what_both_protocols_did_is_one_thread(js: Client) -> None:
    thread_id = js.new()
    js.call("runs.wait", thread_id, "chat", {"input": said("one")})
    came = js.talk("turns", graph="chat", inputs=[said("two")], threadId=thread_id)
    assert came["told"][0]["output"] == ["one", "echo one", "two", "echo two"]
    values = js.call("runs.wait", thread_id, "chat", {"input": said("three")})
    assert heard(values)[-1] == "echo three"
    assert len(values["messages"]) == 6
