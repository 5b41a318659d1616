"""What a message asks of the database on its way through the runtime, counted.

Covers perdure.langgraph.early_loads.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any, TypeVar

import pytest
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from bench.proxy import Proxy
from perdure.conversation import Conversation, Limit
from perdure.database.base import handle_of
from perdure.database.opening import open_database
from perdure.engine.retention import queue_retention
from perdure.langgraph.early_loads import EarlyLoads, keep_for_next_load
from perdure.memory import MemoryPolicy
from perdure.model.bounded_cache import BoundedCache
from perdure.model.ops import Commit, Fetch, Get
from perdure.model.program import Effect, ask
from perdure.model.records import CHECKPOINT, EPOCH, HEAD, RUN, Partition, Record
from perdure.runtime import Agent
from perdure.runtime import tenant as runtimes
from perdure.storage import notify
from perdure.storage.port import (
    Answers,
    Driver,
    WrappingDriver,
    acommit_and_fetch,
)
from tests.runtime.graphs import Storage, Talk, eventually, go, settings, spoken, working
from tests.servers import postgres

R = TypeVar("R")
pytestmark = pytest.mark.packs_late


def two_nodes() -> Any:
    async def respond(state: MessagesState) -> dict[str, Any]:
        return {"messages": [("ai", f"echo: {state['messages'][-1].text}")]}

    async def note(state: MessagesState) -> dict[str, Any]:
        return {}

    builder = StateGraph(MessagesState)
    builder.add_node("respond", respond)
    builder.add_node("note", note)
    builder.add_edge(START, "respond")
    builder.add_edge("respond", "note")
    return builder.compile()


@pytest.mark.parametrize(
    "key",
    [pytest.param(None, id="plain"), pytest.param(bytes(range(32)), id="encrypted", marks=pytest.mark.slow)],
)
def test_a_message_takes_five_trips_to_postgresql(key: bytes | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its acceptance with the claim and the load, the run's first step, the two nodes, and the end. The first
    message of a thread is not an exception, nor is one after which what is out of date is looked for."""
    monkeypatch.setattr(notify, "_ANSWERED_WITHIN_S", 0.0)

    async def main(url: str, proxy: Proxy) -> dict[str, list[int]]:
        graph = two_nodes()
        rare = settings(poll=600.0, lease=600.0)
        database = open_database(url, encryption_key=key)
        counts: dict[str, list[int]] = {}
        async with working(database, graph, settings=rare) as runtime:
            for thread in ("warm", "ada", "bob", "cyd"):
                counted = counts[thread] = []
                for number in range(9):
                    before = proxy.counts().round_trips
                    ticket = await runtime.accept(thread, f"m{number}")
                    assert (await runtime.wait(ticket, 60)).state == "done"
                    counted.append(proxy.counts().round_trips - before)
                texts = await spoken(database, graph, thread)
                assert texts == [text for n in range(9) for text in (f"m{n}", f"echo: m{n}")]
        assert database.fsck("ada") == []
        database.close()
        return counts

    with ExitStack() as stack:
        url = stack.enter_context(postgres.empty(pool=2))
        with perdure.connect_sync(url, migrate=True, encryption_key=key):
            pass
        proxy = stack.enter_context(Proxy("127.0.0.1", postgres.shared().port, round_trip_s=0.01))
        through = proxy.through(url) + "&sslmode=disable&gssencmode=disable"
        counts = go(main(through, proxy))
    # A connection of the pool takes more where a statement is new to it.
    least = [min(counted) for counted in zip(*(counts[name] for name in ("ada", "bob", "cyd")), strict=True)]
    # With the 32nd checkpoint the newest chunks are read and packed.
    assert least == [5] * 7 + [7, 5]


def test_a_run_sees_what_was_stored_elsewhere_since_this_process_knew_its_thread() -> None:
    """What is read in the trip of the claim is what is stored then, and not what this process remembers."""

    async def main(url: str) -> None:
        graph = two_nodes()
        rare = settings(poll=600.0, lease=600.0)
        here, there = open_database(url), open_database(url)
        async with working(here, graph, settings=rare) as one, working(there, graph, settings=rare) as two:
            for runtime, said in ((one, "a"), (one, "b"), (two, "c"), (two, "d"), (one, "e"), (one, "f")):
                assert (await runtime.wait(await runtime.accept("ada", said), 60)).state == "done"
            bare = graph.copy(update={"checkpointer": there.checkpointer()})
            await bare.aupdate_state(
                {"configurable": {"thread_id": "ada"}}, {"messages": [("user", "by hand")]}
            )
            assert (await one.wait(await one.accept("ada", "g"), 60)).state == "done"
            turns = [text for each in "abcdef" for text in (each, f"echo: {each}")]
            assert await spoken(here, graph, "ada") == [*turns, "by hand", "g", "echo: g"]
        assert here.fsck("ada") == []
        here.close()
        there.close()

    with postgres.empty() as url:
        with perdure.connect_sync(url, migrate=True):
            pass
        go(main(url))


