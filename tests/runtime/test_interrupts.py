"""Interrupts: a thread waits without anybody, one answer is taken, and it answers what it was given to.

Covers perdure.runtime.nodes.interrupt_answers.
"""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, Literal, TypedDict

import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel import Pregel
from langgraph.types import interrupt

from perdure.errors import NotWaiting, Unavailable
from perdure.model.records import INBOX
from perdure.model.runs.messages import Run
from perdure.runtime import Options, Runtime, Ticket
from tests.runtime.graphs import (
    HOUR_US,
    Storage,
    Talk,
    both,
    eventually,
    go,
    settings,
    spoken,
    stored,
    values,
    vanish,
    working,
)


def ids(run: Run) -> list[str]:
    return [shown["id"] for shown in run.note["interrupts"]]


async def asked(runtime: Runtime, said: str = "ask") -> Run:
    run = await runtime.wait(await runtime.accept("ada", said, channel="post"), 30)
    assert run.state == "waiting"
    return run


def test_a_thread_waits_without_anybody(storage: Storage) -> None:
    async def main() -> None:
        async with working(storage.database(), Talk().graph) as runtime:
            run = await asked(runtime)
            assert len(ids(run)) == 1
            assert await runtime.replies("ada") == ()
        # Nobody is there for an hour.
        database, line = storage.open()
        line.ahead_us = HOUR_US
        graph = Talk("later").graph
        async with working(database, graph) as runtime:
            (waits,) = await runtime.runs("ada")
            assert (waits.state, waits.attempts, waits.note) == ("waiting", 1, run.note), "nobody took it up"
            ticket = await runtime.answer("ada", "yes", interrupt_id=ids(run)[0], channel="post")
            ended = await runtime.wait(ticket, 30)
            assert (ended.state, ended.id) == ("done", ticket.id)
            assert [r.payload["content"] for r in await runtime.replies("ada")] == ["later: you said yes"]
        state = await values(database, graph, "ada")
        assert [m.text for m in state["messages"]] == ["ask", "later: you said yes"]
        assert state["heard"] == ["ask"], "the step before was not taken again"

    go(main())


