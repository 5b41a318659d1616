"""Workers that are killed again and again while sweeps remove checkpoints and threads, and the comparison of
what is left with what was acknowledged.

Threads are of three kinds. Talks get messages all the time, and their latest checkpoint is tagged now and
then. Questions stay open on parked threads, and some of them are answered. Brief threads have a time to live
that passes between their messages.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import perdure
from perdure import Retention, RetentionRules, SyncDatabase
from perdure.engine.retention.sweep import RetentionResult
from perdure.errors import NotFound, PerdureError
from perdure.runtime import Runtime
from perdure.runtime.threads.threads import THERE
from tests.chaos import asker
from tests.chaos.fleet import WITHIN_S, Member

WORKERS = 3
KEEP_LAST = 2
TTL_S = 4.0
_SETTINGS = f"""[retention]
keep_last = {KEEP_LAST}
every = "1s"
share = 1.0
"""
_BACKLOG = 5
"""Messages after which the sender of a thread waits for the workers."""
_HOW = ("--all-tenants", "--lease", "1.5", "--poll", "0.2", "--drain", "0")


@dataclass
class Acknowledged:
    """What a thread's senders know: the accepted messages with the time before and after, and its tags."""

    messages: list[tuple[str, float, float]] = field(default_factory=list[tuple[str, float, float]])
    tags: dict[str, tuple[str, list[str]]] = field(default_factory=dict[str, tuple[str, list[str]]])
    is_answered: bool = False


