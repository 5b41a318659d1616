"""The sections of the backends behind a network."""

from __future__ import annotations

from typing import Any

from bench.backends import BACKENDS, Backend
from bench.figures import median_ratio
from bench.tables import NONE, Row, label, number, table, times

Results = dict[str, Any]

_COUNTS = {"round_trips": "round trips a turn", "requests": "requests a turn"}
_LONE = (
    "One `ainvoke` of the one-node graph on a conversation that has just begun, through a proxy that holds "
    "every byte back by half the round-trip time and counts round trips: one for each time that the client "
    "sends again after an answer, summed over its connections."
)
_CROWD = "One process; each turn is acknowledged before the next one of its thread starts."


def backends(results: Results) -> list[str]:
    sections: list[str] = []
    for name, backend in BACKENDS.items():
        if (found := results.get(name)) is not None:
            sections += [f"## {backend.title}", *_section(backend, found)]
    return sections


def _section(backend: Backend, found: Results) -> list[str]:
    if "skipped" in found:
        return [f"Not measured: {found['skipped']}.", *_write_list(found.get("gaps", []))]
    return [
        f"Server: {found['settings']}. {backend.remark}".strip(),
        *_write_list([*found.get("gaps", []), *found.get("notes", [])]),
        *_lone(backend, found["lone"]),
        *_crowds(backend, found["crowds"]),
        *_growth(backend, found["growth"]),
    ]


def _write_list(lines: list[str]) -> list[str]:
    return ["\n".join(f"- {line}" for line in lines)] if lines else []


def _lone(backend: Backend, measured: list[Results]) -> list[str]:
    if not measured or not any(each["savers"] for each in measured):
        return []
    trips = [each["round_trip_ms"] for each in measured]
    header = ["", _COUNTS[backend.counts]]
    for trip in trips:
        header += [f"a turn at {number(trip)} ms, ms", "of the stock saver's"]
    if backend.stock is None:
        header = [column for column in header if not column.startswith("of the stock")]
    rows: list[Row] = []
    for name, counted in measured[0]["savers"].items():
        row = [label(name), number(counted[f"{backend.counts}_a_turn"])]
        for each in measured:
            seen, stock = each["savers"].get(name), each["savers"].get(backend.stock)
            row.append(number(seen["p50"]) if seen else NONE)
            if backend.stock is not None:
                share = median_ratio(stock["rounds"], seen["rounds"]) if seen and stock else None
                row.append(times(share))
        rows.append(row)
    return ["### A turn over a network", _LONE, table(header, rows)]


def _crowds(backend: Backend, measured: list[Results]) -> list[str]:
    tables: list[str] = []
    for crowd in measured:
        if not crowd["savers"]:
            continue
        stock = crowd["savers"].get(backend.stock)
        rows: list[Row] = [
            [
                label(name),
                number(seen["turns_per_s"]),
                times(median_ratio(stock["rounds"], seen["rounds"]) if stock else None),
            ]
            for name, seen in crowd["savers"].items()
        ]
        where = (
            f"at {number(crowd['round_trip_ms'])} ms round-trip time"
            if crowd["round_trip_ms"]
            else "without added latency"
        )
        variant = f", `{crowd['variant']}`" if crowd["variant"] else ""
        said = f"{crowd['threads']} threads of {crowd['turns_a_thread']} turns {where}{variant}:"
        header = ["", "turns a second", "times the stock saver's"]
        if backend.stock is None:
            header, rows = header[:2], [row[:2] for row in rows]
        tables += [said, table(header, rows)]
    return ["### Many threads at once", _CROWD, *tables] if tables else []


