"""A process that has never seen the thread: its first load of it and its first turn, on every backend.

The conversation has been grown by another process. The new one has imported everything and has run a turn of
another thread, so that neither imports nor the first connection are in the figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from bench.backends import BACKENDS, Backend
from bench.desk import Desk
from bench.figures import median
from bench.proxy import Proxy
from bench.savers import CANDIDATES, STOCK
from bench.servers import Missing
from bench.subject import Field, Subject
from bench.workloads.network import Wires

Results = dict[str, Any]

SCENARIO = "chat"
LOAD, TURN = "load", "turn"
_COUNTED = ("round_trips", "requests", "down")


def units(desk: Desk) -> int:
    a_size = 1 + 2 * desk.plan.cold_rounds
    return len(desk.plan.cold_sizes) * a_size * sum(len(names) for names in _fields(desk).values())


def run(desk: Desk) -> Results:
    """Return the figures by backend. A usual saver that fails is a remark with its backend; ours fails the
    run, too."""
    found: Results = {}
    for name, names in _fields(desk).items():
        here = replace(desk, names=names, notes=[])
        try:
            with _addresses(name, names) as proxies:
                found[name] = {**_measure(here, name, proxies), "notes": here.notes}
        except Missing as missing:
            found[name] = {"skipped": str(missing)}
        desk.notes += [note for note in here.notes if _is_of_ours(note, names)]
    return {"sizes": list(desk.plan.cold_sizes), "rounds": desk.plan.cold_rounds, "backends": found}


def _fields(desk: Desk) -> dict[str, list[str]]:
    """Return who takes part on each backend: the usual saver, ours, and on SQLite the bare one."""
    fields: dict[str, list[str]] = {}
    for name in desk.names:
        candidate = CANDIDATES[name]
        asked = candidate.twin_of or name
        if candidate.bare or asked in (STOCK, "perdure") or (asked in _remote() and not candidate.delta):
            fields.setdefault(candidate.backend, []).append(name)
    return fields


def _remote() -> set[str]:
    return {name for backend in BACKENDS.values() for name in backend.candidates}


def _is_of_ours(note: str, names: list[str]) -> bool:
    return any(note.startswith(f"{CANDIDATES[name].label} left") for name in names if CANDIDATES[name].ours)


@contextmanager
def _addresses(name: str, names: list[str]) -> Iterator[dict[str, tuple[str, Proxy]]]:
    """Start the backend's server, if it has one; yield each saver's URL there and the proxy that counts."""
    backend: Backend | None = BACKENDS.get(name)
    if backend is None:
        yield {}
        return
    with backend.start() as server, Wires(server, "cold").wires(names) as wires:
        yield {each: (wire.through, wire.proxy) for each, wire in wires.items()}


def _measure(desk: Desk, name: str, wires: dict[str, tuple[str, Proxy]]) -> Results:
    urls = {each: url for each, (url, _) in wires.items()}
    sizes: Results = {}
    with Field("cold", SCENARIO, desk.names, desk.scratch, desk.notes, urls) as field:
        grown = 0
        for size in desk.plan.cold_sizes:
            field.each(partial(_grow, desk, size - grown))
            grown = size
            savers: dict[str, Results] = {each: {LOAD: [], TURN: []} for each in desk.names}
            for what in (LOAD, TURN):
                for _ in range(desk.plan.cold_rounds):
                    field.each(partial(_visit, desk, field, wires, savers, what))
            sizes[str(size)] = {"savers": {each: _result(savers[each]) for each in field.subjects}}
    return {"sizes": sizes}


def _grow(desk: Desk, turns: int, subject: Subject) -> None:
    subject.ask("turns", count=turns)
    desk.step(f"{CANDIDATES[subject.name].label}: {turns} turns more")


def _visit(
    desk: Desk,
    field: Field,
    wires: dict[str, tuple[str, Proxy]],
    savers: dict[str, Results],
    what: str,
    subject: Subject,
) -> None:
    field.reopen(subject.name)
    fresh = field.subjects[subject.name]
    fresh.ask("warm_up")
    proxy = wires[subject.name][1] if subject.name in wires else None
    before = proxy.counts() if proxy else None
    seen = fresh.ask("first", what=what)
    if proxy and before:
        seen |= {key: value for key, value in asdict(proxy.counts() - before).items() if key in _COUNTED}
    savers[subject.name][what].append(seen)
    desk.step(f"{CANDIDATES[subject.name].label}: a {what} in a new process")


def _result(visits: Results) -> Results:
    """Return the medians over the rounds, and the rounds themselves by which savers are compared."""
    out: Results = {}
    for what, seen in visits.items():
        for figure in seen[0] if seen else ():
            out[f"{what}_{figure}"] = median([each[figure] for each in seen])
            out[f"{what}_{figure}_rounds"] = [each[figure] for each in seen]
    return out
