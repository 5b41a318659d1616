"""What a turn costs on D1, in requests; that large values pass; and that no statement scans a table.

The statements are taken from what the driver sends while a graph and the saver work, and explained by D1.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections.abc import Iterator
from contextlib import closing
from typing import Annotated, Any

import pytest
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from typing_extensions import TypedDict

import perdure
from perdure.model.ops import (
    Commit,
    Delete,
    Drop,
    Expect,
    FindDue,
    FindExpired,
    FindRuns,
    FindThreads,
    Get,
    Now,
    Put,
)
from perdure.model.records import ITEM, KINDS, STORE, THREADS, Kind, Partition
from perdure.storage.d1 import driver as backend
from perdure.storage.d1 import reading, writing
from perdure.storage.d1.url import D1Url
from perdure.storage.url import open_driver
from tests.servers import d1
from tests.servers.d1_proxy import Proxy, proxy
from tests.storage.living import live

HARMLESS = re.compile(
    r"SEARCH|USING INDEX|CREATE BLOOM FILTER|SCAN \w+ VIRTUAL TABLE INDEX|SCAN CONSTANT ROW"
    r"|(SCALAR|LIST|CORRELATED SCALAR) SUBQUERY"
)


TURNS = 5_000 if os.environ.get("PERDURE_CHAOS") == "full" else 60


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


@pytest.fixture
def between() -> Iterator[tuple[Proxy, str]]:
    """A proxy before a migrated database, and the URL through it."""
    with d1.database() as id_, proxy(d1.started().origin) as between:
        url = d1.started().url(id_, between.endpoint)
        backend.migrate(url)
        between.requests.clear()
        yield between, url


def graph(saver: Any) -> Any:
    def answer(state: State) -> dict[str, Any]:
        return {"messages": [AIMessage(f"You said {len(state['messages'])} things.")]}

    built = StateGraph(State)
    built.add_node("answer", answer)
    built.add_edge(START, "answer")
    built.add_edge("answer", END)
    return built.compile(checkpointer=saver)


def talk(url: str, wire: Proxy, turns: int, durability: Any) -> list[int]:
    """The requests of each turn of a conversation."""
    counts: list[int] = []

    async def conversation() -> None:
        async with perdure.connect(url) as db:
            agent = graph(db.checkpointer())
            for n in range(turns):
                wire.requests.clear()
                state = await agent.ainvoke(
                    {"messages": [HumanMessage(f"message {n}")]},
                    {"configurable": {"thread_id": "t"}},
                    durability=durability,
                )
                counts.append(len(wire.requests))
            assert len(state["messages"]) == 2 * turns

    asyncio.run(conversation())
    return counts


@pytest.mark.parametrize("durability", ["async", "sync", "exit"])
def test_a_turn_is_at_most_five_requests(between: tuple[Proxy, str], durability: Any) -> None:
    wire, url = between
    counts = talk(url, wire, 8, durability)
    # The first turn finds out that there is no thread yet.
    # Now and then the newest chunks are packed, with two requests more, or three.
    assert max(counts[1:]) <= 6, f"requests a turn: {counts}"
    assert sum(counts[1:]) <= 3.3 * len(counts[1:]), f"requests a turn: {counts}"


@pytest.mark.timeout(3000)
def test_the_last_turn_of_a_long_conversation_is_like_the_second(between: tuple[Proxy, str]) -> None:
    wire, url = between
    counts = talk(url, wire, TURNS, "async")
    # Now and then the newest chunks are packed, with two requests more, or three.
    assert max(counts[1:]) <= 6, f"requests a turn: {counts}"
    assert sum(counts[1:]) <= 3.3 * len(counts[1:]), f"requests a turn: {counts}"


def test_a_value_of_five_megabytes_comes_back(between: tuple[Proxy, str]) -> None:
    wire, url = between
    config = {"configurable": {"thread_id": "t"}}
    large = random.Random(5).randbytes(2_600_000).hex()
    with perdure.connect_sync(url) as db:
        graph(db.checkpointer()).invoke({"messages": [HumanMessage(large)]}, config)
    stored = len(wire.requests)
    wire.requests.clear()
    with perdure.connect_sync(url) as db:
        values = graph(db.checkpointer()).get_state(config).values
    assert values["messages"][0].content == large
    assert stored < 40
    # One read a level of the tree; where its nodes end depends on the digests, so on the message's random id.
    assert len(wire.requests) <= 8


def plan(transport: Any, statement: str) -> list[str]:
    """The lines of a statement's plan, as D1 tells them."""
    numbered = [int(n) for n in re.findall(r"\?(\d+)", statement)]
    bound = ("[]",) * (max(numbered) if numbered else statement.count("?"))
    (lines,) = transport.batch([(f"EXPLAIN QUERY PLAN {statement}", bound)])
    return [line[3] for line in lines]


