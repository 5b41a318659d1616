"""Fault injection against real processes: workers, senders and a provider, killed and paused at random.

Workers are killed with ``SIGKILL`` and stopped for longer than their lease; senders are killed and repeat
what they do not know to be accepted. A seed chooses the moments. Then the faults stop, and the stored state
is compared with what was acknowledged. The seed fixes the moments, not the interleaving.
"""

from __future__ import annotations

import heapq
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.database.opening import open_database
from perdure.engine.queue import runs
from perdure.model.ops import Fetch, FindDue, Range
from perdure.model.program import ask
from perdure.model.records import CHECKPOINT, INBOX, Partition
from perdure.model.runs.messages import Message
from perdure.model.runs.payloads import MESSAGE
from tests.chaos.child_processes import FOREVER, JsonLines, ProcessJob
from tests.chaos.history import STEPS, Expected, audit, audit_steered_log

_INHERITED = ("AWS_", "PERDURE_")
_WITHDRAWALS = ("withdrawn", "not withdrawn")
_SKEWS_S = (3600.0, -3600.0, 0.0)
_BUSY_S, _REST_S = 60.0, 300.0


@dataclass(frozen=True)
class ChildProcess:
    """A started process. ``gone`` is a file descriptor that becomes readable when it has ended."""

    job: ProcessJob
    pid: int
    gone: int


class Launcher:
    """Starts processes in ``cwd`` and reaps them; a context manager that leaves none behind. For use by one
    thread."""

    def __init__(self, cwd: Path | None = None) -> None:
        self._children: dict[int, ChildProcess] = {}
        self._zygote = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.child_processes"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=cwd,
            start_new_session=True,
        )

    def __enter__(self) -> Launcher:
        return self

    def __exit__(self, *exc: object) -> None:
        for child in self._children.values():
            os.close(child.gone)
        self._children.clear()
        self._zygote.communicate(timeout=60)

    def start(self, job: ProcessJob) -> ChildProcess:
        """Start a process with this process's environment of servers."""
        environment = {name: value for name, value in os.environ.items() if name.startswith(_INHERITED)}
        pid = self._request({"start": asdict(replace(job, environment=environment))})
        child = ChildProcess(job, pid, os.pidfd_open(pid))
        self._children[pid] = child
        return child

    def kill(self, child: ChildProcess) -> None:
        """End a process at once, paused or not."""
        os.kill(child.pid, signal.SIGKILL)
        self.reap(child)

    def reap(self, child: ChildProcess) -> int:
        """Wait for the end of a process; return its exit code, or the signal that ended it as a negative
        number."""
        del self._children[child.pid]
        os.close(child.gone)
        return os.waitstatus_to_exitcode(self._request({"reap": child.pid}))

    def reap_all(self) -> None:
        """Kill every process that is left."""
        for child in list(self._children.values()):
            self.kill(child)

    def _request(self, request: dict[str, object]) -> int:
        # The pid stays reserved until the zygote has waited for it: no other process is ever killed.
        assert self._zygote.stdin is not None
        assert self._zygote.stdout is not None
        self._zygote.stdin.write(json.dumps(request) + "\n")
        self._zygote.stdin.flush()
        answer: int = json.loads(self._zygote.stdout.readline())
        return answer


@dataclass
class Figures:
    """Result of a test. ``losses`` counts lost leases, ``refused`` stale writes that were refused, ``stale``
    those that were not; ``lost``, ``forks``, ``twice`` and ``stuck`` have to be 0."""

    backend: str
    seed: int
    messages: int = 0
    threads: int = 0
    runs: int = 0
    kills: int = 0
    pauses: int = 0
    redeliveries: int = 0
    losses: int = 0
    refused: int = 0
    stale: int = 0
    resent: int = 0
    withdrawn: int = 0
    lost: int = 0
    forks: int = 0
    twice: int = 0
    stuck: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Battery:
    """Parameters of a test. ``interval_s`` is the mean time between two faults, ``every_s`` between two
    messages of a sender, in seconds; with ``steers`` messages steer the open run, and some are withdrawn."""

    backend: str
    seed: int
    messages: int
    kills: int
    pauses: int
    threads: int
    workers: int = 3
    senders: int = 3
    lease: float = 1.2
    interval_s: float = 0.5
    every_s: float = 0.3
    steers: bool = False
    breaks: str = ""

    def run(self, launcher: Launcher, url: str, folder: Path) -> tuple[Figures, list[str]]:
        """Run it on an empty, migrated database; return the figures and everything that is wrong."""
        return _Run(self, launcher, url, str(folder)).run()


