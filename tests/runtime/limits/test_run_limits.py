"""Limits of whole runs: who waits holds nothing, users take turns, and what may refuse at submission.

Covers perdure.runtime.worker.run_limits.
"""

import asyncio
from collections import Counter
from typing import Any, TypedDict

import pytest
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt

import perdure
from perdure.database.base import handle_of
from perdure.engine import limits as stored
from perdure.limits import LimitReached, SharedLimit
from perdure.model.ops import Fetch, Get
from perdure.model.program import ask
from perdure.model.records import LANE, Partition
from perdure.model.runs.queue import IN, Lane
from perdure.runtime import Agent, Runtime, Settings
from tests.backends import BACKENDS, EMPTY
from tests.runtime.graphs import eventually


class State(TypedDict, total=False):
    said: str


class Office:
    """A graph whose runs take a while, and what it saw of them."""

    def __init__(self, seconds: float = 0.05) -> None:
        self.under_way: Counter[str] = Counter()
        self.most = 0
        self.order: list[str] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self._seconds = seconds

    async def work(self, state: State, config: RunnableConfig) -> State:
        user = (config.get("configurable") or {}).get("user_id", "")
        self.order.append(user)
        self.under_way[user] += 1
        self.most = max(self.most, self.under_way.total())
        try:
            await self.gate.wait()
            await asyncio.sleep(self._seconds)
        finally:
            self.under_way[user] -= 1
        return {"said": user}

    def graph(self) -> Any:
        return StateGraph(State).add_node(self.work).add_edge(START, "work").compile()


def settings(**limits: SharedLimit) -> Settings:
    return Settings(limits=limits, poll=0.05, attempts=2)


def of(user: str | int) -> dict[str, Any]:
    return {"configurable": {"user_id": user}}


@pytest.mark.parametrize("backend", BACKENDS)
def test_every_backend_holds_runs_to_a_concurrency(backend: str) -> None:
    async def main(url: str) -> None:
        office = Office()
        limit = SharedLimit(of="run", concurrency=2)
        async with (
            perdure.connect(url, migrate=True) as db,
            Runtime(db, office.graph(), settings=settings(runs=limit)) as runtime,
        ):
            tickets = [await runtime.submit(f"t{n}", {"said": ""}) for n in range(8)]
            runs = [await runtime.wait(ticket, timeout=60) for ticket in tickets]
            assert {run.state for run in runs} == {"done"}
            assert all(run.attempts == 1 for run in runs)
            assert office.most == 2

    with EMPTY[backend]() as url:
        asyncio.run(main(url))


@pytest.mark.parametrize("users", [("1", "2"), (1, 2)])
def test_users_have_places_of_their_own_also_if_their_ids_are_numbers(
    users: tuple[Any, Any],
) -> None:
    async def main() -> None:
        office = Office()
        office.gate.clear()
        limit = SharedLimit(of="run", concurrency=1, by=("user",), refuse=True)
        async with (
            perdure.connect("memory://") as db,
            Runtime(db, office.graph(), settings=settings(each=limit)) as runtime,
        ):
            for user in users:
                await runtime.submit(f"of {user}", {"said": ""}, config=of(user))
            with pytest.raises(LimitReached, match="of user '1' is reached"):
                await runtime.submit("again", {"said": ""}, config=of(users[0]))
            office.gate.set()

    asyncio.run(main())


def test_a_run_that_waits_has_no_slot_no_lease_and_no_attempt() -> None:
    async def main() -> None:
        office = Office()
        office.gate.clear()
        limit = SharedLimit(of="run", concurrency=1, by=("user",))
        async with perdure.connect("memory://") as db:
            made = Settings(limits={"runs": limit}, poll=0.05, concurrency=2)
            async with Runtime(db, office.graph(), settings=made) as runtime:
                first = [await runtime.submit(f"ada{n}", {"said": ""}, config=of("ada")) for n in range(20)]
                await eventually(lambda: office.under_way["ada"] == 1)
                # Both slots would be taken by runs that wait.
                other = await runtime.submit("bob", {"said": ""}, config=of("bob"))
                await eventually(lambda: office.under_way["bob"] == 1)
                for n in range(20):
                    (found,) = await handle_of(db).arun(
                        ask(Fetch(Partition("", f"ada{n}"), (Get(LANE, (IN,)),)))
                    )
                    lane = Lane.read(IN, found)
                    assert (lane.owner is None) == (lane.run_id is None)
                office.gate.set()
                runs = [await runtime.wait(ticket, timeout=30) for ticket in (*first, other)]
                assert {(run.state, run.attempts) for run in runs} == {("done", 1)}
                assert office.most <= 2

    asyncio.run(main())


