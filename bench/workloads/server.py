"""Perdure's server under load, beside the server of LangGraph's own command line and the strongest open one.

Requests to wait for, streams at once, and the memory of a stream on which nothing happens. All servers stand
on one machine from the first figure to the last and take turns; who is not asked sleeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from bench.desk import Desk
from bench.figures import percentile
from bench.served import load
from bench.served.agent import PAUSE_S, TOKENS
from bench.served.hosts import CONCURRENCY, HOSTS
from bench.served.process import Served
from bench.served.tested import TestedServers, start_servers

Results = dict[str, Any]

CLIENTS = 16
SHARE = 0.99
"""Of the streams, whose first token may not come later."""
TWICE, TOO_LATE = 2.0, 4.0
"""Times the first token of a single stream: what is looked for, and where a server's ramp ends."""
_SETTLE_S = 0.5
_FIGURES = ("idle", "one", "many", "streams", "shares")


def units(desk: Desk) -> int:
    plan = desk.plan
    return len(HOSTS) * (plan.server_repeats * (1 + len(plan.stream_levels)) + plan.idle_repeats)


def run(desk: Desk) -> Results:
    plan = desk.plan
    found: Results = {
        "concurrency": CONCURRENCY,
        "clients": CLIENTS,
        "lone_requests": plan.lone_requests,
        "requests_a_client": plan.requests_a_client,
        "requests_budget_s": plan.requests_budget_s,
        "tokens": TOKENS,
        "pause_ms": PAUSE_S * 1000,
        "levels": list(plan.stream_levels),
        "least_streams": plan.least_streams,
        "idle_streams": plan.idle_streams,
        "idle_repeats": plan.idle_repeats,
        "repeats": plan.server_repeats,
    }
    with start_servers(desk, found, list(HOSTS), _FIGURES) as tested:
        for repeat in range(plan.idle_repeats):
            tested.each(repeat, partial(_weigh, desk, fresh=repeat > 0))
        for repeat in range(plan.server_repeats):
            tested.each(repeat, partial(_wait, desk))
            for level in plan.stream_levels:
                tested.each(repeat, partial(_stream, desk, level=level, repeat=repeat))
    return found


def _weigh(
    desk: Desk, name: str, served: Served, seen: Results, tested: TestedServers, *, fresh: bool
) -> None:
    """A process that has done nothing but answer a few requests: what it frees after others would be used
    again, and its streams seem to weigh nothing. The first of these is the one that is loaded later."""
    if fresh:
        with tested.start(name) as other:
            _weigh_server(desk, other, seen)
    else:
        _weigh_server(desk, served, seen)
    desk.step(f"{HOSTS[name].label}: idle streams")


def _weigh_server(desk: Desk, served: Served, seen: Results) -> None:
    plan = desk.plan

    async def work() -> tuple[int, int]:
        there = await load.threads(port, plan.idle_streams)
        warm = await load.threads(port, 1)
        await load.waits(port, warm, 2, plan.requests_budget_s)
        await load.streams(port, await load.threads(port, 1), 1)
        await load.idle(port, warm, served.weight, 0.0)
        return await load.idle(port, there, served.weight, _SETTLE_S)

    with served.awake() as port:
        before, after = load.within(plan.server_patience_s, work)
    seen["idle"].append({"before": before, "a_stream": (after - before) / plan.idle_streams})


def _wait(desk: Desk, name: str, served: Served, seen: Results, _: TestedServers) -> None:
    plan = desk.plan
    for which, clients, each in (("one", 1, plan.lone_requests), ("many", CLIENTS, plan.requests_a_client)):
        with served.awake() as port:
            there = load.within(plan.server_patience_s, partial(load.threads, port, clients))
            spent = served.cpu_s()
            work = partial(load.waits, port, there, each, plan.requests_budget_s)
            took = load.within(plan.server_patience_s, work)
            spent = served.cpu_s() - spent
        seen[which].append(
            {
                "requests_per_s": len(took.ms) / took.seconds,
                "p50_ms": percentile(took.ms, 0.5),
                # The requests with which the threads begin are among what was spent.
                "cpu_ms": spent * 1000 / (len(took.ms) + clients),
            }
        )
        seen["shares"].append(took.share)
    desk.step(f"{HOSTS[name].label}: requests")


def _stream(
    desk: Desk, name: str, served: Served, seen: Results, _: TestedServers, *, level: int, repeat: int
) -> None:
    """One level of the ramp. A server whose tokens came far too late at the level before is not asked."""
    plan = desk.plan
    if len(seen["streams"]) == repeat:
        seen["streams"].append({})
    ramp: dict[str, float] = seen["streams"][repeat]
    if not is_over(list(ramp.values())):
        each = max(plan.streams_a_client, -(-plan.least_streams // level))
        with served.awake() as port:
            there = load.within(plan.server_patience_s, partial(load.threads, port, level))
            took = load.within(plan.server_patience_s, partial(load.streams, port, there, each))
        ramp[str(level)] = percentile(took.ms, SHARE)
        seen["shares"].append(took.share)
    desk.step(f"{HOSTS[name].label}: {level} streams")


def is_over(ramp: Sequence[float]) -> bool:
    """Whether a ramp, in the order of its levels, has come to where more says nothing."""
    return bool(ramp) and ramp[-1] > TOO_LATE * ramp[0]


def find_doubling(levels: Sequence[tuple[int, float]]) -> int | None:
    """The first level whose first tokens come more than twice as late as those of the first one."""
    single = levels[0][1]
    return next((level for level, late in levels if late > TWICE * single), None)
