"""The section of processes that meet a thread for the first time."""

from __future__ import annotations

from typing import Any

from bench.backends import BACKENDS
from bench.figures import median_ratio
from bench.savers import STOCK
from bench.tables import NONE, Row, label, number, table, times

Results = dict[str, Any]

_METHOD = (
    "One conversation of the one-node graph, grown by another process, its full history kept. The process "
    "that is measured has imported everything and run a turn of another thread; then it loads the "
    "conversation, or runs a turn of it, for the first time. Processor time is that of this process alone. "
    "Ratios are medians over the rounds, of the usual saver's."
)


def cold(results: Results) -> list[str]:
    found = results.get("cold")
    if not found:
        return []
    sections = ["## A process that has never seen the thread", f"{_METHOD} Rounds: {found['rounds']}."]
    for name, measured in found["backends"].items():
        title = BACKENDS[name].title if name in BACKENDS else "SQLite"
        if "skipped" in measured:
            sections += [f"### {title}, from cold", f"Not measured: {measured['skipped']}."]
            continue
        sections.append(f"### {title}, from cold")
        if measured["notes"]:
            sections.append("\n".join(f"- {note}" for note in measured["notes"]))
        sections.append(_table(name, measured["sizes"]))
    return sections


def _table(name: str, sizes: Results) -> str:
    counted = BACKENDS[name].counts if name in BACKENDS else ""
    header = ["", "turns", "a load, ms", "of the usual saver's", "a turn, ms", "of the usual saver's"]
    header += ["processor ms of a turn", "of the usual saver's"]
    if counted:
        header += [f"{counted.replace('_', ' ')} of a load", "kB of a load"]
    stock = BACKENDS[name].stock if name in BACKENDS else STOCK
    rows: list[Row] = []
    for size, seen in sizes.items():
        usual = seen["savers"].get(stock)
        for saver, figures in seen["savers"].items():
            beside = None if saver == stock else usual
            row = [label(saver), f"{int(size):,}"]
            for figure in ("load_ms", "turn_ms", "turn_processor_ms"):
                row += [number(figures[figure]), _ratio(beside, figures, figure)]
            if counted:
                row += [number(figures[f"load_{counted}"]), number(figures["load_down"] / 1e3)]
            rows.append(row)
    return table(header, rows)


def _ratio(usual: Results | None, figures: Results, figure: str) -> str:
    if usual is None:
        return NONE
    return times(median_ratio(usual[f"{figure}_rounds"], figures[f"{figure}_rounds"]))
