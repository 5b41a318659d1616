"""The plots, as SVG that is the same byte for byte when the numbers are the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot as plt
from matplotlib.axes import Axes

from bench.candidate import Candidate
from bench.savers import CANDIDATES

Results = dict[str, Any]
Point = Callable[[Results], float | None]

_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "perdure",
    "svg.fonttype": "path",
    "font.family": "DejaVu Sans",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e3e6ea",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "figure.facecolor": "white",
    "savefig.facecolor": "white",
}
_MARKERS = "osD^vPX*"
_MB = 1_000_000
_KB = 1_000


def draw(results: Results, folder: Path) -> list[str]:
    """Writes what the results hold and returns the names of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(_STYLE):
        drawn: list[str] = []
        if growth := results.get("growth"):
            drawn.append(
                _lines(growth, folder / "growth-stored.svg", _scale("stored", _MB), "Stored", "MB", real=True)
            )
            drawn.append(
                _lines(growth, folder / "growth-latency.svg", _scale("p50", 1), "A turn, median", "ms")
            )
            drawn.append(
                _lines(
                    growth,
                    folder / "growth-written.svg",
                    _scale("written_per_turn", _KB),
                    "Written a turn",
                    "kB",
                )
            )
        if throughput := results.get("throughput"):
            title = f"{throughput['threads']} threads at once"
            rates = {name: seen["turns_per_s"] for name, seen in throughput["savers"].items()}
            drawn.append(_bars(rates, folder / "throughput.svg", title, "turns a second"))
        if race := results.get("race"):
            drawn.append(_race(race, folder / "race.svg"))
    return drawn


def _scale(key: str, unit: float) -> Point:
    return lambda seen: None if seen.get(key) is None else seen[key] / unit


def _lines(growth: Results, path: Path, point: Point, title: str, unit: str, *, real: bool = False) -> str:
    figure, axes = plt.subplots(figsize=(7.2, 3.9), layout="constrained")
    sizes = growth["sizes"]
    for number, (name, by_size) in enumerate(growth["savers"].items()):
        points = [(size, point(by_size[str(size)])) for size in sizes if str(size) in by_size]
        shown = [(size, value) for size, value in points if value is not None and value > 0.05]
        if shown:
            candidate = CANDIDATES[name]
            axes.plot(*zip(*shown, strict=True), marker=_MARKERS[number % len(_MARKERS)], **_line(candidate))
    if real:
        _real(axes, growth)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
    axes.yaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axes.set_xlabel("turns in the conversation")
    axes.set_ylabel(unit)
    axes.set_title(f"{title}, {unit}", loc="left", fontweight="bold")
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return _save(figure, path)


def _line(candidate: Candidate) -> dict[str, Any]:
    width = 2.2 if candidate.ours else 1.3
    style = "-" if not candidate.sync else "--"
    return {
        "label": candidate.label,
        "color": candidate.colour,
        "linewidth": width,
        "linestyle": style,
        "markersize": 4.5,
    }


def _real(axes: Axes, growth: Results) -> None:
    """What was said, serialised once: the least that any saver could store without compression."""
    sizes = growth["sizes"]
    found = {
        size: seen[str(size)]["real"]
        for seen in growth["savers"].values()
        for size in sizes
        if str(size) in seen
    }
    points = sorted((size, value / _MB) for size, value in found.items())
    if points:
        axes.plot(
            *zip(*points, strict=True), color="#222222", linestyle=":", linewidth=1.2, label="what was said"
        )


def _bars(values: dict[str, float], path: Path, title: str, unit: str) -> str:
    figure, axes = plt.subplots(figsize=(7.2, 0.5 + 0.36 * len(values)), layout="constrained")
    names = list(reversed(values))
    bars = axes.barh(
        [CANDIDATES[name].label for name in names],
        [values[name] for name in names],
        color=[CANDIDATES[name].colour for name in names],
    )
    axes.bar_label(bars, fmt="{:,.0f}", padding=3, fontsize=8)
    axes.margins(x=0.1)
    axes.grid(axis="y", visible=False)
    axes.set_title(f"{title}, {unit}", loc="left", fontweight="bold")
    return _save(figure, path)


def _race(race: Results, path: Path) -> str:
    savers = race["savers"]
    figure, axes = plt.subplots(figsize=(7.2, 0.9 + 0.36 * len(savers)), layout="constrained")
    names = list(reversed(savers))
    labels = [CANDIDATES[name].label for name in names]
    left = [0.0] * len(names)
    kinds: tuple[tuple[str, str, Callable[[Results], float]], ...] = (
        ("acknowledged and kept", "#0b6e99", lambda seen: seen["kept"]),
        ("acknowledged and lost", "#c0392b", lambda seen: seen["acknowledged"] - seen["kept"]),
        ("refused with an error", "#c9ced6", lambda seen: seen["refused"]),
    )
    for label, colour, value in kinds:
        widths = [float(value(savers[name])) for name in names]
        axes.barh(labels, widths, left=left, color=colour, label=label)
        left = [start + width for start, width in zip(left, widths, strict=True)]
    axes.grid(axis="y", visible=False)
    title = f"Two turns on one thread at once, {race['pairs']} times: messages"
    axes.set_title(title, loc="left", fontweight="bold")
    figure.legend(frameon=False, fontsize=8, ncols=3, loc="outside lower right")
    return _save(figure, path)


def _save(figure: Any, path: Path) -> str:
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(figure)
    return path.name
