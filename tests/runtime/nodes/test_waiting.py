"""Nodes that wait: questions with deadlines, sleep, signals; on every backend, through crashes and jumps."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Annotated, Any, TypedDict, cast

import pytest
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.pregel import Pregel
from langgraph.types import interrupt

from perdure.errors import NotAllowed, NotWaiting, QuestionExpired, TooLarge, Unserialisable
from perdure.model.records import INBOX, LANE
from perdure.model.runs.messages import DONE, FAILED, WAITING, Message, Run
from perdure.model.runs.queue import WAITS
from perdure.model.runs.waits import BY_WAIT
from perdure.runtime import (
    Channel,
    Question,
    Runtime,
    ask,
    sleep,
    sleep_sync,
    wait_for,
    wait_for_sync,
)
from tests.runtime.graphs import (
    HOUR_US,
    Heard,
    Post,
    Storage,
    advance,
    eventually_stored,
    go,
    settings,
    values,
    vanish,
)

HOUR = 3600.0


class Noted(TypedDict, total=False):
    notes: Annotated[list[Any], operator.add]


Node = Callable[[Noted], Any]


def chain(*nodes: Node) -> Pregel[Any, Any, Any, Any]:
    """A graph of nodes one after another."""
    builder = StateGraph(Noted)
    before = START
    for node in nodes:
        builder.add_node(node.__name__, cast(Any, node))
        builder.add_edge(before, node.__name__)
        before = node.__name__
    return builder.compile()


async def asks(state: Noted) -> dict[str, Any]:
    return {"notes": [ask("pay?", within=HOUR, default={"pay": False}, remind=HOUR / 2)]}


async def naps(state: Noted) -> dict[str, Any]:
    await sleep(timedelta(hours=1))
    return {"notes": ["slept"]}


async def waits(state: Noted) -> dict[str, Any]:
    return {"notes": [await wait_for("paid", within=HOUR, default=None)]}


async def ended(runtime: Runtime, thread: str = "t") -> Run | None:
    """The newest run if it is over."""
    (run, *_) = await runtime.runs(thread, limit=1) or (None,)
    return None if run is None or run.state == "open" else run


async def reach(runtime: Runtime, count: int, state: str, thread: str = "t") -> None:
    """Wait until a thread has so many runs, the newest in a state."""

    async def reached() -> bool:
        runs = await runtime.runs(thread)
        return len(runs) == count and runs[0].state == state

    await eventually_stored(reached)


def woken(storage: Storage, thread: str = "t") -> list[Any]:
    """What deadlines and signals gave, in order."""
    found = map(Message.read, storage.rows(thread, INBOX))
    return [next(iter(each.payload["resume"].values())) for each in found if BY_WAIT in each.options]


def test_deadlines_sleeps_and_signals_go_on_by_themselves(storage: Storage) -> None:
    async def main() -> None:
        database = storage.database()
        graph = chain(asks, naps, waits)
        async with Runtime(database, graph, settings=settings()) as runtime:
            ticket = await runtime.submit("t", {})
            assert (await runtime.wait(ticket)).state == WAITING
            assert await runtime.signal("t", "paid", 7, key="k") == ("t", "paid", None, False)
            advance(runtime)
            await reach(runtime, 2, WAITING)
            with pytest.raises(NotWaiting, match="sleeps"):
                await runtime.answer("t", "late")
            assert await runtime.question("t") is None
            advance(runtime)
            await reach(runtime, 4, DONE)
            again = await runtime.signal("t", "paid", 7, key="k")
            assert again.is_duplicate
            assert again.run_id == (await runtime.runs("t"))[0].id
        assert (await values(database, graph, "t"))["notes"] == [{"pay": False}, "slept", 7]
        lanes = {row.key[0] for row in storage.rows("t", LANE)}
        assert WAITS not in lanes

    go(main())


def test_an_answer_in_time_is_the_answer(near: Storage) -> None:
    async def main() -> None:
        database, graph = near.database(), chain(asks)
        async with Runtime(database, graph, settings=settings()) as runtime:
            await runtime.wait(await runtime.submit("t", {}))
            run = await runtime.wait(await runtime.answer("t", {"pay": True}))
            assert run.state == DONE
            advance(runtime, 2 * HOUR_US)
            with pytest.raises(NotWaiting):
                await runtime.answer("t", 1)
            assert len(await runtime.runs("t")) == 2
        assert (await values(database, graph, "t"))["notes"] == [{"pay": True}]

    go(main())


def test_a_question_without_a_default_raises_in_its_node(near: Storage) -> None:
    async def handles(state: Noted) -> dict[str, Any]:
        try:
            return {"notes": [ask("pay?", within=HOUR)]}
        except QuestionExpired:
            return {"notes": ["too late"]}

    async def fails(state: Noted) -> dict[str, Any]:
        return {"notes": [await wait_for("never", within=HOUR)]}

    async def main() -> None:
        database, graph = near.database(), chain(handles, fails)
        async with Runtime(database, graph, settings=settings()) as runtime:
            await runtime.wait(await runtime.submit("t", {}))
            advance(runtime)
            await reach(runtime, 2, WAITING)
            advance(runtime)
            await reach(runtime, 3, FAILED)
            (run, *_) = await runtime.runs("t")
            assert run.note["kind"] == "QuestionExpired"
            assert run.attempts == 1, "another attempt would be told the same"
            # It is not told again and again: the run may be repeated, and the thread may go on.
            await asyncio.sleep(0.5)
            assert len(await runtime.runs("t")) == 3
        assert (await values(database, graph, "t"))["notes"] == ["too late"]

    go(main())


def test_a_sleep_whose_run_failed_goes_on_when_that_is_retried(near: Storage) -> None:
    fails = [True]

    async def naps_and_fails(state: Noted) -> dict[str, Any]:
        await sleep(HOUR)
        if fails:
            raise RuntimeError("boom")
        return {"notes": ["slept"]}

    async def main() -> None:
        database, graph = near.database(), chain(naps_and_fails)
        async with Runtime(database, graph, settings=settings(attempts=2)) as runtime:
            await runtime.wait(await runtime.submit("t", {}))
            advance(runtime)
            await reach(runtime, 2, FAILED)
            fails.clear()
            (failed, *_) = await runtime.runs("t")
            assert (await runtime.wait(await runtime.retry("t", failed.id))).state == DONE
        assert (await values(database, graph, "t"))["notes"] == ["slept"]

    go(main())


def test_plain_functions_wait_too(near: Storage) -> None:
    def both(state: Noted) -> dict[str, Any]:
        sleep_sync(HOUR)
        return {"notes": [wait_for_sync("go"), ask("who?")]}

    async def main() -> None:
        database, graph = near.database(), chain(both)
        async with Runtime(database, graph, settings=settings()) as runtime:
            await runtime.wait(await runtime.submit("t", {}))
            advance(runtime)
            await reach(runtime, 2, WAITING)
            receipt = await runtime.signal("t", "go", [1])
            await reach(runtime, 3, WAITING)
            assert (await runtime.runs("t"))[0].id == receipt.run_id
            assert (await runtime.wait(await runtime.answer("t", "ada"))).state == DONE
        assert (await values(database, graph, "t"))["notes"] == [[1], "ada"]

    go(main())


def test_a_question_beside_another_keeps_its_deadline(near: Storage) -> None:
    def fork(state: Noted) -> dict[str, Any]:
        return {}

    async def left(state: Noted) -> dict[str, Any]:
        return {"notes": [f"left {ask('left?', within=HOUR, default='late')}"]}

    async def right(state: Noted) -> dict[str, Any]:
        return {"notes": [f"right {interrupt('right?')}"]}

    async def napping(state: Noted) -> dict[str, Any]:
        await sleep(2 * HOUR)
        return {"notes": ["slept"]}

    builder = StateGraph(Noted)
    for node in (left, right, napping):
        builder.add_node(node.__name__, node)
        builder.add_edge(START, node.__name__)
    graph = builder.compile()

    async def main() -> None:
        database = near.database()
        async with Runtime(database, graph, settings=settings()) as runtime:
            await runtime.wait(await runtime.submit("t", {}))
            question = await runtime.question("t")
            assert question is not None
            assert len(question.interrupts) == 2, "a sleep is not a question"
            state = await runtime.graph("agent").aget_state({"configurable": {"thread_id": "t"}})
            (asked,) = [one.id for one in state.interrupts if one.value == "right?"]
            advance(runtime, HOUR_US // 2)
            assert (await runtime.wait(await runtime.answer("t", "yes", interrupt_id=asked))).state == WAITING
            advance(runtime, HOUR_US // 2)
            await reach(runtime, 3, WAITING)
            advance(runtime)
            await reach(runtime, 4, DONE)
        notes = (await values(database, graph, "t"))["notes"]
        assert sorted(notes) == ["left late", "right yes", "slept"]

    go(main())


def test_a_message_goes_past_a_sleep(near: Storage) -> None:
    async def main() -> None:
        database, graph = near.database(), chain(naps)
        async with Runtime(database, graph, settings=settings()) as runtime:
            await runtime.wait(await runtime.submit("t", {}))
            assert (await runtime.wait(await runtime.submit("t", {"notes": ["again"]}))).state == WAITING
            advance(runtime)
            await reach(runtime, 3, DONE)
            assert len(woken(near)) == 1
        assert (await values(database, graph, "t"))["notes"] == ["again", "slept"]

    go(main())


def test_a_channel_is_reminded_of_a_question_and_not_asked_for_a_sleep(near: Storage) -> None:
    async def main() -> None:
        post, heard = Post(), Heard()
        channel = Channel(post.send, ask=lambda interrupt_id, value: {"content": value})
        async with Runtime(
            near.database(),
            chain(naps, asks),
            channels={"post": channel},
            settings=settings(),
            observers=[heard],
        ) as runtime:
            ticket = await runtime.submit("t", {}, channel="post")
            await runtime.wait(ticket)
            assert post.sent == []
            advance(runtime)
            await reach(runtime, 2, WAITING)
            await eventually_stored(lambda: _of(post.texts == ["pay?"]))
            advance(runtime, HOUR_US // 2)
            await eventually_stored(lambda: _of(post.texts == ["pay?", "pay?"]))
            advance(runtime, HOUR_US // 2)
            await reach(runtime, 3, DONE)
            assert len({reply_id for reply_id, _ in post.sent}) == 2
        # A process that looks late sends the reminder and no second one.
        assert heard.count("question.reminded") == 1
        assert heard.count("wait.expired") == 2

    go(main())


async def _of(value: bool) -> bool:
    return value


def test_a_thread_that_sleeps_holds_nothing_of_its_process(memory: Storage) -> None:
    async def main() -> None:
        async with Runtime(memory.database(), chain(naps), settings=settings(concurrency=1)) as runtime:
            for n in range(20):
                await runtime.wait(await runtime.submit(f"t{n}", {}))
            dispatch, runner = runtime._worker.dispatch, runtime._worker.runner
            await eventually_stored(lambda: _of(not dispatch._serving))
            assert not dispatch._timers
            assert not runner._waits
            assert not runner._working
            (row,) = memory.rows("t3", LANE)[-1:]
            assert (row.key, row.fields["owner"]) == (("waits",), None)

    go(main())


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, 9))
def test_whatever_commit_a_process_dies_at_each_wait_ends_once(
    memory: Storage, number: int, when: str
) -> None:
    graph = chain(asks, naps, waits)

    async def main() -> None:
        database, line = memory.open()
        first = Runtime(database, graph, settings=settings())
        await first.__aenter__()
        await first.wait(await first.submit("t", {}))
        line.die_at(number, when)
        for _ in range(3):
            advance(first)
            await asyncio.sleep(0.3)
        vanish(first, line)
        other = memory.database()
        async with Runtime(other, graph, settings=settings()) as second:
            ahead = 3 * HOUR_US
            for _ in range(6):
                advance(second, ahead)
                ahead = HOUR_US
                await asyncio.sleep(0.3)
                if (run := await ended(second)) is not None and run.state == DONE:
                    break
            await reach(second, 4, DONE)
        assert woken(memory)[0] == {"pay": False}
        assert len(woken(memory)) == 3
        assert (await values(other, graph, "t"))["notes"] == [{"pay": False}, "slept", None]

    go(main())


@pytest.mark.parametrize("rounds", [20, pytest.param(2000, marks=pytest.mark.slow)])
def test_of_an_answer_and_its_deadline_one_is_taken_whole(memory: Storage, rounds: int) -> None:
    async def soon(state: Noted) -> dict[str, Any]:
        return {"notes": [ask("pay?", within=0.01, default="late")]}

    graph = chain(soon)

    async def one(runtime: Runtime, database: Any, n: int) -> str:
        thread = f"t{n}"
        await runtime.wait(await runtime.submit(thread, {}))
        await asyncio.sleep(0.0002 * (n % 60))
        try:
            await runtime.answer(thread, "answered")
            taken = "answered"
        except NotWaiting:
            taken = "late"
        await reach(runtime, 2, DONE, thread)
        assert (await values(database, graph, thread))["notes"] == [taken]
        return taken

    async def main() -> set[str]:
        database = memory.database()
        async with Runtime(database, graph, settings=settings(poll=0.05)) as runtime:
            found: set[str] = set()
            for at in range(0, rounds, 20):
                found |= set(await asyncio.gather(*(one(runtime, database, at + n) for n in range(20))))
            return found

    async def bounded() -> set[str]:
        async with asyncio.timeout(600):
            return await main()

    found = asyncio.run(bounded())
    assert found <= {"answered", "late"}


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda: ask("?", within=-1), ValueError, "within is -1"),
        (lambda: ask("?", within=True), ValueError, "number of seconds or a timedelta"),
        (lambda: ask("?", default=1), ValueError, "give within"),
        (lambda: ask("?", within=5, remind=6), ValueError, "would come when the question has expired"),
        (lambda: ask("?", within=99, remind=range(30)), ValueError, "at most 20 reminders"),
        (lambda: ask("?", within=5, default=object()), Unserialisable, "default"),
        (lambda: ask("?", within=5, default="x" * 70_000), TooLarge, "default"),
        (lambda: ask("?", within=5), NotAllowed, "run of a Runtime"),
        (lambda: sleep_sync(5), NotAllowed, "run of a Runtime"),
        (lambda: wait_for_sync(""), ValueError, "1 to 200 characters"),
        (lambda: wait_for_sync("n", default=1), ValueError, "give within"),
        (lambda: wait_for_sync("n"), NotAllowed, "run of a Runtime"),
    ],
)
def test_what_cannot_be_waited_for_is_refused(
    call: Callable[[], object], error: type[Exception], text: str
) -> None:
    def node(state: Noted) -> dict[str, Any]:
        call()
        return {}

    graph = chain(node).copy(update={"checkpointer": InMemorySaver()})
    with pytest.raises(error, match=text):
        graph.invoke({}, {"configurable": {"thread_id": "t"}})


def test_a_question_without_times_is_an_interrupt(near: Storage) -> None:
    def node(state: Noted) -> dict[str, Any]:
        return {"notes": [ask("who?")]}

    graph = chain(node).copy(update={"checkpointer": InMemorySaver()})
    config: Any = {"configurable": {"thread_id": "t"}}
    asked = graph.invoke({}, config)["__interrupt__"]
    assert [one.value for one in asked] == ["who?"]


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        ({"within": 5}, "needs a default"),
        ({}, "needs within"),
        ({"within": 5, "default": 1, "remind": 9}, "has expired"),
        ({"default": 1, "remind": 9}, "give within"),
    ],
)
def test_a_rule_that_cannot_be_kept_is_refused(rule: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        Question(**rule)


def test_a_signal_that_cannot_be_given_is_refused(memory: Storage) -> None:
    async def main() -> None:
        async with Runtime(memory.database(), chain(naps), settings=settings()) as runtime:
            calls: list[tuple[Awaitable[Any], type[Exception]]] = [
                (runtime.signal("t", ""), ValueError),
                (runtime.signal("t", "n", key=""), ValueError),
                (runtime.signal("t", "n", object()), Unserialisable),
            ]
            for call, error in calls:
                with pytest.raises(error):
                    await call

    go(main())


@pytest.mark.parametrize("odd", [{"__perdure__": "expired"}, {"__perdure__": "given", "answer": 1}])
def test_an_answer_that_looks_like_the_mark_of_a_deadline_is_an_answer(near: Storage, odd: Any) -> None:
    """Also beside a question of the same node that did expire, which is read again each time."""

    async def asks_in_turn(state: Noted) -> dict[str, Any]:
        try:
            first = ask("pay?", within=HOUR)
        except QuestionExpired:
            first = "too late"
        return {"notes": [first, ask("sure?", within=HOUR), interrupt("why?")]}

    async def listens(state: Noted) -> dict[str, Any]:
        return {"notes": [await wait_for("payment", within=HOUR)]}

    async def defaults(state: Noted) -> dict[str, Any]:
        return {
            "notes": [ask("how?", within=HOUR, default="so"), await wait_for("x", within=HOUR, default=odd)]
        }

    async def main() -> None:
        database, graph = near.database(), chain(asks_in_turn, listens, defaults)
        async with Runtime(database, graph, settings=settings()) as runtime:
            await runtime.wait(await runtime.submit("t", {}))
            advance(runtime)
            await reach(runtime, 2, WAITING)
            question = await runtime.wait(await runtime.answer("t", odd))
            assert question.state == WAITING
            await runtime.wait(await runtime.answer("t", {question.note["interrupts"][0]["id"]: odd}))
            await runtime.signal("t", "payment", odd)
            await reach(runtime, 5, WAITING)
            await runtime.wait(await runtime.answer("t", odd))
            advance(runtime)
            await reach(runtime, 7, DONE)
        assert (await values(database, graph, "t"))["notes"] == ["too late", odd, odd, odd, odd, odd]

    go(main())
