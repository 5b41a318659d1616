"""Many streams that begin at one server at once, and what thousands of requests leave.

Beside LangGraph's own server. Both keep their threads as they come: in SQLite, and in memory that is written
to a file now and then.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from bench.desk import Desk
from bench.figures import percentile
from bench.served import load
from bench.served.agent import CROWD_PAUSE_S, CROWD_TOKENS
from bench.served.hosts import CONCURRENCY, HOSTS, LANGGRAPH, PERDURE, PERDURE_PG
from bench.served.process import Served
from bench.served.tested import TestedServers, start_servers

Results = dict[str, Any]

CROWDED = (PERDURE, LANGGRAPH)
WEIGHED = (PERDURE, PERDURE_PG, LANGGRAPH)
SHARE = 0.99
WEIGHINGS = 8
CLIENTS = 16
_WARM = 8


def units(desk: Desk) -> int:
    plan = desk.plan
    return len(CROWDED) * plan.crowd_repeats * len(plan.crowd_levels) + len(WEIGHED) * WEIGHINGS


def run(desk: Desk) -> Results:
    """Return the figures of both parts. A crowd is met by a server that has answered a few streams, and that
    is the same from the smallest crowd to the largest; requests are weighed on one that has just started."""
    plan = desk.plan
    found: Results = {
        "concurrency": CONCURRENCY,
        "tokens": CROWD_TOKENS,
        "pause_ms": CROWD_PAUSE_S * 1000,
        "levels": list(plan.crowd_levels),
        "patience_s": plan.crowd_patience_s,
        "repeats": plan.crowd_repeats,
        "requests": plan.memory_requests,
        "clients": CLIENTS,
        "crowds": {},
        "weights": {},
    }
    with start_servers(desk, found["crowds"], CROWDED, [str(level) for level in plan.crowd_levels]) as tested:
        tested.each(0, partial(_warm, desk))
        for repeat in range(plan.crowd_repeats):
            for level in plan.crowd_levels:
                tested.each(repeat, partial(_meet, desk, level=level))
    for name in WEIGHED:
        here: Results = {}
        with start_servers(desk, here, (name,), ["weights", "cpu_ms"]) as tested:
            tested.each(0, partial(_weigh, desk))
        found["weights"][name] = here["hosts"][name]
    return found


def _warm(desk: Desk, name: str, served: Served, seen: Results, _: TestedServers) -> None:
    with served.awake() as port:
        load.within(desk.plan.crowd_patience_s, partial(load.crowd, port, _WARM, desk.plan.crowd_patience_s))


def _meet(desk: Desk, name: str, served: Served, seen: Results, _: TestedServers, *, level: int) -> None:
    patience_s = desk.plan.crowd_patience_s
    with served.awake() as port:
        spent = served.cpu_s()
        took = load.within(2 * patience_s, partial(load.crowd, port, level, patience_s))
        spent = served.cpu_s() - spent
    done = len(took.ms)
    seen[str(level)].append(
        {
            "done": done,
            "refused": took.refused,
            "failed": took.failed,
            "done_per_s": done / took.seconds,
            "first_ms": percentile(took.ms, SHARE) if done else None,
            "cpu_ms": spent * 1000 / done if done else None,
            "next_ms": took.next_ms,
            "share": took.share,
        }
    )
    desk.step(f"{HOSTS[name].label}: a crowd of {level}")


def _weigh(desk: Desk, name: str, served: Served, seen: Results, __: TestedServers) -> None:
    """Make requests, and weigh the server after each eighth of them."""
    plan = desk.plan
    each = plan.memory_requests // WEIGHINGS
    for _ in range(WEIGHINGS):
        with served.awake() as port:
            spent = served.cpu_s()
            took = load.within(plan.memory_patience_s, partial(load.lone_runs, port, CLIENTS, each))
            seen["cpu_ms"].append((served.cpu_s() - spent) * 1000 / len(took.ms))
            seen["weights"].append(served.weight())
        desk.step(f"{HOSTS[name].label}: {each} requests")
