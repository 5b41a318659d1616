"""A run that was stopped and whose worker is gone ends when its lease is over; that takes no worker."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from langgraph.graph import START, MessagesState, StateGraph

from perdure.model.records import RUN
from perdure.runtime import Runtime, Ticket
from tests.runtime.graphs import Storage, eventually, go, settings, vanish, working


async def _wait(state: MessagesState) -> dict[str, Any]:
    await asyncio.sleep(3600)
    return {}


def _other(state: MessagesState) -> dict[str, Any]:
    return {}


WAITS = StateGraph(MessagesState).add_node("wait", _wait).add_edge(START, "wait").compile()
OTHER = StateGraph(MessagesState).add_node("other", _other).add_edge(START, "other").compile()
LEASE = settings(lease=1.5)


async def _leave_open(near: Storage) -> Ticket:
    """Leave a run open whose process is gone."""
    database, line = near.open()
    async with working(database, WAITS, settings=LEASE) as runtime:
        ticket = await runtime.accept("ada", "hello")
        await eventually(lambda: len(near.rows("ada", RUN)) == 1)
        vanish(runtime, line)
    return ticket


@pytest.mark.parametrize(("rollback", "state"), [(False, "interrupted"), (True, "rolled_back")])
@pytest.mark.parametrize("later", [False, True], ids=["while it lasts", "after it"])
def test_it_ends_without_a_worker(near: Storage, rollback: bool, state: str, later: bool) -> None:
    async def main() -> None:
        ticket = await _leave_open(near)
        async with working(near.database(), WAITS, works=False, settings=LEASE) as front:
            if later:
                await asyncio.sleep(2)
            assert await front.cancel("ada", ticket.id, rollback=rollback)
            assert (await front.wait(ticket, 20)).state == state
            if rollback:
                left = await front.graph("agent").aget_state({"configurable": {"thread_id": "ada"}})
                assert left.created_at is None
            # The thread is free again.
            assert await front.threads.remove_resting("ada")

    go(main())


def test_a_worker_that_does_not_have_its_graph_ends_it(near: Storage) -> None:
    async def main() -> None:
        ticket = await _leave_open(near)
        graphs: Any = {"other": OTHER}
        async with Runtime(near.database(), graphs, settings=LEASE) as runtime:
            assert await runtime.cancel("ada", ticket.id)
            assert (await runtime.wait(ticket, 20)).state == "interrupted"

    go(main())


def test_a_run_whose_worker_is_alive_is_left_to_it(near: Storage) -> None:
    async def main() -> None:
        async with working(near.database(), WAITS, settings=LEASE) as runtime:
            ticket = await runtime.accept("ada", "hello")
            await eventually(lambda: len(near.rows("ada", RUN)) == 1)
            async with working(near.database(), WAITS, works=False, settings=LEASE) as front:
                assert await front.cancel("ada", ticket.id)
                run = await front.wait(ticket, 20)
                assert (run.state, run.attempts) == ("interrupted", 1)

    go(main())
