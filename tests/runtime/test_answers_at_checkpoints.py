"""Answers that name a checkpoint, or come as commands, are answers: each question is answered once."""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph
from langgraph.pregel import Pregel
from langgraph.types import interrupt

from perdure.errors import NotFound, NotWaiting
from perdure.runtime import Options, Runtime, Ticket, ask, sleep, wait_for
from tests.runtime.graphs import Storage, go, settings, working

PLACE: Any = {"configurable": {"thread_id": "ada"}}
HOUR = 3600.0


class State(TypedDict, total=False):
    log: Annotated[list[str], operator.add]


class Asking:
    """A graph of one node, which asks once and notes each answer that it got. Its first ``failures`` fail."""

    def __init__(self, failures: int = 0, *, within: float | None = None) -> None:
        self.answers: list[Any] = []
        self._failures = failures
        self._within = within

    @property
    def graph(self) -> Pregel[Any, Any, Any, Any]:
        return StateGraph(State).add_node("node", self._node).add_edge(START, "node").compile()

    async def _node(self, state: State) -> State:
        answer = interrupt("well?") if self._within is None else ask("well?", within=self._within, default=1)
        self.answers.append(answer)
        if self._failures:
            self._failures -= 1
            raise RuntimeError("later")
        return {"log": [f"so {answer}"]}


async def head(runtime: Runtime) -> str:
    state = await runtime.graph("agent").aget_state(PLACE)
    return str(state.config["configurable"]["checkpoint_id"])


async def logged(runtime: Runtime) -> list[str]:
    return list((await runtime.graph("agent").aget_state(PLACE)).values.get("log", []))


async def said(runtime: Runtime, given: Any = ..., **more: Any) -> str:
    """Run the graph, by default with an input; return the state of the run."""
    given = {"log": ["hello"]} if given is ... else given
    return (await runtime.wait(await runtime.submit("ada", given, **more), 30)).state


def at(checkpoint_id: str) -> Options:
    return Options(checkpoint_id=checkpoint_id)


@pytest.mark.parametrize("within", [None, HOUR])
@pytest.mark.parametrize("names", [True, False], ids=["at the head", ""])
@pytest.mark.parametrize("way", ["answer", "command"])
def test_of_two_answers_one_is_accepted_however_they_are_given(
    near: Storage, way: str, names: bool, within: float | None
) -> None:
    asking = Asking(within=within)

    async def main() -> None:
        async with working(near.database(), asking.graph) as runtime:
            assert await said(runtime) == "waiting"
            options = at(await head(runtime)) if names else None

            async def give(answer: str) -> Ticket | NotWaiting:
                try:
                    if way == "answer":
                        return await runtime.answer("ada", answer, options=options)
                    return await runtime.submit("ada", None, command={"resume": answer}, options=options)
                except NotWaiting as error:
                    return error

            given = await asyncio.gather(give("yes"), give("no"))
            (ticket,) = [each for each in given if isinstance(each, Ticket)]
            assert (await runtime.wait(ticket, 30)).state == "done"
            assert isinstance(await give("again"), NotWaiting)
            assert len(asking.answers) == 1
            assert await logged(runtime) == ["hello", f"so {asking.answers[0]}"]

    go(main())


def test_an_answer_at_the_head_is_accepted_once_on_every_backend(storage: Storage) -> None:
    asking = Asking()

    async def main() -> None:
        async with working(storage.database(), asking.graph) as runtime:
            assert await said(runtime) == "waiting"
            options = at(await head(runtime))
            ticket = await runtime.submit("ada", None, command={"resume": "yes"}, options=options)
            with pytest.raises(NotWaiting):
                await runtime.submit("ada", None, command={"resume": "no"}, options=options)
            assert (await runtime.wait(ticket, 30)).state == "done"
            with pytest.raises(NotWaiting, match="waits for no answer at checkpoint"):
                await runtime.answer("ada", "no", options=options)
            assert asking.answers == ["yes"]

    go(main())


@pytest.mark.parametrize("kind", ["sleep", "signal"])
@pytest.mark.parametrize("is_past", [False, True])
def test_sleeps_and_signals_take_no_answer_at_any_checkpoint(near: Storage, kind: str, is_past: bool) -> None:
    async def node(state: State) -> State:
        if len(state["log"]) > 1:
            return {"log": ["over"]}
        if kind == "sleep":
            await sleep(HOUR)
        return {"log": [await wait_for("payment")]}

    graph = StateGraph(State).add_node("node", node).add_edge(START, "node").compile()

    async def main() -> None:
        async with working(near.database(), graph) as runtime:
            assert await said(runtime) == "waiting"
            options = at(await head(runtime))
            if is_past:
                assert await said(runtime) == "done"
            before = await logged(runtime)
            places: list[dict[str, Any]] = [{"options": options}, *([] if is_past else [{}])]
            for more in places:
                with pytest.raises(NotWaiting, match="takes no answer"):
                    await runtime.answer("ada", "forged", **more)
                with pytest.raises(NotWaiting, match="takes no answer"):
                    await runtime.submit("ada", None, command={"resume": "forged"}, **more)
            assert await logged(runtime) == before

    go(main())