@dataclass
class _Run:
    battery: Battery
    launcher: Launcher
    url: str
    folder: str
    wrong: list[str] = field(default_factory=list[str])
    alive: dict[str, ChildProcess] = field(default_factory=dict[str, ChildProcess])
    paused: set[str] = field(default_factory=set[str])
    later: list[tuple[float, str, str, int]] = field(default_factory=list[tuple[float, str, str, int]])
    started: int = 0

    def run(self) -> tuple[Figures, list[str]]:
        battery = self.battery
        self.random = random.Random(battery.seed)
        self.jobs = {job.name: job for job in self._jobs()}
        self.figures = Figures(battery.backend, battery.seed, threads=battery.threads)
        began = time.monotonic()
        try:
            for name in self.jobs:
                self._start(name)
            self._strike_all()
            Path(self.folder, "enough").touch()
            self._calm()
        finally:
            self.launcher.reap_all()
        self._look()
        self.figures.seconds = round(time.monotonic() - began, 1)
        return self.figures, self.wrong

    def _jobs(self) -> Iterator[ProcessJob]:
        battery = self.battery
        for n in range(battery.workers):
            skew_s = _SKEWS_S[n % len(_SKEWS_S)]
            yield ProcessJob(
                "worker",
                f"worker {n}",
                self.url,
                self.folder,
                skew_s=skew_s,
                lease=battery.lease,
                steers=battery.steers,
                breaks=battery.breaks,
            )
        names = [f"thread {n}" for n in range(battery.threads)]
        for n in range(battery.senders):
            yield ProcessJob(
                "sender",
                f"sender {n}",
                self.url,
                self.folder,
                lease=battery.lease,
                threads=names[n :: battery.senders],
                messages=-(-battery.messages // battery.senders),
                every_s=battery.every_s,
                steers=battery.steers,
            )

    def _start(self, name: str) -> None:
        self.started += 1
        job = self.jobs[name]
        # A worker's leases are held under its name: a new process must not pass for one that is dead.
        own = f"{name} #{self.started}" if job.role == "worker" else name
        self.alive[name] = self.launcher.start(replace(job, name=own, seed=self.random.getrandbits(32)))

    # Faults

    def _strike_all(self) -> None:
        battery, figures = self.battery, self.figures
        next_strike = time.monotonic() + 0.5
        while (figures.kills < battery.kills or figures.pauses < battery.pauses) and not self.wrong:
            self._tend()
            if time.monotonic() >= next_strike:
                for _ in range(self.random.choice((1, 1, 1, 2, 3))):
                    self._strike()
                next_strike = time.monotonic() + self.random.expovariate(1 / battery.interval_s)

    def _strike(self) -> None:
        kills, pauses = (
            self.battery.kills - self.figures.kills,
            self.battery.pauses - self.figures.pauses,
        )
        victims = sorted(self.alive)
        if self.random.random() * (kills + pauses) >= kills:
            victims = [
                name for name in victims if name not in self.paused and self.jobs[name].role == "worker"
            ]
            if victims and pauses > 0:
                name = self.random.choice(victims)
                os.kill(self.alive[name].pid, signal.SIGSTOP)
                self.paused.add(name)
                self.figures.pauses += 1
                self._after(
                    self.battery.lease * self.random.uniform(1.05, 1.9), "go on", name, self.alive[name].pid
                )
        elif victims and kills > 0:
            name = self.random.choice(victims)
            self.launcher.kill(self.alive.pop(name))
            self.paused.discard(name)
            self.figures.kills += 1
            self._after(self.random.uniform(0.0, 0.5), "start", name, 0)

    def _after(self, seconds: float, what: str, name: str, pid: int) -> None:
        heapq.heappush(self.later, (time.monotonic() + seconds, what, name, pid))

    def _tend(self) -> None:
        """Do what is due, wait a moment, and report processes that ended by themselves."""
        while self.later and self.later[0][0] <= time.monotonic():
            _, what, name, pid = heapq.heappop(self.later)
            if what == "start":
                self._start(name)
            elif name in self.paused and self.alive[name].pid == pid:
                os.kill(pid, signal.SIGCONT)
                self.paused.discard(name)
        by_file = {child.gone: name for name, child in self.alive.items()}
        poll = select.poll()
        for file in by_file:
            poll.register(file, select.POLLIN)
        for file, _ in poll.poll(20):
            name = by_file[file]
            child = self.alive.pop(name)
            code = self.launcher.reap(child)
            if code or child.job.role == "worker":
                error = Path(self.folder, f"error of {child.job.name}")
                output = error.read_text()[-1000:] if error.exists() else ""
                self.wrong.append(f"{child.job.name} ended by itself, with {code}: {output}")

    def _calm(self) -> None:
        """Run without faults until the senders finish and the workers come to rest."""
        end = time.monotonic() + _BUSY_S + self.battery.messages * self.battery.every_s
        while self.later or any(self.jobs[name].role == "sender" for name in self.alive):
            self._tend()
            if time.monotonic() > end:
                self.wrong.append("a sender did not finish")
                return
        database = open_database(self.url)
        try:
            end = time.monotonic() + _REST_S
            while handle_of(database).run(ask(FindDue("", until=FOREVER))) and time.monotonic() < end:
                for _ in range(5):
                    self._tend()
        finally:
            database.close()

    # Results

    def _look(self) -> None:
        figures, journal = self.figures, JsonLines.lines(self.folder, "journal")
        events = Counter(line[0] for line in journal)
        figures.losses = events["run.lost"]
        figures.refused = events["run.write_refused"]
        figures.stale = events["stale"]
        figures.redeliveries = events["message.duplicate"]
        self.wrong += [line[1] for line in journal if line[0] == "wrong"]
        expected = Expected({f"thread {n}": [] for n in range(self.battery.threads)})
        for job in self.jobs.values():
            if job.role == "sender":
                for thread, text, _, _ in JsonLines.lines(self.folder, f"acknowledged by {job.name}"):
                    expected.acknowledged[thread].append(text)
        expected.delivered.update(line[1] for line in journal if line[0] == "delivered")
        figures.messages = sum(map(len, expected.acknowledged.values()))
        figures.resent = expected.delivered.total() - len(expected.delivered)
        repeated = repetitions(journal)
        database = open_database(self.url)
        try:
            found = audit(database, expected, of_log=audit_steered_log if self.battery.steers else None)
            gone = _withdrawn(database, expected.acknowledged)
            found += [
                f"the sender of message {number} of {thread} saw it {what}, and it is not so"
                for what, thread, number in (line for line in journal if line[0] in _WITHDRAWALS)
                if ((thread, number) in gone) != (what == _WITHDRAWALS[0])
            ]
            figures.withdrawn = len(gone)
            for thread, texts in expected.acknowledged.items():
                left = [text for text in texts if text not in gone.values()]
                self._count(database, Partition("", thread), left)
            self.wrong += map(str, database.fsck())
        finally:
            database.close()
        figures.twice += len(repeated)
        figures.stuck = sum("I11" in what for what in found)
        self.wrong += found + repeated

    def _count(self, database: SyncDatabase, at: Partition, texts: Sequence[str]) -> None:
        """Count lost and repeated entries of a thread by its log alone."""
        figures = self.figures
        tuple_ = database.checkpointer().get_tuple({"configurable": {"thread_id": at.thread}})
        log: list[str] = [] if tuple_ is None else tuple_.checkpoint["channel_values"].get("log", [])
        entries = Counter(log)
        count = len(handle_of(database).run(runs.read_latest(at, 10_000)))
        figures.runs += count
        figures.lost += sum(not entries[f"m:{text}"] for text in texts)
        figures.twice += sum(entries[f"m:{text}"] > 1 for text in texts)
        figures.twice += sum(max(0, entries[f"s:{n}"] - count) for n in range(STEPS))
        figures.forks += len(forks(database, at))


def _withdrawn(database: SyncDatabase, threads: Iterable[str]) -> dict[tuple[str, int], str]:
    """Return the texts of the withdrawn messages by thread and number."""
    out: dict[tuple[str, int], str] = {}
    for thread in threads:
        (rows,) = handle_of(database).run(ask(Fetch(Partition("", thread), (Range(INBOX),))))
        for message in map(Message.read, rows):
            if message.is_withdrawn:
                out[thread, message.seq] = message.payload[MESSAGE]["content"]
    return out


def forks(database: SyncDatabase, at: Partition) -> list[str]:
    """Return the checkpoints of a thread that have more than one child."""
    (found,) = handle_of(database).run(ask(Fetch(at, (Range(CHECKPOINT, ("",), bodies=False),))))
    children = Counter(record.fields["parent_id"] for record in found)
    return [f"{at.thread}: {parent} has {n} children" for parent, n in children.items() if n > 1]


def repetitions(journal: Sequence[Sequence[object]]) -> list[str]:
    """Return tasks that ran under a later epoch than the one they were stored under.

    The worker that took over knew, or had to, that they were done. One without its lease may run any task, as
    it stores nothing.
    """
    stored: dict[object, int] = {}
    for what, *line in journal:
        if what == "stored" and isinstance(line[1], int):
            stored[line[0]] = min(line[1], stored.get(line[0], line[1]))
    return [
        f"I8 task {line[0]} was stored under epoch {stored[line[0]]} and ran under {line[1]}"
        for what, *line in journal
        if what == "ran" and isinstance(line[1], int) and line[0] in stored and line[1] > stored[line[0]]
    ]
