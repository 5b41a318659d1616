"""Memory in a runtime's threads: recalled at their beginning, and fed by their turns."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
from langchain_core.messages import AIMessage, SystemMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

import perdure
from perdure.memory import (
    RECALL_ID,
    ExtractedFact,
    ExtractionRequest,
    Memory,
    MemoryPolicy,
)
from perdure.runtime import Agent, Runtime, Settings
from perdure.runtime.agent_memory import memory_lane
from perdure.runtime.agent_memory.memory_turns import MEMORY, WaitingTurn, lane_of
from perdure.runtime.agent_memory.run_memory import find_last_turn
from perdure.runtime.options import Options
from tests.conversation.models import Scripted
from tests.runtime.graphs import advance, eventually, eventually_stored

QUICK = Settings(backoff=0.02, max_backoff=0.05, poll=0.1, attempts=3)


class Events:
    """Observer that keeps names and fields."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, dict[str, Any]]] = []

    def event(self, name: str, fields: dict[str, Any]) -> None:
        self.seen.append((name, fields))

    def span(self, name: str, fields: dict[str, Any]) -> AbstractContextManager[None]:
        return nullcontext()

    def named(self, name: str) -> list[dict[str, Any]]:
        return [fields for each, fields in self.seen if each == name]


class Noting:
    """Extractor that takes each line of the user as a fact; ``moved`` closes what was known of a home."""

    def __init__(self, error: Exception | None = None) -> None:
        self.requests: list[ExtractionRequest] = []
        self.error = error

    async def __call__(self, request: ExtractionRequest) -> Sequence[ExtractedFact]:
        self.requests.append(request)
        if self.error is not None:
            raise self.error
        lines = [line.removeprefix("User: ") for line in request.messages.splitlines()]
        spoken = [line for line in lines if line.startswith("I ")]
        old = tuple(fact.id for fact in request.known if fact.text.startswith("I live in"))
        return [ExtractedFact(line, old if line.startswith("I live in") else ()) for line in spoken]


def graph(model: Scripted) -> Any:
    async def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()


def of(user: str) -> dict[str, Any]:
    return {"configurable": {"langgraph_auth_user": {"identity": user}}}


def policy(**given: Any) -> MemoryPolicy:
    return MemoryPolicy(**{"debounce": 0.0, "extract": Noting(), **given})


@asynccontextmanager
async def working(
    database: perdure.Database | perdure.SyncDatabase,
    agent: Agent,
    events: Events | None = None,
    **options: Any,
) -> AsyncIterator[Runtime]:
    observers = [events or Events()]
    async with (
        asyncio.timeout(100),
        Runtime(database, agent, settings=QUICK, observers=observers, **options) as app,
    ):
        yield app


async def say(app: Runtime, thread: str, text: str, user: str = "ada") -> str:
    run = await app.wait(await app.accept(thread, text, config=of(user)))
    return run.state


async def settled(app: Runtime, user: str, turns: int) -> None:
    """Wait until so many turns of a user have reached the lane and its runs are over."""

    async def is_over() -> bool:
        standings = await app.messages(lane_of(user))
        return len(standings) >= turns and all(each.is_over for each in standings)

    await eventually_stored(is_over)


async def removed(app: Runtime, user: str) -> None:
    """Wait until the lane of a user who was forgotten is gone, with the messages in it."""

    async def is_gone() -> bool:
        return not await app.messages(lane_of(user))

    await eventually_stored(is_gone)


async def noted(app: Runtime, user: str, turns: int) -> None:
    """Wait until so many turns of a user have reached the lane."""

    async def is_there() -> bool:
        return len(await app.messages(lane_of(user))) >= turns

    await eventually_stored(is_there)


def run(agent: Agent, body: Any, events: Events | None = None, url: str = "memory://") -> Any:
    async def main() -> Any:
        async with perdure.connect(url, migrate=True) as db, working(db, agent, events) as app:
            return await body(app)

    return asyncio.run(main())


