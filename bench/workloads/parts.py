"""Single calls on the thread that the growth workload leaves behind."""

from __future__ import annotations

from typing import Any

from bench.desk import Desk
from bench.figures import median
from bench.savers import CANDIDATES
from bench.subject import Field, Subject

Results = dict[str, Any]

WARM = ("get_tuple", "list", "history")
_AT_MOST = {"get_tuple": 20, "list": 5, "history": 3, "put": 10}


def units(desk: Desk) -> int:
    return (len(WARM) + 2) * len(_choose_candidates(desk))


def _choose_candidates(desk: Desk) -> list[str]:
    return [name for name in desk.names if CANDIDATES[name].keeps and not CANDIDATES[name].bare]


def run(desk: Desk, field: Field, turns: int) -> Results:
    """Reads first, because puts change the thread. A cold read is the first one of a new process."""
    savers: dict[str, Results] = {name: {} for name in _choose_candidates(desk)}

    def warm(name: str) -> None:
        def visit(subject: Subject) -> None:
            if subject.name in savers:
                savers[subject.name][name] = _call(desk, subject, name)

        field.each(visit)

    def cold(subject: Subject) -> None:
        if subject.name not in savers:
            return
        if CANDIDATES[subject.name].on_disk:
            took: list[float] = []
            for _ in range(desk.plan.cold_starts):
                field.reopen(subject.name)
                took += field.subjects[subject.name].ask("call", name="get_tuple", at_most=1, budget_s=0)[
                    "ms"
                ]
            savers[subject.name]["get_tuple_cold"] = median(took)
        desk.step(f"{CANDIDATES[subject.name].label}: get_tuple in a new process")

    for name in WARM:
        warm(name)
    warm("put")
    field.each(cold)
    return {"turns": turns, "savers": savers}


def _call(desk: Desk, subject: Subject, name: str) -> float:
    answer = subject.ask("call", name=name, at_most=_AT_MOST[name], budget_s=desk.plan.call_budget_s)
    desk.step(f"{CANDIDATES[subject.name].label}: {name}")
    took: list[float] = answer["ms"]
    return median(took)
