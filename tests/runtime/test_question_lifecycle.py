"""A question is shown exactly as long as it may be answered, and each answer is given to its own question.

Covers perdure.engine.queue.questions, perdure.langgraph.reading.open_interrupts.
"""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, Literal, TypedDict

import pytest
from langgraph.graph import END, START, StateGraph
from langgraph.pregel import Pregel
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel

from perdure.errors import Conflict, NotWaiting
from perdure.langgraph.reading.shown_questions import aread_with_questions
from perdure.model.records import CHECKPOINT, RUN
from perdure.model.runs.messages import Run
from perdure.runtime import Options, Runtime
from tests.runtime.graphs import Storage, eventually, go, settings, working

PLACE: Any = {"configurable": {"thread_id": "ada"}}


class State(TypedDict):
    log: Annotated[list[str], operator.add]


class Number(BaseModel):
    number: int


def _twice(failures: list[str] | None = None) -> StateGraph[State]:
    def node(state: State) -> dict[str, Any]:
        first = interrupt("send?")
        if failures:
            raise RuntimeError(failures.pop())
        return {"log": [f"{first}, {interrupt('pay?')}"]}

    return StateGraph(State).add_node("node", node).add_edge(START, "node")


def _nested(inner: Pregel[Any, Any, Any, Any], depth: int = 1) -> Pregel[Any, Any, Any, Any]:
    for _ in range(depth):
        inner = StateGraph(State).add_node("inner", inner).add_edge(START, "inner").compile()
    return inner


def _shapes() -> dict[str, Pregel[Any, Any, Any, Any]]:
    async def called(state: State) -> Any:
        return await flat.ainvoke({"log": []})

    flat = _twice().compile()
    return {
        "flat": flat,
        "nested": _nested(flat),
        "nested twice": _nested(flat, 2),
        "stateful": _nested(_twice().compile(checkpointer=True)),
        "called": StateGraph(State).add_node("outer", called).add_edge(START, "outer").compile(),
    }


async def said(runtime: Runtime, what: Any = None, **options: Any) -> Run:
    return await runtime.wait(await runtime.submit("ada", what, **options), 30)


async def answered(runtime: Runtime, value: Any, **options: Any) -> Run:
    return await runtime.wait(await runtime.answer("ada", value, **options), 30)


async def shown(runtime: Runtime) -> list[Any]:
    """The questions of the state; they are those that may be answered."""
    state = await runtime.graph("agent").aget_state(PLACE)
    asked = [(each.id, each.value) for each in state.interrupts]
    question = await runtime.question("ada")
    assert {name for name, _ in asked} == set(question.interrupts if question is not None else ())
    return [value for _, value in asked]


async def logged(runtime: Runtime) -> list[str]:
    log: list[str] = (await runtime.graph("agent").aget_state(PLACE)).values["log"]
    return log


@pytest.mark.parametrize("shape", list(_shapes()))
@pytest.mark.parametrize("between", [None, {"update": {"log": ["noted"]}}], ids=["empty run", "update"])
def test_a_used_answer_does_not_answer_the_next_question(
    near: Storage, shape: str, between: dict[str, Any] | None
) -> None:
    async def main() -> None:
        async with working(near.database(), _shapes()[shape]) as runtime:
            await said(runtime, {"log": []})
            assert (await answered(runtime, "yes")).state == "waiting"
            assert (await said(runtime, None, command=between)).state == "waiting"
            assert await shown(runtime) == ["pay?"]
            assert (await answered(runtime, "no")).state == "done"
            assert (await logged(runtime))[-1] == "yes, no"

    go(main())


@pytest.mark.parametrize("on_failure", ["keep", "rollback"])
@pytest.mark.parametrize("nests", [False, True])
def test_a_used_answer_does_not_answer_the_next_question_after_a_failure(
    near: Storage, nests: bool, on_failure: Literal["keep", "rollback"]
) -> None:
    failures = ["later", "later"]
    graph = _twice(failures).compile()

    async def main() -> None:
        terms = settings(attempts=1, on_failure=on_failure)
        async with working(near.database(), _nested(graph) if nests else graph, settings=terms) as runtime:
            await said(runtime, {"log": []})
            assert (await answered(runtime, "yes")).state == "failed"
            assert await shown(runtime) == ["send?"]
            assert (await said(runtime)).state == "waiting"
            assert await shown(runtime) == ["send?"]
            assert (await answered(runtime, "no")).state == "failed"
            assert (await answered(runtime, "perhaps")).state == "waiting"
            assert (await said(runtime)).state == "waiting"
            assert await shown(runtime) == ["pay?"]
            assert (await answered(runtime, "never")).state == "done"
            assert await logged(runtime) == ["perhaps, never"]

    go(main())


