"""A backend behind a network: trips and time of a lone turn, many threads at once, growth and its cost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import count
from typing import Any

from bench.backends import Backend
from bench.desk import Desk
from bench.figures import median, percentile
from bench.proxy import Proxy
from bench.savers import CANDIDATES
from bench.servers import Missing, Server
from bench.subject import Field, Subject

Results = dict[str, Any]

SCENARIO = "chat"
_WARM_TURNS = 12
_numbers = count()


@dataclass(frozen=True)
class Wire:
    """A candidate's database, and the proxy in front of it."""

    url: str
    proxy: Proxy

    @property
    def through(self) -> str:
        return self.proxy.through(self.url)


def units(desk: Desk, backend: Backend) -> int:
    plan, savers = desk.plan, len(desk.names)
    lone = len(backend.far_s) * plan.trip_rounds
    crowds = plan.near_repeats * backend.variants + (plan.far_repeats if backend.crowd_far_s else 0)
    return savers * (lone + crowds + len(_sizes(desk, backend)) * (1 + plan.rounds) + 1)


def run(desk: Desk, backend: Backend) -> Results:
    """What went wrong with a rival is a finding and stands in the results; with ours it is a failure too."""
    if not desk.names:
        return {"skipped": "there is nobody to measure"}
    notes: list[str] = []
    here = replace(desk, notes=notes)
    try:
        with backend.start() as server:
            results = {
                "settings": server.settings,
                "lone": _lone(here, backend, server),
                "crowds": _crowds(here, backend, server),
                "growth": _growth(here, backend, server),
            }
    except Missing as missing:
        return {"skipped": str(missing)}
    notes = list(dict.fromkeys(notes))
    label = CANDIDATES[backend.ours].label
    desk.notes.extend(f"{backend.title}: {note}" for note in notes if note.startswith(f"{label} left"))
    return {**results, "notes": notes}


def _sizes(desk: Desk, backend: Backend) -> tuple[int, ...]:
    return backend.quick_sizes if desk.plan.mode == "quick" else backend.sizes


class Wires:
    """Databases of one purpose, each for one candidate, and the proxies before them."""

    def __init__(self, server: Server, purpose: str) -> None:
        self._server = server
        self._purpose = purpose
        self._stack = ExitStack()

    @contextmanager
    def wires(self, names: list[str]) -> Iterator[dict[str, Wire]]:
        with self._stack:
            yield {name: self._wire(name) for name in names}

    def _wire(self, name: str) -> Wire:
        url = self._server.empty(f"{self._purpose}-{name}")
        return Wire(url, self._stack.enter_context(Proxy("127.0.0.1", self._server.port)))


def _lone(desk: Desk, backend: Backend, server: Server) -> list[Results]:
    """One conversation, turn by turn, at each round-trip time, the longest first: the trips are counted
    there, where a client that does not wait for an answer is told from one that does.
    """
    plan = desk.plan
    found: list[Results] = []
    with Wires(server, "lone").wires(desk.names) as wires:
        urls = {name: wire.through for name, wire in wires.items()}
        with Field(backend.name, SCENARIO, desk.names, desk.scratch, desk.notes, urls) as field:
            field.each(_warm_up)
            for trip_s in sorted(backend.far_s, reverse=True):
                savers: dict[str, Results] = {name: {"rounds": [], "counts": []} for name in field.subjects}
                for wire in wires.values():
                    wire.proxy.round_trip_s = trip_s
                for _ in range(plan.trip_rounds):
                    field.each(partial(_visit_lone, desk, wires, savers))
                found.append({"round_trip_ms": trip_s * 1000, "savers": _per_turn(savers, plan.trip_turns)})
    return found


def _warm_up(subject: Subject) -> None:
    _turns(subject, _WARM_TURNS)


def _turns(subject: Subject, turns: int) -> list[float]:
    took: list[float] = subject.ask("turns", count=turns)["ms"]
    return took


def _visit_lone(desk: Desk, wires: dict[str, Wire], savers: dict[str, Results], subject: Subject) -> None:
    proxy = wires[subject.name].proxy
    before = proxy.counts()
    took = _turns(subject, desk.plan.trip_turns)
    savers[subject.name]["counts"].append(asdict(proxy.counts() - before))
    savers[subject.name]["rounds"].append(took)
    desk.step(f"{CANDIDATES[subject.name].label}: turns at {proxy.round_trip_s * 1000:.0f} ms")


def _per_turn(savers: dict[str, Results], turns: int) -> dict[str, Results]:
    result: dict[str, Results] = {}
    for name, seen in savers.items():
        if not seen["rounds"]:
            continue
        every = [took for visit in seen["rounds"] for took in visit]
        result[name] = {
            "p50": percentile(every, 0.5),
            "p95": percentile(every, 0.95),
            "rounds": [median(visit) for visit in seen["rounds"]],
            **{
                f"{what}_a_turn": median([visit[what] / turns for visit in seen["counts"]])
                for what in ("round_trips", "requests", "up", "down")
            },
        }
    return result