def test_a_second_thread_begins_with_what_the_first_one_taught() -> None:
    model, events = Scripted(answers=[AIMessage("Noted.")]), Events()

    async def body(app: Runtime) -> None:
        assert await say(app, "one", "I live in Lisbon") == "done"
        await settled(app, "ada", 1)
        await say(app, "two", "Hello")
        await say(app, "two", "Again")
        await say(app, "three", "Hello", user="bob")

    run(Agent(graph(model), memory=policy()), body, events)
    first, second, third, other = model.sent
    assert [message.type for message in first] == ["human"]
    recalled, *rest = second
    assert (recalled.type, recalled.id) == ("system", RECALL_ID)
    assert "I live in Lisbon" in recalled.text
    assert [message.text for message in rest] == ["Hello"]
    assert [message.id for message in third].count(RECALL_ID) == 1
    assert [message.text for message in third[1:]] == ["Hello", "Noted.", "Again"]
    assert [message.type for message in other] == ["human"]
    assert [fields["entries"] for fields in events.named("memory.recalled")] == [1]


def test_a_fact_names_its_thread_and_message_and_a_correction_closes_it() -> None:
    model = Scripted(answers=[AIMessage("Noted.")])

    async def body(app: Runtime) -> None:
        await say(app, "one", "I live in Lisbon")
        await settled(app, "ada", 1)
        await say(app, "two", "I live in Porto")
        await settled(app, "ada", 2)
        memory = Memory(app.store(), "ada")
        (home,) = await memory.afacts()
        assert (home.text, home.thread) == ("I live in Porto", "two")
        (sent,) = await app.messages("two")
        assert home.message == sent.message.id
        before, _ = await memory.afacts(history=True)
        assert (before.text, before.superseded_by) == ("I live in Lisbon", home.id)

    run(Agent(graph(model), memory=policy()), body)


def test_the_turns_of_a_rest_are_extracted_together() -> None:
    model, noting = Scripted(answers=[AIMessage("Noted.")]), Noting()

    async def body(app: Runtime) -> None:
        for text in ("I sing", "I dance"):
            await say(app, "one", text)
        await noted(app, "ada", 2)
        assert noting.requests == []
        advance(app)
        await settled(app, "ada", 2)
        assert [fact.text for fact in await Memory(app.store(), "ada").afacts()] == ["I sing", "I dance"]

    run(Agent(graph(model), memory=policy(extract=noting, debounce=600.0)), body)
    (request,) = noting.requests
    assert request.messages == "User: I sing\nAssistant: Noted.\nUser: I dance\nAssistant: Noted."


def test_an_extractor_that_fails_costs_no_reply_and_is_found_among_the_dead() -> None:
    model, noting = Scripted(answers=[AIMessage("Noted.")]), Noting(ValueError("no facts today"))

    async def body(app: Runtime) -> None:
        assert await say(app, "one", "I sing") == "done"
        await settled(app, "ada", 1)
        (standing,) = await app.messages(lane_of("ada"))
        assert standing.run is not None
        assert (standing.run.state, standing.run.graph) == ("failed", MEMORY)
        assert "no facts today" in standing.run.note["error"]
        assert await Memory(app.store(), "ada").afacts() == []
        noting.error = None
        await say(app, "one", "I dance")
        await settled(app, "ada", 2)
        assert [fact.text for fact in await Memory(app.store(), "ada").afacts()] == ["I dance"]

    run(Agent(graph(model), memory=policy(extract=noting)), body)


def test_a_lane_keeps_no_text_in_its_checkpoints() -> None:
    model = Scripted(answers=[AIMessage("Noted.")])

    async def body(app: Runtime) -> None:
        await say(app, "one", "I sing")
        await settled(app, "ada", 1)
        saver = app.database.checkpointer()
        config: Any = {"configurable": {"thread_id": lane_of("ada")}}

        async def stored() -> list[Any]:
            return [each async for each in saver.alist(config)]

        async def is_tidy() -> bool:
            return len(await stored()) == 1

        await eventually_stored(is_tidy)
        assert "I sing" not in repr(await stored())

    run(Agent(graph(model), memory=policy()), body)


