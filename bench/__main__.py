"""`python -m bench`: run the workloads, keep the results, write the page and the plots."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markdown import Markdown
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from bench import report
from bench.desk import Desk
from bench.environment import describe
from bench.plan import FULL, QUICK
from bench.savers import CANDIDATES
from bench.workloads import growth, race, shapes, throughput

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
DOCS = ROOT / "docs"

Workload = tuple[Callable[[Desk], int], Callable[[Desk], dict[str, Any]]]
WORKLOADS: dict[str, Workload] = {
    "growth": (growth.units, growth.run),
    "shapes": (shapes.units, shapes.run),
    "throughput": (throughput.units, throughput.run),
    "race": (race.units, race.run),
}

console = Console()


def bench(
    quick: Annotated[bool, typer.Option("--quick", help="Small sizes, one repeat; a minute or two.")] = False,
    only: Annotated[str, typer.Option(help="Workloads, with commas: " + ", ".join(WORKLOADS))] = "",
    savers: Annotated[str, typer.Option(help="Savers, with commas: " + ", ".join(CANDIDATES))] = "",
    out: Annotated[
        Path | None, typer.Option(help="Write results, page and plots here, not into the tree.")
    ] = None,
    scratch: Annotated[
        Path | None, typer.Option(help="Folder for databases; needs 5 GB in a full run.")
    ] = None,
    render: Annotated[
        bool, typer.Option("--render", help="Only write page and plots from the last results.")
    ] = False,
) -> None:
    """Measure Perdure beside the stock savers of LangGraph.

    Only a full run of everything replaces the results, the page and the plots of the tree; any smaller run
    keeps its results in a partial file and shows its tables here.
    """
    if render:
        _write(json.loads((RESULTS / "latest.json").read_text()), RESULTS, DOCS)
        return
    workloads = _chosen(only, list(WORKLOADS), "workload")
    names = _chosen(savers, list(CANDIDATES), "saver")
    whole = not quick and workloads == list(WORKLOADS) and names == list(CANDIDATES)
    results = _measure(quick, workloads, names, scratch)
    (RESULTS / "latest.partial.json").unlink(missing_ok=True)
    if out is not None:
        _write(results, out, out)
    elif whole and not results["notes"]:
        _write(results, RESULTS, DOCS)
    else:
        _keep(results, RESULTS / "trial.partial.json")
    console.print(Markdown(report.page(results, [], "")))
    for note in results["notes"]:
        console.print(f"[yellow]note:[/] {note}")
    if results["failed"]:
        sys.exit(1)


def _chosen(wanted: str, known: list[str], kind: str) -> list[str]:
    names = [name.strip() for name in wanted.split(",") if name.strip()]
    if unknown := [name for name in names if name not in known]:
        raise typer.BadParameter(f"no {kind} is called {', '.join(unknown)}; there are {', '.join(known)}")
    return [name for name in known if name in names] or known


def _measure(quick: bool, workloads: list[str], names: list[str], scratch: Path | None) -> dict[str, Any]:
    started = time.monotonic()
    notes: list[str] = []
    for name in names:
        if (why := CANDIDATES[name].missing()) is not None:
            notes.append(f"{CANDIDATES[name].label} is left out: {why}")
            console.print(f"[yellow]note:[/] {notes[-1]}")
    present = [name for name in names if CANDIDATES[name].missing() is None]
    left_out = len(notes)
    columns = (
        TextColumn("{task.description:12}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.fields[what]}"),
    )
    results: dict[str, Any] = {"format": 1, "mode": "quick" if quick else "full"}
    with tempfile.TemporaryDirectory(prefix="perdure-bench-", dir=scratch) as folder:
        results["environment"] = describe(Path(folder))
        with Progress(*columns, console=console) as progress:
            desk = Desk(QUICK if quick else FULL, present, Path(folder), lambda _: None, notes)
            tasks = {
                name: progress.add_task(name, total=WORKLOADS[name][0](desk), what="") for name in workloads
            }
            for name in workloads:

                def step(what: str, task: Any = tasks[name]) -> None:
                    progress.update(task, advance=1, what=what)

                results[name] = WORKLOADS[name][1](replace(desk, step=step))
                _keep({**results, "notes": notes}, RESULTS / "latest.partial.json")
    results["notes"] = notes
    results["failed"] = len(notes) > left_out
    results["seconds"] = round(time.monotonic() - started, 1)
    return results


def _keep(results: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1) + "\n")


def _write(results: dict[str, Any], results_folder: Path, docs: Path) -> None:
    """Matplotlib is imported here, so that a run without it still measures."""
    from bench import plots

    _keep(results, results_folder / "latest.json")
    drawn = plots.draw(results, docs / "img")
    (docs / "benchmarks.md").write_text(report.page(results, drawn, "img"))
    console.print(f"wrote {results_folder / 'latest.json'}, {docs / 'benchmarks.md'} and {len(drawn)} plots")


if __name__ == "__main__":
    typer.run(bench)
