"""One conversation that grows: bytes stored, bytes written a turn and latency around each size."""

from __future__ import annotations

from functools import partial
from typing import Any

from bench.desk import Desk
from bench.figures import median, percentile
from bench.savers import CANDIDATES
from bench.subject import Field, Subject
from bench.workloads import parts

Results = dict[str, Any]

SCENARIO = "chat"


def units(desk: Desk) -> int:
    """Grow, then the rounds of the window, per size and saver; then the single calls."""
    kept = sum(CANDIDATES[name].keeps for name in desk.names)
    return len(desk.plan.sizes) * len(desk.names) * (1 + desk.plan.rounds) + parts.units(desk) + kept


def run(desk: Desk) -> Results:
    plan = desk.plan
    savers: dict[str, Results] = {name: {} for name in desk.names}
    with Field("growth", SCENARIO, desk.names, desk.scratch, desk.notes) as field:
        done = 0
        for size in plan.sizes:
            windows = {name: _Window() for name in desk.names}
            missing = plan.before(size) - done
            field.each(partial(_grow, desk, windows, missing))
            for number in range(plan.rounds):
                field.each(partial(_visit, desk, windows, number == plan.rounds // 2))
            field.each(partial(_close, windows))
            done = plan.before(size) + plan.window
            for name in field.subjects:
                savers[name][str(size)] = windows[name].result(plan.window)
        called = parts.run(desk, field, done)
        pruned: dict[str, Results] = {}
        field.each(partial(_prune, desk, pruned))
    return {
        "sizes": list(plan.sizes),
        "window_turns": plan.window,
        "savers": savers,
        "parts": called,
        "pruned": pruned,
    }


class _Window:
    """The turns around one size. Stored bytes are taken at its middle, which is the size itself."""

    def __init__(self) -> None:
        self._rounds: list[list[float]] = []
        self._start: int | None = None
        self._end: int | None = None
        self._middle: Results = {}
        self.complete = True

    def open(self, subject: Subject) -> None:
        self._start = self._bytes(subject)["written"]

    def close(self, subject: Subject) -> None:
        self._end = self._bytes(subject)["written"]

    def weigh(self, subject: Subject) -> None:
        self._middle = self._bytes(subject)

    def add(self, took: list[float]) -> None:
        self._rounds.append(took)

    def _bytes(self, subject: Subject) -> Results:
        answer = subject.ask("bytes")
        self.complete = self.complete and bool(answer["complete"])
        return answer

    def result(self, turns: int) -> Results:
        every = [took for visit in self._rounds for took in visit]
        written = None if self._start is None or self._end is None else self._end - self._start
        return {
            "stored": self._middle["stored"],
            "real": self._middle["real"],
            "memory": self._middle["memory"],
            "written_per_turn": None if written is None else written / turns,
            "p50": percentile(every, 0.5),
            "p95": percentile(every, 0.95),
            "rounds": [median(visit) for visit in self._rounds],
            "log_folded": self.complete,
        }


def _grow(desk: Desk, windows: dict[str, _Window], count: int, subject: Subject) -> None:
    subject.ask("turns", count=count)
    windows[subject.name].open(subject)
    desk.step(f"{CANDIDATES[subject.name].label}: {count} turns more")


def _visit(desk: Desk, windows: dict[str, _Window], weigh_first: bool, subject: Subject) -> None:
    window = windows[subject.name]
    if weigh_first:
        window.weigh(subject)
    window.add(subject.ask("turns", count=desk.plan.turns_a_round)["ms"])
    desk.step(f"{CANDIDATES[subject.name].label}: window")


def _close(windows: dict[str, _Window], subject: Subject) -> None:
    windows[subject.name].close(subject)


def _prune(desk: Desk, pruned: dict[str, Results], subject: Subject) -> None:
    if not CANDIDATES[subject.name].keeps:
        return
    if left := subject.ask("prune"):
        pruned[subject.name] = {"stored": subject.ask("bytes")["stored"], "real": left["real"]}
    desk.step(f"{CANDIDATES[subject.name].label}: pruned")