def test_without_a_user_nothing_is_recalled_or_kept() -> None:
    model = Scripted(answers=[AIMessage("Noted.")])

    async def body(app: Runtime) -> None:
        await app.wait(await app.accept("one", "I sing"))
        assert await app.replies("one") == ()

    run(Agent(graph(model), memory=policy()), body)
    assert len(model.sent) == 1


@pytest.mark.parametrize("given", [[("system", "Be brief."), ("human", "Hello")], "Hello"])
def test_the_message_comes_behind_the_system_messages_of_the_input(given: Any) -> None:
    model = Scripted(answers=[AIMessage("Hi.")])

    async def body(app: Runtime) -> None:
        await Memory(app.store(), "ada").aremember("She sings.")
        await app.wait(await app.submit("t", {"messages": given}, config=of("ada")))

    run(Agent(graph(model), memory=policy(extract=None)), body)
    (sent,) = model.sent
    kinds = [(message.type, message.id == RECALL_ID) for message in sent]
    assert kinds == [("system", False)] * (len(given) - 1 if isinstance(given, list) else 0) + [
        ("system", True),
        ("human", False),
    ]


def test_the_last_turn_is_the_users_last_messages_and_what_followed() -> None:
    from langchain_core.messages import HumanMessage, ToolMessage

    call = AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": "1"}])
    messages = [
        SystemMessage("s"),
        HumanMessage("a"),
        AIMessage("b"),
        HumanMessage("c"),
        HumanMessage("d"),
        call,
        ToolMessage("secret", tool_call_id="1"),
        AIMessage("e"),
    ]
    assert [each.text for each in find_last_turn(messages)] == ["c", "d", "e"]
    assert [each.text for each in find_last_turn(messages, is_steered=True)] == ["a", "b", "c", "d", "e"]
    assert find_last_turn(messages[:1]) == []
    assert find_last_turn(messages[:1], is_steered=True) == []


def test_a_search_that_fails_or_takes_long_leaves_the_newest_and_is_reported() -> None:
    model, events = Scripted(answers=[AIMessage("Hi.")]), Events()

    def embed(texts: list[str]) -> list[list[float]]:
        if "Hello" in texts:
            raise ConnectionError("the provider's own words")
        return [[1.0, 0.0] for _ in texts]

    async def main() -> None:
        async with (
            perdure.connect("memory://") as db,
            working(
                db,
                Agent(graph(model), memory=policy(extract=None)),
                events,
                store_index={"dims": 2, "embed": embed},
            ) as app,
        ):
            await Memory(app.store(), "ada").aremember("She sings.")
            assert await say(app, "t", "Hello") == "done"

    asyncio.run(main())
    assert "She sings." in model.sent[0][0].text
    (failed,) = events.named("memory.recall_failed")
    assert set(failed) == {"tenant", "thread", "run", "graph", "error"}


def test_what_is_near_to_the_first_message_is_recalled_although_it_is_old() -> None:
    model = Scripted(answers=[AIMessage("Hi.")])

    async def main() -> None:
        index: Any = {"text": True, "fields": ["text"]}
        async with (
            perdure.connect("memory://") as db,
            working(
                db, Agent(graph(model), memory=policy(extract=None, nearest=1, newest=2)), store_index=index
            ) as app,
        ):
            memory = Memory(app.store(), "ada")
            for text in ("Her cat is called Moss.", "She sings.", "She dances.", "She cooks."):
                await memory.aremember(text)
            await say(app, "t", "What does my cat eat?")

    asyncio.run(main())
    recalled = model.sent[0][0].text
    assert "Moss" in recalled
    assert "She cooks." in recalled
    assert "She sings." not in recalled


