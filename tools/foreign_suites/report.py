"""Compares a backend's outcomes with those of the stock savers, and prints what differs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from .catalogue import Reasons
from .running import Outcomes


@dataclass(frozen=True, slots=True)
class Comparison:
    """What a backend did with the tests of one suite that pass on stock savers."""

    suite: str
    backend: str
    passed: int
    excluded: dict[str, str]
    """Node id of a test that failed and may, to the reason."""
    failed: dict[str, str]
    """Node id of a test that failed and may not, to its error."""
    unsteady: dict[str, str] = field(default_factory=dict)
    """Node id of a test that failed and passed when it was run again alone, to its error. They count as
    passed: suites time what they do, which other work on the machine upsets."""
    stale: tuple[str, ...] = ()
    """Ids of the entries whose tests all pass."""

    def after(self, alone: Outcomes) -> Comparison:
        """This with the outcomes of failed tests that were run again alone."""
        steady = {n: e for n, e in self.failed.items() if n not in alone or alone[n].result != "passed"}
        unsteady = {node: error for node, error in self.failed.items() if node not in steady}
        return replace(self, passed=self.passed + len(unsteady), failed=steady, unsteady=unsteady)

    @property
    def row(self) -> tuple[str, ...]:
        """Its line of the table."""
        total = self.passed + len(self.excluded) + len(self.failed)
        counts = (total, self.passed, len(self.excluded), len(self.failed))
        return (self.suite, self.backend, *map(str, counts))


HEADER = ("suite", "backend", "stock passes", "passed", "excluded", "failed")


def compare(suite: str, backend: str, stock: Outcomes, ours: Outcomes, reasons: Reasons) -> Comparison:
    """Hold a backend to every test that stock passes. One that was not run, or was skipped, has failed."""
    passed = 0
    needed: dict[str, bool] = {}
    excluded: dict[str, str] = {}
    failed: dict[str, str] = {}
    for node, expected in stock.items():
        if expected.result != "passed":
            continue
        found = ours.get(node)
        if (entry := reasons.entry_of(suite, node)) is not None:
            needed[entry] = needed.get(entry, False) or found is None or found.result != "passed"
        if found is not None and found.result == "passed":
            passed += 1
        elif reason := reasons.of(suite, node):
            excluded[node] = reason
        else:
            failed[node] = _error(node, ours)
    stale = tuple(entry for entry, is_needed in needed.items() if not is_needed)
    return Comparison(suite, backend, passed, excluded, failed, stale=stale)


def _error(node: str, ours: Outcomes) -> str:
    if (found := ours.get(node)) is not None:
        return found.reason or found.result
    whole = ours.get(node.partition("::")[0])
    return whole.reason if whole is not None else "it was not run"


def lines(comparisons: list[Comparison]) -> Iterator[str]:
    """The table, then what failed, then what was left out with its reason."""
    rows = [HEADER, *(comparison.row for comparison in comparisons)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
    for comparison in comparisons:
        for title, found in (
            ("failed", comparison.failed),
            ("failed, but passed when run again alone", comparison.unsteady),
            ("excluded", comparison.excluded),
        ):
            if found:
                yield f"\n{comparison.suite} on {comparison.backend}, {title}:"
                yield from (f"  {node}: {reason}" for node, reason in sorted(found.items()))
        if comparison.stale:
            yield f"\n{comparison.suite} on {comparison.backend}, pass and need not be excluded any more:"
            yield from (f"  {entry}" for entry in sorted(comparison.stale))
