"""Who is served next: tenants take turns, whoever waits longest first among a tenant's."""

from __future__ import annotations

import asyncio
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from perdure.model.records import Partition
from perdure.model.runs.queue import IN
from perdure.runtime.worker.fairness import choose_in_turn
from tests.runtime.graphs import Storage, Talk, eventually, go, settings, working

DUE = st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 30)), unique=True, max_size=40).map(
    lambda found: [(Partition(tenant, str(n)), IN) for tenant, n in found]
)


@given(
    due=DUE,
    running=st.dictionaries(st.sampled_from("abcd"), st.integers(0, 5)),
    slots=st.integers(0, 20),
    most=st.none() | st.integers(1, 4),
)
def test_turns(
    due: list[tuple[Partition, str]], running: dict[str, int], slots: int, most: int | None
) -> None:
    chosen = list(choose_in_turn(due, running, slots, most))
    assert len(chosen) <= slots
    assert len(set(chosen)) == len(chosen)
    busy = Counter(running)
    for partition, _ in chosen:
        busy[partition.tenant] += 1
    for tenant in "abcd":
        mine = [item for item in due if item[0].tenant == tenant]
        got = [item for item in chosen if item[0].tenant == tenant]
        assert got == mine[: len(got)], "a tenant's own are served in their order"
        if got and most is not None:
            assert busy[tenant] <= most
        for other in "abcd":
            waits = len(mine) > len(got) and (most is None or busy[tenant] < most)
            taken = any(partition.tenant == other for partition, _ in chosen)
            if waits and taken:
                assert busy[other] <= busy[tenant] + 1, f"{other} was served before {tenant}"
    left = Counter(partition.tenant for partition, _ in due) - Counter(p.tenant for p, _ in chosen)
    if len(chosen) < slots:
        assert all(most is not None and busy[tenant] >= most for tenant in left), "nobody waits for nothing"


def test_a_tenant_with_many_threads_starves_nobody(memory: Storage) -> None:
    talk = Talk()

    async def main() -> None:
        async with working(memory.database(), talk.graph, works=False) as front:
            for n in range(50):
                await front.for_tenant("acme").accept(f"many{n}", "hold")
            mine = await front.for_tenant("beta").accept("ada", "hello")
            few = settings(concurrency=4, per_tenant=3)
            async with working(memory.database(), talk.graph, settings=few, all_tenants=True) as worker:
                assert (await front.wait(mine, 30)).state == "done"
                await eventually(lambda: talk.under_way == 3)
                other = await front.for_tenant("gamma").accept("bob", "hello")
                assert (await front.wait(other, 30)).state == "done"
                assert talk.under_way == 3
                talk.gate.set()
                await eventually(lambda: not worker._worker.runner._working and len(talk.calls) == 52)
        assert talk.most <= 4

    go(main())


def test_a_tenant_has_no_more_runs_at_once_than_it_may(memory: Storage) -> None:
    """Also of those messages that this very process accepted."""
    talk = Talk()

    async def main() -> None:
        few = settings(per_tenant=2, drain=0.1)
        async with working(memory.database(), talk.graph, settings=few) as runtime:
            tickets = [await runtime.accept(f"t{n}", "hold") for n in range(6)]
            await eventually(lambda: talk.under_way >= 2)
            for n in range(3):  # by the time that another tenant's are done, all of these were looked at
                await runtime.wait(await runtime.for_tenant("other").accept(f"x{n}", "hello"), 30)
            assert sum(thread.startswith("t") for thread, _ in talk.calls) == 2
            talk.gate.set()
            await asyncio.gather(*(runtime.wait(ticket, 30) for ticket in tickets))

    go(main())
