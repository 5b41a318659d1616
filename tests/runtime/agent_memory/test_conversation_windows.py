"""Conversations of a runtime's threads: repaired, kept within a limit and summarised with a run's input."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

import perdure
from perdure.conversation import Conversation, Limit, Summary
from perdure.database.base import handle_of
from perdure.engine.queue.finished_summary import FinishedSummary, load, store
from perdure.model.records import Partition
from perdure.runtime import Agent, Runtime, Settings
from perdure.testing.faults import WRITES, Fault, FaultyDriver, fail, faulty
from tests.backends import BACKENDS, EMPTY
from tests.conversation.histories import how_many
from tests.conversation.models import Scripted

QUICK = Settings(backoff=0.05, max_backoff=0.1, poll=0.2, attempts=4)
REPLY = "y" * 60


class Seen:
    """Observer that keeps the events about conversations."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self.errors: list[str] = []

    def event(self, name: str, fields: dict[str, Any]) -> None:
        if name.startswith("conversation."):
            self.names.append(name.removeprefix("conversation."))
        if "error" in fields:
            self.errors.append(fields["error"])

    def span(self, name: str, fields: dict[str, Any]) -> AbstractContextManager[None]:
        return nullcontext()


class Summaries:
    """Makes a summary of the ids that it covers, so that it shows what was folded, and how often."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls = 0
        self.error = error

    def __call__(self, summary: str, messages: Sequence[BaseMessage]) -> str:
        self.calls += 1
        if self.error is not None:
            raise self.error
        return " ".join([*summary.split(), *(str(message.id)[-8:] for message in messages)])


def policy(summarize: Any = None, tokens: int = 700) -> Conversation:
    return Conversation(limit=Limit(tokens, summary=350 if summarize else 0), summarize=summarize)


def graph(model: Scripted) -> Any:
    """A graph that knows nothing of limits: it sends the model all that its state holds."""

    async def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()


@asynccontextmanager
async def working(
    database: perdure.Database | perdure.SyncDatabase, agent: Agent, seen: Seen | None = None
) -> AsyncIterator[Runtime]:
    observers = [seen or Seen()]
    async with asyncio.timeout(100), Runtime(database, agent, settings=QUICK, observers=observers) as app:
        yield app


async def say(app: Runtime, text: str = "x" * 60) -> str:
    run = await app.wait(await app.accept("t", text))
    await app._worker.runner.conversations.wait_for_summaries()
    return run.state


async def stored(app: Runtime) -> list[BaseMessage]:
    state = await app.graph("agent").aget_state({"configurable": {"thread_id": "t"}})
    return list(state.values.get("messages", []))


def accounted(messages: Sequence[BaseMessage]) -> list[str]:
    """The ends of the ids of all messages of a thread: summarised, kept for the next summary, and present."""
    summary = Summary.of(messages) or Summary("")
    kept = [message for message in messages if not isinstance(message, SystemMessage)]
    return [*summary.text.split(), *(str(message.id)[-8:] for message in [*summary.pending, *kept])]


def run(agent: Agent, body: Any, seen: Seen | None = None) -> Any:
    async def main() -> Any:
        async with perdure.connect("memory://") as db, working(db, agent, seen) as app:
            return await body(app)

    return asyncio.run(main())


def test_a_message_of_plain_text_is_kept_within_the_limit_too() -> None:
    model, seen = Scripted(answers=[AIMessage(REPLY)]), Seen()

    async def body(app: Runtime) -> None:
        for _ in range(30):
            await app.wait(await app.submit("t", {"messages": "x" * 60}))

    run(Agent(graph(model), conversation=policy()), body, seen)
    assert "compacted" in seen.names


def test_a_summary_is_made_although_the_process_is_paused_after_each_reply() -> None:
    model, seen = Scripted(answers=[AIMessage(REPLY)]), Seen()

    async def slow(summary: str, messages: Sequence[BaseMessage]) -> str:
        await asyncio.sleep(0.02)
        return " ".join([*summary.split(), *(str(message.id)[-8:] for message in messages)])

    async def body(app: Runtime) -> list[BaseMessage]:
        for _ in range(25):
            await app.wait(await app.accept("t", "x" * 60))
            assert await app.pause(30)
            await app.resume()
        return await stored(app)

    summary = Summary.of(run(Agent(graph(model), conversation=policy(slow)), body, seen))
    assert summary is not None
    assert summary.text
    assert "summary_failed" not in seen.names


def test_what_is_held_of_a_thread_goes_when_it_is_deleted() -> None:
    model, summaries = Scripted(answers=[AIMessage(REPLY)]), Summaries()

    async def body(app: Runtime) -> list[Any]:
        for _ in range(30):
            await say(app)
        handle = handle_of(app.database)
        before = await handle.arun(load(Partition("", "t")))
        await app.delete("t")
        return [before is not None, await handle.arun(load(Partition("", "t")))]

    assert run(Agent(graph(model), conversation=policy(summaries)), body) == [True, None]


def test_a_summary_of_a_thread_that_another_process_deleted_is_dropped() -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    async def slow(summary: str, messages: Sequence[BaseMessage]) -> str:
        begun.set()
        await go_on.wait()
        return "of the deleted thread"

    async def body(app: Runtime) -> Any:
        while not begun.is_set():
            await app.wait(await app.accept("t", "x" * 60))
            await asyncio.sleep(0)
        async with Runtime(app.database, agent, settings=QUICK, works=False) as other:
            await other.delete("t")
        assert (await app.wait(await app.accept("t", "x"))).state == "done"
        go_on.set()
        await app._worker.runner.conversations.wait_for_summaries()
        return await handle_of(app.database).arun(load(Partition("", "t")))

    seen = Seen()
    agent = Agent(graph(Scripted(answers=[AIMessage(REPLY)])), conversation=policy(slow))
    assert run(agent, body, seen) is None
    assert seen.names == ["summary_superseded"]


def test_a_finished_summary_outlives_its_process_and_is_not_made_again(tmp_path: Path) -> None:
    summaries, seen, later = Summaries(), Seen(), Seen()
    url = f"sqlite:///{tmp_path / 'threads.db'}"

    async def main() -> list[BaseMessage]:
        agent = Agent(graph(Scripted(answers=[AIMessage(REPLY)])), conversation=policy(summaries))
        async with perdure.connect(url, migrate=True) as db, working(db, agent, seen) as app:
            while "summary_made" not in seen.names:
                await say(app)
        broken = Summaries(AssertionError("it was made already"))
        agent = Agent(graph(Scripted(answers=[AIMessage(REPLY)])), conversation=policy(broken))
        async with perdure.connect(url) as db, working(db, agent, later) as app:
            while "summary_stored" not in later.names:
                await say(app)
            assert later.names[: later.names.index("summary_stored")].count("summary_failed") == 0
            return await stored(app)

    messages = asyncio.run(main())
    told = accounted(messages)
    assert summaries.calls == 1
    assert len(told) == len(set(told))
    assert Summary.of(messages) is not None


def test_of_two_summaries_at_once_the_first_one_is_stored() -> None:
    seen = Seen()
    begun, go_on = asyncio.Event(), asyncio.Event()
    covered: list[str | None] = []

    async def slow(summary: str, messages: Sequence[BaseMessage]) -> str:
        covered.append(messages[-1].id)
        begun.set()
        await go_on.wait()
        return "the late one"

    async def body(app: Runtime) -> list[BaseMessage]:
        last = ""
        while not begun.is_set():
            last = (await app.wait(await app.accept("t", "x" * 60))).id
            await asyncio.sleep(0.05)
        # Another process finishes its own in between.
        handle = handle_of(app.database)
        other: dict[str, Any] = {"base": None, "text": "the early one", "covers": covered[0], "keeps": []}
        made = FinishedSummary(other, last)
        assert await handle.arun(store(Partition("", "t"), made, 1, fresh=handle.draw_version()))
        go_on.set()
        await app._worker.runner.conversations.wait_for_summaries()
        assert seen.names == ["summary_superseded"]
        while "summary_stored" not in seen.names:
            await say(app)
        return await stored(app)

    messages = run(Agent(graph(Scripted(answers=[AIMessage(REPLY)])), conversation=policy(slow)), body, seen)
    summary = Summary.of(messages)
    assert summary is not None
    assert summary.text == "the early one"


def test_a_summary_that_is_too_long_is_shortened_and_counted() -> None:
    seen = Seen()

    async def body(app: Runtime) -> list[BaseMessage]:
        for _ in range(20):
            assert await say(app) == "done"
        return await stored(app)

    agent = Agent(
        graph(Scripted(answers=[AIMessage(REPLY)])), conversation=policy(lambda *_: "so many words. " * 500)
    )
    summary = Summary.of(run(agent, body, seen))
    assert summary is not None
    assert summary.text.endswith("so many words.")
    assert "summary_shortened" in seen.names
    assert "summary_failed" not in seen.names


def test_a_thread_is_kept_within_its_limit_and_nothing_of_it_is_lost() -> None:
    model, summaries, seen = Scripted(answers=[AIMessage(REPLY)]), Summaries(), Seen()

    async def body(app: Runtime) -> list[BaseMessage]:
        for _ in range(22):
            assert await say(app) == "done"
        return await stored(app)

    messages = run(Agent(graph(model), conversation=policy(summaries)), body, seen)
    told = accounted(messages)
    assert len(told) == len(set(told)) == 44
    assert sum(isinstance(message, SystemMessage) for message in messages) == 1
    assert max(map(len, model.sent)) < 24
    assert summaries.calls == seen.names.count("summary_made") >= 2
    assert seen.names.count("summary_stored") >= 1
    assert "summary_failed" not in seen.names


def test_earlier_checkpoints_have_the_originals() -> None:
    async def body(app: Runtime) -> list[int]:
        for _ in range(30):
            await say(app)
        history = app.graph("agent").aget_state_history({"configurable": {"thread_id": "t"}})
        return [len(state.values.get("messages", [])) async for state in history]

    lengths = run(Agent(graph(Scripted(answers=[AIMessage(REPLY)])), conversation=policy()), body)
    assert lengths[0] < max(lengths)
    assert sum(later < before for later, before in pairwise(lengths)) > 0


def test_a_summary_that_fails_loses_nothing_and_is_tried_again() -> None:
    model, summaries, seen = Scripted(answers=[AIMessage(REPLY)]), Summaries(ConnectionError("x")), Seen()

    async def body(app: Runtime) -> list[BaseMessage]:
        for _ in range(24):
            assert await say(app) == "done"
        failing = await stored(app)
        assert len(set(accounted(failing))) == 48
        assert "not summarised yet" in failing[0].text
        summaries.error = None
        for _ in range(2):
            assert await say(app) == "done"
        return await stored(app)

    messages = run(Agent(graph(model), conversation=policy(summaries)), body, seen)
    told = accounted(messages)
    assert len(told) == len(set(told)) == 52
    assert "<summary>" in messages[0].text
    assert set(seen.errors) == {"ConnectionError"}
    assert max(map(len, model.sent)) < 24


def test_nonsense_of_the_summary_s_model_is_no_summary() -> None:
    seen = Seen()

    async def body(app: Runtime) -> list[BaseMessage]:
        for _ in range(16):
            assert await say(app) == "done"
        return await stored(app)

    agent = Agent(
        graph(Scripted(answers=[AIMessage(REPLY)])), conversation=policy(lambda summary, messages: "")
    )
    messages = run(agent, body, seen)
    assert len(set(accounted(messages))) == 32
    assert set(seen.errors) == {"SummaryRefused"}


def test_a_cancelled_call_is_repaired_with_the_next_input() -> None:
    call = {"name": "look", "args": {}, "id": "lost"}
    model, seen = Scripted(), Seen()

    async def body(app: Runtime) -> list[BaseMessage]:
        lost = [HumanMessage("hi", id="h"), AIMessage("", tool_calls=[call], id="a")]
        config: RunnableConfig = {"configurable": {"thread_id": "t"}}
        await app.graph("agent").aupdate_state(config, {"messages": lost}, as_node="answer")
        assert await say(app, "still there?") == "done"
        assert await say(app, "good") == "done"
        return await stored(app)

    messages = run(Agent(graph(model), conversation=policy()), body, seen)
    assert [message.type for message in messages] == ["human", "ai", "tool", "human", "ai", "human", "ai"]
    assert isinstance(messages[2], ToolMessage)
    assert messages[2].status == "error"
    assert seen.names == ["repaired"]


def test_a_thread_that_waits_for_an_answer_is_left_alone() -> None:
    call = {"name": "ask", "args": {}, "id": "c1"}
    model = Scripted(answers=[AIMessage("", tool_calls=[call]), AIMessage("done")])

    async def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    async def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [ToolMessage(str(interrupt("sure?")), tool_call_id="c1")]}

    builder = StateGraph(MessagesState)
    builder.add_node("think", think)
    builder.add_node("ask", ask)
    builder.add_edge(START, "think")
    builder.add_conditional_edges("think", lambda s: "ask" if s["messages"][-1].tool_calls else "__end__")
    builder.add_edge("ask", "think")

    async def body(app: Runtime) -> list[BaseMessage]:
        waiting = await app.wait(await app.accept("t", "go"))
        assert waiting.state == "waiting"
        done = await app.wait(await app.answer("t", "yes"))
        assert done.state == "done"
        return await stored(app)

    messages = run(Agent(builder.compile(), conversation=policy()), body)
    assert [message.text for message in messages if isinstance(message, ToolMessage)] == ["yes"]


def test_a_message_that_is_too_long_fails_at_once_and_is_named() -> None:
    model = Scripted()

    async def body(app: Runtime) -> Any:
        return await app.wait(await app.accept("t", "x" * 9_000))

    failed = run(Agent(graph(model), conversation=policy()), body)
    assert (failed.state, failed.attempts, failed.note["kind"]) == ("failed", 1, "MessageTooLong")
    assert "human message" in failed.note["error"]
    assert model.sent == []


def test_a_graph_whose_messages_cannot_be_replaced_is_refused() -> None:
    class Appending(TypedDict):
        messages: Annotated[list[Any], operator.add]

    builder = StateGraph(Appending).add_node("answer", lambda state: {}).add_edge(START, "answer")
    with pytest.raises(ValueError, match="needs a reducer for 'messages'"):
        Agent(builder.compile(), conversation=policy())
    with pytest.raises(ValueError, match="needs 'talk' in the graph's input"):
        Agent(graph(Scripted()), conversation=Conversation(limit=100, key="talk"))


@pytest.mark.parametrize(
    "on",
    [
        "sqlite",
        *(
            pytest.param(each, marks=pytest.mark.slow)
            for each in BACKENDS
            if each not in ("memory", "sqlite")
        ),
    ],
)
def test_a_fault_at_any_write_leaves_one_summary_and_every_message(on: str) -> None:
    turns = 14

    async def talk(database: perdure.Database | perdure.SyncDatabase, seen: Seen) -> list[BaseMessage]:
        model = Scripted(answers=[AIMessage(REPLY)])
        agent = Agent(graph(model), conversation=policy(Summaries()))
        async with working(database, agent, seen) as app:
            for number in range(turns):
                ticket = None
                while ticket is None:
                    try:
                        ticket = await app.accept("t", "x" * 60, dedupe_key=str(number))
                    except perdure.Unavailable:
                        continue
                assert (await app.wait(ticket)).state == "done"
                await app._worker.runner.conversations.wait_for_summaries()
            return await stored(app)

    def checked(*faults: Fault) -> tuple[int, int]:
        seen = Seen()
        began: list[int] = []
        with EMPTY[on]() as url, faulty(url, *faults, counts=WRITES, migrate=True) as (db, driver):
            began.append(driver.count)
            messages = asyncio.run(talk(db, seen))
            told = accounted(messages)
            assert len(told) == len(set(told)) == 2 * turns
            assert sum(isinstance(message, SystemMessage) for message in messages) == 1
            assert seen.names.count("summary_stored") >= 1
            return began[0], driver.count

    first, last = checked()
    places = list(range(first + 1, last + 1))
    step = max(1, len(places) // how_many(1, len(places)))
    for at in places[step - 1 :: step]:
        for when in ("before", "after"):
            checked(Fault(at, fail("unavailable"), when))


@pytest.mark.slow
@pytest.mark.parametrize("on", [each for each in BACKENDS if each != "memory"])
def test_a_process_that_ends_at_any_effect_leaves_one_summary_and_every_message(on: str) -> None:
    """The storage of the first process ends for good at one effect, after a message was accepted; a second
    process takes over."""
    turns = 11

    async def talk(
        database: perdure.Database | perdure.SyncDatabase, seen: Seen, first: int, last: int
    ) -> list[BaseMessage]:
        agent = Agent(graph(Scripted(answers=[AIMessage(REPLY)])), conversation=policy(Summaries()))
        settings = replace(QUICK, lease=1.0)
        async with Runtime(database, agent, settings=settings, observers=[seen]) as app:
            for number in range(first, last):
                ticket = await app.accept("t", "x" * 60, dedupe_key=str(number))
                assert (await asyncio.wait_for(app.wait(ticket), 60)).state == "done"
                await app._worker.runner.conversations.wait_for_summaries()
            return await stored(app)

    def checked(end: int | None) -> tuple[int, int]:
        before, after = Seen(), Seen()

        async def ends(database: perdure.Database | perdure.SyncDatabase, driver: FaultyDriver) -> None:
            """Let a process work until its storage ends, and no longer."""
            loop, working = (
                asyncio.get_running_loop(),
                asyncio.ensure_future(talk(database, before, 0, turns)),
            )

            def ending(number: int, effect: object) -> None:
                if end is not None and number >= end:
                    if number == end:
                        loop.call_soon_threadsafe(working.cancel)
                    raise OSError("this process has ended")

            driver._on_effect = ending
            with suppress(OSError, perdure.PerdureError, asyncio.CancelledError):
                await asyncio.wait_for(working, 60)

        with EMPTY[on]() as url:
            with faulty(url, counts=WRITES, migrate=True) as (db, driver):
                begun = driver.count
                asyncio.run(ends(db, driver))
                ended = driver.count
                driver._on_effect = None
            with perdure.connect_sync(url) as db:
                messages = asyncio.run(talk(db, after, 0, turns + 2))
        told = accounted(messages)
        assert len(told) == len(set(told)) == 2 * (turns + 2)
        assert sum(isinstance(message, SystemMessage) for message in messages) == 1
        return begun, ended

    first, last = checked(None)
    places = list(range(first + 1, last + 1))
    # The effects around the summary are the last ones.
    step = max(1, len(places) // how_many(4, len(places)))
    for at in places[::-step]:
        checked(at)
