"""Perdure's runtime beside a bare loop of `ainvoke` over Perdure's own saver.

What accepting durably, claiming and fencing cost a message: in throughput, in latency, and in what is asked
of the database. One process has all ways of a backend, which take turns in it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import count
from typing import Any

from bench import servers
from bench.candidate import Place
from bench.desk import Desk
from bench.figures import median
from bench.proxy import Proxy
from bench.servers import Missing, Server
from bench.subject import Subject, SubjectFailed
from bench.ways import RUNTIME, WAYS

Results = dict[str, Any]

POLL_S = 1.0
_SELDOM_S = 600.0
"""Between two looks for what is due, where requests are counted: those belong to no message."""
_numbers = count()

BACKENDS: dict[str, Callable[[], AbstractContextManager[Server | None]]] = {
    "SQLite": lambda: nullcontext(None),
    "PostgreSQL": servers.postgres,
}


def units(desk: Desk) -> int:
    plan = desk.plan
    return len(BACKENDS) * ((plan.runtime_repeats + 1 + plan.trip_rounds) * len(WAYS) + 1)


def run(desk: Desk) -> Results:
    plan = desk.plan
    return {
        "threads": plan.threads,
        "messages_a_thread": plan.turns_a_thread,
        "lone_messages": plan.lone_messages,
        "poll_s": POLL_S,
        "backends": {title: _backend(desk, title) for title in BACKENDS},
    }


def _backend(desk: Desk, title: str) -> Results:
    """A failure here is one of ours: it goes to the notes and fails the run."""
    try:
        with BACKENDS[title]() as server:
            with _process(desk, _url(server)) as subject:
                found: Results = {
                    "settings": "" if server is None else server.settings,
                    "lone": _lone(desk, title, subject),
                    "crowd": _crowd(desk, title, subject),
                }
                if server is None:
                    return {**found, "counts": _counts(desk, title, subject, None)}
            with (
                Proxy("127.0.0.1", server.port) as proxy,
                _process(desk, proxy.through(_url(server))) as subject,
            ):
                return {**found, "counts": _counts(desk, title, subject, proxy)}
    except Missing as missing:
        return {"skipped": str(missing)}
    except SubjectFailed as failure:
        desk.notes.append(f"The runtime on {title} was not measured: {failure}")
        return {"skipped": str(failure)}


def _url(server: Server | None) -> str:
    """An empty database; nothing for a file of the process's own."""
    return "" if server is None else server.empty(f"runtime-{next(_numbers)}")


@contextmanager
def _process(desk: Desk, url: str) -> Iterator[Subject]:
    """A process of its own, on an empty database of its own."""
    folder = desk.scratch / f"runtime-{next(_numbers)}"
    folder.mkdir()
    subject = Subject("perdure", "chat", Place(folder, url), module="bench.loops")
    try:
        yield subject
    finally:
        subject.leave()


def _ask(subject: Subject, question: str, **arguments: Any) -> Results:
    """With nothing left to flush of what was written before."""
    os.sync()
    return subject.ask(question, **arguments)


def _lone(desk: Desk, title: str, subject: Subject) -> dict[str, list[float]]:
    """A message each way, a few milliseconds from the others."""
    subject.ask("open", concurrency=desk.plan.threads, poll=POLL_S)
    took: dict[str, list[float]] = _ask(subject, "pairs", count=desk.plan.lone_messages)["ms"]
    subject.ask("shut")
    desk.step(f"{title}: lone messages")
    return took


def _crowd(desk: Desk, title: str, subject: Subject) -> dict[str, Results]:
    """The ways take turns, in rotating order, each time on new threads. A first round, in which connections
    are opened, does not count."""
    plan = desk.plan
    rates: dict[str, list[float]] = {way: [] for way in WAYS}
    order = list(WAYS)
    for number in range(-1, plan.runtime_repeats):
        turn = number % len(order)
        for way in order[turn:] + order[:turn]:
            if way == RUNTIME:
                subject.ask("open", concurrency=plan.threads, poll=POLL_S)
            turns = plan.turns_a_thread if number >= 0 else 1
            answer = _ask(subject, "many", way=way, threads=plan.threads, turns=turns)
            subject.ask("shut")
            if number >= 0:
                rates[way].append(answer["messages"] / answer["seconds"])
            desk.step(f"{title}, {way}: {plan.threads} threads at once")
    return {way: {"messages_per_s": median(seen), "rounds": seen} for way, seen in rates.items()}


def _counts(desk: Desk, title: str, subject: Subject, proxy: Proxy | None) -> dict[str, Results]:
    """What a message asks of the driver, and of a server behind a proxy: medians of several visits."""
    plan = desk.plan
    seen: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    subject.ask("open", concurrency=plan.threads, poll=_SELDOM_S)
    for way in WAYS:
        subject.ask("messages", way=way, count=plan.trip_turns)
    for _ in range(plan.trip_rounds):
        for way in WAYS:
            before = proxy.counts().round_trips if proxy is not None else 0
            spent = subject.ask("messages", way=way, count=plan.trip_turns)
            if proxy is not None:
                spent["round_trips"] = proxy.counts().round_trips - before
            seen[way].append({what: spent[what] / plan.trip_turns for what in spent})
            desk.step(f"{title}, {way}: counting")
    return {
        way: {what: median([visit[what] for visit in visits]) for what in visits[0]}
        for way, visits in seen.items()
    }
