"""Runs and their notices: each ends, once, and every notice of one says what its end was.

A notice may be missing at the end of a record: its receiver was too slow, and it is sent for half an hour.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import pairwise

from .facts import ACCEPT, ANSWER, EMPTY, FAILED, REPLY, RETRY, SETTLED, ThreadFacts, read_threads
from .guarantees import Guarantee
from .recording import Call, Violation


def check_runs(calls: Iterable[Call]) -> list[Violation]:
    """Return what is wrong with the runs of a record and with their notices."""
    rules = (
        (Guarantee.NOT_FORGOTTEN, _find_unsettled_runs),
        (Guarantee.NOTHING_LOST, _find_changed_ends),
        (Guarantee.NOT_BLOCKED, _find_causeless_failures),
        (Guarantee.NOT_BLOCKED, _find_double_retries),
        (Guarantee.REPLIES, _untrue),
        (Guarantee.REPLIES, _early),
        (Guarantee.ONE_KEY, _keys),
        (Guarantee.ONE_KEY, _find_overtaken_notices),
    )
    return [
        Violation(guarantee, "/".join(thread.name), what)
        for thread in read_threads(calls)
        if not thread.is_deleted
        for guarantee, rule in rules
        for what in rule(thread)
    ]


def _find_unsettled_runs(thread: ThreadFacts) -> Iterator[str]:
    """Every acknowledged run has an end when the history has."""
    for call in thread.of(ACCEPT, ANSWER, EMPTY, RETRY):
        if not call.is_ok:
            continue
        seen = thread.statuses.get(call.answer["run"], [])
        if seen and seen[-1].answer["status"] not in SETTLED:
            yield f"the run of {call} is {seen[-1].answer['status']!r} at the end of the history"


def _find_changed_ends(thread: ThreadFacts) -> Iterator[str]:
    """A run that has ended is not otherwise later."""
    for run, seen in thread.statuses.items():
        end = thread.end_of(run)
        for call in seen:
            if end is not None and call.began > end.ended and call.answer["status"] != end.answer["status"]:
                yield f"{end} shows {end.answer}, and {call} later {call.answer}"
                break


def _find_causeless_failures(thread: ThreadFacts) -> Iterator[str]:
    """A run fails only if a message of it does: no outage and no end of a process fails one."""
    parts: dict[str, list[Call]] = defaultdict(list)
    for sent in thread.additions.values():
        for run in sent.runs:
            parts[thread.whole_run(run) or run] += sent.calls
    is_certain = all(call.is_ok or call.is_refused for call in thread.of(ACCEPT) if call.given.get("fails"))
    for run, calls in parts.items():
        if (
            is_certain
            and thread.has_ended(run, FAILED)
            and not any(c.given.get("fails", True) for c in calls)
        ):
            yield f"the run {run} of {calls[0]} failed, and none of its messages does"


def _find_double_retries(thread: ThreadFacts) -> Iterator[str]:
    """A failed run is run again once, however often that is asked for."""
    for run, sent in thread.retries.items():
        if len(sent.runs) > 1:
            yield f"the failed run {run} was run again as {sorted(sent.runs)}"


def _untrue(thread: ThreadFacts) -> Iterator[str]:
    for reply in thread.of(REPLY):
        end = thread.end_of(reply.given["run"])
        if end is not None and end.answer["status"] != reply.given["status"]:
            yield f"{reply} tells of a run that ended with {end.answer['status']!r}"


def _early(thread: ThreadFacts) -> Iterator[str]:
    """Who was told of an end reads it."""
    for reply in thread.of(REPLY):
        for call in thread.statuses.get(reply.given["run"], ()):
            if call.began > reply.ended and call.answer["status"] in ("pending", "running"):
                yield f"{reply} tells of the end of a run that {call.id} shows as {call.answer['status']!r}"
                break


def _keys(thread: ThreadFacts) -> Iterator[str]:
    """A run has one notice, under one key."""
    keys: dict[str, str] = {}
    for reply in thread.of(REPLY):
        run, key = reply.given["run"], reply.given["key"]
        if keys.setdefault(run, key) != key:
            yield f"the run {run} was told under the keys {keys[run]!r} and {key!r}"


def _find_overtaken_notices(thread: ThreadFacts) -> Iterator[str]:
    """Notices arrive in the order of their runs."""
    first: dict[str, float] = {}
    for reply in thread.of(REPLY):
        first.setdefault(reply.given["run"], reply.began)
    place = {entry: number for number, entry in enumerate(thread.final)}
    told = sorted(
        (place[entry], first[run], entry)
        for entry, sent in thread.additions.items()
        for run in sent.runs
        if entry in place and run in first and thread.whole_run(run) == run
    )
    for (_, earlier, one), (_, later, other) in pairwise(told):
        if later < earlier:
            yield f"the notice of the run of {other!r} arrived before that of {one!r}"