def test_the_second_answer_is_refused(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        one, two = storage.database(), storage.database()
        async with working(one, talk.graph, works=False) as here, working(two, talk.graph) as there:
            await asked(there)

            async def say(runtime: Runtime, what: str) -> Ticket | NotWaiting:
                try:
                    return await runtime.answer("ada", what)
                except NotWaiting as error:
                    return error

            said = await asyncio.gather(*(say((here, there)[n % 2], f"answer {n}") for n in range(6)))
            (ticket,) = [answer for answer in said if isinstance(answer, Ticket)]
            assert len(storage.rows("ada", INBOX)) == 2
            assert (await here.wait(ticket, 30)).state == "done"
            with pytest.raises(NotWaiting, match="waits for no answer"):
                await there.answer("ada", "late")
            assert len(storage.rows("ada", INBOX)) == 2
            winner = next(n for n, answer in enumerate(said) if isinstance(answer, Ticket))
            assert await spoken(one, talk.graph, "ada") == ["ask", f"echo: you said answer {winner}"]

    go(main())


def test_an_answer_that_is_sent_again_is_answered_as_the_first_time(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        async with working(near.database(), talk.graph) as runtime:
            await asked(runtime)
            ticket = await runtime.answer("ada", "yes", dedupe_key="k")
            for _ in range(2):
                again = await runtime.answer("ada", "yes", dedupe_key="k")
                assert (again.number, again.id, again.is_duplicate) == (ticket.number, ticket.id, True)
                await runtime.wait(ticket, 30)

    go(main())


def test_the_answer_to_another_question_is_refused(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        async with working(near.database(), talk.graph) as runtime:
            with pytest.raises(NotWaiting):
                await runtime.answer("ada", "yes")
            assert near.rows("ada") == []
            await runtime.wait(await runtime.accept("ada", "hello"), 30)
            with pytest.raises(NotWaiting):
                await runtime.answer("ada", "yes")
            run = await asked(runtime)
            with pytest.raises(NotWaiting, match=ids(run)[0]):
                await runtime.answer("ada", "yes", interrupt_id="another")
            ticket = await runtime.answer("ada", "yes", interrupt_id=ids(run)[0])
            assert (await runtime.wait(ticket, 30)).state == "done"

    go(main())


def test_two_questions_are_answered_one_by_one(storage: Storage) -> None:
    graph = both()

    async def main() -> None:
        database = storage.database()
        async with working(database, graph) as runtime:
            run = await asked(runtime, "go")
            assert len(ids(run)) == 2
            app = graph.copy(update={"checkpointer": database.checkpointer()})
            state = await app.aget_state({"configurable": {"thread_id": "ada"}})
            asks = {i.value: i.id for i in state.interrupts}
            first = await runtime.answer("ada", "two", interrupt_id=asks["right?"])
            run = await runtime.wait(first, 30)
            assert (run.state, ids(run)) == ("waiting", [asks["left?"]])
            with pytest.raises(NotWaiting):
                await runtime.answer("ada", "again", interrupt_id=asks["right?"])
            second = await runtime.answer("ada", "one", interrupt_id=asks["left?"])
            assert (await runtime.wait(second, 30)).state == "done"
        assert await spoken(database, graph, "ada") == ["go", "left one and right two"]

    go(main())


def test_two_questions_are_answered_at_once_by_their_ids(near: Storage) -> None:
    graph = both()

    async def main() -> None:
        database = near.database()
        async with working(database, graph) as runtime:
            run = await asked(runtime, "go")
            with pytest.raises(NotWaiting, match="names none of them"):
                await runtime.answer("ada", "which?")
            wrong = {ids(run)[0]: "one", "0" * 32: "two"}
            with pytest.raises(NotWaiting, match="not to '0000"):
                await runtime.answer("ada", wrong)
            assert len(near.rows("ada", INBOX)) == 1
            ticket = await runtime.answer("ada", dict.fromkeys(ids(run), "same"))
            assert (await runtime.wait(ticket, 30)).state == "done"
        assert await spoken(database, graph, "ada") == ["go", "left same and right same"]

    go(main())


def test_a_message_to_a_thread_that_waits_starts_over(storage: Storage, talk: Talk) -> None:
    async def main() -> None:
        database = storage.database()
        async with working(database, talk.graph) as runtime:
            await asked(runtime)
            ticket = await runtime.accept("ada", "never mind")
            assert (await runtime.wait(ticket, 30)).state == "done"
            with pytest.raises(NotWaiting):
                await runtime.answer("ada", "yes")
        assert await spoken(database, talk.graph, "ada") == ["ask", "never mind", "echo: ask + never mind"]

    go(main())


def test_an_answer_after_a_message_answers_nothing_that_the_message_leads_to(
    near: Storage, talk: Talk
) -> None:
    """The message goes first and starts over; what it asks then is another question."""

    async def main() -> None:
        database = near.database()
        async with working(database, talk.graph) as runtime:
            await asked(runtime)
        async with working(database, talk.graph, works=False) as front:
            ticket = await front.accept("ada", "ask something else", debounce=600, max_wait=600)
            with suppress(NotWaiting):
                ticket = await front.answer("ada", "yes to the first")
        late, line = near.open()
        line.ahead_us = HOUR_US
        async with working(late, talk.graph) as runtime:
            await runtime.wait(ticket, 30)
            assert await spoken(late, talk.graph, "ada") == ["ask", "ask something else"]
            assert (await runtime.runs("ada"))[0].state == "waiting"

    go(main())


def test_an_answer_after_a_message_is_refused(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        async with working(near.database(), talk.graph) as runtime:
            await asked(runtime)
            await runtime.accept("ada", "never mind", debounce=600, max_wait=600)
            with pytest.raises(NotWaiting):
                await runtime.answer("ada", "yes")
            assert len(near.rows("ada", INBOX)) == 2

    go(main())


@pytest.mark.parametrize("on_failure", ["keep", "rollback"])
def test_a_question_whose_answer_failed_is_answered_again(
    near: Storage, talk: Talk, on_failure: Literal["keep", "rollback"]
) -> None:
    async def main() -> None:
        database = near.database()
        terms = settings(attempts=1, on_failure=on_failure)
        async with working(database, _fragile(talk), settings=terms) as runtime:
            before = await asked(runtime)
            ticket = await runtime.answer("ada", "boom")
            assert (await runtime.wait(ticket, 30)).state == "failed"
            answered = await runtime.answer("ada", "fine", interrupt_id=ids(before)[0])
            assert (await runtime.wait(answered, 30)).state == "done"
            assert (await spoken(database, _fragile(talk), "ada"))[-1] == "fine"
            with pytest.raises(NotWaiting):
                await runtime.answer("ada", "late")

    go(main())


def _fragile(talk: Talk) -> Pregel[Any, Any, Any, Any]:
    def node(state: MessagesState) -> dict[str, Any]:
        said = interrupt("really?")
        if said == "boom":
            raise RuntimeError(said)
        return {"messages": [AIMessage(said)]}

    return StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()


def _chain() -> Pregel[Any, Any, Any, Any]:
    """An agent whose two steps each ask something."""

    def first(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"first: {interrupt('first?')}", id="first")]}

    def second(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"second: {interrupt('second?')}", id="second")]}

    builder = StateGraph(MessagesState).add_node("first", first).add_node("second", second)
    return builder.add_edge(START, "first").add_edge("first", "second").compile()


