"""A commit beside this tree: the same savers with the code of each, taking turns in one run.

The workloads are this tree's for both; only the package comes from the commit, which is checked out in a
folder of its own.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from rich.table import Table

from bench.candidate import Candidate

ROOT = Path(__file__).resolve().parent.parent
YARDSTICK = "memory"
"""The candidate that takes part besides our own: it is the same on both sides."""


class UnknownCommit(Exception):
    """The repository has no such commit."""


class NothingCompared(Exception):
    """No figure was measured with both codes."""


class Change(NamedTuple):
    """A figure of one saver, with the code of the commit and with this tree's."""

    section: str
    saver: str
    figure: str
    then: float
    now: float


@contextmanager
def check_out(commit: str, folder: Path) -> Iterator[tuple[str, Path]]:
    """The short name of a commit, and a folder with its files until the end of the context."""
    try:
        name = _git("rev-parse", "--short", "--verify", "--end-of-options", f"{commit}^{{commit}}")
    except subprocess.CalledProcessError as error:
        raise UnknownCommit(f"this repository has no commit {commit!r}") from error
    tree = folder / f"tree-{name}"
    _git("worktree", "add", "--detach", "--quiet", str(tree), name)
    try:
        yield name, tree
    finally:
        _git("worktree", "remove", "--force", str(tree))


def sides(names: list[str], known: Mapping[str, Candidate], commit: str, tree: Path) -> dict[str, Candidate]:
    """The candidates that take part: those with these names, and of our own each one's twin right after it,
    so that the two are neighbours in every round."""
    out: dict[str, Candidate] = {}
    for name in names:
        out[name] = known[name]
        if known[name].ours:
            twin = known[name].at(commit, tree)
            out[twin.name] = twin
    return out


def changes(results: Mapping[str, Any], twins: Mapping[str, Candidate]) -> list[Change]:
    """The figures of savers that were measured with both codes.

    Raises:
        NothingCompared: There are none.
    """
    found = [
        Change(section, twin.twin_of, figure, then[figure], now[figure])
        for section, measured in results.items()
        for twin in twins.values()
        if twin.tree is not None
        for now in [dict(_figures(measured, twin.twin_of))]
        for then in [dict(_figures(measured, twin.name))]
        for figure in now
        if figure in then
    ]
    if not found:
        raise NothingCompared(
            f"nothing in {', '.join(results)} was measured with both codes; the notes say what failed"
        )
    return found


def _figures(measured: Any, saver: str, at: tuple[str, ...] = ()) -> Iterator[tuple[str, float]]:
    if not isinstance(measured, dict):
        return
    for key, value in measured.items():
        if key == "savers" and isinstance(value, dict) and saver in value:
            yield from _leaves(value[saver], at)
        else:
            yield from _figures(value, saver, (*at, key))


def _leaves(value: Any, at: tuple[str, ...]) -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*at, key))
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield " ".join(at), float(value)


def table(found: list[Change], commit: str) -> Table:
    """The changes as a table; the ratio is this tree's figure over the commit's."""
    out = Table("section", "saver", "figure", commit, "this tree", "ratio")
    for column in out.columns[3:]:
        column.justify = "right"
    for section, saver, figure, then, now in found:
        ratio = f"{now / then:.2f} ×" if then else "–"
        out.add_row(section, saver, figure, f"{then:,.4g}", f"{now:,.4g}", ratio)
    return out


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(ROOT), *arguments], check=True, capture_output=True, text=True)
    return done.stdout.strip()