@pytest.mark.parametrize("shape", list(_shapes()))
def test_a_saver_alone_does_not_give_a_used_answer_again(near: Storage, shape: str) -> None:
    graph = _shapes()[shape]

    async def main() -> None:
        database = near.database()
        bound = graph.copy(update={"checkpointer": database.checkpointer()})
        await bound.ainvoke({"log": []}, PLACE)
        await bound.ainvoke(Command(resume="yes"), PLACE)
        for _ in range(2):
            await bound.ainvoke(None, PLACE)
            state = await bound.aget_state(PLACE)
            assert [each.value for each in state.interrupts] == ["pay?"]
        await bound.ainvoke(Command(resume="no"), PLACE)
        assert (await bound.aget_state(PLACE)).values["log"] == ["yes, no"]

    go(main())


def _slow(gate: asyncio.Event) -> Pregel[Any, Any, Any, Any]:
    """Asks, and does its work behind the answer until it is let go on."""

    async def node(state: State) -> dict[str, Any]:
        if state["log"][-1:] == ["new"]:
            await gate.wait()
        said = interrupt("send?")
        if said == "wait":
            await gate.wait()
        return {"log": [said, interrupt("pay?")]}

    return StateGraph(State).add_node("node", node).add_edge(START, "node").compile()


@pytest.mark.parametrize("rollback", [False, True])
@pytest.mark.parametrize("by", ["answer", "message", "empty", "withdrawn"])
def test_a_question_is_open_again_after_what_was_to_close_it_was_cancelled(
    near: Storage, by: str, rollback: bool
) -> None:
    gate = asyncio.Event()

    async def main() -> None:
        async with working(near.database(), _slow(gate)) as runtime:
            await said(runtime, {"log": []})
            stored = len(near.rows("ada", CHECKPOINT))
            if by == "answer":
                ticket = await runtime.answer("ada", "wait")
            elif by == "empty":
                ticket = await runtime.submit("ada", None)
            else:
                late = 600 if by == "withdrawn" else 0
                ticket = await runtime.submit("ada", {"log": ["new"]}, debounce=late)
            if by in ("answer", "message"):
                await eventually(lambda: len(near.rows("ada", RUN)) == 2)
            if by == "message":
                # Its input goes past the question once it is stored.
                await eventually(lambda: len(near.rows("ada", CHECKPOINT)) > stored)
            if by != "empty":
                with pytest.raises(NotWaiting):
                    await runtime.answer("ada", "too early")
            await runtime.cancel("ada", ticket.id, rollback=rollback)
            await runtime.wait(ticket, 30)
            if by == "message" and not rollback:
                assert await shown(runtime) == []
                with pytest.raises(NotWaiting):
                    await runtime.answer("ada", "yes")
                return
            assert await shown(runtime) == ["send?"]
            assert (await answered(runtime, "yes")).state == "waiting"
            assert (await answered(runtime, "no")).state == "done"
            assert await logged(runtime) == ["yes", "no"]

    go(main())


@pytest.mark.parametrize("on_failure", ["keep", "rollback"])
@pytest.mark.parametrize(
    "command", [{"update": {"log": "no list"}}, {"goto": "__end__", "update": {"log": 5}}], ids=str
)
def test_a_question_stays_after_a_command_that_fails(
    near: Storage, command: dict[str, Any], on_failure: Literal["keep", "rollback"]
) -> None:
    async def main() -> None:
        terms = settings(attempts=1, on_failure=on_failure)
        async with working(near.database(), _twice().compile(), settings=terms) as runtime:
            await said(runtime, {"log": []})
            assert (await said(runtime, None, command=command)).state == "failed"
            assert await shown(runtime) == ["send?"]
            assert (await answered(runtime, "yes")).state == "waiting"
            assert (await answered(runtime, "no")).state == "done"
            assert await logged(runtime) == ["yes, no"]

    go(main())