def _nested() -> Pregel[Any, Any, Any, Any]:
    """An agent with a subgraph whose step asks twice."""

    def within(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"within: {interrupt('first?')}, {interrupt('second?')}")]}

    inner = StateGraph(MessagesState).add_node("within", within).add_edge(START, "within").compile()
    return StateGraph(MessagesState).add_node("inner", inner).add_edge(START, "inner").compile()


SHAPES: dict[str, tuple[Callable[[], Pregel[Any, Any, Any, Any]], list[str]]] = {
    "one step asks twice": (lambda: Talk().graph, ["echo: one, two"]),
    "two steps ask once": (_chain, ["first: one", "second: two"]),
    "a subgraph asks twice": (_nested, ["within: one, two"]),
}


@pytest.mark.parametrize("named", [False, True], ids=["unnamed", "named"])
@pytest.mark.parametrize("shape", SHAPES)
def test_an_answer_is_used_once_wherever_its_worker_ends(shape: str, named: bool) -> None:
    """Killed at each commit between the answer's acceptance and its run's end, before it and after it: the
    next worker goes on to the second question, and does not answer it with the first one's answer."""
    made, expected = SHAPES[shape]
    graph = made()

    async def killed(number: int, when: str) -> bool:
        """Whether the worker was killed; without that there are no more commits to try."""
        with stored("memory") as storage:
            async with working(storage.database(), graph) as runtime:
                interrupted = await asked(runtime, "twice")
            given = ids(interrupted)[0] if named else None

            async def answer(runtime: Runtime) -> Ticket:
                return await runtime.answer("ada", "one", interrupt_id=given, dedupe_key="k")

            database, line = storage.open()
            async with working(database, graph, settings=settings(drain=1)) as dying:
                line.die_at(number, when)
                try:
                    ticket = await answer(dying)
                    await eventually(lambda: line.is_dead or not dying._worker.dispatch._serving)
                except Unavailable:
                    pass
                was_killed = line.is_dead
                if was_killed:
                    vanish(dying, line)
            database, line = storage.open()
            line.ahead_us = HOUR_US
            async with working(database, graph) as runtime:
                ticket = await answer(runtime)
                run = await runtime.wait(ticket, 30)
                assert run.state == "waiting", f"killed {when} commit {number}"
                ticket = await runtime.answer("ada", "two")
                assert (await runtime.wait(ticket, 30)).state == "done"
            said = await spoken(database, graph, "ada")
            assert said == ["twice", *expected], f"killed {when} commit {number}"
            return was_killed

    async def main() -> None:
        number = 1
        while await killed(number, "before"):
            assert await killed(number, "after")
            number += 1
        assert number > 4, "an answer takes more commits than that"

    go(main())


