"""Waits that a program ends with the library, beside the runtime: nothing of them is left that would be taken
for damage."""

from __future__ import annotations

from typing import Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import Command, interrupt

from perdure.errors import NotWaiting
from perdure.model.runs.messages import DONE
from perdure.runtime import Agent, Question, Runtime, ask, sleep
from tests.runtime.graphs import Storage, advance, go, values, working
from tests.runtime.nodes.test_threads_that_wait import CONFIG, begin, stays
from tests.runtime.nodes.test_waiting import HOUR, Noted, chain


async def _edit(runtime: Runtime) -> None:
    await runtime.graph("agent").aupdate_state(CONFIG, {"notes": ["edited"]}, as_node="waits")


async def _say(runtime: Runtime) -> None:
    await runtime.graph("agent").ainvoke({"notes": ["from elsewhere"]}, CONFIG)


async def _remove(runtime: Runtime) -> None:
    runs = await runtime.runs("t")
    await runtime.database.checkpointer().adelete_for_runs([runs[0].id])


@pytest.mark.parametrize("change", [_edit, _say, _remove])
@pytest.mark.parametrize("kind", ["sleep", "ask"])
def test_a_wait_that_a_program_ended_leaves_a_healthy_thread(near: Storage, kind: str, change: Any) -> None:
    async def waits(state: Noted) -> dict[str, Any]:
        if not state.get("notes") and kind == "sleep":
            await sleep(HOUR)
        elif not state.get("notes"):
            ask("well?", within=HOUR, remind=HOUR / 2)
        return {"notes": ["went on"]}

    async def main() -> None:
        database, graph = near.database(), chain(waits)
        async with working(database, graph) as runtime:
            await begin(runtime)
            await change(runtime)
            assert database.fsck("t") == []
            assert not (await runtime.threads.get("t")).waits
            advance(runtime)
            await stays(runtime, 1)
            with pytest.raises(NotWaiting):
                await runtime.answer("t", "late")

    go(main())


def test_a_deadline_that_a_program_forestalled_leaves_the_other_question(near: Storage) -> None:
    async def first(_: Noted) -> dict[str, Any]:
        return {"notes": [interrupt("first?")]}

    async def second(_: Noted) -> dict[str, Any]:
        return {"notes": [interrupt("second?")]}

    builder: Any = StateGraph(Noted)
    builder.add_node(first).add_node(second)
    graph = builder.add_edge(START, "first").add_edge(START, "second").compile()
    rules = [Question(node="first", within=HOUR, default="late"), Question(node="second", remind=HOUR / 2)]

    async def main() -> None:
        database = near.database()
        async with working(database, Agent(graph, questions=rules)) as runtime:
            await begin(runtime)
            state = await runtime.graph("agent").aget_state(CONFIG)
            asked = next(task.interrupts[0].id for task in state.tasks if task.name == "first")
            await runtime.graph("agent").ainvoke(Command(resume={asked: "in time"}), CONFIG)
            advance(runtime)
            await stays(runtime, 1)
            assert (await runtime.wait(await runtime.answer("t", "seven"))).state == DONE
        assert sorted((await values(database, graph, "t"))["notes"]) == ["in time", "seven"]

    go(main())
