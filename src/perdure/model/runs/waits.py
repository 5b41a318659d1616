"""Waits of a run: deadlines, defaults and reminders of its questions, sleeps, and waits for signals. Pure
rules over the note of the run.

A wait belongs to an interrupt and is found by the interrupt's id. Whether it still counts follows from the
checkpoint, as for every question: once the interrupt is not asked any more, the wait is over. Times are
microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from perdure.model.runs.messages import replace_surrogates

WAITS = "waits"
"""Entry of the note of a run with its waits, by the ids of their interrupts."""

HANDED_OVER = "handed_over"
"""Entry of the note of a run whose waits went to another database with a copy of its thread: the waits as
they were, and whether they are known to have arrived."""

BY_WAIT = "by_wait"
"""Option of an answer that comes from a deadline or a signal and not from a person."""

WAITS_FOR = "waits_for"
"""Entry of the value of an interrupt that no person answers, with what it waits for: a time or a signal."""

_MARK = "__perdure__"
EXPIRED: Mapping[str, Any] = {_MARK: "expired"}
"""Answer that a question without a default gets when its deadline passes."""

_GIVEN, _ANSWER = "given", "answer"

Kind = Literal["question", "sleep", "signal"]
"""The event that ends a wait: an answer, its time alone, or a signal of its name."""


NAME_MAX = 200
"""Maximum number of characters of the name of a signal."""


@dataclass(frozen=True, slots=True)
class Wait:
    """A wait of one interrupt.

    Attributes:
        kind: what ends it.
        until: its deadline, ``None`` for none; while the run goes on, a duration that counts from the run's
            end.
        default: the answer at the deadline, in a tuple; empty for ``EXPIRED``.
        remind: times of its reminders, ascending; while the run goes on, durations from the run's end.
        reminded: the number of reminders that are past.
        name: name of the signal.
        replies: what a reminder sends to the run's channel.
        is_spent: its deadline has given an answer. It gives no second answer, even if the run that got the
            first one fails.
    """

    kind: Kind
    until: int | None = None
    default: tuple[Any, ...] = ()
    remind: tuple[int, ...] = ()
    reminded: int = 0
    name: str = ""
    replies: tuple[Any, ...] = ()
    is_spent: bool = False

    def begin(self, now: int) -> Wait:
        """Return the wait with times, its durations counted from now."""
        until = None if self.until is None else now + self.until
        return replace(self, until=until, remind=tuple(now + after for after in self.remind))

    @property
    def takes_marks(self) -> bool:
        """True if the node gets its answer by ``unmark``: it waits for a signal, or asks a question that may
        expire. Only those are answered by ``EXPIRED``. Any other question may be one of LangGraph's own."""
        if self.kind == "question":
            return self.until is not None and not self.default
        return self.kind == "signal"

    @property
    def answer(self) -> Any:
        """The answer at the deadline."""
        if not self.default:
            return dict(EXPIRED)
        if self.takes_marks:
            return mark_given(self.default[0])
        return self.default[0]

    @property
    def due_at(self) -> int | None:
        """Time of its next reminder or of its deadline, ``None`` if neither comes any more."""
        if self.is_spent:
            return None
        times = self.remind[self.reminded :][:1]
        if self.until is not None:
            times = (*times, self.until)
        return min(times, default=None)

    def has_expired(self, now: int) -> bool:
        """Return True if the deadline is to give its answer."""
        return self.until is not None and not self.is_spent and self.until <= now

    def is_to_remind(self, now: int) -> bool:
        """Return True if a reminder is due."""
        return not self.is_spent and any(at <= now for at in self.remind[self.reminded :])

    def spend(self) -> Wait:
        """Return the wait whose deadline has given its answer."""
        return replace(self, is_spent=True)

    def note_reminders(self, now: int) -> Wait:
        """Return the wait with the due reminders noted as past. Several that fell due while no process looked
        count as one."""
        return replace(self, reminded=sum(at <= now for at in self.remind))

    def dump(self) -> dict[str, Any]:
        """Return the wait as it is stored, without what is not set."""
        fields = {
            "kind": self.kind,
            "until": self.until,
            "default": list(self.default),
            "remind": list(self.remind),
            "reminded": self.reminded,
            "name": self.name,
            "replies": list(self.replies),
            "is_spent": self.is_spent,
        }
        return {name: value for name, value in fields.items() if value not in (None, [], 0, "", False)}

    @classmethod
    def read(cls, stored: Mapping[str, Any]) -> Wait:
        """Return a stored wait."""
        fields: dict[str, Any] = dict(stored)
        for name in ("default", "remind", "replies"):
            fields[name] = tuple(stored.get(name, ()))
        return cls(**fields)