@pytest.mark.parametrize("on_failure", ["keep", "rollback"])
def test_an_answer_that_does_not_fit_its_schema_is_given_anew(
    near: Storage, on_failure: Literal["keep", "rollback"]
) -> None:
    def node(state: State) -> dict[str, Any]:
        return {"log": [str(interrupt("how many?", response_schema=Number).number), interrupt("sure?")]}

    graph = StateGraph(State).add_node("node", node).add_edge(START, "node").compile()

    async def main() -> None:
        terms = settings(attempts=5, on_failure=on_failure)
        async with working(near.database(), graph, settings=terms) as runtime:
            await said(runtime, {"log": []})
            for wrong in ("many", {"number": "many"}, None):
                failed = await answered(runtime, wrong)
                assert (failed.state, failed.attempts) == ("failed", 1), "another attempt would not help"
                assert await shown(runtime) == ["how many?"]
            assert (await answered(runtime, {"number": 3})).state == "waiting"
            assert (await answered(runtime, "yes")).state == "done"
            assert await logged(runtime) == ["3", "yes"]

    go(main())


@pytest.mark.parametrize("on_failure", ["keep", "rollback"])
@pytest.mark.parametrize("shape", ["flat", "nested"])
def test_of_several_answers_the_one_that_does_not_fit_is_named_with_what_became_of_the_others(
    near: Storage, shape: str, on_failure: Literal["keep", "rollback"]
) -> None:
    ran: list[str] = []
    is_answered: list[bool] = []

    async def node(name: str) -> dict[str, Any]:
        if name == "b" and is_answered:
            await eventually(lambda: "a" in ran)
        number = interrupt(name, response_schema=Number).number
        ran.append(name)
        return {"log": [f"{name} {number}"]}

    builder = StateGraph(State)
    builder.add_node("node", node)  # type: ignore[arg-type]
    flat = builder.add_conditional_edges(START, lambda _: [Send("node", name) for name in "ab"]).compile()
    graph = flat if shape == "flat" else _nested(flat)

    async def main() -> None:
        terms = settings(attempts=5, on_failure=on_failure)
        async with working(near.database(), graph, settings=terms) as runtime:
            await said(runtime, {"log": []})
            state = await runtime.graph("agent").aget_state(PLACE)
            ids = {each.value: each.id for each in state.interrupts}
            with pytest.raises(NotWaiting, match=f"not to '{'f' * 32}'; nothing of this answer was stored"):
                await answered(runtime, {ids["a"]: {"number": 1}, "f" * 32: {"number": 2}})
            is_answered.append(True)
            failed = await answered(runtime, {ids["a"]: {"number": 1}, ids["b"]: "many"})
            assert (failed.state, failed.attempts) == ("failed", 1)
            assert f"the answer to {ids['b']!r} does not fit its question" in failed.note["error"]
            if on_failure == "keep":
                assert "those that are not open any more were taken" in failed.note["error"]
            else:
                assert "none of those that were given with it was taken" in failed.note["error"]
            is_kept = on_failure == "keep" and shape == "flat"
            assert sorted(await shown(runtime)) == (["b"] if is_kept else ["a", "b"])
            again = {ids[name]: {"number": number} for name, number in (("a", 1), ("b", 2))[is_kept:]}
            assert (await answered(runtime, again)).state == "done"
            assert await logged(runtime) == ["a 1", "b 2"]

    go(main())


@pytest.mark.parametrize("value", [None, False, 0, "", [], {}], ids=repr)
@pytest.mark.parametrize("shape", ["flat", "nested"])
def test_any_value_is_an_answer(near: Storage, shape: str, value: Any) -> None:
    async def main() -> None:
        async with working(near.database(), _shapes()[shape]) as runtime:
            await said(runtime, {"log": []})
            assert (await answered(runtime, value)).state == "waiting"
            assert await shown(runtime) == ["pay?"]
            assert (await answered(runtime, value)).state == "done"
            assert await logged(runtime) == [f"{value}, {value}"]

    go(main())


