"""A failed run is run again from its last good step, once, and the record of the failure stays.

Covers perdure.engine.queue.retries.
"""

from __future__ import annotations

import asyncio
import operator
import time
from typing import Annotated, Any, Literal, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.pregel import Pregel
from langgraph.types import interrupt

from perdure.errors import Conflict, NotFound, RunInProgress
from perdure.model.records import RUN
from perdure.model.runs.messages import Run
from perdure.runtime import Runtime
from tests.runtime.graphs import Storage, eventually, go, settings, working

PLACE: Any = {"configurable": {"thread_id": "ada"}}
OnFailure = Literal["keep", "rollback"]


class State(TypedDict):
    log: Annotated[list[str], operator.add]


def _steps(failures: list[str], calls: list[str] | None = None) -> Pregel[Any, Any, Any, Any]:
    def first(state: State) -> dict[str, Any]:
        if calls is not None:
            calls.append("first")
        return {"log": ["first"]}

    def second(state: State) -> dict[str, Any]:
        if failures:
            raise RuntimeError(failures.pop())
        return {"log": ["second"]}

    builder = StateGraph(State).add_node("first", first).add_node("second", second)
    return builder.add_edge(START, "first").add_edge("first", "second").compile()


async def said(runtime: Runtime, what: Any = None, **options: Any) -> Run:
    return await runtime.wait(await runtime.submit("ada", what, **options), 30)


async def again(runtime: Runtime, run: Run) -> Run:
    return await runtime.wait(await runtime.retry("ada", run.id), 30)


async def logged(runtime: Runtime) -> list[str]:
    log: list[str] = (await runtime.graph("agent").aget_state(PLACE)).values["log"]
    return log


@pytest.mark.parametrize("on_failure", ["keep", "rollback"])
def test_a_failed_run_goes_on_from_its_last_step(near: Storage, on_failure: OnFailure) -> None:
    failures, calls = ["boom", "boom"], list[str]()

    async def main() -> None:
        terms = settings(attempts=1, on_failure=on_failure)
        async with working(near.database(), _steps(failures, calls), settings=terms) as runtime:
            failed = await said(runtime, {"log": ["in"]})
            second = await again(runtime, failed)
            assert (failed.state, second.state) == ("failed", "failed")
            third = await again(runtime, second)
            assert third.state == "done"
            assert await logged(runtime) == ["in", "first", "second"]
            assert calls == (["first"] if on_failure == "keep" else ["first"] * 3)
            states = [run.state for run in await runtime.runs("ada")]
            assert states == ["done", "failed", "failed"]
            with pytest.raises(Conflict, match="is done"):
                await runtime.retry("ada", third.id)

    go(main())


def test_a_run_is_repeated_once_however_often_it_is_asked_for(near: Storage) -> None:
    async def main() -> None:
        terms = settings(attempts=1)
        async with working(near.database(), _steps(["boom"]), settings=terms) as runtime:
            failed = await said(runtime, {"log": ["in"]})
            tickets = await asyncio.gather(*(runtime.retry("ada", failed.id) for _ in range(5)))
            assert len({ticket.id for ticket in tickets}) == 1
            assert [ticket.is_duplicate for ticket in tickets].count(False) == 1
            await runtime.wait(tickets[0], 30)
            assert (await runtime.retry("ada", failed.id)).is_duplicate
            assert await logged(runtime) == ["in", "first", "second"]

    go(main())


def test_a_run_that_the_thread_has_left_behind_is_not_repeated(near: Storage) -> None:
    async def main() -> None:
        terms = settings(attempts=1, on_failure="keep")
        async with working(near.database(), _steps(["boom"]), settings=terms) as runtime:
            with pytest.raises(NotFound):
                await runtime.retry("ada", "none")
            failed = await said(runtime, {"log": ["in"]})
            assert (await said(runtime, {"log": ["more"]})).state == "done"
            with pytest.raises(Conflict, match="has gone on"):
                await runtime.retry("ada", failed.id)

    go(main())


def test_failed_messages_of_an_outage_are_repeated_in_their_order(near: Storage) -> None:
    failures = ["boom"] * 3

    async def main() -> None:
        terms = settings(attempts=1)
        async with working(near.database(), _steps(failures), settings=terms) as runtime:
            failed = [await said(runtime, {"log": [name]}) for name in "abc"]
            assert {run.state for run in failed} == {"failed"}
            for run in failed:
                await again(runtime, run)
            assert await logged(runtime) == [
                "a",
                "first",
                "second",
                "b",
                "first",
                "second",
                "c",
                "first",
                "second",
            ]

    go(main())


