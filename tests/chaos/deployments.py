"""Simulated deployment: senders that repeat messages, workers, a provider; and an audit of the result."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.database.opening import make_database
from perdure.engine.queue import runs
from perdure.engine.queue.inbox import Strategy
from perdure.errors import PerdureError
from perdure.model.ops import Fetch, Get, Range
from perdure.model.program import ask
from perdure.model.records import INBOX, LANE, Partition
from perdure.model.runs.messages import Reply
from perdure.model.runs.queue import IN, OUT
from perdure.runtime.jitter import use_seed
from perdure.runtime.runtime import Runtime
from perdure.runtime.settings import Settings
from perdure.runtime.tickets import Ticket
from perdure.runtime.worker.delivery import Channel
from perdure.storage.port import Driver
from tests.chaos.history import Expected, audit, audit_steered_log, logging_agent
from tests.chaos.simulation import Faults, Process, Simulation

SETTINGS = Settings(lease=10.0, poll=1.0, attempts=1000, backoff=0.2, max_backoff=2.0, drain=0.0)
"""Short times and many attempts: the crashes of a simulation would use up any small number."""

FAULTS = Faults(kill=0.01, pause=0.01, lose=0.01)
UNWANTED = 0.15
"""Share of the messages that their senders withdraw, if they still wait."""
STRATEGIES: tuple[Strategy, ...] = ("steer", "steer", "steer", "steer", "enqueue")
REST_S = 600.0
BUSY_S = 3600.0


@dataclass(frozen=True)
class Outcome:
    """Result of a simulated history: what is ``wrong`` with it, counts of its events, and its trace."""

    seed: int
    wrong: tuple[str, ...]
    counts: dict[str, int]
    trace: tuple[str, ...]


def simulate(
    seed: int,
    *,
    faults: Faults = FAULTS,
    threads: int = 2,
    messages: int = 3,
    workers: int = 2,
    kill_at: tuple[int, str] | None = None,
    driver: Driver | None = None,
    steers: bool = False,
    busy_s: float = BUSY_S,
) -> Outcome:
    """Simulate one history: each thread's sender sends its messages in order, repeating each until it is
    acknowledged, and ``workers`` processes work on them.

    Args:
        kill_at: number of a request whose process is killed ``"before"`` or ``"after"`` it is performed.
        driver: storage to use instead of memory.
        steers: messages steer the run that is open; the graph's steps ask for them, or the worker takes them
            up between two steps, as the seed decides.
        busy_s: virtual seconds after which faults end although messages are still at work.
    """
    random.seed(seed)
    simulation = Simulation(seed, faults, driver=driver)
    simulation.kill_at = kill_at
    asking, between = _asking(simulation.random) if steers else ((), None)
    expected = Expected({f"thread {n}": [] for n in range(threads)})

    async def pause(step: int) -> None:
        await asyncio.sleep(simulation.random.choice((0.0, 0.05, 0.5, 4.0)))

    async def provider(process: Process, reply: Reply) -> str:
        def deliver() -> str:
            expected.delivered[reply.id] += 1
            return f"provider {reply.id}"

        return await simulation.happen(process, deliver)

    def runtime(process: Process, *, works: bool) -> Runtime:
        async def send(thread: str, reply: Reply) -> str:
            return await provider(process, reply)

        return Runtime(
            simulation.database(process),
            logging_agent(pause, asking, steer_before=between),
            channels={"chat": Channel(send, attempts=1000, timeout=5.0)},
            settings=SETTINGS,
            works=works,
            observers=(),
            name=process.name,
        )

    async def worker(process: Process) -> None:
        async with runtime(process, works=True):
            await asyncio.Event().wait()

    def sender(thread: str) -> Callable[[Process], Coroutine[Any, Any, None]]:
        async def send(process: Process) -> None:
            # Some apps work on what they accept, others leave it to the workers.
            works = simulation.random.random() < 0.5
            async with runtime(process, works=works) as app:
                await send_all(app)
                await asyncio.Event().wait()

        async def send_all(app: Runtime) -> None:
            acknowledged = expected.acknowledged[thread]
            while len(acknowledged) < messages:
                text = f"{thread} message {len(acknowledged)}"
                quiet = simulation.random.choice((0.0, 0.0, 2.0))
                how, is_unwanted = _way(simulation.random) if steers else ("enqueue", False)
                try:
                    ticket = await app.accept(
                        thread, text, dedupe_key=text, channel="chat", debounce=quiet, strategy=how
                    )
                except PerdureError:
                    await asyncio.sleep(0.2)
                else:
                    acknowledged.append(text)
                    await _withdraw(app, ticket, is_unwanted=is_unwanted)
                await asyncio.sleep(simulation.random.choice((0.0, 0.01, 0.3, 5.0)))

        return send

    database = make_database(simulation.driver)
    is_done = partial(_is_done, database, expected, messages)
    with use_seed(seed), simulation:
        for n in range(workers):
            skew_s = simulation.random.choice((-3600.0, 0.0, 3600.0))
            simulation.spawn(f"worker {n}", worker, skew_s=skew_s)
        for thread in expected.acknowledged:
            simulation.spawn(f"sender of {thread}", sender(thread))
        simulation.run(is_done, limit=busy_s)
        simulation.calm()
        simulation.run(is_done, limit=REST_S)
        of_log = audit_steered_log if steers else None
        wrong = (*simulation.wrong, *audit(database, expected, of_log=of_log))
        simulation.counts |= _taken(database, expected) if steers else {}
    return Outcome(seed, wrong, simulation.counts, tuple(simulation.trace))


def _way(chance: random.Random) -> tuple[Strategy, bool]:
    """Choose how a message is sent to a thread with an open run, and if its sender withdraws it."""
    return chance.choice(STRATEGIES), chance.random() < UNWANTED


async def _withdraw(app: Runtime, ticket: Ticket, *, is_unwanted: bool) -> None:
    # If the answer is lost it may have happened: the audit looks at what is stored.
    with suppress(PerdureError):
        if is_unwanted:
            await app.withdraw(ticket.thread_id, ticket.id)


def _asking(chance: random.Random) -> tuple[tuple[int, ...], tuple[str, ...] | None]:
    """Choose the steps that ask for messages, and if the worker takes them up between steps, too."""
    asking = chance.choice(((), (1,), (0, 2), (0, 1, 2)))
    return asking, None if not asking or chance.random() < 0.5 else ()


def _taken(database: SyncDatabase, expected: Expected) -> dict[str, int]:
    """Count the messages of a history, those that an open run took up, and the withdrawn ones that it passed
    over."""
    taken = passed = 0
    for thread in expected.acknowledged:
        at = Partition("", thread)
        (rows,) = handle_of(database).run(ask(Fetch(at, (Range(INBOX, bodies=False),))))
        begun = {run.first for run in handle_of(database).run(runs.read_latest(at, 10_000))}
        taken += sum(row.fields["mode"] == "steer" and row.key[0] not in begun for row in rows)
        passed += sum(row.fields["mode"] == "withdrawn" and row.key[0] not in begun for row in rows)
    sent = sum(map(len, expected.acknowledged.values()))
    return {"messages": sent, "taken up": taken, "passed over": passed}


def _is_done(database: SyncDatabase, expected: Expected, messages: int) -> bool:
    """Whether every message of each thread was acknowledged, and every queue is empty."""
    if any(len(texts) < messages for texts in expected.acknowledged.values()):
        return False
    return all(_rests(database, Partition("", thread)) for thread in expected.acknowledged)


def _rests(database: SyncDatabase, at: Partition) -> bool:
    lanes = handle_of(database).run(ask(Fetch(at, (Get(LANE, (IN,)), Get(LANE, (OUT,))))))
    return all(not lane or lane[0].fields["due_at"] is None for lane in lanes)
