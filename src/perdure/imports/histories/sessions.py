"""Import of histories of sessions, from a source that may still be written to, and their export.

A session at the source is a list of messages, at the target a history of ``Database.history``. Messages that
only the source has are added in one conditional write, so an import can be stopped at any time and repeated,
and a later import adds the messages that came since. A session that differs at the target is left as it is,
or replaced on request.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

from perdure.errors import Conflict, PerdureError, Unavailable, Unserialisable
from perdure.history.histories import SyncHistories, TaskBudget
from perdure.history.neutral_messages import NeutralMessage, to_neutral
from perdure.imports.source import DAMAGED

_ATTEMPTS = 5

SessionState = Literal["imported", "extended", "replaced", "unchanged", "skipped"]


class SourceSession(NamedTuple):
    """A session as a source has it: ``messages`` may be of any content, and ``budget`` is that of its task.
    If the session cannot be read, ``why`` is the reason."""

    id: str
    messages: Any = None
    budget: Mapping[str, Any] | None = None
    why: str = ""


class SessionSource(Protocol):
    """Sessions, opened for reading only."""

    @property
    def name(self) -> str:
        """Name for messages, without secrets."""
        ...

    def sessions(self) -> Iterator[SourceSession]:
        """Yield every session, in its state at that moment."""
        ...

    def close(self) -> None:
        """Release the source."""
        ...


class SessionReport(NamedTuple):
    """The result of a session's import: how many messages were added, and why it was skipped."""

    session: str
    state: SessionState
    messages: int = 0
    why: str = ""


@dataclass
class SessionCounts:
    """The results of the sessions of an import."""

    states: Counter[SessionState] = field(default_factory=Counter)
    messages: int = 0
    skipped: list[SessionReport] = field(default_factory=list)

    def add(self, report: SessionReport) -> None:
        """Count a session."""
        self.states[report.state] += 1
        self.messages += report.messages
        if report.state == "skipped":
            self.skipped.append(report)


class SessionImporter:
    """Imports sessions into a database.

    Args:
        histories: The histories of the target's tenant.
        replaces: True to replace a session that differs from the source's, instead of skipping it.
        dry_run: True to change nothing.
    """

    def __init__(self, histories: SyncHistories, *, replaces: bool = False, dry_run: bool = False) -> None:
        self._histories = histories
        self._replaces = replaces
        self._dry_run = dry_run

    def run(self, sessions: Iterable[SourceSession]) -> Iterator[SessionReport]:
        """Import sessions one after the other, and yield the result of each.

        Raises:
            Unavailable: The source or the target does not answer.
        """
        for session in sessions:
            yield self._import_session(session)

    def _import_session(self, session: SourceSession) -> SessionReport:
        if session.why:
            return SessionReport(session.id, "skipped", why=session.why)
        try:
            messages, budget = _parse(session)
            for left in reversed(range(_ATTEMPTS)):
                try:
                    return self._add_missing(session.id, messages, budget)
                except Conflict:
                    if not left:
                        raise
        except Unavailable:
            raise
        except PerdureError as error:
            return SessionReport(session.id, "skipped", why=str(error))
        except DAMAGED as error:
            why = f"its messages cannot be read ({type(error).__name__}); the source is damaged"
            return SessionReport(session.id, "skipped", why=why)
        raise AssertionError("the last attempt returns or raises")

    def _add_missing(
        self, session_id: str, messages: list[NeutralMessage], budget: TaskBudget | None
    ) -> SessionReport:
        stored = self._histories.load(session_id)
        same = _count_common(stored.messages, messages)
        if stored.version and same == len(messages):
            # The target has all messages of the source, and maybe further ones.
            return SessionReport(session_id, "unchanged")
        state: SessionState = "imported"
        if stored.version:
            state = "extended"
        store: Callable[..., object] = self._histories.commit
        if same < len(stored.messages):
            if not self._replaces:
                raise Conflict(
                    f"message {same + 1} differs from the one at the target, which went on by itself or was "
                    "written otherwise; what is there stays as it is (--replace replaces it)"
                )
            state, same, store = "replaced", 0, self._histories.replace
        if not self._dry_run:
            store(stored, messages[same:], budget=budget)
        return SessionReport(session_id, state, len(messages) - same)


def export_session(histories: SyncHistories, session_id: str) -> dict[str, Any] | None:
    """Return a session in the form of a line of a file; ``None`` if there is no such session."""
    found = histories.load(session_id)
    if not found.version:
        return None
    line: dict[str, Any] = {"session_id": session_id, "messages": found.messages}
    if found.budget != TaskBudget():
        line["budget"] = {"task": found.budget.task, "used": found.budget.used}
    return line


def _parse(session: SourceSession) -> tuple[list[NeutralMessage], TaskBudget | None]:
    messages = session.messages
    if isinstance(messages, str | bytes):
        try:
            messages = json.loads(messages)
        except ValueError as error:
            raise Unserialisable("its history is text, and not JSON") from error
    if not isinstance(messages, list):
        raise Unserialisable(f"its history is {type(messages).__name__}, not a list of messages")
    budget: Any = session.budget
    if budget is None:
        return to_neutral(messages), None
    if not isinstance(budget, Mapping):
        budget = {}
    task, used = budget.get("task"), budget.get("used")
    if not isinstance(task, str) or isinstance(used, bool) or not isinstance(used, int) or used < 0:
        raise Unserialisable("its budget is not an object with a task and the number used")
    return to_neutral(messages), TaskBudget(task, used)


def _count_common(one: list[NeutralMessage], other: list[NeutralMessage]) -> int:
    """Return how many messages at the start of two histories are the same."""
    count = 0
    for left, right in zip(one, other, strict=False):
        if left != right:
            break
        count += 1
    return count