@pytest.mark.parametrize("named", [False, True], ids=["unnamed", "named"])
def test_a_step_that_fails_between_two_questions_asks_the_second_one(storage: Storage, named: bool) -> None:
    """LangGraph keeps the first answer with the error: the next attempt must not be given it once more."""
    failures = ["once"]

    def node(state: MessagesState) -> dict[str, Any]:
        first = interrupt("first?")
        if failures:
            raise RuntimeError(failures.pop())
        return {"messages": [AIMessage(f"{first}, {interrupt('second?')}")]}

    graph = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()

    async def main() -> None:
        database = storage.database()
        async with working(database, graph, settings=settings(backoff=0.01)) as runtime:
            interrupted = await asked(runtime)
            given = ids(interrupted)[0] if named else None
            run = await runtime.wait(await runtime.answer("ada", "one", interrupt_id=given), 30)
            assert (run.state, run.attempts, failures) == ("waiting", 2, [])
            assert ids(run) != ids(interrupted)
            run = await runtime.wait(await runtime.answer("ada", "two"), 30)
            assert run.state == "done"
            assert (await spoken(database, graph, "ada"))[-1] == "one, two"

    go(main())


@pytest.mark.parametrize("answer", [None, False, {"a" * 31: 1}, {"A" * 32: 1}, {}, "", []])
def test_an_answer_is_whatever_was_said(storage: Storage, answer: Any) -> None:
    """Nothing, and what looks like a map of interrupts or is as good as no, without a name."""

    def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"said: {interrupt('what?')!r}")]}

    graph = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()

    async def main() -> None:
        database = storage.database()
        async with working(database, graph) as runtime:
            await asked(runtime)
            run = await runtime.wait(await runtime.answer("ada", answer), 30)
            assert run.state == "done"
            assert (await spoken(database, graph, "ada"))[-1] == f"said: {answer!r}"

    go(main())


class _Log(TypedDict):
    log: Annotated[list[str], operator.add]


def _thrice(failures: list[str], **compiled: Any) -> Pregel[Any, Any, Any, Any]:
    """An agent whose one step asks three times, and may fail after the first answer."""

    def node(state: _Log) -> dict[str, Any]:
        first = interrupt("first?")
        if failures:
            raise RuntimeError(failures.pop())
        return {"log": [f"{first}, {interrupt('second?')}, {interrupt('third?')}"]}

    return StateGraph(_Log).add_node("node", node).add_edge(START, "node").compile(**compiled)


async def _logged(runtime: Runtime) -> list[str]:
    state = await runtime.graph("agent").aget_state({"configurable": {"thread_id": "ada"}})
    log: list[str] = state.values["log"]
    return log


