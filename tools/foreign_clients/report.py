"""Compares what a suite did with Perdure's server with what is expected, and prints it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tools.foreign_suites.running import Outcomes


@dataclass(frozen=True, slots=True)
class Comparison:
    """One suite. ``reference`` is empty where the reference server was not asked."""

    suite: str
    ours: Outcomes
    reference: Outcomes
    reasons: Mapping[tuple[str, str], str]
    unsteady: frozenset[tuple[str, str]] = frozenset()

    @property
    def wrong(self) -> list[str]:
        """The tests that fail and have no reason to."""
        return [
            name
            for name, outcome in self.ours.items()
            if outcome.result == "failed" and self._reason(name) is None
        ]

    @property
    def stale(self) -> list[str]:
        """The reasons that name no test that fails, but for those of tests that pass at times."""
        failing = {name for name, outcome in self.ours.items() if outcome.result == "failed"}
        held = [name for suite, name in self.reasons if suite == self.suite and name not in failing]
        return [name for name in held if (self.suite, name) not in self.unsteady]

    def _reason(self, name: str) -> str | None:
        return self.reasons.get((self.suite, name))

    def lines(self) -> Iterator[str]:
        """The counts, then each failing test with its reason, or with its error."""
        passed = _count_passed(self.ours)
        beside = f", the reference {_count_passed(self.reference)}" if self.reference else ""
        yield f"{self.suite}: {passed} of {len(self.ours)} pass{beside}"
        for name, outcome in self.ours.items():
            if outcome.result != "failed":
                continue
            reason = self._reason(name)
            if reason is not None:
                yield f"  left out  {name}: {reason}"
            else:
                there = self.reference.get(name)
                also = f" (the reference: {there.result})" if there is not None else ""
                yield f"  FAILED    {name}{also}: {outcome.reason}"
        for name in self.stale:
            yield f"  passes, and need not be left out any more: {name}"


def _count_passed(outcomes: Outcomes) -> int:
    return sum(outcome.result == "passed" for outcome in outcomes.values())
