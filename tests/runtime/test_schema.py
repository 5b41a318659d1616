"""Agents with a schema: what waits across a deploy is answered, whatever the client knows it by."""

from __future__ import annotations

import asyncio
import operator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import pytest
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict

from perdure import connect_sync
from perdure.runtime import Agent
from perdure.runtime.operations.schema_plan import plan
from perdure.schema import Schema, rename_channel, rename_node
from perdure.schema.steps import Step
from tests.runtime.graphs import Storage, go, working


class Before(TypedDict, total=False):
    answer: str


class After(TypedDict, total=False):
    reply: str


def before() -> Any:
    builder = StateGraph(Before).add_node("ask", lambda _: {"answer": interrupt("why?")})
    return builder.add_edge(START, "ask").compile()


def after() -> Agent:
    builder = StateGraph(After).add_node("question", lambda _: {"reply": interrupt("why?")})
    steps: list[Step] = [rename_node(2, "ask", "question"), rename_channel(2, "answer", "reply")]
    return Agent(builder.add_edge(START, "question").compile(), schema=Schema(2, steps))


@pytest.mark.parametrize("by_id", [False, True])
def test_a_question_from_before_a_deploy_is_answered(storage: Storage, by_id: bool) -> None:
    async def main() -> None:
        async with working(storage.database(), before()) as runtime:
            run = await runtime.wait(await runtime.submit("ada", {"answer": ""}), 30)
            assert run.state == "waiting"
        async with working(storage.database(), after()) as runtime:
            known = run.note["interrupts"][0]["id"] if by_id else None
            ended = await runtime.wait(await runtime.answer("ada", "so", interrupt_id=known), 30)
            assert ended.state == "done"
            state = await runtime.graph("agent").aget_state({"configurable": {"thread_id": "ada"}})
            assert (state.values, state.next) == ({"reply": "so"}, ())

    go(main())


def test_a_worker_of_the_older_version_leaves_a_migrated_thread_to_the_newer_one(storage: Storage) -> None:
    async def main() -> None:
        async with working(storage.database(), after()) as newer:
            run = await newer.wait(await newer.submit("ada", {"reply": ""}), 30)
            assert run.state == "waiting"
        old = Observed()
        async with working(storage.database(), before(), observers=[old]) as older:
            ticket = await older.answer("ada", "so")
            await asyncio.wait_for(old.refused_twice.wait(), 30)
            assert (await older.runs("ada"))[0].state == "open"
        async with working(storage.database(), after()) as newer:
            ended = await newer.wait(ticket, 30)
            assert (ended.state, ended.attempts) == ("done", 1)

    go(main())


def test_a_plan_names_a_memory_that_a_step_takes_from_a_node_of_the_same_name(tmp_path: Path) -> None:
    def nested(outer: str, inner: str, *, is_kept: bool = True) -> Any:
        class Held(TypedDict, total=False):
            answer: str
            count: Annotated[int, operator.add]

        child = StateGraph(Held).add_node("n", lambda _: {"count": 1}).add_edge(START, "n")
        middle = StateGraph(Held).add_node(inner, child.compile(checkpointer=True)).add_edge(START, inner)
        top = StateGraph(Held).add_node(outer, middle.compile()).add_edge(START, outer)
        return top.compile()

    with connect_sync(f"sqlite:///{tmp_path / 'plan.db'}", migrate=True) as db:
        before = nested("ask", "ask").copy(update={"checkpointer": db.checkpointer()})
        before.invoke({"answer": ""}, {"configurable": {"thread_id": "ada"}})
        schema = Schema(2, [rename_node(2, "ask", "question")])
        (whole,) = plan(db, Agent(nested("question", "question")), schema, ["ada"])
        assert whole.problems == ()
        (halved,) = plan(db, Agent(nested("question", "ask")), schema, ["ada"])
        assert "'ask|ask' remembers goes to 'question|question'" in halved.problems[0]
        assert "'question|ask' would begin without it" in halved.problems[0]
        again = Schema(2, [rename_node(2, "ask", "other")])
        (lost,) = plan(db, Agent(nested("ask", "ask")), again, ["ada"])
        assert "goes to 'other|other', which the graph does not have" in lost.problems[0]


class Observed:
    """Sees how often a worker was refused."""

    def __init__(self) -> None:
        self.refused_twice = asyncio.Event()
        self.errors: list[str] = []

    def event(self, name: str, fields: dict[str, Any]) -> None:
        if name == "run.attempt_failed":
            self.errors.append(fields["error"])
            if self.errors == ["SchemaTooNew"] * 2:
                self.refused_twice.set()

    def span(self, name: str, fields: dict[str, Any]) -> Any:
        return nullcontext()
