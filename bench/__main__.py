"""`python -m bench`: run the workloads, keep the results, write the page and the plots."""

from __future__ import annotations

import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import comparison, report
from bench.backends import BACKENDS
from bench.desk import Desk
from bench.environment import describe
from bench.plan import FULL, QUICK
from bench.savers import CANDIDATES
from bench.workloads import (
    cold,
    crowd,
    growth,
    histories,
    network,
    race,
    runtime,
    scale,
    search,
    server,
    shapes,
    store,
    throughput,
)

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
DOCS = ROOT / "docs"
FORMAT = 2

Results = dict[str, Any]


@dataclass(frozen=True)
class Workload:
    """A section of the page. Only the candidates of its backend take part; of ``EVERY`` one, all."""

    backend: str
    units: Callable[[Desk], int]
    run: Callable[[Desk], Results]


EVERY = "every"

WORKLOADS: dict[str, Workload] = {
    "growth": Workload("sqlite", growth.units, growth.run),
    "shapes": Workload("sqlite", shapes.units, shapes.run),
    "throughput": Workload("sqlite", throughput.units, throughput.run),
    "race": Workload("sqlite", race.units, race.run),
    "cold": Workload(EVERY, cold.units, cold.run),
    **{
        name: Workload(name, partial(network.units, backend=backend), partial(network.run, backend=backend))
        for name, backend in BACKENDS.items()
    },
    "runtime": Workload("runtime", runtime.units, runtime.run),
    "server": Workload("server", server.units, server.run),
    "crowd": Workload("crowd", crowd.units, crowd.run),
    "store": Workload("store", store.units, store.run),
    "search": Workload("search", search.units, search.run),
    "histories": Workload("histories", histories.units, histories.run),
    "scale": Workload("scale", scale.units, scale.run),
}
WITH_BARE = ("cold", "growth", "throughput")
"""The sections that show what the least costs."""

GROUPS = {
    "sqlite": [name for name, workload in WORKLOADS.items() if workload.backend == "sqlite"],
    "postgresql": ["postgres"],
}

NOT_COMPARED = ("runtime", "server", "crowd", "store", "search", "histories", "scale")
"""Sections that are driven through more of the package than its savers, which may differ between commits."""

console = Console()


def bench(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, one repeat; a minute or two.")] = False,
    only: Annotated[
        str, typer.Option(help="Sections, with commas: sqlite for the first four of " + ", ".join(WORKLOADS))
    ] = "",
    savers: Annotated[str, typer.Option(help="Savers, with commas: " + ", ".join(CANDIDATES))] = "",
    out: Annotated[
        Path | None, typer.Option(help="Write results, page and plots here, not into the tree.")
    ] = None,
    scratch: Annotated[
        Path | None, typer.Option(help="Folder for databases; needs 5 GB in a full run.")
    ] = None,
    compare: Annotated[
        str,
        typer.Option(
            metavar="COMMIT",
            help="Measure our savers with the code of this commit, too, taking turns; print both. "
            "Not for the sections " + ", ".join(NOT_COMPARED) + ".",
        ),
    ] = "",
    render: Annotated[
        bool, typer.Option("--render", help="Only write page and plots from the last results.")
    ] = False,
) -> None:
    """Measure Perdure beside the stock savers of LangGraph.

    Sections that were measured in full, with all their savers, replace theirs in the results, the page and
    the plots of the tree. A quick run, or one of some savers, keeps its results in a partial file and shows
    its tables here.
    """
    if render:
        _write(json.loads((RESULTS / "latest.json").read_text()), RESULTS, DOCS)
        return
    workloads = _choose(
        ",".join(",".join(GROUPS.get(name, [name])) for name in _names(only)), list(WORKLOADS)
    )
    names = _choose(savers, list(CANDIDATES))
    if compare:
        _compare(compare, quick, only, savers, scratch)
        return
    results = _measure(quick, workloads, names, scratch)
    (RESULTS / "latest.partial.json").unlink(missing_ok=True)
    if out is not None:
        _write(results, out, out)
    elif not quick and names == list(CANDIDATES) and not results["failed"]:
        _write(merge(_latest(), results), RESULTS, DOCS)
    else:
        _keep(results, RESULTS / "trial.partial.json")
    console.print(Markdown(report.page(results, [], "")))
    for note in results["notes"]:
        console.print(f"[yellow]note:[/] {note}")
    if results["failed"]:
        sys.exit(1)


