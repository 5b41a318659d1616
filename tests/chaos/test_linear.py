"""A thread is linear: each message once, in the order of real time; who reads it sees a beginning of it."""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest

import perdure
from perdure.database.base import DatabaseBase
from perdure.runtime import Runtime, Settings
from tests.chaos.history import logging_agent

FULL = os.environ.get("PERDURE_CHAOS") == "full"
THREADS, MESSAGES, SENDERS = (200, 50, 10) if FULL else (12, 20, 5)


@dataclass
class Seen:
    """What senders and readers of a thread saw: when each message was sent and acknowledged, and what each
    read showed."""

    sent: dict[str, float] = field(default_factory=dict)
    acknowledged: dict[str, float] = field(default_factory=dict)
    reads: list[list[str]] = field(default_factory=list)


async def told(database: DatabaseBase, thread: str) -> list[str]:
    """The messages that a thread's state has been told, in its order."""
    found = await database.checkpointer().aget_tuple({"configurable": {"thread_id": thread}})
    log = [] if found is None else found.checkpoint["channel_values"].get("log", [])
    return [entry[2:] for entry in log if entry.startswith("m:")]


async def send(app: Runtime, thread: str, sender: int, seen: Seen) -> None:
    for n in range(MESSAGES // SENDERS):
        text = f"{sender}.{n}"
        seen.sent[text] = time.monotonic()
        await app.accept(thread, text, dedupe_key=text)
        seen.acknowledged[text] = time.monotonic()


async def read(database: DatabaseBase, threads: dict[str, Seen], over: asyncio.Event) -> None:
    while not over.is_set():
        for thread, seen in threads.items():
            seen.reads.append(await told(database, thread))
        await asyncio.sleep(0.01)


def refuse_disorder(thread: str, seen: Seen, final: list[str]) -> None:
    assert sorted(final) == sorted(seen.acknowledged), f"{thread}: not every message is there once"
    place = {text: n for n, text in enumerate(final)}
    # Whatever was acknowledged before something else was sent comes before it.
    by_sending = sorted(seen.sent, key=lambda text: seen.sent[text])
    by_answer = sorted(seen.acknowledged, key=lambda text: seen.acknowledged[text])
    latest, done = -1, 0
    for text in by_sending:
        while done < len(by_answer) and seen.acknowledged[by_answer[done]] < seen.sent[text]:
            latest = max(latest, place[by_answer[done]])
            done += 1
        assert place[text] > latest, (
            f"{thread}: {text} stands before what was acknowledged before it was sent"
        )
    for before, after in pairwise([*seen.reads, final]):
        assert after[: len(before)] == before, f"{thread}: a read was taken back"


@pytest.mark.timeout(900)
def test_many_messages_at_once_on_many_threads_stand_in_one_order(tmp_path: Path) -> None:
    async def main() -> None:
        threads = {f"thread {n}": Seen() for n in range(THREADS)}
        over = asyncio.Event()

        async def pause(step: int) -> None:
            await asyncio.sleep(0.001)

        url = f"sqlite:///{tmp_path / 'threads.db'}"
        settings = Settings(poll=0.2, concurrency=64)
        async with perdure.connect(url, migrate=True) as database, perdure.connect(url) as second:
            agent = logging_agent(pause)
            async with (
                Runtime(database, agent, settings=settings, observers=()) as app,
                Runtime(second, agent, settings=settings, observers=()) as other,
            ):
                reading = asyncio.create_task(read(second, threads, over))
                async with asyncio.timeout(800), asyncio.TaskGroup() as group:
                    for thread, seen in threads.items():
                        for sender in range(SENDERS):
                            door = app if sender % 2 else other
                            group.create_task(send(door, thread, sender, seen))
                for thread, seen in threads.items():
                    async with asyncio.timeout(300):
                        seen.sent["last"] = time.monotonic()
                        last = await app.accept(thread, "last")
                        seen.acknowledged["last"] = time.monotonic()
                        await app.wait(last)
                over.set()
                await reading
            for thread, seen in threads.items():
                refuse_disorder(thread, seen, await told(database, thread))

    asyncio.run(main())