def _crowds(desk: Desk, backend: Backend, server: Server) -> list[Results]:
    plan = desk.plan
    found: list[Results] = []
    for variant in server.variants or ("",):
        if variant:
            server.vary(variant)
        seen = _crowd(desk, backend, server, 0.0, plan.turns_a_thread, plan.near_repeats)
        found.append({"variant": variant, **seen})
    if server.variants:
        server.vary(server.variants[0])
    if backend.crowd_far_s:
        far = _crowd(desk, backend, server, backend.crowd_far_s, plan.far_turns_a_thread, plan.far_repeats)
        found.append({"variant": "", **far})
    return found


def _crowd(desk: Desk, backend: Backend, server: Server, trip_s: float, turns: int, repeats: int) -> Results:
    """A new process and a new database for every saver in every repeat. Without latency there is no proxy."""
    rates: dict[str, list[float]] = {name: [] for name in desk.names}

    def visit(subject: Subject) -> None:
        answer = subject.ask("many", threads=backend.threads, turns=turns)
        rates[subject.name].append(answer["turns"] / answer["seconds"])
        desk.step(f"{CANDIDATES[subject.name].label}: {backend.threads} threads at {trip_s * 1000:.0f} ms")

    for number in range(repeats):
        turn = number % len(desk.names)
        order = desk.names[turn:] + desk.names[:turn]
        with Wires(server, f"crowd-{next(_numbers)}").wires(order) as wires:
            for wire in wires.values():
                wire.proxy.round_trip_s = trip_s
            urls = {name: wire.through if trip_s else wire.url for name, wire in wires.items()}
            with Field(backend.name, SCENARIO, order, desk.scratch, desk.notes, urls) as field:
                field.each(visit)
    return {
        "threads": backend.threads,
        "turns_a_thread": turns,
        "round_trip_ms": trip_s * 1000,
        "savers": {
            name: {"turns_per_s": median(seen), "rounds": seen} for name, seen in rates.items() if seen
        },
    }


class _Window:
    """The turns around one size. Stored bytes are taken at its middle, which is the size itself."""

    def __init__(self) -> None:
        self.rounds: list[list[float]] = []
        self.ends: list[Results] = []
        self.stored: int | None = None
        self.real = 0
        self.written: int | None = 0

    def add_written(self, before: int | None, after: int | None) -> None:
        """The server writes for all savers into one log: only what this one's turns added is its own."""
        if before is None or after is None or self.written is None:
            self.written = None
        else:
            self.written += after - before

    def result(self, turns: int) -> Results:
        every = [took for visit in self.rounds for took in visit]
        start, end = self.ends

        def a_turn(what: str) -> float | None:
            known = start.get(what) is not None and end.get(what) is not None
            return (end[what] - start[what]) / turns if known else None

        return {
            "stored": self.stored,
            "real": self.real,
            "written_a_turn": None if self.written is None else self.written / turns,
            "p50": percentile(every, 0.5),
            "p95": percentile(every, 0.95),
            "rounds": [median(visit) for visit in self.rounds],
            **{f"{what}_a_turn": a_turn(what) for what in _COUNTED},
        }


_COUNTED = ("read_units", "write_units", "round_trips", "requests", "up", "down")


def _growth(desk: Desk, backend: Backend, server: Server) -> Results:
    """Through a proxy that only counts: it takes its own thread, and the same from everybody."""
    plan, sizes = desk.plan, _sizes(desk, backend)
    savers: dict[str, Results] = {name: {} for name in desk.names}
    with Wires(server, "growth").wires(desk.names) as wires:
        urls = {name: wire.through for name, wire in wires.items()}
        with Field(backend.name, SCENARIO, desk.names, desk.scratch, desk.notes, urls) as field:
            done = 0

            def account(subject: Subject) -> Results:
                billed = subject.ask("units")
                counts = asdict(wires[subject.name].proxy.counts())
                return {"read_units": billed.get("read"), "write_units": billed.get("write"), **counts}

            def grow(windows: dict[str, _Window], missing: int, subject: Subject) -> None:
                subject.ask("turns", count=missing)
                windows[subject.name].ends.append(account(subject))
                desk.step(f"{CANDIDATES[subject.name].label}: {missing} turns more")

            def visit(windows: dict[str, _Window], number: int, subject: Subject) -> None:
                window = windows[subject.name]
                if number == plan.rounds // 2:
                    window.stored = server.measure_stored(wires[subject.name].url)
                    window.real = subject.ask("bytes")["real"]
                before = server.measure_written()
                window.rounds.append(_turns(subject, plan.turns_a_round))
                window.add_written(before, server.measure_written())
                if number == plan.rounds - 1:
                    window.ends.append(account(subject))
                desk.step(f"{CANDIDATES[subject.name].label}: window")

            for size in sizes:
                windows = {name: _Window() for name in desk.names}
                missing = max(0, plan.before(size) - done)
                field.each(partial(grow, windows, missing))
                for number in range(plan.rounds):
                    field.each(partial(visit, windows, number))
                done = plan.before(size) + plan.window
                for name in field.subjects:
                    savers[name][str(size)] = windows[name].result(plan.window)

            def prune(subject: Subject) -> None:
                url = wires[subject.name].url
                if left := subject.ask("prune"):
                    server.compact(url)
                    pruned[subject.name] = {"stored": server.measure_stored(url), "real": left["real"]}
                desk.step(f"{CANDIDATES[subject.name].label}: pruned")

            pruned: dict[str, Results] = {}
            field.each(prune)
    return {"sizes": list(sizes), "window_turns": plan.window, "savers": savers, "pruned": pruned}