def _compare(commit: str, quick: bool, only: str, savers: str, scratch: Path | None) -> None:
    known = [name for name in WORKLOADS if name not in NOT_COMPARED]
    wanted = [name for each in _names(only) for name in GROUPS.get(each, [each])]
    workloads = _choose(",".join(wanted), known)
    ours = [name for name, each in CANDIDATES.items() if each.ours or name == comparison.YARDSTICK]
    names = _choose(savers, list(CANDIDATES)) if savers else ours
    with tempfile.TemporaryDirectory(prefix="perdure-bench-", dir=scratch) as folder:
        try:
            with comparison.check_out(commit, Path(folder)) as (short, tree):
                sides = comparison.sides(names, CANDIDATES, short, tree)
                CANDIDATES.update(sides)
                results = _measure(quick, workloads, list(sides), scratch)
        except comparison.UnknownCommit as error:
            raise typer.BadParameter(str(error), param_hint="--compare") from error
    (RESULTS / "latest.partial.json").unlink(missing_ok=True)
    _keep(results, RESULTS / "trial.partial.json")
    for note in results["notes"]:
        console.print(f"[yellow]note:[/] {note}")
    try:
        found = comparison.changes({name: results[name] for name in workloads}, sides)
    except comparison.NothingCompared as error:
        console.print(f"[red]{error}[/]")
        sys.exit(1)
    console.print(comparison.table(found, short))
    if results["failed"]:
        sys.exit(1)


def merge(old: Results, new: Results) -> Results:
    """The new run's sections, and the old ones of those that it left out."""
    both = {**old, **new}
    for name in ("seconds", "versions"):
        both[name] = {**old.get(name, {}), **new[name]}
    return both


def _latest() -> Results:
    """Nothing when there are no results, or those of another format."""
    path = RESULTS / "latest.json"
    kept: Results = json.loads(path.read_text()) if path.exists() else {}
    return kept if kept.get("format") == FORMAT else {}


def _names(wanted: str) -> list[str]:
    return [name.strip() for name in wanted.split(",") if name.strip()]


def _choose(wanted: str, known: list[str]) -> list[str]:
    names = _names(wanted)
    if unknown := [name for name in names if name not in known]:
        raise typer.BadParameter(f"nothing is called {', '.join(unknown)}; there are {', '.join(known)}")
    return [name for name in known if name in names] or known


def _takes_part(section: str, name: str) -> bool:
    candidate = CANDIDATES[name]
    if candidate.bare and section not in WITH_BARE:
        return False
    return WORKLOADS[section].backend in (EVERY, candidate.backend)


def _measure(quick: bool, workloads: list[str], names: list[str], scratch: Path | None) -> Results:
    notes: list[str] = []
    absent = {name: why for name in names if (why := CANDIDATES[name].missing()) is not None}
    columns = (
        TextColumn("{task.description:12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[what]}"),
    )
    results: Results = {"format": FORMAT, "mode": "quick" if quick else "full", "seconds": {}, "versions": {}}
    with tempfile.TemporaryDirectory(prefix="perdure-bench-", dir=scratch) as folder:
        results["environment"] = describe(Path(folder))
        with Progress(*columns, console=console) as progress:
            for name in workloads:
                workload = WORKLOADS[name]
                here = [each for each in names if _takes_part(name, each)]
                gaps = [
                    f"{CANDIDATES[each].label} is left out: {absent[each]}" for each in here if each in absent
                ]
                present = [each for each in here if each not in absent]
                desk = Desk(QUICK if quick else FULL, present, Path(folder), lambda _: None, notes)
                task = progress.add_task(name, total=workload.units(desk), what="")

                def step(what: str, task: Any = task) -> None:
                    progress.update(task, advance=1, what=what)

                started = time.monotonic()
                results[name] = {**workload.run(replace(desk, step=step)), "gaps": gaps}
                results["seconds"][name] = round(time.monotonic() - started, 1)
                results["versions"][name] = results["environment"]["packages"]
                _keep({**results, "notes": notes}, RESULTS / "latest.partial.json")
    results["notes"] = notes
    results["failed"] = bool(notes)
    return results


def _keep(results: Results, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")


def _write(results: Results, results_folder: Path, docs: Path) -> None:
    """Matplotlib is imported here, so that a run without it still measures."""
    from bench import plots

    _keep(results, results_folder / "latest.json")
    drawn = plots.draw(results, docs / "img")
    (docs / "benchmarks.md").write_text(report.page(results, drawn, "img"))
    console.print(f"wrote {results_folder / 'latest.json'}, {docs / 'benchmarks.md'} and {len(drawn)} plots")


def _leave(*_: object) -> None:
    """Being terminated ends servers and savers too, as an interrupt from the keyboard does."""
    sys.exit(143)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _leave)
    typer.run(bench)
