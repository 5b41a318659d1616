"""Tasks that were answered, and whose thread was then handed over to another database.

Covers perdure.server.a2a.tasks.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from a2a.types import a2a_pb2 as types
from a2a.utils.errors import A2AError, TaskNotFoundError
from google.protobuf.json_format import MessageToDict
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict

import perdure
from perdure import admin
from perdure.model.records import Partition
from perdure.runtime import Options, Run, Runtime, Standing, ask
from perdure.runtime.tenant import TenantRuntime
from perdure.server.a2a import tasks
from perdure.server.responses import run_id_of
from tests.server.hosting import run, serving
from tests.server.talking import talking, text_of

HOUR = 3600


async def _first(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"first {ask('first?')}")]}


async def _second(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"second {ask('second?', within=HOUR, default='late')}")]}


async def _third(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"third {ask('third?')}")]}


def _asks() -> Any:
    steps: list[Any] = [("first", _first), ("second", _second), ("third", _third)]
    return StateGraph(MessagesState).add_sequence(steps).add_edge(START, "first").compile()


async def _listed(talk: Any, context_id: str) -> list[str]:
    found = await talk.client.list_tasks(types.ListTasksRequest(context_id=context_id))
    return [task["id"] for task in MessageToDict(found)["tasks"]]


@run
async def test_a_task_is_found_after_its_thread_was_handed_over(tmp_path: Path) -> None:
    source, target = (f"sqlite:///{tmp_path / name}.db" for name in ("source", "target"))
    async with serving(source, of={"asks": _asks()}) as served, talking(served.url, "asks") as talk:
        begun = await talk.task("hello")
        asked = await talk.task("one", task=begun["id"])
        assert asked["status"]["message"]["parts"] == [{"text": "second?"}]
        other = await talk.task("another")
    thread = Partition("", begun["contextId"])
    with perdure.connect_sync(source) as here, perdure.connect_sync(target, migrate=True) as there:
        admin.move(here, thread, there, hand_over=True)
    async with serving(target, of={"asks": _asks()}) as served, talking(served.url, "asks") as talk:
        found = await talk.get(begun["id"])
        assert (found["id"], found["status"]) == (asked["id"], asked["status"])
        # What was said before is in the thread; of the messages the answer alone came along.
        assert [part["text"] for one in found["history"] for part in one["parts"]] == ["one"]
        assert await _listed(talk, begun["contextId"]) == [begun["id"]]
        last = await talk.task("two", task=begun["id"])
        assert (last["id"], last["status"]["state"]) == (begun["id"], "TASK_STATE_INPUT_REQUIRED")
        done = await talk.task("three", task=begun["id"])
        assert (done["id"], text_of(done)) == (begun["id"], "third three")
        assert await talk.get(begun["id"]) == done
        assert await _listed(talk, begun["contextId"]) == [begun["id"]]
        for gone in (other["id"], f"{other['id'].partition(':')[0]}:{begun['contextId']}"):
            with pytest.raises(TaskNotFoundError):
                await talk.get(gone)


def _nested(levels: int, value: Any) -> Any:
    for level in range(levels):
        value = {"a": value} if level % 2 else [value]
    return value


ODD: dict[str, Any] = {
    "half a character": "cut \ud83d",
    "half a character in data": {"a": ["cut \ud83d"]},
    "100 levels": _nested(100, 1),
    "100 levels of objects": {"a": _nested(99, "deep")},
    "240 levels": _nested(240, 1),
    "the deepest data": _nested(30, 1),
    "numbers": [float("nan"), 2**63],
}


class _Held(TypedDict, total=False):
    word: str
    held: Any


async def _hold(state: _Held) -> dict[str, Any]:
    how, _, name = state["word"].partition(":")
    if how == "ask":
        return {"held": interrupt(ODD[name])}
    if how == "boom":
        raise ValueError(ODD[name])
    return {"held": ODD.get(name)}


@pytest.mark.parametrize("version", ["1.0", "0.3"])
@run
async def test_no_value_of_a_graph_hides_its_task_or_the_others_of_its_context(version: str) -> None:
    graph = StateGraph(_Held).add_node("hold", _hold).add_edge(START, "hold").compile()
    state_of = {
        "value": "TASK_STATE_COMPLETED",
        "ask": "TASK_STATE_INPUT_REQUIRED",
        "boom": "TASK_STATE_FAILED",
    }
    async with (
        serving("memory://", of={"odd": graph}, attempts=1) as served,
        talking(served.url, "odd", version=version) as talk,
    ):
        for how, state in state_of.items():
            for name in ODD:
                first = await talk.task(data={"word": "value:none"})
                place = {"context": first["contextId"]}
                task = await talk.task(data={"word": f"{how}:{name}"}, **place)
                assert task["status"]["state"] == state, (how, name)
                assert (await talk.get(task["id"]))["status"] == task["status"]
                if version == "1.0":
                    assert await _listed(talk, first["contextId"]) == [task["id"], first["id"]]
                await talk.task(data={"word": "value:none"}, **place)
        cut = await talk.task(data={"word": "ask:half a character"})
        assert cut["status"]["message"]["parts"][0]["text"] == "cut \ufffd"
        deep = await talk.task(data={"word": "ask:100 levels"})
        assert json.loads(deep["status"]["message"]["parts"][0]["text"]) == ODD["100 levels"]


class _Counting:
    """A runtime of a tenant that counts the messages which are read."""

    def __init__(self, inner: TenantRuntime) -> None:
        self._inner = inner
        self.count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def messages(self, thread_id: str, **terms: Any) -> Sequence[Standing]:
        found = await self._inner.messages(thread_id, **terms)
        self.count += len(found)
        return found


@run
async def test_a_task_is_read_without_what_came_long_after_it(tmp_path: Path) -> None:
    protocol = {"name": "a2a", "message": "m"}
    async with (
        perdure.connect(f"sqlite:///{tmp_path / 'threads'}.db", migrate=True) as db,
        Runtime(db, {"asks": _asks()}) as runtime,
    ):

        async def said(text: str, **about: Any) -> Run:
            options = Options(about={"protocol": about}) if about else None
            given = {"messages": [{"role": "user", "content": text}]}
            return await runtime.wait(await runtime.submit("ada", given, options=options), 60)

        begun = await said("hello", **protocol)
        answer = Options(about={"protocol": {**protocol, "task": begun.id}})
        asked = await runtime.wait(await runtime.answer("ada", "one", options=answer), 60)
        for _ in range(150):
            await said("more")
        counting: Any = _Counting(runtime)
        found = await tasks.find(counting, "ada", begun.id)
        assert found is not None
        assert ([run_id_of(one) for one in found.standings], found.is_superseded) == (
            [begun.id, asked.id],
            True,
        )
        assert counting.count <= 101


@run
async def test_an_answer_that_comes_again_is_the_same_task(near: str) -> None:
    builder: Any = StateGraph(MessagesState)
    builder.add_node("ask", lambda _: {"messages": [("ai", f"a {interrupt('which cup?')} cup")]})
    graph = builder.add_edge(START, "ask").compile()
    async with serving(near, of={"ask": graph}) as served, talking(served.url, "ask") as talk:
        asked = await talk.task("tea")
        sent = {"task": asked["id"], "message_id": str(uuid.uuid4())}
        copies = await asyncio.gather(*(talk.task("blue", **sent) for _ in range(3)))
        copies.append(await talk.task("blue", **sent))
        assert {copy["id"] for copy in copies} == {asked["id"]}
        assert text_of(copies[-1]) == "a blue cup"
        with pytest.raises(A2AError, match="used for another"):
            await talk.task("red", **sent)
