"""Histories without checkpoints: lists that a turn extends only if they are as its author read them.

Each turn adds elements that no other turn adds, so that the longest list read has the whole order. A session
with a time to live begins again when that is over.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from .guarantees import Guarantee
from .orders import first_difference, is_prefix, real_time_breaks
from .recording import Call, Violation

LOAD, TURN = "load", "turn"


def check_sessions(calls: Iterable[Call]) -> list[Violation]:
    """Return what is wrong with the sessions of a record."""
    by_session: dict[tuple[str, ...], list[Call]] = defaultdict(list)
    for call in calls:
        if call.do in (LOAD, TURN):
            by_session[call.on].append(call)
    return [
        Violation(Guarantee.TURNS, "/".join(session), what)
        for session, each in by_session.items()
        for what in (_check_expiring if _expires(each) else _check_session)(each)
    ]


def _expires(calls: Iterable[Call]) -> bool:
    return any(call.given.get("ttl_s") is not None for call in calls)


def _check_expiring(calls: Sequence[Call]) -> Iterator[str]:
    """Until its time to live is over, a session has what its last acknowledged turn was made of, and that
    turn behind it."""
    turns = [call for call in calls if call.do == TURN and call.is_ok]
    for load in calls:
        if load.do != LOAD:
            continue
        if load.answer.get("error") == "Corrupt":
            yield f"{load} finds a part missing that nobody has removed"
        before = [turn for turn in turns if turn.ended < load.began]
        if not load.is_ok or not before:
            continue
        last = max(before, key=lambda turn: turn.began)
        least = [*last.given["base"], *last.given["elements"]]
        is_alive = load.ended < last.began + last.given["ttl_s"]
        if is_alive and not is_prefix(least, load.answer["elements"]):
            yield f"{load} has {first_difference(load.answer['elements'], least)}, after {last.id}"


def _check_session(calls: Sequence[Call]) -> Iterator[str]:
    loads = [call for call in calls if call.do == LOAD and call.is_ok]
    whole: list[str] = max((load.answer["elements"] for load in loads), key=len, default=[])
    for load in loads:
        elements = load.answer["elements"]
        if not is_prefix(elements, whole):
            yield f"{load} has {first_difference(elements, whole)}"
    places: dict[str, int] = {}
    for place, element in enumerate(whole):
        if element in places:
            yield f"{element!r} is there twice"
        places[element] = place
    turns = [call for call in calls if call.do == TURN]
    last = max((load.began for load in loads), default=0.0)
    yield from _check_turns(turns, whole, places, last)
    if strange := places.keys() - {element for turn in turns for element in turn.given["elements"]}:
        yield f"{sorted(strange)[:3]} were added by no turn"
    writes = [
        (turn.began, turn.ended, places[turn.given["elements"][-1]] + 1)
        for turn in turns
        if turn.is_ok and turn.given["elements"][-1] in places
    ]
    reads = [(load.began, load.ended, len(load.answer["elements"])) for load in loads]
    yield from (f"{what}" for what in real_time_breaks(writes, reads))


def _check_turns(
    turns: Sequence[Call], whole: Sequence[str], places: dict[str, int], last: float
) -> Iterator[str]:
    """Look for each turn in the whole list; one that ended after the last load may be missing there."""
    attempts: dict[str, list[Call]] = defaultdict(list)
    for turn in turns:
        attempts[turn.given["elements"][0]].append(turn)
    for each in attempts.values():
        elements: list[str] = each[0].given["elements"]
        present = [element for element in elements if element in places]
        acknowledged = [turn for turn in each if turn.is_ok and turn.ended < last]
        if not present:
            if acknowledged:
                yield f"{acknowledged[0]} is lost"
            continue
        at = places.get(elements[0], -1)
        if whole[at : at + len(elements)] != elements:
            yield f"of the turn {elements} there is {present}, not all of it together"
        if all(turn.is_refused for turn in each):
            yield f"{each[-1]} is there nevertheless"
        bases = [turn.given["seen"] for turn in each if not turn.is_refused and "seen" in turn.given]
        if bases and at not in bases and len(bases) == len(each):
            yield f"the turn {elements} stands at {at}, and was made of a history of {bases} elements"
