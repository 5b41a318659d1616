"""What a turn asks of DynamoDB: no scan, strong reads, bounded items, the same units early and late.

Covers perdure.storage.dynamodb.reading, perdure.storage.dynamodb.writing.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from fractions import Fraction
from operator import add
from typing import Annotated, Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AnyMessage
from langgraph.graph import START, StateGraph
from langgraph.graph.message import add_messages

from perdure.model.ops import (
    Delete,
    Drop,
    Fetch,
    FindDue,
    FindExpired,
    FindRuns,
    FindThreads,
    Get,
    Now,
    Range,
    Stage,
)
from perdure.model.records import CHECKPOINT, CHUNK, GC, HEAD, TAG, WRITE, Partition
from perdure.storage.dynamodb.clock import ServiceClock
from perdure.storage.dynamodb.driver import DynamoDriver, open_driver
from perdure.storage.dynamodb.items import BUCKETS, place_in
from perdure.storage.dynamodb.places import record_at
from perdure.storage.url import open_driver as open_migrated
from perdure.testing.conformance import Backend, rows
from perdure.testing.conformance.rows import HERE
from tests.servers import dynamodb
from tests.servers.dynamodb_wire import Wire, size_of, watched

FULL = os.environ.get("PERDURE_CHAOS") == "full"
TURNS = 5000 if FULL else 160
WINDOW = 20
ITEM_MAX = 270_000


class State(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]


class Blob(TypedDict, total=False):
    blob: bytes
    seen: Annotated[list[int], add]


@pytest.fixture
def driver() -> Iterator[DynamoDriver]:
    with dynamodb.empty() as url:
        opened = open_migrated(url, migrate=True)
        assert isinstance(opened, DynamoDriver)
        yield opened
        opened.close()


def talking(driver: DynamoDriver) -> Any:
    def answer(state: State) -> State:
        return {"messages": [AIMessage(f"{len(state['messages'])} " + "answers " * 120)]}

    builder = StateGraph(State).add_node("answer", answer).add_edge(START, "answer")
    return builder.compile(checkpointer=Backend(driver).saver())


def checked(wire: Wire) -> None:
    """What holds of every request."""
    for call in wire.calls:
        assert call.operation != "Scan"
        asked = call.parameters
        assert "FilterExpression" not in asked
        if call.operation == "Query" and asked.get("IndexName") == "find":
            assert asked["ConsistentRead"] is False, "an index across partitions has no strong reads"
        elif call.operation in ("Query", "GetItem"):
            assert asked["ConsistentRead"] is True
        elif call.operation == "BatchGetItem":
            assert all(request["ConsistentRead"] is True for request in asked["RequestItems"].values())
        elif call.operation == "TransactWriteItems":
            assert len(asked["TransactItems"]) <= 100
            items = [action["Put"]["Item"] for action in asked["TransactItems"] if "Put" in action]
            assert all(size_of(item) <= ITEM_MAX for item in items)
            assert sum(map(size_of, items)) < 4_000_000


def test_every_verb_reads_strongly_and_scans_nothing(driver: DynamoDriver) -> None:
    with watched(driver) as wire:
        rows.store_ops(
            driver, *rows.every_kind(), rows.checkpoint("big", 2, body=b"x" * 600_000, run_id="run")
        )
        driver.perform(Stage(HERE, tuple(rows.chunk(bytes((n,)) * 16) for n in range(30))))
        driver.perform(
            Fetch(
                HERE,
                (
                    Get(HEAD, ("x",)),
                    Get(GC, ()),
                    Range(WRITE, ("", "c")),
                    Range(TAG, reverse=True, limit=3),
                    Range(CHECKPOINT, ("",), "seq", reverse=True, after=9, limit=2),
                    Range(CHUNK, bodies=False),
                    *(Get(CHUNK, (bytes((n,)) * 16,)) for n in range(150)),
                ),
            )
        )
        for find in (
            FindThreads(None),
            FindThreads("acme", prefix="th", after=Partition("acme", "t")),
            FindRuns("acme", "run"),
            FindRuns(None, "run"),
            FindExpired(None, until=1),
            FindDue(None, until=1 << 51),
            FindDue("acme", until=1 << 51, limit=1),
            Now(),
        ):
            driver.perform(find)
        rows.store_ops(driver, Delete(TAG, ("x",)))
        driver.perform(Drop(HERE))
    checked(wire)
    assert {"Query", "BatchGetItem", "GetItem", "TransactWriteItems"} <= set(wire.count())


def test_lanes_that_are_not_due_cost_nothing_to_look_past(driver: DynamoDriver) -> None:
    for n in range(40):
        due_at = 1000 + n if n % 2 else None
        rows.store_ops(driver, rows.lane("inbox", due_at), at=Partition("acme", f"t{n}"))
    with watched(driver, weigh=True) as wire:
        assert driver.perform(FindDue(None, until=1000)) == ()
    assert wire.count() == {"Query": BUCKETS}
    assert all(call.answer["ScannedCount"] == 0 for call in wire.calls)
    assert wire.reads == BUCKETS / 2
    assert len(driver.perform(FindDue(None, until=2000, limit=5))) == 5


def test_a_lane_never_expires_and_only_a_due_one_is_indexed(driver: DynamoDriver) -> None:
    boto, table = driver.client.boto, driver.client.table
    rows.store_ops(driver, rows.lane("inbox", 1), rows.lane("outbox", None))
    lanes = {i["sk"]["B"]: i for i in boto.scan(TableName=table)["Items"] if "bound" in i}
    assert [("x" in i, "g" in i, "h" in i) for _, i in sorted(lanes.items())] == [
        (False, True, True),
        (False, False, False),
    ]


def test_the_clock_asks_only_when_no_answer_is_recent(driver: DynamoDriver) -> None:
    rows.store_ops(driver, rows.tag("t"))
    with watched(driver) as wire:
        driver.perform(Now())
        driver.perform(Now())
    assert not wire.calls
    driver.client.clock = ServiceClock()
    with watched(driver) as wire:
        driver.perform(Now())
        driver.perform(Now())
    assert wire.count() == {"GetItem": 1}
    checked(wire)


def test_the_largest_message_and_reply_stay_in_one_item(driver: DynamoDriver) -> None:
    body = b"x" * (256 << 10)
    with watched(driver) as wire:
        rows.store_ops(driver, rows.inbox(1, body), rows.reply(1, body))
    assert wire.count()["TransactWriteItems"] == 1
    assert "BatchWriteItem" not in wire.count()
    checked(wire)
    assert [record.body for record in rows.everything(driver)] == [body, body]


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_turn_costs_the_same_early_and_late(driver: DynamoDriver) -> None:
    graph = talking(driver)
    config: Any = {"configurable": {"thread_id": "ada"}}
    units: list[tuple[float, float, int]] = []
    for n in range(TURNS):
        weighed = n < 50 + WINDOW or n >= TURNS - WINDOW
        with watched(driver, weigh=weighed) as wire:
            graph.invoke({"messages": [("user", f"turn {n} " + "words " * 30)]}, config)
        checked(wire)
        if weighed:
            units.append((wire.reads, wire.writes, len(wire.calls)))
    early, late = units[50 : 50 + WINDOW], units[-WINDOW:]
    figures = [[float(average(u[i] for u in part)) for i in range(3)] for part in (early, late)]
    for what, (reads, writes, requests) in zip(("50", f"{TURNS}"), figures, strict=True):
        print(f"\nturn {what}: {reads:.1f} read units, {writes:.1f} write units, {requests:.1f} requests")
    (reads, writes, requests), (late_reads, late_writes, late_requests) = figures
    assert late_writes <= 1.2 * writes
    assert late_reads <= 1.2 * reads + 1
    assert late_requests <= 1.1 * requests
    assert len(graph.get_state(config).values["messages"]) == 2 * TURNS


COLD_TURNS = 60


def average(values: Iterable[float]) -> Fraction:
    """Exact, so that what is equal compares equal."""
    exact = list(map(Fraction, values))
    return sum(exact, Fraction()) / len(exact)


def watched_turns(driver: DynamoDriver, *, weigh: bool = False) -> list[Wire]:
    """What each of some turns asks for, once the thread is under way. One of them packs chunks."""
    graph = talking(driver)
    config: Any = {"configurable": {"thread_id": "ada"}}

    async def turns() -> list[Wire]:
        wires = []
        for n in range(12):
            with watched(driver, weigh=weigh and n >= 4) as wire:
                await graph.ainvoke({"messages": [("user", f"turn {n} " + "words " * 30)]}, config)
            wires.append(wire)
        return wires[4:]

    return asyncio.run(turns())


def test_a_turn_costs_no_more_units_than_the_documentation_counts(driver: DynamoDriver) -> None:
    turns = watched_turns(driver, weigh=True)
    (packing,) = [wire for wire in turns if packs(wire)]
    wires = [wire for wire in turns if not packs(wire)]
    chunks = average(wire.count()["PutItem"] for wire in wires)
    # Seven items in transactions, an entry in the local index for each checkpoint, and the chunks, of which
    # the one of the answer is larger than a unit.
    assert average(wire.writes for wire in wires) <= 2 * 7 + 3 + chunks + Fraction(6, 5)
    # Lists are cut by their content, and so by the random ids of the messages.
    assert chunks <= 7
    assert average(wire.reads for wire in wires) == 2
    assert average(len(wire.calls) for wire in wires) == 4 + chunks
    # Each chunk is removed, and what they hold is stored again, in a pack, compressed together.
    assert packing.writes - average(wire.writes for wire in wires) <= 2 * (11 * chunks + 2) + 20
    assert len(packing.calls) <= 5 + 2 * chunks + 4


def packs(wire: Wire) -> bool:
    return any(
        kind_of(action) == "pack"
        for call in wire.calls
        if call.operation in ("PutItem", "TransactWriteItems")
        for each in call.parameters.get("TransactItems", [{"Put": call.parameters}])
        for action in each.values()
    )


def test_a_turn_writes_no_more_rows_than_the_documentation_counts(driver: DynamoDriver) -> None:
    for wire in watched_turns(driver):
        if packs(wire):
            continue
        written = [call for call in wire.calls if not call.operation.startswith(("Get", "BatchGet", "Query"))]
        assert {call.operation for call in written} == {"PutItem", "TransactWriteItems"}
        commits = [call for call in written if call.operation == "TransactWriteItems"]
        assert len(commits) == 2, "the opening of the run, and its one step"
        rows_of = Counter(
            (name, kind_of(action))
            for call in commits
            for each in call.parameters["TransactItems"]
            for name, action in each.items()
        )
        assert rows_of == {("Update", "root"): 2, ("Put", "checkpoint"): 3, ("Put", "write"): 2}
        assert {kind_of(call.parameters) for call in written if call not in commits} == {"chunk"}


def kind_of(action: Any) -> str:
    item = action.get("Item", action.get("Key"))
    return "root" if item["pk"]["B"][:1] == b"r" else record_at(place_in(item))[0].name


def test_a_cold_process_goes_on_with_the_thread(driver: DynamoDriver) -> None:
    config: Any = {"configurable": {"thread_id": "ada"}}
    for n in range(12):
        talking(driver).invoke({"messages": [("user", f"turn {n}")]}, config)
    other = open_driver(driver.client.target.url)
    try:
        assert len(talking(other).get_state(config).values["messages"]) == 24
    finally:
        other.close()


def test_a_cold_load_reads_few_items_of_a_packed_thread(driver: DynamoDriver) -> None:
    graph = talking(driver)
    config: Any = {"configurable": {"thread_id": "ada"}}

    async def talk() -> None:
        for n in range(COLD_TURNS):
            await graph.ainvoke({"messages": [("user", f"turn {n} " + "words " * 30)]}, config)

    asyncio.run(talk())
    other = open_driver(driver.client.target.url)
    try:
        with watched(other, weigh=True) as wire:
            assert len(talking(other).get_state(config).values["messages"]) == 2 * COLD_TURNS
        assert wire.count() == {"GetItem": 2, "Query": 1}
        assert wire.reads <= 9
        with watched(other, weigh=True) as wire:
            assert talking(other).get_state({"configurable": {"thread_id": "bob"}}).values == {}
        assert wire.count() == {"GetItem": 1}, "a thread that is not there"
    finally:
        other.close()


def test_one_value_of_five_megabytes_comes_back(driver: DynamoDriver) -> None:
    value = bytes(n * n % 251 for n in range(1000)) * 5243

    def make(state: Blob) -> Blob:
        return {"blob": value, "seen": [len(state.get("seen", ()))]}

    builder = StateGraph(Blob).add_node("make", make).add_edge(START, "make")
    config: Any = {"configurable": {"thread_id": "big"}}
    with watched(driver) as wire:
        builder.compile(checkpointer=Backend(driver).saver()).invoke({"seen": []}, config)
    checked(wire)
    state = builder.compile(checkpointer=Backend(driver).saver()).get_state(config)
    assert state.values["blob"] == value