def test_a_run_hands_over_only_the_messages_that_it_added() -> None:
    """Neither a run without a message of the user, nor another user's run, hands an earlier turn over."""
    model, noting = Scripted(answers=[AIMessage("Noted.")]), Noting()
    broken = [True]

    async def answer(state: MessagesState) -> dict[str, Any]:
        if broken:
            raise ValueError("no answer")
        return {"messages": [await model.ainvoke(state["messages"])]}

    flaky = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer").compile()

    async def body(app: Runtime) -> None:
        kept = Options(on_failure="keep")
        run = await app.wait(await app.accept("t", "I am Ada", config=of("ada"), options=kept))
        assert run.state == "failed"
        broken.clear()
        note = {"messages": [{"role": "system", "content": "note"}]}
        await app.wait(await app.submit("t", note, config=of("bob")))
        await say(app, "t", "I am Bob", user="bob")
        await settled(app, "bob", 1)
        assert await app.messages(lane_of("ada")) == ()
        assert [fact.text for fact in await Memory(app.store(), "bob").afacts()] == ["I am Bob"]

    run(Agent(flaky, memory=policy(extract=noting)), body)
    assert [request.messages for request in noting.requests] == ["User: I am Bob\nAssistant: Noted."]


def test_a_turn_that_waits_for_an_answer_is_handed_over_once() -> None:
    noting = Noting()

    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(interrupt("May I?"))]}

    asking = StateGraph(MessagesState).add_node("ask", ask).add_edge(START, "ask").compile()

    async def body(app: Runtime) -> None:
        assert await say(app, "t", "I sing") == "waiting"
        await settled(app, "ada", 1)
        run = await app.wait(await app.answer("t", "Yes.", config=of("bob")))
        assert run.state == "done"
        assert await app.messages(lane_of("bob")) == ()
        assert [fact.text for fact in await Memory(app.store(), "ada").afacts()] == ["I sing"]

    run(Agent(asking, memory=policy(extract=noting)), body)
    assert [request.messages for request in noting.requests] == ["User: I sing"]


def test_a_turn_from_before_its_user_was_forgotten_is_not_extracted() -> None:
    """A turn may wait in its thread's outbox, or be under extraction, while its user is forgotten."""
    model, noting = Scripted(answers=[AIMessage("Noted.")]), Noting()
    forget: list[Memory] = []

    async def extract(request: ExtractionRequest) -> Sequence[ExtractedFact]:
        found = await noting(request)
        while forget:
            await forget.pop().aforget()
        return found

    async def body(app: Runtime) -> None:
        memory = Memory(app.store(), "ada")
        forget.append(memory)
        await say(app, "t", "I sing")
        await eventually(lambda: not forget)
        await removed(app, "ada")
        assert await memory.afacts(history=True) == []
        turn = WaitingTurn(
            agent="agent", thread="t", run="r", at=1, message=None, messages=[["human", "I x"]]
        )
        late = {"user": "ada", "turns": [turn.dump()]}
        await app._worker.runner.graphs.graph(MEMORY, "").ainvoke(
            late, {"configurable": {"thread_id": "late"}}
        )
        assert await memory.afacts(history=True) == []
        await say(app, "t", "I dance")
        await eventually(lambda: len(noting.requests) == 2)
        await removed(app, "ada")
        assert [fact.text for fact in await memory.afacts(history=True)] == ["I dance"]

    run(Agent(graph(model), memory=policy(extract=extract)), body)
    assert ["I sing" in request.messages for request in noting.requests] == [True, False]


def test_a_fact_that_is_forgotten_while_it_is_extracted_is_not_stored_again() -> None:
    """The agent remembers it by a tool, and the user has it forgotten, before the extraction has ended."""
    noting, events = Noting(), Events()

    async def extract(request: ExtractionRequest) -> Sequence[ExtractedFact]:
        fact = await memories[0].aremember("I sing")
        assert await memories[0].aforget(fact.id) == 1
        return await noting(request)

    memories: list[Memory] = []

    async def body(app: Runtime) -> None:
        memories.append(Memory(app.store(), "ada"))
        await say(app, "t", "I sing\nI dance")
        await settled(app, "ada", 1)
        assert [fact.text for fact in await memories[0].afacts(history=True)] == ["I dance"]

    model = Scripted(answers=[AIMessage("Noted.")])
    run(Agent(graph(model), memory=policy(extract=extract)), body, events)
    (kept,) = events.named("memory.kept")
    assert kept["facts"] == 1


