"""Two turns on one thread at the same moment: what was acknowledged, what is still there afterwards."""

from __future__ import annotations

from typing import Any

from bench.desk import Desk
from bench.savers import CANDIDATES
from bench.subject import Field, Subject

Results = dict[str, Any]


def units(desk: Desk) -> int:
    return sum(CANDIDATES[name].keeps for name in desk.names)


def run(desk: Desk) -> Results:
    plan = desk.plan
    savers: dict[str, Results] = {}

    def visit(subject: Subject) -> None:
        savers[subject.name] = subject.ask("race", pairs=plan.pairs, pause_s=plan.pause_s)
        desk.step(f"{CANDIDATES[subject.name].label}: {plan.pairs} races")

    names = [name for name in desk.names if CANDIDATES[name].keeps]
    with Field("race", "chat", names, desk.scratch, desk.notes) as field:
        field.each(visit)
    return {"pairs": plan.pairs, "pause_ms": round(plan.pause_s * 1000), "savers": savers}