class SweptFleet:
    """Workers of one database, and this process, which sends to them, sweeps beside them and kills them.

    Args:
        url: the database.
        folder: place of the workers' files.
        seed: chooses the moments.
        seconds: time for which faults go on, from the moment at which the workers work.
        size: threads of each kind.
    """

    def __init__(self, url: str, folder: Path, *, seed: int, seconds: float, size: int) -> None:
        self._url = url
        self._random = random.Random(seed)
        self._seconds = seconds
        self._until = 0.0
        self._size = size
        self.counts: Counter[str] = Counter()
        self.swept = RetentionResult()
        shutil.copy(asker.__file__, folder / "agents.py")
        (folder / "perdure.toml").write_text(_SETTINGS)
        words = ("worker", "agent=./agents.py:graph", "--db", url, *_HOW)
        self._workers = [Member(f"worker-{n}", words, folder) for n in range(WORKERS)]
        self._known: dict[str, Acknowledged] = {}
        self._seen_wrong: list[str] = []

    def run(self) -> list[str]:
        """Let everything happen until the time is over, then let the workers finish; return what is wrong."""
        rules = RetentionRules(Retention(keep_last=KEEP_LAST), thread_ttl=True)
        with perdure.connect_sync(self._url, migrate=True, retention=rules) as database:
            with self._started():
                asyncio.run(self._live(database))
            return self._wrong(database)

    @contextlib.contextmanager
    def _started(self) -> Iterator[None]:
        for worker in self._workers:
            worker.start()
        try:
            yield
        finally:
            for worker in self._workers:
                worker.kill()

    @property
    def _goes_on(self) -> bool:
        """True until the time is over, and everything has happened that is to be shown."""
        has_happened = self.counts["kills"] >= WORKERS and self.counts["tags"] and self.swept.checkpoints
        return time.monotonic() < self._until or not has_happened

    async def _live(self, database: SyncDatabase) -> None:
        for worker in self._workers:
            await worker.ready()
        self._until = time.monotonic() + self._seconds
        async with Runtime(database, {"agent": asker.graph}, works=False, observers=()) as app:
            async with asyncio.TaskGroup() as group:
                for n in range(self._size):
                    group.create_task(self._talk(database, app, f"talk-{n}"))
                    group.create_task(self._question(app, f"question-{n}"))
                    group.create_task(self._brief(app, f"brief-{n}"))
                group.create_task(self._sweep(database))
                group.create_task(self._strike())
            for thread in self._known:
                await self._finished(app, thread)

    async def _talk(self, database: SyncDatabase, app: Runtime, thread: str) -> None:
        known = self._known.setdefault(thread, Acknowledged())
        while self._goes_on or not known.messages:
            await self._send(app, thread, known, f"{len(known.messages)}")
            if len(known.messages) % _BACKLOG == 0:
                await self._finished(app, thread)
            if self._random.random() < 0.2:
                await self._tag(database, thread, known)
            await asyncio.sleep(self._random.uniform(0.0, 0.6))

    async def _question(self, app: Runtime, thread: str) -> None:
        known = self._known.setdefault(thread, Acknowledged())
        await self._send(app, thread, known, "first")
        await self._send(app, thread, known, f"{asker.ASK}{thread}")
        if self._random.random() < 0.5:
            await self._finished(app, thread)
            await asyncio.sleep(self._random.uniform(0.0, 2.0))
            command = {"resume": "yes"}
            await _insist(lambda: app.submit(thread, None, command=command, dedupe_key="answer"))
            known.is_answered = True
            self.counts["answers"] += 1

    async def _brief(self, app: Runtime, thread: str) -> None:
        known = self._known.setdefault(thread, Acknowledged())
        while self._goes_on:
            # It exists already unless its time to live is over.
            await _insist(lambda: app.threads.create(thread, {}, {"ttl": TTL_S / 60}))
            before = time.time()
            # As a server does for each run: the time to live starts again.
            await _insist(lambda: app.threads.touch(thread))
            with contextlib.suppress(NotFound):
                await self._send(app, thread, known, f"{len(known.messages)}", precondition=THERE)
                text, _, after = known.messages[-1]
                known.messages[-1] = text, before, after
            await self._finished(app, thread)
            await asyncio.sleep(self._random.choice((0.1, 0.5, 1.2 * TTL_S)))
            there = await _insist(lambda: app.threads.find(thread))
            if there is None and known.messages:
                self._removed(thread, known.messages[-1], time.time())

    def _removed(self, thread: str, last: tuple[str, float, float], now: float) -> None:
        """Note a thread that is absent although its time to live, from its last message on, is not over."""
        text, accepted_from, _ = last
        if now - accepted_from < TTL_S:
            self._seen_wrong.append(
                f"{thread}: {text} was gone {now - accepted_from:.2f} s after it was sent"
            )

    async def _send(self, app: Runtime, thread: str, known: Acknowledged, text: str, **terms: Any) -> None:
        before = time.time()
        given = {"log": [f"m:{text}"]}
        await _insist(lambda: app.submit(thread, given, dedupe_key=f"{thread} {text}", **terms))
        known.messages.append((f"m:{text}", before, time.time()))
        self.counts["messages"] += 1

    async def _tag(self, database: SyncDatabase, thread: str, known: Acknowledged) -> None:
        name = f"tag-{len(known.tags)}"
        try:
            checkpoint = await asyncio.to_thread(database.tag, thread, name)
            known.tags[name] = checkpoint, await asyncio.to_thread(_log, database, thread, checkpoint)
            self.counts["tags"] += 1
        except NotFound:
            self.counts["nothing to tag yet"] += 1

    async def _sweep(self, database: SyncDatabase) -> None:
        """Sweep every thread beside the sweeps of the workers."""
        while self._goes_on:
            for thread in list(self._known):
                with contextlib.suppress(PerdureError):
                    self.swept += await asyncio.to_thread(database.apply_retention_to, thread)
                await asyncio.sleep(0)
            self.counts["rounds"] += 1
            await asyncio.sleep(0.05)

    async def _strike(self) -> None:
        while self._goes_on:
            await asyncio.sleep(self._random.uniform(0.2, 1.5))
            worker = self._random.choice(self._workers)
            await worker.ready()
            await asyncio.to_thread(worker.kill)
            self.counts["kills"] += 1
            worker.start()
        for worker in self._workers:
            await worker.ready()

    async def _finished(self, app: Runtime, thread: str) -> None:
        """Return when a thread has nothing left to do."""
        deadline, last = time.monotonic() + WITHIN_S, None
        while True:
            row = await _insist(lambda: app.threads.find(thread))
            if row is None or row.status != "busy":
                return
            if self._goes_on or row.updated_at != last:
                # Workers that are killed, or have other threads first, come to it later.
                deadline, last = time.monotonic() + WITHIN_S, row.updated_at
            assert time.monotonic() < deadline, f"{thread} is busy, and nothing happens in it"
            await asyncio.sleep(0.05)

    def _wrong(self, database: SyncDatabase) -> list[str]:
        wrong = [*self._seen_wrong, *(str(finding) for finding in database.fsck())]
        graph = asker.graph.copy(update={"checkpointer": database.checkpointer()})
        removed = 0
        for thread, known in self._known.items():
            state = graph.get_state({"configurable": {"thread_id": thread}})
            found = [entry for entry in state.values.get("log", ()) if entry.startswith("m:")]
            sent = [text for text, _, _ in known.messages]
            if thread.startswith("brief"):
                removed += len(sent) - len(found)
                wrong += _wrong_removals(thread, known, found)
            elif found != sent:
                wrong.append(f"{thread}: {len(sent)} messages were acknowledged, it has {found[-3:]}")
            if thread.startswith("question"):
                open_ones = [question.value for question in state.interrupts]
                if open_ones != ([] if known.is_answered else [sent[-1]]):
                    wrong.append(f"{thread}: its open questions are {open_ones}")
                if known.is_answered and "a:yes" not in state.values["log"]:
                    wrong.append(f"{thread}: the answer is not in its state")
            tags = database.tags(thread) if state.values else {}
            for name, (checkpoint, log) in known.tags.items():
                if tags.get(name) != checkpoint or _log(database, thread, checkpoint) != log:
                    wrong.append(f"{thread}: {name} is {tags.get(name)}, not {checkpoint} as it was")
        self.counts["messages removed by policy"] = removed
        return wrong


def _wrong_removals(thread: str, known: Acknowledged, found: list[str]) -> list[str]:
    """Return the messages that are gone although no time to live has passed after them."""
    sent = [text for text, _, _ in known.messages]
    if found != sent[len(sent) - len(found) :]:
        return [f"{thread}: {found} is not the end of what was acknowledged"]
    if len(found) == len(sent):
        return []
    first_kept = len(sent) - len(found)
    accepted_from = known.messages[first_kept - 1][1]
    later = known.messages[first_kept][2] if found else time.time()
    if later - accepted_from < TTL_S:
        return [f"{thread}: {sent[first_kept - 1]} was removed after {later - accepted_from:.2f} s"]
    return []


def _log(database: SyncDatabase, thread: str, checkpoint: str) -> list[str]:
    """Return the log of a checkpoint, read anew."""
    config: Any = {"configurable": {"thread_id": thread, "checkpoint_id": checkpoint}}
    saved = database.checkpointer().get_tuple(config)
    if saved is None:
        return ["gone"]
    return list(saved.checkpoint["channel_values"].get("log", ()))


async def _insist(ask: Any) -> Any:
    """Return an answer, asked for again until the database gives one."""
    deadline = time.monotonic() + WITHIN_S
    while True:
        try:
            return await ask()
        except NotFound:
            raise
        except PerdureError:
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)
