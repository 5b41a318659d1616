"""What a record says of one thread: who sent what and when, what was read, and how runs ended.

A thread's state is a list of entries, each unlike all others: ``m:ELEMENT`` for a message, ``s:RUN:STEP`` for
a step of a run, ``a:QUESTION=ANSWER`` for an answer that a question was given.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from .recording import Call

ACCEPT, UPDATE, ANSWER, EMPTY, CANCEL, RETRY = "accept", "update", "answer", "empty", "cancel", "retry"
READ, HISTORY, REPLY, RUN, DELETE = "read", "history", "reply", "run", "delete"
LISTING, JOIN, PRUNE = "listing", "join", "prune"
THREAD_CALLS = frozenset(
    {ACCEPT, UPDATE, ANSWER, EMPTY, CANCEL, RETRY, READ, HISTORY, REPLY, RUN, DELETE, JOIN, PRUNE}
)
SUCCESS, FAILED, GONE = "success", "error", "gone"
ENDS = frozenset({SUCCESS, FAILED, "timeout"})
"""Statuses that are the end of a run. One that is ``interrupted`` may still have a step under way."""
SETTLED = ENDS | {"interrupted", GONE}
"""What may be read of a run at the end of a history; a run that was rolled back is gone."""

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
    def acknowledged_at(self) -> float:
        """When it was acknowledged first; infinite if it never was."""
        return min((call.ended for call in self.calls if call.is_ok), default=math.inf)

    @property
    def settled_at(self) -> float:
        """When the last attempt was over; infinite if no attempt was answered."""
        return max((call.ended for call in self.calls if call.ended < math.inf), default=math.inf)

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
    def additions(self) -> dict[str, Sent]:
        """Messages and updates by their entries."""
        return _group_calls(self.of(ACCEPT, UPDATE), MESSAGE)

    @cached_property
    def answers(self) -> dict[str, Sent]:
        """Answers to questions by their values, which are all different."""
        return _group_calls(self.of(ANSWER), "")

    @cached_property
    def retries(self) -> dict[str, Sent]:
        """Requests to run a failed run again, by the run that failed."""
        return _group_calls(self.of(RETRY), "", by="run")

    @cached_property
    def observations(self) -> list[Observation]:
        """All that was read of the thread, in the order of the beginnings of the reads."""
        found: list[Observation] = []
        for call in self.of(READ, HISTORY, REPLY, JOIN):
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
            elif call.do == JOIN:
                found.append(Observation(call, tuple(call.answer["entries"]), is_latest=False))
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

    def whole_run(self, run: str) -> str | None:
        """Return the run that another one has become part of, or itself; ``None`` if it is gone."""
        last = self.statuses[run][-1].answer if run in self.statuses else {}
        return None if last.get("status") == GONE else last.get("part_of", run)

    def is_at_rest(self, began: float, ended: float, but: str) -> bool:
        """Return True if nothing happened to the thread in a time but the sending of one answer: every other
        call was over before, or came later, and every run had been seen to have ended."""
        for sent in (*self.additions.values(), *self.answers.values(), *self._others):
            if sent.element == but or sent.began > ended:
                continue
            if sent.settled_at > began or not all(self._was_seen_ended(run, began) for run in sent.runs):
                return False
        return True

    @property
    def _others(self) -> list[Sent]:
        return [Sent(call.id, (call,)) for call in self.of(EMPTY, CANCEL, DELETE)] + [*self.retries.values()]

    def _was_seen_ended(self, run: str, by: float) -> bool:
        return any(
            call.ended < by and call.answer["status"] in SETTLED for call in self.statuses.get(run, ())
        )

    @cached_property
    def is_deleted(self) -> bool:
        return any(not call.is_refused for call in self.of(DELETE))


def read_threads(calls: Iterable[Call]) -> list[ThreadFacts]:
    """Return the threads of a record."""
    found: dict[tuple[str, ...], ThreadFacts] = {}
    for call in calls:
        for part in _by_thread(call):
            found.setdefault(part.on, ThreadFacts(part.on)).calls.append(part)
    return list(found.values())


def _by_thread(call: Call) -> list[Call]:
    """Return a call as one of its thread, and a listing as a read of each thread in it."""
    if call.do == LISTING and call.is_ok:
        return [
            replace(call, do=READ, on=(*call.on, name), answer={"entries": entries})
            for name, entries in call.answer["threads"].items()
        ]
    return [call] if call.do in THREAD_CALLS else []


def run_of_step(entry: str) -> str:
    """Return the run that a step belongs to."""
    return entry.removeprefix(STEP).split(":", 1)[0]


def _group_calls(calls: Sequence[Call], prefix: str, by: str = "element") -> dict[str, Sent]:
    found: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        found[prefix + call.given[by]].append(call)
    return {entry: Sent(entry, tuple(each)) for entry, each in found.items()}
