"""Prints what became of each action in each interface, and which requests failed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from .driving import Failures


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one action: empty, or why it failed; and what failed meanwhile."""

    reason: str = ""
    failures: Failures = field(default_factory=Failures)


@dataclass(frozen=True, slots=True)
class Told:
    """One interface. A failed request is not a fault where a pattern in ``expected`` fits its line."""

    name: str
    outcomes: Mapping[str, Outcome]
    expected: Mapping[str, str]

    @property
    def wrong(self) -> list[str]:
        """The actions that fail, or have a request to the server fail without a reason."""
        return [
            action
            for action, outcome in self.outcomes.items()
            if outcome.reason or any(self._reason(line) is None for line in outcome.failures.server)
        ]

    def lines(self) -> Iterator[str]:
        """The counts, then each action, with what failed meanwhile."""
        done = len(self.outcomes) - sum(bool(outcome.reason) for outcome in self.outcomes.values())
        failed = sum(len(outcome.failures.server) for outcome in self.outcomes.values())
        yield f"{self.name}: {done} of {len(self.outcomes)} done, {failed} requests to the server failed"
        for action, outcome in self.outcomes.items():
            yield f"  FAILED  {action}: {outcome.reason}" if outcome.reason else f"  done    {action}"
            for line in outcome.failures.server:
                reason = self._reason(line)
                yield f"            request: {line}{'' if reason is None else f' ({reason})'}"
            for line in outcome.failures.page:
                yield f"            error of the page: {line}"
        elsewhere = {line for outcome in self.outcomes.values() for line in outcome.failures.elsewhere}
        for line in sorted(elsewhere):
            yield f"  not the server's: {line}"

    def _reason(self, line: str) -> str | None:
        return next((reason for part, reason in self.expected.items() if re.search(part, line)), None)
