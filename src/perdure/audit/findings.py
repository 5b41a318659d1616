"""Findings of an audit, their report, and the choice of findings to ignore."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from perdure.audit.checks import CHECKS, AuditCheck


@dataclass(frozen=True, slots=True)
class Spot:
    """A place in the source: the file, and the line, counted from 1; empty and 0 if it is not known."""

    file: str = ""
    line: int = 0

    def __str__(self) -> str:
        if not self.file:
            return "?"
        relative = os.path.relpath(self.file)
        return f"{self.file if relative.startswith('..') else relative}:{self.line}"


@dataclass(frozen=True, slots=True)
class AuditFinding:
    """A fault of a graph.

    ``kind`` is ``channel`` or ``node``. ``place`` is the name of the channel or node, after the path of nodes
    to its subgraph: ``worker/docs``. ``detail`` says what was found there, ``example`` shows values for which
    a reducer fails.
    """

    check: AuditCheck
    kind: str
    place: str
    spot: Spot
    detail: str
    example: str = ""

    def __str__(self) -> str:
        lines = [f"{self.spot}: {self.check.id}: {self.kind} {self.place}: {self.detail}"]
        lines += [f"    {line}" for line in self.example.splitlines()]
        return "\n".join([*lines, f"    why: {self.check.why}", f"    fix: {self.check.fix}"])

    def as_json(self) -> dict[str, Any]:
        """Return the finding as plain JSON data."""
        return {
            "check": self.check.id,
            self.kind: self.place,
            "file": self.spot.file,
            "line": self.spot.line,
            "detail": self.detail,
            "example": self.example,
            "why": self.check.why,
            "fix": self.check.fix,
        }


@dataclass(frozen=True, slots=True)
class Ignore:
    """A check to ignore, at one place or everywhere: ``bare-collection:docs``, ``bare-collection``."""

    check: str
    place: str = ""

    @classmethod
    def parse(cls, word: str) -> Ignore:
        """Return the check to ignore that a word stands for.

        Raises:
            ValueError: The word names no check.
        """
        check, _, place = word.partition(":")
        if check not in CHECKS:
            raise ValueError(f"there is no check {check!r}; the checks are {', '.join(CHECKS)}")
        return cls(check, place)

    def matches(self, finding: AuditFinding) -> bool:
        return self.check == finding.check.id and self.place in ("", finding.place)

    def __str__(self) -> str:
        if self.place:
            return f"{self.check}:{self.place}"
        return self.check


@dataclass(frozen=True, slots=True)
class AuditReport:
    """Result of an audit: the findings, the reasons why something could not be examined, the number of
    findings that were ignored, and the checks to ignore that matched no finding."""

    findings: tuple[AuditFinding, ...]
    unchecked: tuple[str, ...] = ()
    ignored: int = 0
    unused: tuple[Ignore, ...] = ()

    @property
    def is_sound(self) -> bool:
        """True if nothing was found."""
        return not self.findings

    def __str__(self) -> str:
        parts = [*map(str, self.findings), *(f"not examined: {reason}" for reason in self.unchecked)]
        count = len(self.findings)
        parts.append("no findings" if not count else f"{count} finding{'' if count == 1 else 's'}")
        return "\n".join(parts)


def leave_out_ignored(
    findings: Iterable[AuditFinding], unchecked: Iterable[str], ignore: Collection[Ignore | str]
) -> AuditReport:
    """Return a report without the findings to ignore.

    Raises:
        ValueError: An item of ``ignore`` names no check.
    """
    choices = [Ignore.parse(each) if isinstance(each, str) else each for each in ignore]
    found = list(findings)
    kept = [each for each in found if not any(choice.matches(each) for choice in choices)]
    unused = tuple(choice for choice in choices if not any(map(choice.matches, found)))
    return AuditReport(tuple(kept), tuple(unchecked), len(found) - len(kept), unused)
