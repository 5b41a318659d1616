"""Records of calls: stored in the commit of their task, out of LangGraph's sight, and removed with it."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

import perdure
from perdure.langgraph.call_recording import record_calls
from perdure.langgraph.call_records import CallRecord, digest, digest_prompt, slot_of
from perdure.model.write_records import CALLS
from tests.replay.agents import build, parts

CONFIG: Any = {"configurable": {"thread_id": "one"}}


def test_calls_are_stored_with_the_writes_of_their_task_and_hidden_from_the_graph() -> None:
    with perdure.connect_sync("memory://") as db:
        graph = record_calls(build(parts()).compile(checkpointer=db.checkpointer()))
        graph.invoke({"messages": [("user", "look up tea and milk")]}, CONFIG)
        shown = [w[1] for found in db.checkpointer().list(CONFIG) for w in found.pending_writes or ()]
        assert not any(channel.startswith(CALLS) for channel in shown)
        assert [name for _, name, _ in db.show("one").pending if name.startswith(CALLS)] == []
        calls = {
            value[0]["name"]: (channel, len(value))
            for found in db.export("one")["checkpoints"]
            for channel, value in ((w["channel"], w["value"]) for w in found["pending_writes"])
            if channel.startswith(CALLS)
        }
        assert calls["look_up"] in ((f"{CALLS}0", 2), (f"{CALLS}0", 1))
        assert db.fsck("one") == []
        db.checkpointer().prune(["one"])
        left = [w["channel"] for found in db.export("one")["checkpoints"] for w in found["pending_writes"]]
        assert set(left) <= {"__interrupt__", f"{CALLS}0", "branch:to:ask"}


def test_an_interrupted_task_keeps_the_calls_of_each_attempt() -> None:
    with perdure.connect_sync("memory://") as db:
        graph = record_calls(build(parts()).compile(checkpointer=db.checkpointer()))
        graph.invoke({"messages": [("user", "hello")]}, CONFIG)
        graph.invoke(Command(resume="yes"), CONFIG)
        kept = {
            w["channel"]: w["value"][0]["answer"]["value"]["content"]
            for found in db.export("one")["checkpoints"]
            for w in found["pending_writes"]
            if w["channel"].startswith(CALLS) and "draft" in str(w["value"])
        }
        assert kept == {
            f"{CALLS}0": "answer 4 to draft a question",
            f"{CALLS}1": "answer 5 to draft a question",
        }


def test_digests_see_what_is_sent_and_not_how_it_is_named() -> None:
    sent = [SystemMessage("Be kind."), HumanMessage("hello", id="1")]
    same = digest_prompt([SystemMessage("Be kind.", id="3"), HumanMessage("hello", id="4")], {"model": "a"})
    assert digest_prompt(sent, {"model": "a"}) == same
    for part, other in {
        "system": digest_prompt([SystemMessage("Be rude."), sent[1]], {"model": "a"}),
        "messages": digest_prompt([sent[0], HumanMessage("bye")], {"model": "a"}),
        "tools": digest_prompt(sent, {"model": "a", "tools": ["x"]}),
        "settings": digest_prompt(sent, {"model": "b"}),
    }.items():
        assert {name for name in same if same[name] != other[name]} == {part}
    assert digest({"a": object()}) == digest({"a": object()})


def test_a_value_that_json_cannot_hold_has_a_digest_that_sees_its_parts() -> None:
    inside: list[Any] = []
    inside.append(inside)
    odd: Any = {1: "a", "b": [object()], ("c", 2): None, "d": inside}
    assert digest(odd) == digest({"b": [object()], ("c", 2): None, "d": inside, 1: "a"})
    for other in ({**odd, 1: "z"}, {**odd, ("c", 2): 1}, {**odd, "b": [1]}, {**odd, "d": []}):
        assert digest(other) != digest(odd)
    assert digest({1: "a", "1": "b", None: 0}) != digest({1: "b", "1": "a", None: 0})


def test_a_call_comes_back_as_it_was_stored() -> None:
    for call in (
        CallRecord("model", "m", {"system": "1"}, AIMessage("hello")),
        CallRecord("tool", "t", {"input": "1"}, Command(update={"n": 1}, goto="next")),
        CallRecord("tool", "t", {"input": "1"}, error=("builtins:ValueError", "no")),
        CallRecord("tool", "t", {"input": "1"}, object()).without_answer(),
        CallRecord("tool", "t", {"input": "1"}, questions=["Right?"]),
    ):
        again = CallRecord.read(call.dump())
        assert (again.kind, again.name, again.answer, again.error, again.missing, again.questions) == (
            call.kind, call.name, call.answer, call.error, call.missing, call.questions,
        )  # fmt: skip


def test_slots_of_records_collide_with_no_other() -> None:
    slots = {slot_of(f"{CALLS}{n}", 0) for n in range(8)}
    special = {slot_of(name, 0) for name in ("__error__", "__interrupt__", "__resume__", "__scheduled__")}
    assert len(slots) == 8
    assert not slots & special
    assert max(slots) < 0
    assert min(slots) >= -15
    assert slot_of("messages", 3) == 3


def test_a_graph_with_another_checkpointer_is_refused() -> None:
    with pytest.raises(TypeError, match="checkpointer of Perdure"):
        record_calls(build(parts()).compile(checkpointer=InMemorySaver()))
