"""What a task shows of the subgraphs and tasks that it runs is what these ask, wherever a run ends.

Covers perdure.model.runs.stale_questions.
"""

from __future__ import annotations

import asyncio
import itertools
import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.pregel import Pregel
from langgraph.types import Send, interrupt

from perdure.runtime import Runtime
from tests.runtime.graphs import Storage, go, settings, working

PLACE: Any = {"configurable": {"thread_id": "ada"}}


class State(TypedDict):
    log: Annotated[list[str], operator.add]


class Trip:
    """What happens once between the questions ``send?`` and ``pay?``, and which answers they got."""

    def __init__(self, fails: bool) -> None:
        self.fails, self.is_over = fails, False
        self.reached = asyncio.Event()
        self.answers: list[tuple[str, Any]] = []

    def ask(self, question: str) -> str:
        answer = interrupt(question)
        self.answers.append((question, answer))
        return f"{question} {answer}"

    async def make(self) -> None:
        if self.is_over:
            return
        self.is_over = True
        if self.fails:
            raise RuntimeError("stumbled")
        self.reached.set()
        await asyncio.Event().wait()


def _graph(shape: str, trip: Trip) -> Pregel[Any, Any, Any, Any]:
    def send(state: State) -> dict[str, Any]:
        return {"log": [trip.ask("send?")]}

    async def pay(state: State) -> dict[str, Any]:
        await trip.make()
        return {"log": [trip.ask("pay?")]}

    steps = StateGraph(State).add_sequence([send, pay]).add_edge(START, "send")
    stateful = steps.compile(checkpointer=True)
    plain = steps.compile()

    async def call(state: State) -> Any:
        return await plain.ainvoke({"log": []})

    async def stumble(state: State) -> dict[str, Any]:
        trip.ask("beside?")
        await asyncio.sleep(0.2)
        await trip.make()
        return {}

    def both(state: State) -> dict[str, Any]:
        return {"log": [trip.ask("send?"), trip.ask("pay?")]}

    @task
    async def asks(question: str) -> str:
        return trip.ask(question)

    @entrypoint()
    async def functional(given: Any) -> Any:
        first = await asks("send?")
        await trip.make()
        return {"log": [first, await asks("pay?")]}

    async def calls(state: State) -> dict[str, Any]:
        first = await asks("send?")
        await trip.make()
        return {"log": [first, trip.ask("pay?")]}

    def nested(inner: Any) -> Any:
        return StateGraph(State).add_node("inner", inner).add_edge(START, "inner").compile()

    inner_both = StateGraph(State).add_node("both", both).add_edge(START, "both").compile()
    siblings = StateGraph(State).add_node("inner", inner_both).add_node("stumble", stumble)
    for node in siblings.nodes:
        siblings.add_edge(START, node)
    sent = StateGraph(State).add_node("inner", plain)
    sent.add_conditional_edges(START, lambda state: [Send("inner", {"log": []})], ["inner"])
    sent_stateful = StateGraph(State).add_node("inner", stateful)
    sent_stateful.add_conditional_edges(START, lambda state: [Send("inner", {"log": []})], ["inner"])
    makers: dict[str, Callable[[], Pregel[Any, Any, Any, Any]]] = {
        "nested": lambda: nested(plain),
        "nested twice": lambda: nested(nested(plain)),
        "stateful": lambda: nested(stateful),
        "stateful in nested": lambda: nested(nested(stateful)),
        "called": lambda: nested(call),
        "sent": sent.compile,
        "sent, stateful": sent_stateful.compile,
        "a sibling fails": lambda: nested(siblings.compile()),
        "functional": lambda: functional,
        "node that calls tasks": lambda: nested(calls),
    }
    return makers[shape]()


SHAPES = (
    "nested",
    "nested twice",
    "stateful",
    "stateful in nested",
    "called",
    "sent",
    "sent, stateful",
    "functional",
    "node that calls tasks",
)


async def _asked(runtime: Runtime) -> dict[str, str]:
    """The questions of the state, by their ids."""
    state = await runtime.graph("agent").aget_state(PLACE)
    return {each.id: each.value for each in state.interrupts}


async def _answer_all(runtime: Runtime, *, is_named: bool) -> None:
    """Answer what is shown with an answer that names it, until nothing is asked."""
    while asked := await _asked(runtime):
        if is_named or len(asked) > 1:
            given: Any = {name: f"to {question}" for name, question in asked.items()}
        else:
            given = f"to {next(iter(asked.values()))}"
        await runtime.wait(await runtime.answer("ada", given), 30)


@pytest.mark.parametrize("is_named", [True, False], ids=["by id", "by value"])
@pytest.mark.parametrize(
    ("shape", "ends"),
    [
        *itertools.product((*SHAPES, "a sibling fails"), ("fails",)),
        *itertools.product(SHAPES, ("is stopped",)),
        *(
            pytest.param(*each, marks=pytest.mark.slow)
            for each in itertools.product(SHAPES, ("is rolled back", "is repeated"))
        ),
        pytest.param("a sibling fails", "is repeated", marks=pytest.mark.slow),
    ],
)
def test_an_answer_answers_the_question_that_was_shown(
    near: Storage, shape: str, ends: str, is_named: bool
) -> None:
    async def main() -> None:
        fails = ends in ("fails", "is repeated")
        trip = Trip(fails)
        terms = settings(attempts=1, on_failure="keep")
        async with working(near.database(), _graph(shape, trip), settings=terms) as runtime:
            await runtime.wait(await runtime.submit("ada", {"log": []}), 30)
            given = {name: f"to {question}" for name, question in (await _asked(runtime)).items()}
            ticket = await runtime.answer("ada", given)
            if not fails:
                await trip.reached.wait()
                await runtime.stop("ada", ticket.id, rollback=ends == "is rolled back")
            run = await runtime.wait(ticket, 30)
            assert (
                run.state
                == {
                    "fails": "failed",
                    "is repeated": "failed",
                    "is stopped": "interrupted",
                    "is rolled back": "rolled_back",
                }[ends]
            )
            if ends == "is repeated":
                await runtime.wait(await runtime.retry("ada", run.id), 30)
            await _answer_all(runtime, is_named=is_named)
            state = await runtime.graph("agent").aget_state(PLACE)
            assert not state.next
            assert [answer for question, answer in trip.answers if answer != f"to {question}"] == []
            assert {"send?", "pay?"} <= {question for question, _ in trip.answers}

    go(main())


def test_of_a_subgraph_that_asks_what_it_asked_before_a_failed_run_nothing_is_left(storage: Storage) -> None:
    async def main() -> None:
        trip = Trip(fails=True)
        terms = settings(attempts=1, on_failure="keep")
        async with working(storage.database(), _graph("nested twice", trip), settings=terms) as runtime:
            await runtime.wait(await runtime.submit("ada", {"log": []}), 30)
            before: Any = await runtime.graph("agent").aget_state(PLACE, subgraphs=True)
            assert (await runtime.wait(await runtime.answer("ada", "to send?"), 30)).state == "failed"
            after: Any = await runtime.graph("agent").aget_state(PLACE, subgraphs=True)
            assert str(after.interrupts) == str(before.interrupts)
            for _ in range(2):
                before, after = before.tasks[0].state, after.tasks[0].state
                assert after.config == before.config
                assert after.next == before.next
            await _answer_all(runtime, is_named=False)
            assert trip.answers == [("send?", "to send?")] * 2 + [("pay?", "to pay?")]

    go(main())