@pytest.mark.parametrize(
    "command", [{}, {"update": {}}, {"goto": []}, {"update": None, "goto": None}], ids=str
)
def test_a_command_that_holds_nothing_is_refused(near: Storage, command: dict[str, Any]) -> None:
    async def main() -> None:
        async with working(near.database(), _twice().compile()) as runtime:
            await said(runtime, {"log": []})
            with pytest.raises(ValueError, match="holds nothing"):
                await runtime.submit("ada", None, command=command)
            assert await shown(runtime) == ["send?"]

    go(main())


@pytest.mark.parametrize("command", [{"update": 5}, {"update": ["two"]}, {"goto": 5}, {"goto": {}}], ids=str)
def test_a_command_that_no_graph_can_apply_is_refused(near: Storage, command: dict[str, Any]) -> None:
    async def main() -> None:
        async with working(near.database(), _twice().compile()) as runtime:
            await said(runtime, {"log": []})
            with pytest.raises(ValueError, match=r"of a command|holds nothing"):
                await runtime.submit("ada", None, command=command)
            if command != {"goto": {}}:
                with pytest.raises(ValueError, match="of a command"):
                    await runtime.answer("ada", "yes", command=command)
            assert await shown(runtime) == ["send?"]

    go(main())


def _two(gate: asyncio.Event | None = None) -> Pregel[Any, Any, Any, Any]:
    async def left(state: State) -> dict[str, Any]:
        return {"log": [f"left {interrupt('left?')}"]}

    async def right(state: State) -> dict[str, Any]:
        if gate is not None:
            await gate.wait()
        return {"log": [f"right {interrupt('right?')}"]}

    builder = StateGraph(State).add_node("left", left).add_node("right", right)
    return builder.add_edge(START, "left").compile()


def test_a_goto_beside_an_open_question_is_refused(near: Storage) -> None:
    async def main() -> None:
        async with working(near.database(), _two()) as runtime:
            await said(runtime, {"log": []})
            with pytest.raises(Conflict, match="waits for the answer"):
                await runtime.submit("ada", None, command={"goto": "right"})
            assert await shown(runtime) == ["left?"]
            # Accepted while the thread asked nothing yet, it fails when it meets the question.
            assert (await answered(runtime, "yes")).state == "done"
            first = await runtime.submit("ada", {"log": ["again"]})
            second = await runtime.submit("ada", None, command={"goto": "right"})
            assert (await runtime.wait(first, 30)).state == "waiting"
            assert (await runtime.wait(second, 30)).state == "failed"
            assert await shown(runtime) == ["left?"]
            assert (await answered(runtime, "no")).state == "done"
            assert await logged(runtime) == ["left yes", "again", "left no"]
            # Without a question it goes where it is sent.
            assert (await said(runtime, None, command={"goto": "right"})).state == "waiting"
            # LangGraph's state does not list a task that a command has added to a step.
            question = await runtime.question("ada")
            assert question is not None
            assert len(question.interrupts) == 1
            assert (await said(runtime, None, command={"goto": "__end__"})).state == "done"
            assert await shown(runtime) == []

    go(main())


def test_a_question_that_a_failed_run_left_may_be_answered(near: Storage) -> None:
    """One task of a step asks, and another fails."""
    failures = ["boom"]

    def ask(state: State) -> dict[str, Any]:
        return {"log": [f"asked {interrupt('well?')}"]}

    async def fail(state: State) -> dict[str, Any]:
        await asyncio.sleep(0.2)
        if failures:
            raise RuntimeError(failures.pop())
        return {"log": ["done"]}

    builder = StateGraph(State).add_node("ask", ask).add_node("fail", fail)
    graph = builder.add_edge(START, "ask").add_edge(START, "fail").add_edge("ask", END).compile()

    async def main() -> None:
        terms = settings(attempts=1, on_failure="keep")
        async with working(near.database(), graph, settings=terms) as runtime:
            assert (await said(runtime, {"log": []})).state == "failed"
            assert await shown(runtime) == ["well?"]
            assert (await answered(runtime, "yes")).state == "done"
            assert sorted(await logged(runtime)) == ["asked yes", "done"]

    go(main())