def test_users_take_turns_however_many_runs_one_has() -> None:
    async def main() -> None:
        office = Office(0.01)
        async with (
            perdure.connect("memory://") as db,
            Runtime(
                db, office.graph(), settings=settings(runs=SharedLimit(of="run", concurrency=1))
            ) as runtime,
        ):
            tickets = [await runtime.submit(f"a{n}", {"said": ""}, config=of("greedy")) for n in range(50)]
            await eventually(lambda: len(office.order) >= 2)
            began = len(office.order)
            tickets += [await runtime.submit(f"b{n}", {"said": ""}, config=of("bob")) for n in range(2)]
            for ticket in tickets:
                await runtime.wait(ticket, timeout=60)
            assert office.most == 1
            assert office.order.index("bob") <= began + 6

    asyncio.run(main())


def test_runs_wait_for_a_rate_and_a_run_that_is_tried_again_does_not_begin_anew() -> None:
    failures = [ConnectionError("down")]

    async def flaky(state: State) -> State:
        if failures:
            raise failures.pop()
        return {"said": "yes"}

    async def main() -> None:
        graph = StateGraph(State).add_node(flaky).add_edge(START, "flaky").compile()
        limit = SharedLimit(of="run", rate=1, burst=2)
        made = Settings(limits={"runs": limit}, poll=0.05, backoff=0.05, attempts=3)
        async with perdure.connect("memory://") as db, Runtime(db, graph, settings=made) as runtime:
            tickets = [await runtime.submit(f"t{n}", {"said": ""}) for n in range(3)]
            runs = [await runtime.wait(ticket, timeout=30) for ticket in tickets[:2]]
            assert {run.state for run in runs} == {"done"}
            assert sorted(run.attempts for run in runs) == [1, 2]
            with pytest.raises(TimeoutError):
                await runtime.wait(tickets[2], timeout=0.5)

    asyncio.run(main())


@pytest.mark.parametrize("backend", ["sqlite", "memory"])
def test_a_limit_that_refuses_does_so_when_a_run_is_submitted(backend: str) -> None:
    async def main(url: str) -> None:
        office = Office()
        office.gate.clear()
        limit = SharedLimit(of="run", concurrency=2, by=("user",), refuse=True)
        async with (
            perdure.connect(url, migrate=True) as db,
            Runtime(db, office.graph(), settings=settings(runs=limit)) as runtime,
        ):
            for n in range(2):
                await runtime.submit(f"t{n}", {"said": ""}, config=of("ada"), dedupe_key=f"t{n}")
            with pytest.raises(LimitReached, match="limit 'runs' of user 'ada'") as refused:
                await runtime.submit("t2", {"said": ""}, config=of("ada"))
            assert refused.value.retry_after > 0
            # One that was accepted before is not refused when it is sent again.
            again = await runtime.submit("t1", {"said": ""}, config=of("ada"), dedupe_key="t1")
            assert again.is_duplicate
            assert not await runtime.messages("t2")
            other = await runtime.submit("t3", {"said": ""}, config=of("bob"))
            office.gate.set()
            assert (await runtime.wait(other, timeout=10)).state == "done"
            async with asyncio.timeout(10):
                while True:
                    try:
                        again = await runtime.submit("t2", {"said": ""}, config=of("ada"))
                        break
                    except LimitReached:
                        await asyncio.sleep(0.05)
            assert (await runtime.wait(again, timeout=10)).state == "done"
            assert office.most <= 3

    with EMPTY[backend]() as url:
        asyncio.run(main(url))


def test_a_rate_that_refuses_counts_each_run_once() -> None:
    async def main() -> None:
        office = Office(0.0)
        limit = SharedLimit(of="run", rate=1, burst=3, refuse=True)
        async with perdure.connect("memory://") as db:
            made = settings(runs=limit)
            async with (
                Runtime(db, office.graph(), settings=made, works=False) as door,
                Runtime(db, office.graph(), settings=made) as worker,
            ):
                tickets = [await door.submit(f"t{n}", {"said": ""}) for n in range(3)]
                with pytest.raises(LimitReached) as refused:
                    await door.submit("t3", {"said": ""})
                assert 1 < refused.value.retry_after <= 61
                for ticket in tickets:
                    assert (await worker.wait(ticket, timeout=10)).state == "done"

    asyncio.run(main())


