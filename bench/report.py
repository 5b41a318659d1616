"""The page with the tables. Every number comes from the results file: the same file gives the same page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from bench.figures import median_ratio
from bench.report_backends import backends, write_pruned
from bench.report_cold import cold
from bench.report_crowd import crowd
from bench.report_histories import histories
from bench.report_runtime import runtime
from bench.report_scale import scale
from bench.report_search import search
from bench.report_server import server
from bench.report_store import store
from bench.savers import CANDIDATES, OURS
from bench.tables import NONE, Row, label, number, table, times

Results = dict[str, Any]


def page(results: Results, plots: Sequence[str], image_folder: str) -> str:
    sections = [
        _write_opening(results),
        *_growth(results, plots, image_folder),
        *_shapes(results),
        *_parts(results),
        *_throughput(results, plots, image_folder),
        *_race(results, plots, image_folder),
        *cold(results),
        *backends(results),
        *runtime(results),
        *server(results),
        *crowd(results),
        *store(results),
        *search(results),
        *histories(results),
        *scale(results),
        _method(results),
    ]
    return "\n\n".join(sections) + "\n"


def _write_opening(results: Results) -> str:
    machine = results["environment"]
    lines = [
        "# Benchmarks",
        "This page is written by `make bench`; do not edit it. All numbers of a section come from one run in "
        "which the savers take turns, so that other load on the machine affects all of them. Absolute times "
        "differ from machine to machine: compare figures within this page, and look at the ratios.",
        f"Python {machine['python']}, {machine['cpus']} processors, {machine['system']}, file system "
        f"{machine['filesystem']}. One insert of a turn's bytes in one durable SQLite commit takes "
        f"{number(machine['commit_floor_ms'])} ms here, which is the minimum.",
    ]
    if results["mode"] != "full":
        lines.append("**A quick run: small sizes, few repeats. Run `make bench` for the real one.**")
    if results["notes"]:
        lines.append("Notes of this run:\n\n" + "\n".join(f"- {note}" for note in results["notes"]))
    return "\n\n".join(lines)


def _picture(name: str, alt: str, plots: Sequence[str], folder: str) -> list[str]:
    return [f"![{alt}]({folder}/{name})"] if name in plots else []


def _growth(results: Results, plots: Sequence[str], folder: str) -> list[str]:
    growth = results.get("growth")
    if not growth:
        return []
    sizes = [str(size) for size in growth["sizes"]]
    last = sizes[-1]
    savers: Results = {name: seen for name, seen in growth["savers"].items() if seen}
    turns = [f"{int(size):,}" for size in sizes]

    def rows(
        cell: Callable[[Results], str], extra: Callable[[str, Results], str], *, disk: bool
    ) -> list[Row]:
        shown = {name: seen for name, seen in savers.items() if CANDIDATES[name].keeps or not disk}
        return [
            [
                label(name),
                *(cell(seen[size]) if size in seen else NONE for size in sizes),
                extra(name, seen),
            ]
            for name, seen in shown.items()
        ]

    def against_ours(_: str, seen: Results) -> str:
        ours = savers.get(OURS, {}).get(last)
        if ours is None or last not in seen:
            return NONE
        return times(median_ratio(ours["rounds"], seen[last]["rounds"]))

    def against_said(_: str, seen: Results) -> str:
        at_end = seen.get(last)
        return (
            times(at_end["stored"] / at_end["real"])
            if at_end and at_end["stored"] and at_end["real"]
            else NONE
        )

    def format_ratio(name: str, seen: Results) -> str:
        ours = savers.get(OURS, {}).get(last, {}).get("written_per_turn")
        theirs = seen.get(last, {}).get("written_per_turn")
        return times(theirs / ours) if ours and theirs and CANDIDATES[name].on_disk else NONE

    def format_written(seen: Results) -> str:
        value = seen["written_per_turn"]
        return number(None if value is None else value / 1e3)

    real = next((seen[last]["real"] for seen in savers.values() if last in seen), 0)
    return [
        "## A conversation that grows",
        "One thread; a turn is one `ainvoke` of a one-node graph with `messages: add_messages` and "
        "`summary: str`; the user's and the assistant's message have 400 bytes each. All messages, "
        f"serialised once, are {number(real / 1e6)} MB at {turns[-1]} turns. All savers keep the full "
        "history.",
        "### Stored, MB",
        table(
            ["turns", *turns, "times the size of the messages"],
            rows(
                lambda seen: number(None if seen["stored"] is None else seen["stored"] / 1e6),
                against_said,
                disk=True,
            ),
        ),
        *write_pruned(growth, ", after a `VACUUM`"),
        *_picture("growth-stored.svg", "Stored megabytes by turns", plots, folder),
        "### Written a turn, kB",
        table(["turns", *turns, "times Perdure's"], rows(format_written, format_ratio, disk=True)),
        *_picture("growth-written.svg", "Kilobytes written a turn by turns", plots, folder),
        "### Latency of a turn, ms: median (95th percentile)",
        table(
            ["turns", *turns, "times Perdure's"],
            rows(lambda seen: f"{number(seen['p50'])} ({number(seen['p95'])})", against_ours, disk=False),
        ),
        *_picture("growth-latency.svg", "Median latency of a turn by turns", plots, folder),
    ]


def _shapes(results: Results) -> list[str]:
    shapes = results.get("shapes")
    if not shapes:
        return []
    sections: list[str] = []
    for shape in shapes["shapes"].values():
        rows: list[Row] = []
        for name, seen in shape["savers"].items():
            if "end" not in seen:
                continue
            start, end = seen["start"], seen["end"]
            cells = ((start["written_per_turn"], 1e3), (end["written_per_turn"], 1e3), (end["stored"], 1e6))
            scaled = [None if cell is None else cell / unit for cell, unit in cells]
            rows.append([label(name), *map(number, scaled), number(end["p50"])])
        new = f"{number(shape['new_bytes'] / 1e3)} kB new a turn"
        header = ("", "written a turn at the start, kB", "at the end, kB", "stored, MB", "turn, ms")
        sections += [f"### {shape['title'][0].upper()}{shape['title'][1:]}: {new}", table(header, rows)]
    return [
        "## State that does not grow at its end",
        f"{shapes['turns']} turns each. Before the first window the state is filled in one turn.",
        *sections,
    ]


def _parts(results: Results) -> list[str]:
    parts = results.get("growth", {}).get("parts")
    if not parts:
        return []
    columns = ("get_tuple", "get_tuple_cold", "put", "list", "history")
    rows = [
        [label(name), *(number(seen.get(column)) for column in columns)]
        for name, seen in parts["savers"].items()
        if seen
    ]
    return [
        f"## Single calls at {parts['turns']:,} turns, ms",
        table(["", "get_tuple", "in a new process", "put", "list(limit=10)", "history of 100"], rows),
        "With DeltaChannel `get_tuple` and `put` carry a sentinel in place of the messages; the list is "
        "rebuilt afterwards, from the writes of earlier checkpoints.",
    ]


def _throughput(results: Results, plots: Sequence[str], folder: str) -> list[str]:
    throughput = results.get("throughput")
    if not throughput:
        return []
    savers = throughput["savers"]
    ours = savers.get(OURS)

    def ratio(seen: Results) -> str:
        return times(median_ratio(seen["rounds"], ours["rounds"])) if ours else NONE

    rows = [[label(name), number(seen["turns_per_s"]), ratio(seen)] for name, seen in savers.items()]
    return [
        "## Many threads at once",
        f"{throughput['threads']} threads of {throughput['turns_a_thread']} turns in one process, each "
        "turn acknowledged before the next one of its thread. Messages are made before the clock starts.",
        table(["", "turns a second", "Perdure relative to it"], rows),
        *_picture("throughput.svg", "Turns a second", plots, folder),
    ]


def _race(results: Results, plots: Sequence[str], folder: str) -> list[str]:
    race = results.get("race")
    if not race:
        return []
    rows: list[Row] = []
    for name, seen in race["savers"].items():
        errors = ", ".join(f"{count} {kind}" for kind, count in sorted(seen["errors"].items())) or "none"
        lost = seen["acknowledged"] - seen["kept"]
        counts = (seen["sent"], seen["acknowledged"], seen["kept"], lost, seen["forks"])
        rows.append([label(name), *map(str, counts), errors, str(seen["kept_after_retry"])])
    return [
        "## Two turns on one thread at the same moment",
        f"{race['pairs']} pairs, a node that takes {race['pause_ms']} ms. A saver that cannot keep a turn "
        "should say so: an error can be answered with a retry, a message that was acknowledged and is "
        "gone cannot.",
        table(
            [
                "",
                "sent",
                "acknowledged",
                "kept of those",
                "lost",
                "forks",
                "errors",
                "kept after a retry of refused turns",
            ],
            rows,
        ),
        *_picture("race.svg", "Messages acknowledged, kept, lost and refused", plots, folder),
    ]


_SQLITE_SECTIONS = ("growth", "shapes", "throughput", "race")
_SQLITE_METHOD = (
    "SQLite, stored: all files of the database after a checkpoint of the write-ahead log; for the saver in "
    "memory, the serialised bytes that it holds.",
    "SQLite, in a new process: the first read of the thread by a saver that is open and set up, with the "
    "file in the system's cache.",
    "SQLite, written: bytes handed to write calls by the process (`wchar`), divided by the turns of the "
    "window. The write-ahead log is checkpointed before and after the window, and the second checkpoint "
    "counts, so that postponed writes count too. The device writes more bytes, because of the page size "
    "and the file system's journal.",
    "All savers run with their defaults; the stock SQLite savers keep a write-ahead log and wait for "
    "the disk at every commit (`synchronous=FULL`).",
    "The bare saver is written for this page (`bench/bare.py`): each call stores one row with what is new, "
    "durable when it returns, in transactions that calls share. It has no forks, subgraphs, pruning, "
    "encryption or compression: it shows how few calls and pages a turn needs, and stores more.",
)


def _method(results: Results) -> str:
    machine = results["environment"]
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    window = results.get("growth", {}).get("window_turns", 0)
    seconds = sum(results["seconds"].values())
    points = [
        "Every saver has a process and a database of its own; while one is measured the others are "
        "stopped, and what they wrote has been flushed.",
        f"Around each size a window of {window} turns is cut into rounds in which the savers take turns, "
        "in rotating order. Ratios of times are medians of the ratios of the rounds."
        if window
        else "",
        *(_SQLITE_METHOD if any(name in results for name in _SQLITE_SECTIONS) else ()),
        f"The text is seeded and drawn word by word: zlib leaves {machine['message_left_by_zlib']:.0%} of "
        f"a message and {machine['text_left_by_zlib']:.0%} of a long run of them, about as much as of "
        "English prose.",
        f"Packages: {packages}. SQLite {machine['sqlite_of_python']} in Python, "
        f"{machine['sqlite_of_apsw']} in apsw.",
        *_older(results),
        f"Measuring took {seconds / 60:.0f} minutes." if seconds >= 90 else "",
    ]
    return "## How it is measured\n\n" + "\n".join(f"- {point}" for point in points if point)


def _older(results: Results) -> list[str]:
    """Sections that this run left as they were, where they were measured with other packages."""
    now = results["environment"]["packages"]
    lines = []
    for section, then in results["versions"].items():
        changed = [f"{name} {version}" for name, version in then.items() if now.get(name) != version]
        if changed:
            lines.append(f"The section `{section}` was measured earlier, with {', '.join(changed)}.")
    return lines