def _failing(failures: list[str]) -> Pregel[Any, Any, Any, Any]:
    """A graph with a node that fails after the others have stopped, and nodes to go to."""

    async def first(state: State) -> dict[str, Any]:
        await asyncio.sleep(0.3)
        if failures:
            raise RuntimeError(failures.pop())
        return {"log": ["first"]}

    def ask(state: State) -> dict[str, Any]:
        return {"log": [f"ask {interrupt('well?')}"]}

    async def other(state: State) -> dict[str, Any]:
        return {"log": [f"other {interrupt('sure?')}"]}

    builder = StateGraph(State).add_node("first", first).add_node("ask", ask).add_node("other", other)
    return builder.add_edge(START, "first").compile()


async def viewed(runtime: Runtime) -> tuple[list[str], dict[str, list[Any]]]:
    """The values as they are shown, and the questions of each task; they are those that may be answered."""
    state = await aread_with_questions(runtime.graph("agent"), PLACE)
    question = await runtime.question("ada")
    ids = set() if question is None else set(question.interrupts)
    assert {each.id for each in state.interrupts} == ids
    return state.values["log"], {task.name: [one.value for one in task.interrupts] for task in state.tasks}


@pytest.mark.parametrize("how", ["answer", "retry", "empty run", "remove"])
@pytest.mark.parametrize("sent", [False, True], ids=["node", "send"])
def test_what_a_failed_command_wrote_and_asked_stays(near: Storage, how: str, sent: bool) -> None:
    failures = ["boom", "boom"]
    goto: Any = [{"node": "ask", "input": {"log": []}}, "other"] if sent else ["ask", "other"]

    async def main() -> None:
        terms = settings(attempts=1, on_failure="keep")
        async with working(near.database(), _failing(failures), settings=terms) as runtime:
            assert (await said(runtime, {"log": ["in"]})).state == "failed"
            failed = await said(runtime, None, command={"goto": goto, "update": {"log": ["more"]}})
            asked = {"first": [], "ask": ["well?"], "other": ["sure?"]}
            assert await viewed(runtime) == (["in", "more"], asked)
            if how == "retry":
                assert (await runtime.wait(await runtime.retry("ada", failed.id), 30)).state == "waiting"
            if how == "empty run":
                assert (await said(runtime)).state == "waiting"
            if how == "remove":
                assert (await said(runtime)).state == "waiting"
                await runtime.remove_run("ada", failed, rollback=True)
                assert await viewed(runtime) == (["in", "first"], {"first": []})
                with pytest.raises(NotWaiting):
                    await runtime.answer("ada", "yes")
                return
            question = await runtime.question("ada")
            assert question is not None
            assert (await answered(runtime, dict.fromkeys(question.interrupts, "yes"))).state == "done"
            assert sorted(await logged(runtime)) == ["ask yes", "first", "in", "more", "other yes"]

    go(main())


@pytest.mark.parametrize("stops", [False, True], ids=["fails", "is stopped"])
@pytest.mark.parametrize("sent", [False, True], ids=["node", "send"])
def test_a_command_with_an_answer_is_given_again_with_all_that_it_holds(
    near: Storage, sent: bool, stops: bool
) -> None:
    failures, asked_other = ["boom"], asyncio.Event()

    async def ask(state: State) -> dict[str, Any]:
        said = interrupt("well?")
        await asked_other.wait()
        await asyncio.sleep(0.3)
        if failures:
            failure = failures.pop()
            if stops:
                await asyncio.sleep(60)
            raise RuntimeError(failure)
        return {"log": [f"ask {said}"]}

    def other(state: State) -> dict[str, Any]:
        asked_other.set()
        return {"log": [f"other {interrupt('sure?')}"]}

    builder = StateGraph(State).add_node("ask", ask).add_node("other", other)
    graph = builder.add_edge(START, "ask").compile()
    goto: Any = {"node": "other", "input": {"log": []}} if sent else "other"
    command = {"goto": goto, "update": {"log": ["more"]}}

    async def main() -> None:
        terms = settings(attempts=1, on_failure="keep")
        async with working(near.database(), graph, settings=terms) as runtime:
            await said(runtime, {"log": ["in"]})
            ticket = await runtime.answer("ada", "yes", command=command)
            if stops:
                await eventually(lambda: not failures)
                await runtime.cancel("ada", ticket.id)
            assert (await runtime.wait(ticket, 30)).state == ("interrupted" if stops else "failed")
            assert await viewed(runtime) == (["in"], {"ask": ["well?"]})
            assert (await answered(runtime, "yes", command=command)).state == "waiting"
            assert await viewed(runtime) == (["in", "more", "ask yes"], {"ask": [], "other": ["sure?"]})
            assert (await answered(runtime, "no")).state == "done"
            assert sorted(await logged(runtime)) == ["ask yes", "in", "more", "other no"]

    go(main())