def test_a_thread_that_another_process_knows_takes_one_trip_more_once() -> None:
    """The commit that takes it for a new one is refused, and what it is comes with the refusal. How many
    requests load a thread that is in no cache depends on how its messages are divided."""

    async def main(url: str) -> None:
        graph, rare = two_nodes(), settings(poll=600.0, lease=600.0)
        drivers: list[Noting] = []

        def noted(driver: Driver) -> Driver:
            drivers.append(Noting(driver))
            return drivers[0]

        there, here = open_database(url), open_database(url, wrap=noted)
        async with working(there, graph, settings=rare) as other:
            for said in ("a", "b"):
                assert (await other.wait(await other.accept("ada", said), 60)).state == "done"
        async with working(here, graph, settings=rare) as runtime:
            requests: dict[str, list[str]] = {}
            for said in ("c", "d"):
                drivers[0].answered.clear()
                ticket = await runtime.accept("ada", said, dedupe_key=said)
                assert (await runtime.wait(ticket, 60)).state == "done"
                requests[said] = [kind for thread, kind in drivers[0].answered if thread == "ada"]
            again = await runtime.accept("ada", "d", dedupe_key="d")
            assert (again.is_duplicate, again.number) == (True, 4)
        loads = requests["c"].count("Fetch")
        assert requests["c"] == ["Refused", "Committed", *["Fetch"] * loads, *["Committed"] * 4]
        assert loads > 0
        # What was read with the claim may have been forgotten, and is then read again.
        assert [each for each in requests["d"] if each != "Fetch"] == ["Committed"] * 5
        assert await spoken(here, graph, "ada") == [text for m in "abcd" for text in (m, f"echo: {m}")]
        assert here.fsck("ada") == []
        here.close()
        there.close()

    with postgres.empty() as url:
        with perdure.connect_sync(url, migrate=True):
            pass
        go(main(url))


def test_what_is_out_of_date_is_removed_where_it_is_read_with_the_end() -> None:
    async def main(url: str) -> None:
        graph, database = two_nodes(), open_database(url)
        async with working(database, graph, settings=settings(keep=0.000_001)) as runtime:
            for number in range(queue_retention.MESSAGES_BETWEEN_REMOVALS + 1):
                assert (await runtime.wait(await runtime.accept("ada", f"m{number}"), 60)).state == "done"
        look = queue_retention.make_request(Partition("", "ada"))
        _, _, messages, _, runs = await handle_of(database).arun(ask(look))
        # The eighth run is as old as the look after it, and the ninth is newer.
        assert (len(messages), len(runs)) == (2, 2)
        assert database.fsck("ada") == []
        database.close()

    with postgres.empty() as url:
        with perdure.connect_sync(url, migrate=True):
            pass
        go(main(url))


def test_who_waits_for_a_run_of_this_process_reads_nothing_meanwhile(
    memory: Storage, talk: Talk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runtimes, "_WAIT_S", (0.001, 600.0))
    looked: list[Fetch] = []

    async def note(effect: Effect[Any]) -> None:
        if isinstance(effect, Fetch) and any(item.kind is RUN for item in effect.items):
            looked.append(effect)

    async def main() -> None:
        database, line = memory.open()
        async with working(database, talk.graph) as runtime:
            ticket = await runtime.accept("ada", "hold")
            await eventually(lambda: talk.under_way)
            line.before = note
            waiting = asyncio.create_task(runtime.wait(ticket, 60))
            for number in range(5):
                await runtime.wait(await runtime.accept(f"bob {number}", "one"), 60)
            looked[:] = [effect for effect in looked if effect.partition.thread == "ada"]
            assert looked == []
            talk.gate.set()
            assert (await waiting).state == "done"

    go(main())


