"""State that does not grow at its end: one entry of a dict replaced, a list cut in front or edited inside."""

from __future__ import annotations

from typing import Any

from bench.desk import Desk
from bench.figures import median
from bench.graphs import SCENARIOS
from bench.savers import CANDIDATES
from bench.subject import Field, Subject

Results = dict[str, Any]

SHAPES = ("files", "trimmed", "edited")
_COMPARED = ("sqlite", "perdure")
_WINDOW = 20


def choose_compared(desk: Desk) -> list[str]:
    return [name for name in desk.names if name in _COMPARED]


def units(desk: Desk) -> int:
    return 3 * len(SHAPES) * len(choose_compared(desk))


def run(desk: Desk) -> Results:
    return {"turns": desk.plan.shape_turns, "shapes": {shape: _shape(desk, shape) for shape in SHAPES}}


def _shape(desk: Desk, shape: str) -> Results:
    scenario = SCENARIOS[shape]
    savers: dict[str, Results] = {name: {} for name in choose_compared(desk)}

    def window(label: str, subject: Subject) -> None:
        before = subject.ask("bytes")
        took = subject.ask("turns", count=_WINDOW)["ms"]
        after = subject.ask("bytes")
        known = before["written"] is not None and after["written"] is not None
        savers[subject.name][label] = {
            "written_per_turn": (after["written"] - before["written"]) / _WINDOW if known else None,
            "p50": median(took),
            "stored": after["stored"],
            "real": after["real"],
        }
        desk.step(f"{CANDIDATES[subject.name].label}, {scenario.title}: {label}")

    def open_thread(subject: Subject) -> None:
        """The opening and a first turn belong to no window."""
        subject.ask("turns", count=1)

    def between(subject: Subject) -> None:
        subject.ask("turns", count=max(0, desk.plan.shape_turns - 2 * _WINDOW))
        desk.step(f"{CANDIDATES[subject.name].label}, {scenario.title}: on the way")

    with Field(f"shapes ({shape})", shape, choose_compared(desk), desk.scratch, desk.notes) as field:
        field.each(open_thread)
        field.each(lambda subject: window("start", subject))
        field.each(between)
        field.each(lambda subject: window("end", subject))
    return {"title": scenario.title, "new_bytes": scenario.new_bytes, "savers": savers}
