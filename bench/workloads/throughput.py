"""Many threads at once in one process; every turn is acknowledged before the thread's next one starts."""

from __future__ import annotations

from typing import Any

from bench.desk import Desk
from bench.figures import median
from bench.savers import CANDIDATES
from bench.subject import Field, Subject

Results = dict[str, Any]


def units(desk: Desk) -> int:
    return desk.plan.repeats * len(desk.names)


def run(desk: Desk) -> Results:
    """A new process and a new database for every saver in every repeat."""
    plan = desk.plan
    rates: dict[str, list[float]] = {name: [] for name in desk.names}
    processor: dict[str, list[float]] = {name: [] for name in desk.names}

    def visit(subject: Subject) -> None:
        answer = subject.ask("many", threads=plan.threads, turns=plan.turns_a_thread)
        rates[subject.name].append(answer["turns"] / answer["seconds"])
        processor[subject.name].append(1000 * answer["processor_s"] / answer["turns"])
        desk.step(f"{CANDIDATES[subject.name].label}: {plan.threads} threads at once")

    for number in range(plan.repeats):
        turn = number % max(1, len(desk.names))
        order = desk.names[turn:] + desk.names[:turn]
        with Field("throughput", "chat", order, desk.scratch, desk.notes) as field:
            field.each(visit)
    savers = {
        name: {"turns_per_s": median(seen), "processor_ms_per_turn": median(processor[name]), "rounds": seen}
        for name, seen in rates.items()
        if seen
    }
    return {"threads": plan.threads, "turns_a_thread": plan.turns_a_thread, "savers": savers}