class Noting(WrappingDriver):
    """Notes what is asked for by itself, and not in the trip of a commit; and how the requests of a runtime
    were answered, in order, with their threads."""

    def __init__(self, inner: Driver) -> None:
        super().__init__(inner)
        self.capabilities = inner.capabilities
        self.asked: list[Effect[Any]] = []
        self.answered: list[tuple[str, str]] = []

    def perform(self, effect: Effect[R]) -> R:
        self.asked.append(effect)
        return self._inner.perform(effect)

    async def aperform(self, effect: Effect[R]) -> R:
        self.asked.append(effect)
        answer = await self._inner.aperform(effect)
        if isinstance(effect, Commit | Fetch):
            kind = "Fetch" if isinstance(effect, Fetch) else type(answer).__name__
            self.answered.append((effect.partition.thread, kind))
        return answer

    async def acommit_and_fetch(self, commit: Commit, fetch: Fetch) -> tuple[Any, Answers | None]:
        outcome, answers = await acommit_and_fetch(self._inner, commit, fetch)
        self.answered.append((commit.partition.thread, type(outcome).__name__))
        return outcome, answers

    def close(self) -> None:
        self._inner.close()


def test_memory_and_windows_load_a_thread_no_more_often() -> None:
    """They look at it before a run's first step, at what was read in the trip of the claim."""
    memory = MemoryPolicy(user="ada", extract=lambda request: [], debounce=600.0)
    conversation = Conversation(limit=Limit(4_000, summary=200), summarize=lambda summary, messages: "talk")

    async def main(url: str) -> list[int]:
        drivers: list[Noting] = []

        def noted(driver: Driver) -> Driver:
            drivers.append(Noting(driver))
            return drivers[-1]

        loads: list[int] = []
        database = open_database(url, wrap=noted)
        agent = Agent(two_nodes(), memory=memory, conversation=conversation)
        async with working(database, agent, settings=settings(poll=600.0, lease=600.0)) as runtime:
            for number in range(12):
                drivers[0].asked.clear()
                assert (await runtime.wait(await runtime.accept("ada", f"m{number}"), 60)).state == "done"
                reads = [each for each in drivers[0].asked if isinstance(each, Fetch)]
                own = [each for each in reads if each.partition.thread == "ada"]
                loads.append(sum(any(item.kind is CHECKPOINT for item in each.items) for each in own))
        assert database.fsck("ada") == []
        database.close()
        return loads

    with postgres.empty() as url:
        with perdure.connect_sync(url, migrate=True):
            pass
        # The first message opens the thread, and after each eighth what is out of date is looked for.
        assert sorted(go(main(url)))[:9] == [0] * 9


HERE = Partition("", "ada")
LOAD = Fetch(HERE, (Get(HEAD, ("",)), Get(EPOCH, ())))


def answers(epoch: int) -> tuple[tuple[Record, ...], ...]:
    return ((), (Record(EPOCH, (), {"open_run": "run"}, epoch),))


def test_an_early_load_is_for_one_load_under_its_lease() -> None:
    early = EarlyLoads()
    early.add(LOAD, answers(7))
    assert early.pop(LOAD, 7) == answers(7)
    assert early.pop(LOAD, 7) is None
    for other, epoch in ((LOAD, 8), (LOAD, None), (Fetch(HERE, LOAD.items[:1]), 7)):
        early.add(LOAD, answers(7))
        assert early.pop(other, epoch) is None
        assert early.pop(LOAD, 7) is None, "whoever did not get it may have written"
    early.add(LOAD, answers(7))
    early.forget(HERE)
    assert early.pop(LOAD, 7) is None


def test_an_early_load_that_is_kept_is_for_one_more_load_under_its_lease() -> None:
    early = EarlyLoads()
    early.add(LOAD, answers(7))
    with keep_for_next_load():
        assert early.pop(LOAD, 7) == answers(7)
    assert early.pop(LOAD, 7) == answers(7)
    assert early.pop(LOAD, 7) is None
    early.add(LOAD, answers(7))
    with keep_for_next_load():
        assert early.pop(LOAD, 8) is None
    assert early.pop(LOAD, 7) is None


def test_a_save_in_another_thread_may_forget_an_early_load_at_any_time() -> None:
    class Raced(BoundedCache[Any, Any]):
        def __setitem__(self, key: Any, value: Any) -> None:
            super().__setitem__(key, value)
            early.forget(HERE)

    early = EarlyLoads()
    early._found = Raced(2)
    early.add(LOAD, answers(7))
    assert early.pop(LOAD, 7) is None