def test_an_answer_that_names_no_graph_has_the_limits_of_the_graph_that_asked() -> None:
    async def asks(state: State) -> State:
        return {"said": interrupt("?")}

    async def main() -> None:
        graphs = {name: StateGraph(State).add_node(asks).add_edge(START, "asks").compile() for name in "ab"}
        limit = SharedLimit(of="run", graphs=("a",), by=("graph",), rate=1, burst=3, refuse=True)
        async with (
            perdure.connect("memory://") as db,
            Runtime(db, graphs, settings=settings(runs=limit)) as runtime,
        ):
            for name in "ab":
                assert (
                    await runtime.wait(await runtime.submit(name, {"said": ""}, graph=name))
                ).state == "waiting"
            await runtime.wait(await runtime.submit("c", {"said": ""}, graph="a"))
            assert (await runtime.wait(await runtime.answer("a", "yes"), timeout=10)).state == "done"
            with pytest.raises(LimitReached, match="graph 'a'"):
                await runtime.answer("c", "yes")
            # The other graph has no limit.
            assert (await runtime.wait(await runtime.answer("b", "yes"), timeout=10)).state == "done"

    asyncio.run(main())


def test_a_run_that_waits_can_be_cancelled() -> None:
    async def main() -> None:
        office = Office()
        office.gate.clear()
        async with (
            perdure.connect("memory://") as db,
            Runtime(
                db, office.graph(), settings=settings(runs=SharedLimit(of="run", concurrency=1))
            ) as runtime,
        ):
            first = await runtime.submit("t1", {"said": ""})
            await eventually(lambda: office.under_way.total() == 1)
            second = await runtime.submit("t2", {"said": ""})
            third = await runtime.submit("t3", {"said": ""})
            assert await runtime.cancel("t2", second.id)
            assert (await runtime.wait(second, timeout=10)).state == "interrupted"
            # One that is under way gives its place back.
            assert await runtime.stop("t1", first.id)
            assert (await runtime.wait(first, timeout=10)).state == "interrupted"
            office.gate.set()
            assert (await runtime.wait(third, timeout=10)).state == "done"

    asyncio.run(main())


def test_runs_that_waited_go_on_where_the_limit_was_removed() -> None:
    async def main() -> None:
        office = Office()
        async with perdure.connect("memory://") as db:
            never = settings(runs=SharedLimit(of="run", rate=0.001, burst=2))
            async with Runtime(db, office.graph(), settings=never) as runtime:
                tickets = [await runtime.submit(f"t{n}", {"said": ""}) for n in range(5)]
                await eventually(lambda: len(office.order) == 2)
            assert len(office.order) == 2
            async with Runtime(db, office.graph(), settings=Settings(poll=0.05)) as runtime:
                for ticket in tickets:
                    assert (await runtime.wait(ticket, timeout=10)).state == "done"

    asyncio.run(main())


def test_a_limit_of_an_agent_is_of_its_graph_alone() -> None:
    async def main() -> None:
        office, free = Office(), Office()
        graphs = {
            "narrow": Agent(office.graph(), limits={"runs": SharedLimit(of="run", concurrency=1)}),
            "free": Agent(free.graph()),
        }
        async with (
            perdure.connect("memory://") as db,
            Runtime(db, graphs, settings=Settings(poll=0.05)) as runtime,
        ):
            tickets = [
                await runtime.submit(f"{graph}{n}", {"said": ""}, graph=graph)
                for n in range(4)
                for graph in graphs
            ]
            for ticket in tickets:
                await runtime.wait(ticket, timeout=30)
            assert office.most == 1
            assert free.most > 1
            found, _ = await handle_of(db).arun(stored.read_states("", 10))
            assert {each.place.limit for each in found} <= {"narrow.runs"}

    asyncio.run(main())


def test_a_call_that_works_on_demand_waits_for_the_limit_and_says_when_to_come_again() -> None:
    async def main() -> None:
        office = Office()
        async with perdure.connect("memory://") as db:
            made = settings(runs=SharedLimit(of="run", rate=30, burst=2))
            async with Runtime(db, office.graph(), settings=made, works=False) as runtime:
                for name in ("t1", "t2", "t3"):
                    await runtime.submit(name, {"said": ""})
                for name in ("t1", "t2"):
                    assert await runtime.run_until_idle(name, within=10) is None
                later = await runtime.run_until_idle("t3")
                assert later is not None
                assert 0 < later <= 1
                assert await runtime.run_until_idle("t3", within=10) is None
        assert len(office.order) == 3

    asyncio.run(main())