Waits = Mapping[str, Wait]
"""Waits by the ids of their interrupts."""


def mark_given(answer: Any) -> Any:
    """Return an answer that a person or a signal gives to a wait which ``takes_marks``: one that looks like a
    mark of this module is enclosed in one, and so is never taken for ``EXPIRED``."""
    if isinstance(answer, Mapping) and _MARK in answer:
        return {_MARK: _GIVEN, _ANSWER: answer}
    return answer


def unmark(answer: Any) -> Any:
    """Return the answer that ``mark_given`` has enclosed, and any other as it is."""
    if isinstance(answer, Mapping) and set(answer) == {_MARK, _ANSWER} and answer[_MARK] == _GIVEN:
        return answer[_ANSWER]
    return answer


def mark_resume(resume: Any, asked: Sequence[str], waits: Waits) -> Any:
    """Return what a person's answer resumes a graph with, each answer marked as its wait needs it.

    Args:
        resume: the answer to the only interrupt of ``asked``, or answers by the ids of some of them.
        asked: the interrupts that the person answers.
        waits: the waits of the run that asked.
    """
    marking = {name for name in asked if name in waits and waits[name].takes_marks}
    if isinstance(resume, Mapping) and resume and resume.keys() <= set(asked):
        return {name: mark_given(answer) if name in marking else answer for name, answer in resume.items()}
    return mark_given(resume) if marking else resume


def read_waits(note: Mapping[str, Any]) -> dict[str, Wait]:
    """Return the waits in the note of a run."""
    return {interrupt_id: Wait.read(stored) for interrupt_id, stored in note.get(WAITS, {}).items()}


def with_waits(note: Mapping[str, Any], waits: Waits) -> dict[str, Any]:
    """Return the note of a run with these waits."""
    rest = {name: value for name, value in note.items() if name != WAITS}
    if not waits:
        return rest
    return {**rest, WAITS: {interrupt_id: wait.dump() for interrupt_id, wait in waits.items()}}


def note_hand_over(note: Mapping[str, Any], *, has_arrived: bool = False) -> dict[str, Any]:
    """Return the note of a run whose waits go on in another database."""
    handed = note.get(HANDED_OVER, {}).get(WAITS) or note.get(WAITS, {})
    return {**with_waits(note, {}), HANDED_OVER: {WAITS: handed, "has_arrived": has_arrived}}


def note_take_over(note: Mapping[str, Any]) -> dict[str, Any]:
    """Return the note of a run in which waits that were handed over are in force again."""
    rest = {name: value for name, value in note.items() if name != HANDED_OVER}
    if HANDED_OVER in note:
        return {**rest, WAITS: note[HANDED_OVER][WAITS]}
    return rest


def after_run(
    new: Waits, before: Waits, answered: Iterable[str], now: int, *, is_answer: bool
) -> dict[str, Wait]:
    """Return the waits of a run that ends and leaves questions.

    A wait from before the run keeps its times if the run has asked its interrupt again or has not answered
    it.

    Args:
        new: the waits that the run has begun, with durations from the run's end.
        before: the waits of the run that asked the question that was open when this run began.
        answered: the interrupts that it has answered.
        now: the time of its end.
        is_answer: false for a run that replaced the question.
    """
    gone = set(answered)
    kept = {name: wait for name, wait in before.items() if is_answer and name not in gone}
    for name, wait in new.items():
        kept[name] = wait.begin(now)
        if name in before and not before[name].is_spent:
            kept[name] = before[name]
    return kept


def next_due(waits: Iterable[Wait]) -> int | None:
    """Return the earliest time at which one of some waits is due, ``None`` if none is."""
    return min((at for wait in waits if (at := wait.due_at) is not None), default=None)


def find_unanswerable(note: Mapping[str, Any]) -> frozenset[str]:
    """Return the interrupts of a run that people do not answer: sleeps, and waits for signals."""
    return frozenset(name for name, wait in note.get(WAITS, {}).items() if wait["kind"] != "question")


def is_unanswerable(waits: Waits, interrupt_id: str) -> bool:
    """Return True if an interrupt takes no answer of a person: it belongs to a sleep or to a wait for a
    signal."""
    return interrupt_id in waits and waits[interrupt_id].kind != "question"


def require_name(name: object) -> str:
    """Return the name of a signal; ``ValueError`` if it is not valid."""
    if not isinstance(name, str) or not 0 < len(name) <= NAME_MAX or replace_surrogates(name) != name:
        raise ValueError(f"the name of a signal is a text of 1 to {NAME_MAX} characters, not {name!r:.100}")
    return name