def test_what_is_stored_after_its_user_was_forgotten_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The user is forgotten between the check of the lane and its first write."""
    real = memory_lane._store_facts
    forgotten: list[object] = []

    async def keep(memory: Memory, turns: Any, found: Any) -> dict[str, int]:
        if not forgotten:
            forgotten.append(await memory.aforget())
        return await real(memory, turns, found)

    monkeypatch.setattr(memory_lane, "_store_facts", keep)

    async def summarize(summary: str, messages: Sequence[Any]) -> str:
        return "They sang."

    async def body(app: Runtime) -> None:
        memory = Memory(app.store(), "ada")
        await say(app, "t", "I sing")
        await eventually(lambda: forgotten)
        await removed(app, "ada")
        assert await memory.afacts(history=True) == []
        assert await memory.asummaries() == []

    model = Scripted(answers=[AIMessage("Noted.")])
    run(Agent(graph(model), memory=policy(summarize=summarize)), body)


@pytest.mark.parametrize("on_failure", ["rollback", "keep"])
def test_a_turn_that_cannot_be_extracted_costs_no_other_turn_and_leaves_no_text(on_failure: Any) -> None:
    model, noting = Scripted(answers=[AIMessage("Noted.")]), Noting()

    async def extract(request: ExtractionRequest) -> Sequence[ExtractedFact]:
        if "bad" in request.messages:
            raise ValueError("not readable")
        return await noting(request)

    async def main() -> None:
        agent = Agent(graph(model), memory=policy(extract=extract, debounce=600.0))
        settings = replace(QUICK, on_failure=on_failure, attempts=2)
        async with (
            asyncio.timeout(100),
            perdure.connect("memory://") as db,
            Runtime(db, agent, settings=settings, observers=[Events()]) as app,
        ):
            for thread, text in (("one", "I am bad"), ("one", "I sing"), ("two", "I dance")):
                await say(app, thread, text)
            await noted(app, "ada", 3)
            advance(app)
            await settled(app, "ada", 3)
            facts = await Memory(app.store(), "ada").afacts()
            assert {fact.text for fact in facts} == {"I sing", "I dance"}
            (state,) = {each.run.state for each in await app.messages(lane_of("ada")) if each.run}
            assert state == "failed"
            config: Any = {"configurable": {"thread_id": lane_of("ada")}}
            stored = [each async for each in app.database.checkpointer().alist(config)]
            assert "I am bad" not in repr(stored)

    asyncio.run(main())


def test_the_turn_of_a_steered_run_has_all_that_the_user_wrote() -> None:
    noting, under_way, gate = Noting(), asyncio.Event(), asyncio.Event()

    async def think(state: MessagesState) -> dict[str, Any]:
        under_way.set()
        await gate.wait()
        return {"messages": [AIMessage("Hm.")]}

    async def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("Noted.")]}

    steps = StateGraph(MessagesState).add_sequence([think, answer]).add_edge(START, "think").compile()

    async def body(app: Runtime) -> None:
        first = await app.accept("one", "I live in Lisbon", config=of("ada"))
        await under_way.wait()
        second = await app.accept("one", "I have a cat", config=of("ada"), strategy="steer")
        gate.set()
        assert (await app.wait(first)).last == (await app.wait(second)).last == 2
        await settled(app, "ada", 1)

    run(Agent(steps, memory=policy(extract=noting), steer_before=["answer"]), body)
    assert [request.messages.splitlines()[0] for request in noting.requests] == ["User: I live in Lisbon"]
    assert "User: I have a cat" in noting.requests[0].messages
