"""Tasks that were answered, and whose thread was then handed over to another database.

Covers perdure.server.a2a.tasks.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from a2a.types import a2a_pb2 as types
from a2a.utils.errors import TaskNotFoundError
from google.protobuf.json_format import MessageToDict
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure import admin
from perdure.model.records import Partition
from perdure.runtime import Options, Run, Runtime, Standing, ask
from perdure.runtime.tenant import TenantRuntime
from perdure.server.a2a import tasks
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
        assert ([tasks.run_id_of(one) for one in found.standings], found.is_superseded) == (
            [begun.id, asked.id],
            True,
        )
        assert counting.count <= 101
