"""What a record says of one thread: who sent what and when, what was read, and how runs ended.

A thread's state is a list of entries, each unlike all others: ``m:ELEMENT`` for a message, ``s:RUN:STEP`` for
a step of a run, ``a:QUESTION=ANSWER`` for an answer that a question was given.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from .recording import Call

ACCEPT, UPDATE, ANSWER, EMPTY, CANCEL, RETRY = "accept", "update", "answer", "empty", "cancel", "retry"
READ, HISTORY, REPLY, RUN, DELETE = "read", "history", "reply", "run", "delete"
THREAD_CALLS = frozenset({ACCEPT, UPDATE, ANSWER, EMPTY, CANCEL, RETRY, READ, HISTORY, REPLY, RUN, DELETE})
SUCCESS = "success"
ENDS = frozenset({SUCCESS, "error", "timeout"})
"""Statuses that are the end of a run. One that is ``interrupted`` may still have a step under way."""

MESSAGE, STEP, ANSWERED = "m:", "s:", "a:"


@dataclass(frozen=True, slots=True)
class Observation:
    """Entries that were read. ``is_latest`` is true for what the thread had at that moment, false for what it
    had at some time before."""

    call: Call
    entries: tuple[str, ...]
    is_latest: bool = True

    @property
    def began(self) -> float:
        return self.call.began


@dataclass(frozen=True, slots=True)
class Sent:
    """An element and all attempts to send it."""

    element: str
    calls: tuple[Call, ...]

    @property
    def began(self) -> float:
        return min(call.began for call in self.calls)

    @property
    def acknowledged(self) -> float:
        """When it was acknowledged first; infinite if it never was."""
        return min((call.ended for call in self.calls if call.is_ok), default=math.inf)

    @property
    def is_refused(self) -> bool:
        return all(call.is_refused for call in self.calls)

    @property
    def runs(self) -> frozenset[str]:
        return frozenset(call.answer["run"] for call in self.calls if call.is_ok and "run" in call.answer)


@dataclass
class ThreadFacts:
    """A thread of a record."""

    name: tuple[str, ...]
    calls: list[Call] = field(default_factory=list[Call])

    def of(self, *kinds: str) -> list[Call]:
        return [call for call in self.calls if call.do in kinds]

    @cached_property
    def sent(self) -> dict[str, Sent]:
        """Messages and updates by their entries."""
        return _sent(self.of(ACCEPT, UPDATE), MESSAGE)

    @cached_property
    def answers(self) -> dict[str, Sent]:
        """Answers to questions by their values, which are all different."""
        return _sent(self.of(ANSWER), "")

    @cached_property
    def observations(self) -> list[Observation]:
        """All that was read of the thread, in the order of the beginnings of the reads."""
        found: list[Observation] = []
        for call in self.of(READ, HISTORY, REPLY):
            if not call.is_ok:
                continue
            if call.do == HISTORY:
                states = call.answer["states"]
                found += [
                    Observation(call, tuple(state["entries"]), is_latest=place == 0)
                    for place, state in enumerate(states)
                ]
            elif call.do == READ:
                found.append(Observation(call, tuple(call.answer["entries"])))
            else:
                found.append(Observation(call, tuple(call.given["entries"]), is_latest=False))
        return found

    @cached_property
    def final(self) -> tuple[str, ...]:
        """The entries that were read last."""
        latest = [each for each in self.observations if each.is_latest]
        return max(latest, key=lambda each: each.began).entries if latest else ()

    @cached_property
    def final_set(self) -> frozenset[str]:
        return frozenset(self.final)

    @cached_property
    def statuses(self) -> dict[str, list[Call]]:
        """What was read of each run, in time."""
        found: dict[str, list[Call]] = defaultdict(list)
        for call in self.of(RUN):
            if call.is_ok:
                found[call.given["run"]].append(call)
        return found

    def end_of(self, run: str) -> Call | None:
        """Return the first call that showed the end of a run, if one did."""
        return next((call for call in self.statuses.get(run, ()) if call.answer["status"] in ENDS), None)

    def has_ended(self, run: str, status: str) -> bool:
        end = self.end_of(run)
        return end is not None and end.answer["status"] == status

    @cached_property
    def is_deleted(self) -> bool:
        return any(not call.is_refused for call in self.of(DELETE))


def read_threads(calls: Iterable[Call]) -> list[ThreadFacts]:
    """Return the threads of a record."""
    found: dict[tuple[str, ...], ThreadFacts] = {}
    for call in calls:
        if call.do in THREAD_CALLS:
            found.setdefault(call.on, ThreadFacts(call.on)).calls.append(call)
    return list(found.values())


def run_of_step(entry: str) -> str:
    """Return the run that a step belongs to."""
    return entry.removeprefix(STEP).split(":", 1)[0]


def _sent(calls: Sequence[Call], prefix: str) -> dict[str, Sent]:
    found: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        found[prefix + call.given["element"]].append(call)
    return {entry: Sent(entry, tuple(each)) for entry, each in found.items()}
