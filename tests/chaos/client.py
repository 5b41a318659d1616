"""One client of a durable thread, as a program would write it: the same code starts a run and resumes it.

It is told where to fail, and keeps a journal outside the database: a line for each node that starts and one
for each write that was acknowledged, each in one ``write`` to a file opened for appending, so that a line is
there exactly when what it says has happened.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from langgraph.checkpoint.base import WRITES_IDX_MAP
from langgraph.types import Command

import perdure
from perdure.database.blocking import SyncDatabase
from perdure.langgraph.saver import PerdureSaver
from perdure.testing.faults import ALL, WRITES, Action, Fault, fail, faulty, kill, refuse
from tests.backends import EMPTY
from tests.chaos import graphs

THREAD = "thread"
MEMORY = Path("/dev/shm")
ACTIONS: dict[str, Action] = {"kill": kill, "unavailable": fail("unavailable"), "refuse": refuse}
TURNS = ("question", "answer", "more", "answer more")


@dataclass(frozen=True)
class Job:
    """What one process does. ``at`` and ``when`` place the fault that it meets; ``at=0`` spares it."""

    folder: str
    shape: Literal["graph", "flow"]
    durability: Literal["sync", "async"]
    asynchronous: bool = False
    at: int = 0
    when: Literal["before", "after"] = "before"
    fault: Literal["kill", "unavailable", "refuse"] = "kill"
    backend: str = "sqlite"
    url: str = ""

    @property
    def journal(self) -> Path:
        return Path(self.folder, "journal")

    @property
    def result(self) -> Path:
        return Path(self.folder, "result")


@contextmanager
def placed(job: Job) -> Iterator[Job]:
    """The job with a folder and an empty database. A process that ends, unlike a machine, leaves what it
    wrote to the kernel on any file system, so memory serves as well as a disk, and sooner."""
    path = tempfile.mkdtemp(prefix="perdure-chaos-", dir=MEMORY if MEMORY.is_dir() else None)
    try:
        if job.backend == "sqlite":
            yield replace(job, folder=path, url=f"sqlite:///{path}/threads.db")
        else:
            with EMPTY[job.backend]() as url:
                yield replace(job, folder=path, url=url)
    finally:
        shutil.rmtree(path)


class Journal:
    """Lines of JSON, each the work of one ``write``."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: int | None = None

    def __enter__(self) -> Journal:
        self._file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        return self

    def __exit__(self, *exc: object) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def line(self, *what: Any) -> None:
        # A write that LangGraph left behind may be acknowledged after the client is done.
        if self._file is not None:
            os.write(self._file, json.dumps(what).encode() + b"\n")

    def lines(self) -> list[list[Any]]:
        return [json.loads(line) for line in self._path.read_text().splitlines()]


def work(job: Job) -> None:
    """Bring the thread to the end of its last turn, from wherever it is; then say what the state is. A turn
    that the database fails is called once more, by its run id."""
    with Journal(job.journal) as journal:
        _work(job, journal)


def _work(job: Job, journal: Journal) -> None:
    faults = (Fault(job.at, ACTIONS[job.fault], job.when),) if job.at else ()
    counts = WRITES if job.fault == "refuse" else ALL
    with faulty(job.url, *faults, counts=counts, migrate=True) as (database, driver):
        saver = watched(database, journal)
        app: Any
        if job.shape == "graph":
            app = graphs.graph(lambda label, task: journal.line("ran", label, task)).compile(saver)
        else:
            app = graphs.flow(lambda label, task: journal.line("ran", label, task), saver)
        for turn in TURNS:
            insist(journal, partial(take_turn, app, job, turn, journal))
        state = insist(journal, lambda: app.get_state(config(TURNS[-1])))
        effects = driver.count
    job.result.write_text(json.dumps({"state": state.values, "next": state.next, "effects": effects}))