def test_messages_that_were_joined_are_repeated_together(near: Storage) -> None:
    async def main() -> None:
        database = near.database()
        async with working(database, _steps([]), works=False) as front:
            for name in "ab":
                await front.submit("ada", {"log": [name]}, coalesce=True)
        async with working(database, _steps(["boom"]), settings=settings(attempts=1)) as runtime:
            await eventually(lambda: [row.fields["state"] for row in near.rows("ada", RUN)] == ["failed"])
            (failed,) = await runtime.runs("ada")
            run = await again(runtime, failed)
            assert (run.state, run.last - run.first) == ("done", 1)
            assert await logged(runtime) == ["a", "b", "first", "second"]

    go(main())


def test_a_run_is_repeated_by_the_id_of_each_message_that_it_joined(near: Storage) -> None:
    async def main() -> None:
        database = near.database()
        async with working(database, _steps([]), works=False) as front:
            tickets = [await front.submit("ada", {"log": [name]}, coalesce=True) for name in "abc"]
        async with working(database, _steps(["boom"]), settings=settings(attempts=1)) as runtime:
            await eventually(lambda: [row.fields["state"] for row in near.rows("ada", RUN)] == ["failed"])
            repeated = [await runtime.retry("ada", ticket.id) for ticket in reversed(tickets)]
            assert len({ticket.id for ticket in repeated}) == 1
            await runtime.wait(repeated[0], 30)
            assert await logged(runtime) == ["a", "b", "c", "first", "second"]

    go(main())


@pytest.mark.parametrize("on_failure", ["keep", "rollback"])
@pytest.mark.parametrize("steps_before", [False, True])
def test_an_answer_is_given_again(near: Storage, on_failure: OnFailure, steps_before: bool) -> None:
    failures = ["boom"]

    def asks(state: State) -> dict[str, Any]:
        said = interrupt("well?")
        if failures and not steps_before:
            raise RuntimeError(failures.pop())
        return {"log": [said]}

    def then(state: State) -> dict[str, Any]:
        if failures:
            raise RuntimeError(failures.pop())
        return {"log": ["then"]}

    builder = StateGraph(State).add_node("asks", asks).add_node("then", then)
    graph = builder.add_edge(START, "asks").add_edge("asks", "then").compile()

    async def main() -> None:
        terms = settings(attempts=1, on_failure=on_failure)
        async with working(near.database(), graph, settings=terms) as runtime:
            await said(runtime, {"log": []})
            failed = await runtime.wait(await runtime.answer("ada", "yes"), 30)
            assert failed.state == "failed"
            assert (await again(runtime, failed)).state == "done"
            assert await logged(runtime) == ["yes", "then"]

    go(main())


@pytest.mark.parametrize("on_failure", ["keep", "rollback"])
@pytest.mark.parametrize("where", ["beside a goto", "beside an answer"])
def test_what_a_command_holds_beside_answers_is_given_again(
    near: Storage, on_failure: OnFailure, where: str
) -> None:
    failures, calls = ["boom"], list[str]()

    def fail() -> None:
        """Fails once, when the other task has ended: LangGraph drops the result of one that ends later."""
        if failures:
            while not calls:
                time.sleep(0.01)
            time.sleep(0.3)
            raise RuntimeError(failures.pop())

    def asks(name: str) -> Any:
        def node(state: State) -> dict[str, Any]:
            said = interrupt(name)
            if name == "right":
                fail()
            calls.append(name)
            return {"log": [f"{name} {said}"]}

        return node

    def alone(state: State) -> dict[str, Any]:
        fail()
        return {"log": ["alone"]}

    builder = StateGraph(State).add_node("left", asks("left")).add_node("alone", alone)
    builder.add_edge(START, "left")
    if where == "beside an answer":
        builder.add_node("right", asks("right")).add_edge(START, "right")
    graph = builder.compile()

    async def main() -> None:
        terms = settings(attempts=1, on_failure=on_failure)
        async with working(near.database(), graph, settings=terms) as runtime:
            await said(runtime, {"log": []})
            question = await runtime.question("ada")
            assert question is not None
            goto = {"goto": "alone"} if where == "beside a goto" else {}
            answers = dict.fromkeys(question.interrupts, "yes")
            command = {"update": {"log": ["more"]}, **goto}
            failed = await runtime.wait(await runtime.answer("ada", answers, command=command), 30)
            assert failed.state == "failed"
            assert (await again(runtime, failed)).state == "done"
            log = sorted(await logged(runtime))
            assert log == sorted(["more", "left yes", "alone" if goto else "right yes"])
            assert calls.count("left") == (1 if on_failure == "keep" else 2)

    go(main())


def test_a_run_does_not_go_on_beside_another(near: Storage) -> None:
    async def main() -> None:
        terms = settings(attempts=1, on_failure="keep")
        database = near.database()
        async with working(database, _steps(["boom"]), settings=terms) as runtime:
            failed = await said(runtime, {"log": ["in"]})
        async with working(database, _steps([]), works=False) as front:
            await front.submit("ada", {"log": ["more"]})
            with pytest.raises(RunInProgress):
                await front.retry("ada", failed.id)

    go(main())