def scans(lines: list[str]) -> list[str]:
    """The lines that read more than they were asked for, or sort."""
    return [line for line in lines if not HARMLESS.match(line)]


def test_no_statement_scans_a_table(between: tuple[Proxy, str]) -> None:
    wire, url = between
    with closing(open_driver(url)) as driver:
        wire.requests.clear()
        _live(driver)
        there = Partition("t", "thread")
        for tenant in ("t", None):
            for after in (None, there):
                for space, prefix in ((THREADS, ""), (STORE, "memories/")):
                    driver.perform(FindThreads(tenant, after=after, space=space, prefix=prefix))
            driver.perform(FindRuns(tenant, "run"))
            driver.perform(FindExpired(tenant, until=1))
            driver.perform(FindDue(tenant, until=1))
        driver.perform(Now())
    texts = {text for request in wire.requests for text, _ in request}
    assert len(texts) > 40
    with D1Url.of(url).session() as transport:
        found = {text: bad for text in texts if (bad := scans(plan(transport, text)))}
    assert not found, "\n".join(f"{bad}\n    {text}" for text, bad in found.items())


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_record_is_found_by_its_whole_key(between: tuple[Proxy, str], kind: Kind) -> None:
    _, url = between
    there = Partition("t", "thread")
    key = tuple({"text": "k", "integer": 1, "bytes": b"k"}[c.kind] for c in kind.key)
    delete = Delete(kind, key, Expect.PRESENT)
    statements = [
        writing.receipt(there, (delete,), "id", 1),
        *writing.write(there, (delete,), "id"),
        *reading.fetch(there, (Get(kind, key),))[0],
    ]
    whole = "(" + " AND ".join(f"{name}=?" for name in ("t", *(c.name for c in kind.key))) + ")"
    assert len(statements) == 3
    with D1Url.of(url).session() as transport:
        for text, _ in statements:
            lines = plan(transport, text)
            assert any(line.startswith("SEARCH") and line.endswith(whole) for line in lines), lines
            assert scans(lines) == []


def test_the_clock_shares_a_request_with_what_is_asked_meanwhile(between: tuple[Proxy, str]) -> None:
    wire, url = between
    with closing(open_driver(url)) as driver:
        wire.requests.clear()

        async def asked() -> tuple[int, Any]:
            clock, found, again = await asyncio.gather(
                driver.aperform(Now()), driver.aperform(FindDue(None, until=1)), driver.aperform(Now())
            )
            assert clock <= again
            return clock, found

        before = driver.perform(Now())
        clock, found = asyncio.run(asked())
        assert clock >= before > 1_600_000_000_000_000
        assert found == ()
        assert len(wire.requests) <= 3


def _live(driver: Any) -> None:
    """Everything that happens to a thread, and to memories."""
    live(driver)
    fields = {"created_at": 1, "updated_at": 1, "ttl": None, "expires_at": 2}
    for expect in (Expect.ANY, Expect.ABSENT):
        item = Put(ITEM, (f"key {expect}",), fields, b"body", expect, 1)
        driver.perform(Commit(Partition("t", "memories/", STORE), (item,)))
    driver.perform(Drop(Partition("t", "memories/", STORE)))


def test_the_check_sees_a_scan_and_a_sort(between: tuple[Proxy, str]) -> None:
    _, url = between
    with D1Url.of(url).session() as transport:
        for statement in (
            "SELECT body FROM perdure_checkpoint WHERE source = ?1",
            "SELECT body FROM perdure_checkpoint WHERE t = ?1 ORDER BY step",
        ):
            assert scans(plan(transport, statement))