def _growth(backend: Backend, growth: Results) -> list[str]:
    sizes = [str(size) for size in growth["sizes"]]
    savers: Results = {name: seen for name, seen in growth["savers"].items() if seen}
    if not savers:
        return []
    turns = [f"{int(size):,}" for size in sizes]
    stock: Results = savers.get(backend.stock, {}) if backend.stock else {}

    def rows(what: str, scale: float, *, extra: bool = False) -> list[Row]:
        shown: list[Row] = []
        for name, seen in savers.items():
            values = [seen[size].get(what) if size in seen else None for size in sizes]
            row = [label(name), *(number(None if value is None else value / scale) for value in values)]
            shown.append([*row, _of_what_was_said(seen, sizes)] if extra else row)
        return shown

    def latency() -> list[Row]:
        shown: list[Row] = []
        for name, seen in savers.items():
            row = [label(name), *(number(seen[size]["p50"]) if size in seen else NONE for size in sizes)]
            both = [size for size in sizes if size in seen and size in stock]
            share = median_ratio(stock[both[-1]]["rounds"], seen[both[-1]]["rounds"]) if both else None
            at = f" at {int(both[-1]):,}" if both and both[-1] != sizes[-1] else ""
            shown.append([*row, times(share) + at] if backend.stock else row)
        return shown

    last = ["of the stock saver's"] if backend.stock else []
    sections = ["### A conversation that grows", _growth_method(backend, growth["window_turns"])]
    if _has_figure(savers, "stored"):
        header = ["stored, MB, at turns", *turns, "times the size of the messages"]
        sections.append(table(header, rows("stored", 1e6, extra=True)))
        if backend.name in _COMPACTED:
            sections += write_pruned(growth, _COMPACTED[backend.name])
    sections.append(table(["a turn, ms: median, at turns", *turns, *last], latency()))
    for what, title, scale in (
        ("read_units_a_turn", "read units a turn", 1.0),
        ("write_units_a_turn", "write units a turn", 1.0),
        ("written_a_turn", "written by the server a turn, kB", 1e3),
        (f"{backend.counts}_a_turn", _COUNTS[backend.counts], 1.0),
        ("up_a_turn", "sent to the server a turn, kB", 1e3),
        ("down_a_turn", "received from it a turn, kB", 1e3),
    ):
        if _has_figure(savers, what):
            sections.append(table([f"{title}, at turns", *turns], rows(what, scale)))
    return sections


def write_pruned(growth: Results, after: str) -> list[str]:
    """Return what is stored of the thread once it is pruned; ``after`` adds what was done to see it."""
    savers = growth.get("pruned")
    if not savers:
        return []
    rows = [
        [label(name), number(at["stored"] / 1e6), times(at["stored"] / at["real"])]
        for name, at in savers.items()
    ]
    return [
        "The same thread, its history pruned to the newest checkpoint, by a call or a "
        f"[policy](care.md){after}. Savers that cannot prune are not listed.",
        table(["", "stored, MB", "times the size of the messages"], rows),
    ]


def _has_figure(savers: Results, what: str) -> bool:
    return any(at.get(what) is not None for seen in savers.values() for at in seen.values())


def _of_what_was_said(seen: Results, sizes: list[str]) -> str:
    reached = [size for size in sizes if size in seen]
    if not reached:
        return NONE
    at = seen[reached[-1]]
    return times(at["stored"] / at["real"]) if at["stored"] and at["real"] else NONE


def _growth_method(backend: Backend, window: int) -> str:
    return (
        f"One thread, its full history kept; around each size a window of {window} turns is cut into rounds "
        "in which the savers take turns. No latency is added; the proxy only counts. "
        + _WEIGHED[backend.name]
    )


_COMPACTED = {  # D1 does not shrink a file, so its size shows nothing.
    "postgres": ", after a `VACUUM FULL`",
    "redis": "",
    "dynamodb": "",
}

_WEIGHED = {
    "postgres": "Stored is `pg_total_relation_size` of all tables, with their indexes, after a plain "
    "`VACUUM`, for all savers alike: what the files take, not what a `VACUUM FULL` could get back. Written "
    "is the growth of the write-ahead log in the saver's own turns.",
    "redis": "Stored is the sum of `MEMORY USAGE` of all keys of the saver's database. Written is the growth "
    "of the append-only file in the saver's own turns.",
    "dynamodb": "Stored is what the service bills: names and values of all items and 100 bytes an item. "
    "Units follow its published rules, from the sizes that pass through the client, since the emulator bills "
    "one a request; a transaction costs double.",
    "d1": "Stored is the size of the database's file.",
}