@pytest.mark.parametrize("named", [False, True])
def test_a_question_that_was_left_is_answered_once_at_its_checkpoint(near: Storage, named: bool) -> None:
    asking = Asking()

    async def main() -> None:
        async with working(near.database(), asking.graph) as runtime:
            assert await said(runtime) == "waiting"
            question = await runtime.question("ada")
            assert question is not None
            (name,) = question.interrupts
            options = at(await head(runtime))
            assert await said(runtime) == "waiting"
            wrong = await runtime.question("ada")
            assert wrong is not None
            with pytest.raises(NotWaiting, match="not to"):
                await runtime.answer("ada", "no", interrupt_id=wrong.interrupts[0], options=options)
            ticket = await runtime.answer("ada", "yes", interrupt_id=name if named else None, options=options)
            with pytest.raises(NotWaiting):
                await runtime.answer("ada", "no", options=options)
            assert (await runtime.wait(ticket, 30)).state == "done"
            assert await logged(runtime) == ["hello", "so yes"]
            with pytest.raises(NotWaiting, match="without input"):
                await runtime.answer("ada", "no", options=options)
            # As the error says: asked again, it takes another answer.
            assert await said(runtime, None, options=options) == "waiting"
            assert (await runtime.wait(await runtime.answer("ada", "no"), 30)).state == "done"
            assert await logged(runtime) == ["hello", "so no"]
            assert asking.answers == ["yes", "no"]

    go(main())


@pytest.mark.parametrize("keeps", [None, True], ids=["", "keeps its state"])
def test_a_question_of_a_subgraph_is_answered_once_at_its_checkpoint(near: Storage, keeps: Any) -> None:
    asking = Asking()
    inner = StateGraph(State).add_node("ask", asking.graph.copy(update={"checkpointer": keeps}))
    graph = inner.add_edge(START, "ask").compile()

    async def main() -> None:
        async with working(near.database(), graph) as runtime:
            assert await said(runtime) == "waiting"
            options = at(await head(runtime))
            ticket = await runtime.answer("ada", "yes", options=options)
            assert (await runtime.wait(ticket, 30)).state == "done"
            with pytest.raises(NotWaiting, match="without input"):
                await runtime.answer("ada", "no", options=options)
            assert await said(runtime, None, options=options) == "waiting"
            assert (await runtime.wait(await runtime.answer("ada", "no"), 30)).state == "done"
            assert (await logged(runtime))[-1] == "so no"

    go(main())


def test_a_question_that_an_edit_has_closed_is_answered_once_at_its_checkpoint(near: Storage) -> None:
    asking = Asking()

    async def main() -> None:
        async with working(near.database(), asking.graph) as runtime:
            assert await said(runtime) == "waiting"
            options = at(await head(runtime))
            await runtime.graph("agent").aupdate_state(PLACE, {"log": ["edited"]}, as_node="node")
            ticket = await runtime.answer("ada", "yes", options=options)
            assert (await runtime.wait(ticket, 30)).state == "done"
            assert await logged(runtime) == ["hello", "so yes"]
            with pytest.raises(NotWaiting):
                await runtime.answer("ada", "no", options=options)

    go(main())


@pytest.mark.parametrize("policy", ["keep", "rollback"])
@pytest.mark.parametrize("again", ["other", "retry"])
def test_after_a_failure_a_question_that_was_left_may_be_answered_again(
    near: Storage, policy: Any, again: str
) -> None:
    asking = Asking(2)

    async def main() -> None:
        terms = settings(attempts=2, on_failure=policy)
        async with working(near.database(), asking.graph, settings=terms) as runtime:
            assert await said(runtime) == "waiting"
            options = at(await head(runtime))
            assert await said(runtime) == "waiting"
            first = await runtime.answer("ada", "yes", options=options)
            assert (await runtime.wait(first, 30)).state == "failed"
            if again == "retry":
                ticket = await runtime.retry("ada", first.id)
            else:
                ticket = await runtime.answer("ada", "no", options=options)
            assert (await runtime.wait(ticket, 30)).state == "done"
            answer = "yes" if again == "retry" else "no"
            assert await logged(runtime) == ["hello", f"so {answer}"]
            assert asking.answers == ["yes", "yes", answer]

    go(main())


def test_an_answer_that_cannot_be_given_changes_nothing(near: Storage) -> None:
    async def main() -> None:
        async with working(near.database(), Asking().graph) as runtime:
            with pytest.raises(NotWaiting):
                await runtime.submit("ada", None, command={"resume": "yes"})
            with pytest.raises(NotFound, match="no checkpoint"):
                await runtime.answer("ada", "yes", options=at("missing"))
            assert await said(runtime) == "waiting"
            with pytest.raises(NotFound, match="no checkpoint 'missing'"):
                await runtime.submit("ada", None, command={"resume": "yes"}, options=at("missing"))
            with pytest.raises(ValueError, match="given now"):
                await runtime.submit("ada", None, command={"resume": "yes"}, delay=1)
            assert len(await runtime.runs("ada")) == 1

    go(main())