def test_a_goto_with_an_input_beside_the_answer_to_a_sent_task_is_refused(near: Storage) -> None:
    def ask(state: State) -> dict[str, Any]:
        return {"log": [f"ask {interrupt('well?')}"]}

    def other(state: State) -> dict[str, Any]:
        return {"log": ["other"]}

    builder = StateGraph(State).add_node("ask", ask).add_node("other", other)
    builder.add_conditional_edges(START, lambda state: [Send("ask", {"log": []})], ["ask"])
    graph = builder.compile()

    async def main() -> None:
        async with working(near.database(), graph, settings=settings(attempts=1)) as runtime:
            await said(runtime, {"log": ["in"]})
            command: Any = {"goto": {"node": "other", "input": {"log": []}}}
            failed = await answered(runtime, "yes", command=command)
            assert (failed.state, failed.note["kind"]) == ("failed", "NotAllowed")
            assert await viewed(runtime) == (["in"], {"ask": ["well?"]})
            assert (await answered(runtime, "yes", command={"goto": "other"})).state == "done"
            assert sorted(await logged(runtime)) == ["ask yes", "in", "other"]

    go(main())


def test_a_repeated_repetition_does_not_apply_a_command_again(near: Storage) -> None:
    failures = ["boom"] * 5

    async def main() -> None:
        terms = settings(attempts=2, on_failure="keep")
        async with working(near.database(), _failing(failures), settings=terms) as runtime:
            await said(runtime, {"log": ["in"]})
            run = await said(runtime, None, command={"goto": "first", "update": {"log": ["more"]}})
            while run.state == "failed":
                run = await runtime.wait(await runtime.retry("ada", run.id), 30)
            assert await logged(runtime) == ["in", "more", "first"]

    go(main())


def test_a_question_of_an_application_without_a_runtime_may_be_answered(near: Storage) -> None:
    async def main() -> None:
        database = near.database()
        graph = _twice().compile()
        bound = graph.copy(update={"checkpointer": database.checkpointer()})
        await bound.ainvoke({"log": []}, PLACE)
        async with working(database, graph) as runtime:
            assert await shown(runtime) == ["send?"]
            assert (await answered(runtime, "yes")).state == "waiting"
            assert (await answered(runtime, "no")).state == "done"
            assert await logged(runtime) == ["yes, no"]

    go(main())


def test_an_answer_given_by_a_run_that_is_removed_is_asked_for_again(near: Storage) -> None:
    async def main() -> None:
        async with working(near.database(), _twice().compile()) as runtime:
            await said(runtime, {"log": []})
            run = await answered(runtime, "yes")
            assert await shown(runtime) == ["pay?"]
            await runtime.remove_run("ada", run, rollback=True)
            assert await shown(runtime) == ["send?"]
            assert (await answered(runtime, "perhaps")).state == "waiting"
            assert (await answered(runtime, "no")).state == "done"
            assert await logged(runtime) == ["perhaps, no"]

    go(main())


def test_options_of_an_answer_at_an_older_checkpoint_are_kept(near: Storage) -> None:
    async def main() -> None:
        async with working(near.database(), _twice().compile()) as runtime:
            await said(runtime, {"log": []})
            head = (await runtime.graph("agent").aget_state(PLACE)).config["configurable"]["checkpoint_id"]
            run = await answered(runtime, "yes", options=Options(checkpoint_id=head))
            assert run.state == "waiting"
            assert await shown(runtime) == ["pay?"]

    go(main())