def insist(journal: Journal, call: Callable[[], Any]) -> Any:
    """Make a call, and once more if the database was not there."""
    try:
        return call()
    except perdure.Unavailable as error:
        journal.line("failed", str(error))
        return call()


def config(turn: str) -> dict[str, Any]:
    return {"configurable": {"thread_id": THREAD}, "metadata": {"run_id": turn}}


def take_turn(app: Any, job: Job, turn: str, journal: Journal) -> None:
    """Start a turn, or go on with the one that a client before this one had started.

    The journal says which turn it was, as an inbox would: the thread alone cannot. An answer whose writes
    are stored, in a step that is not applied yet, leaves nothing open and still belongs to the run before.
    """
    started = [line[1] for line in journal.lines() if line[0] == "turn"]
    if turn in started[:-1]:
        return
    if turn not in started:
        journal.line("turn", turn)
    what: Any = {"topic": turn, "notes": []} if job.shape == "graph" else turn
    if "answer" in turn:
        state = app.get_state(config(turn))
        mine = (state.metadata or {}).get("run_id") == turn
        what = Command(resume=f"yes to {turn}") if state.interrupts and not mine else None
    if job.asynchronous:
        asyncio.run(app.ainvoke(what, config(turn), durability=job.durability))
    else:
        app.invoke(what, config(turn), durability=job.durability)


def as_text(values: Any) -> str:
    """Channel values as text that is the same in every process.

    Sets are left out: a join hands its live set to the saver, and in durability ``async`` the loop goes on
    filling it while the checkpoint is being written.
    """
    return json.dumps(values, default=lambda v: "set" if isinstance(v, set) else repr(v), sort_keys=True)


def watched(database: SyncDatabase, journal: Journal) -> PerdureSaver:
    """A checkpointer that notes each write when it is acknowledged, and not before. To a loop that awaits its
    writes, a run's input is acknowledged by whatever the run writes on it: no node begins before."""
    saver = database.checkpointer()
    put, put_writes, aput, aput_writes = saver.put, saver.put_writes, saver.aput, saver.aput_writes
    carried: dict[str, str] = {}

    def note_put(at: Any, checkpoint: Any) -> None:
        values = as_text(checkpoint["channel_values"])
        journal.line("put", at["configurable"]["checkpoint_ns"], checkpoint["id"], values)

    def note_carried(at: Any) -> None:
        parent = at["configurable"].get("checkpoint_id")
        if parent in carried:
            journal.line("put", "", parent, carried.pop(parent))

    def note_writes(at: Any, writes: Any, task_id: str) -> None:
        place = at["configurable"]
        slots = [WRITES_IDX_MAP.get(channel, i) for i, (channel, _) in enumerate(writes)]
        journal.line("writes", place["checkpoint_ns"], place["checkpoint_id"], task_id, slots)

    def watched_put(at: Any, checkpoint: Any, metadata: Any, versions: Any) -> Any:
        out = put(at, checkpoint, metadata, versions)
        note_put(at, checkpoint)
        return out

    def watched_put_writes(at: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        put_writes(at, writes, task_id, task_path)
        note_writes(at, writes, task_id)

    async def watched_aput(at: Any, checkpoint: Any, metadata: Any, versions: Any) -> Any:
        out = await aput(at, checkpoint, metadata, versions)
        note_carried(at)
        if metadata["source"] == "input" and not at["configurable"]["checkpoint_ns"]:
            carried[checkpoint["id"]] = as_text(checkpoint["channel_values"])
        else:
            note_put(at, checkpoint)
        return out

    async def watched_aput_writes(at: Any, writes: Any, task_id: str, task_path: str = "") -> None:
        await aput_writes(at, writes, task_id, task_path)
        note_carried(at)
        note_writes(at, writes, task_id)

    for name, method in (
        ("put", watched_put),
        ("put_writes", watched_put_writes),
        ("aput", watched_aput),
        ("aput_writes", watched_aput_writes),
    ):
        setattr(saver, name, method)
    return saver