@pytest.mark.parametrize("fails", [False, True], ids=["", "after a failure"])
@pytest.mark.parametrize("pauses", [False, True], ids=["asked", "paused before"])
@pytest.mark.parametrize("named", [(), (1,), (0, 2), (0, 1, 2)], ids=str)
def test_no_answer_is_left_over_for_the_next_question(
    near: Storage, fails: bool, pauses: bool, named: tuple[int, ...]
) -> None:
    """A step that asks three times; some of the answers name their question. A pause asks nothing, so that
    what is said to it has no name."""
    failures = ["once"] if fails else []
    graph = _thrice(failures, **({"interrupt_before": ["node"]} if pauses else {}))

    async def main() -> None:
        async with working(near.database(), graph, settings=settings(backoff=0.01)) as runtime:
            run = await runtime.wait(await runtime.submit("ada", {"log": []}), 30)
            for number, word in enumerate(("one", "two", "three")):
                assert run.state == "waiting", word
                name = ids(run)[0] if number in named and ids(run) else None
                run = await runtime.wait(await runtime.answer("ada", word, interrupt_id=name), 30)
            assert run.state == "done"
            assert failures == []
            assert await _logged(runtime) == ["one, two, three"]

    go(main())


def test_an_answer_with_a_command_is_not_left_over_for_a_later_question(near: Storage) -> None:
    async def main() -> None:
        async with working(near.database(), _thrice([])) as runtime:
            await runtime.wait(await runtime.submit("ada", {"log": []}), 30)
            ticket = await runtime.answer("ada", "one", command={"update": {"log": ["noted"]}})
            assert (await runtime.wait(ticket, 30)).state == "waiting"
            for word, state in (("two", "waiting"), ("three", "done")):
                assert (await runtime.wait(await runtime.answer("ada", word), 30)).state == state
            assert await _logged(runtime) == ["noted", "one, two, three"]

    go(main())


@pytest.mark.parametrize("fails", [False, True], ids=["", "after a failure"])
def test_an_answer_to_a_thread_that_was_edited_since_is_used(near: Storage, fails: bool) -> None:
    """The step that asked is a new one then, and its question has another name."""
    failures = ["once"] if fails else []

    def node(state: MessagesState) -> dict[str, Any]:
        said = interrupt("really?")
        if failures:
            raise RuntimeError(failures.pop())
        return {"messages": [AIMessage(f"so: {said}")]}

    graph = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()

    async def main() -> None:
        database = near.database()
        async with working(database, graph, settings=settings(backoff=0.01)) as runtime:
            await asked(runtime, "transfer 12")
            place: Any = {"configurable": {"thread_id": "ada"}}
            await runtime.graph("agent").aupdate_state(place, {"messages": [("user", "make it 10")]})
            run = await runtime.wait(await runtime.answer("ada", "yes"), 30)
            assert (run.state, failures) == ("done", [])
            assert await spoken(database, graph, "ada") == ["transfer 12", "make it 10", "so: yes"]

    go(main())


def test_an_answer_addressed_to_the_head_is_used_after_a_failure(near: Storage) -> None:
    async def main() -> None:
        async with working(near.database(), _thrice(["once"]), settings=settings(backoff=0.01)) as runtime:
            await runtime.wait(await runtime.submit("ada", {"log": []}), 30)
            state = await runtime.graph("agent").aget_state({"configurable": {"thread_id": "ada"}})
            head = state.config["configurable"]["checkpoint_id"]
            ticket = await runtime.answer("ada", "one", options=Options(checkpoint_id=head))
            assert (await runtime.wait(ticket, 30)).state == "waiting"
            for word in ("two", "three"):
                run = await runtime.wait(await runtime.answer("ada", word), 30)
            assert run.state == "done"
            assert await _logged(runtime) == ["one, two, three"]

    go(main())


def test_an_answer_does_not_go_behind_a_message_when_another_is_taken_back(near: Storage, talk: Talk) -> None:
    """The message starts over: what it asks then is another question."""

    async def main() -> None:
        async with working(near.database(), talk.graph) as runtime:
            await asked(runtime)
        async with working(near.database(), talk.graph, works=False) as front:
            first = await front.answer("ada", "one")
            await front.accept("ada", "ask something else", debounce=600, max_wait=600)
            assert await front.withdraw("ada", first.id)
            with pytest.raises(NotWaiting):
                await front.answer("ada", "two")

    go(main())
