"""Signals of runs that are rolled back: the next wait for them gets them."""

from __future__ import annotations

import asyncio
import operator
from typing import Annotated, Any, TypedDict

import pytest
from langgraph.graph import START, StateGraph

from perdure.runtime import Runtime, wait_for
from tests.runtime.graphs import Storage, eventually, eventually_stored, go, settings, values, working


class Noted(TypedDict, total=False):
    notes: Annotated[list[Any], operator.add]


class Shop:
    """An agent that waits for a payment, and then ships when the gate is open."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.begun = 0
        self.fails = False
        builder = StateGraph(Noted).add_node("pay", self._pay).add_node("ship", self._ship)
        self.graph = builder.add_edge(START, "pay").add_edge("pay", "ship").compile()

    async def _pay(self, state: Noted) -> Noted:
        return {"notes": [await wait_for("payment", within=3600, default="unpaid")]}

    async def _ship(self, state: Noted) -> Noted:
        self.begun += 1
        if self.fails:
            raise RuntimeError("out of stock")
        await self.gate.wait()
        return {"notes": ["shipped"]}


async def states(runtime: Runtime) -> list[str]:
    return [run.state for run in reversed(await runtime.runs("t"))]


async def order(runtime: Runtime) -> None:
    assert (await runtime.wait(await runtime.submit("t", {"notes": ["order"]}), 30)).state == "waiting"


def test_the_message_that_rolls_a_run_back_goes_on_with_its_signal(storage: Storage) -> None:
    async def main() -> None:
        shop, database = Shop(), storage.database()
        async with working(database, shop.graph) as runtime:
            await order(runtime)
            await runtime.signal("t", "payment", "receipt", key="evt_1")
            await eventually(lambda: shop.begun == 1)
            await runtime.submit("t", {"notes": ["faster"]}, strategy="rollback")
            await eventually(lambda: shop.begun == 2)
            assert (await runtime.signal("t", "payment", "receipt", key="evt_1")).is_duplicate
            shop.gate.set()

            async def is_over() -> bool:
                return await states(runtime) == ["waiting", "rolled_back", "waiting", "done"]

            await eventually_stored(is_over)
            found = await values(database, shop.graph, "t")
            assert found["notes"] == ["order", "faster", "receipt", "shipped"]
        assert database.fsck("t") == []

    go(main())


def test_a_cancelled_run_that_is_rolled_back_leaves_its_signal_to_the_same_wait(near: Storage) -> None:
    async def main() -> None:
        shop, database = Shop(), near.database()
        async with working(database, shop.graph) as runtime:
            await order(runtime)
            receipt = await runtime.signal("t", "payment", "receipt")
            await eventually(lambda: shop.begun == 1)
            assert receipt.run_id is not None
            await runtime.cancel("t", receipt.run_id, rollback=True)
            await eventually(lambda: shop.begun == 2)
            shop.gate.set()

            async def is_over() -> bool:
                return await states(runtime) == ["waiting", "rolled_back", "done"]

            await eventually_stored(is_over)
            assert (await values(database, shop.graph, "t"))["notes"] == ["order", "receipt", "shipped"]
        assert database.fsck("t") == []

    go(main())


@pytest.mark.parametrize("strategy", ["interrupt", "rollback"])
def test_a_signal_that_waits_for_a_worker_outlives_a_message_that_replaces_what_waits(
    near: Storage, strategy: Any
) -> None:
    async def main() -> None:
        shop, database = Shop(), near.database()
        shop.gate.set()
        async with working(database, shop.graph) as runtime:
            await order(runtime)
        accepting = Runtime(database, shop.graph, observers=[])
        await accepting.signal("t", "payment", "receipt")
        await accepting.submit("t", {"notes": ["faster"]}, strategy=strategy, cancel_pending=True)
        async with working(database, shop.graph) as runtime:

            async def is_over() -> bool:
                return (await states(runtime))[-1:] == ["done"]

            await eventually_stored(is_over)
            found = await values(database, shop.graph, "t")
            assert found["notes"] == ["order", "faster", "receipt", "shipped"]
        assert database.fsck("t") == []

    go(main())


def test_the_signal_of_a_failed_run_is_given_once_however_its_repetition_ends(near: Storage) -> None:
    async def main() -> None:
        shop, database = Shop(), near.database()
        shop.fails = True
        async with working(database, shop.graph, settings=settings(attempts=1)) as runtime:
            await order(runtime)
            receipt = await runtime.signal("t", "payment", "receipt", key="evt_1")
            assert receipt.run_id is not None

            async def has_failed() -> bool:
                return await states(runtime) == ["waiting", "failed"]

            await eventually_stored(has_failed)
            shop.fails = False
            again = await runtime.retry("t", receipt.run_id)
            await eventually(lambda: shop.begun == 2)
            await runtime.cancel("t", again.id, rollback=True)

            async def is_rolled_back() -> bool:
                return await states(runtime) == ["waiting", "failed", "rolled_back"]

            await eventually_stored(is_rolled_back)
            shop.gate.set()
            ended = await runtime.wait(await runtime.retry("t", receipt.run_id), 30)
            assert ended.state == "done"
            assert await states(runtime) == ["waiting", "failed", "rolled_back", "done"]
            assert (await values(database, shop.graph, "t"))["notes"] == ["order", "receipt", "shipped"]
        assert database.fsck("t") == []

    go(main())


@pytest.mark.parametrize("how", ["delete_for_runs", "fork"])
def test_a_signal_that_a_run_has_received_is_not_given_back_when_its_checkpoints_go(
    near: Storage, how: str
) -> None:
    """A fork leaves the branch with the signal, and a removal of checkpoints leaves the queue as it is."""

    async def main() -> None:
        shop, database = Shop(), near.database()
        shop.gate.set()
        async with working(database, shop.graph) as runtime:
            await order(runtime)
            head = next(iter(database.timeline("t"))).checkpoint_id
            receipt = await runtime.signal("t", "payment", "receipt", key="evt_1")
            assert receipt.run_id is not None
            await eventually(lambda: shop.begun == 1)

            async def is_over() -> bool:
                return await states(runtime) == ["waiting", "done"]

            await eventually_stored(is_over)
            if how == "fork":
                database.fork("t", head)
            else:
                database.checkpointer().delete_for_runs([receipt.run_id])
            assert (await values(database, shop.graph, "t"))["notes"] == ["order"]
            assert (await runtime.signal("t", "payment", "receipt", key="evt_1")).is_duplicate
            await order(runtime)
            assert (await runtime.signal("t", "payment", "another", key="evt_2")).run_id is not None

            async def is_over_again() -> bool:
                return (await states(runtime))[2:] == ["waiting", "done"]

            await eventually_stored(is_over_again)
            found = await values(database, shop.graph, "t")
            assert found["notes"] == ["order", "order", "another", "shipped"]
        assert database.fsck("t") == []

    go(main())
