"""All checks of a record, in one list."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from .questions import check_questions
from .recording import Call, Violation, read_calls
from .registers import check_registers
from .runs import check_runs
from .sessions import check_sessions
from .threads import check_threads

CHECKS = (check_threads, check_questions, check_runs, check_registers, check_sessions)


def check_calls(calls: Sequence[Call]) -> list[Violation]:
    """Return every violation of a record."""
    return [violation for check in CHECKS for violation in check(calls)]


def check_file(file: Path) -> list[Violation]:
    """Return every violation of a record in a file."""
    with file.open() as lines:
        return check_calls(read_calls(lines))


def count_calls(calls: Sequence[Call]) -> dict[str, dict[str, int]]:
    """Return how many calls of each kind had each outcome, with the answer where that is not a success."""
    counted: dict[str, dict[str, int]] = {}
    for (do, outcome), count in sorted(Counter((call.do, _outcome(call)) for call in calls).items()):
        counted.setdefault(do, {})[outcome] = count
    return counted


def _outcome(call: Call) -> str:
    why = "" if call.is_ok else call.answer.get("error", call.answer.get("status", ""))
    return f"{call.outcome} ({why})" if why else call.outcome
