"""Linearizability of items: each is a register that is read, written, removed, and changed by comparison.

Every key is decided by itself, as a history of independent objects is linearizable if that of each is. All
orders that the times permit are followed at once, from one answer to the next: what is kept of an order is
the value of the register, and which calls under way have already taken effect. No order left: a violation.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .guarantees import Guarantee
from .recording import Call, Violation

PUT, GET, REMOVE, EXCHANGE = "put", "get", "remove", "exchange"
_MOST = 200_000


class _Order(NamedTuple):
    """An order of calls so far: what the register has, and the calls under way that took effect in it."""

    value: str | None
    effective: frozenset[int]


def check_registers(calls: Iterable[Call]) -> list[Violation]:
    """Return the items whose calls and answers no order explains."""
    by_item: dict[tuple[str, ...], list[Call]] = defaultdict(list)
    for call in calls:
        if call.do in (PUT, GET, REMOVE, EXCHANGE):
            by_item[call.on].append(call)
    found = (check_register(each) for each in by_item.values())
    return [violation for violation in found if violation is not None]


def check_register(calls: Sequence[Call]) -> Violation | None:
    """Return what is wrong with the calls of one item, which is absent before them.

    Raises:
        OverflowError: more orders are possible than can be followed.
    """
    relevant = _relevant(calls)
    times = sorted(
        [(call.began, 0, n) for n, call in enumerate(relevant)]
        + [(call.ended, 1, n) for n, call in enumerate(relevant) if call.is_ok]
    )
    under_way: set[int] = set()
    orders = {_Order(None, frozenset())}
    for _, has_ended, number in times:
        if not has_ended:
            under_way.add(number)
            continue
        orders = _advance(orders, number, under_way, relevant)
        under_way.discard(number)
        if not orders:
            return Violation(Guarantee.REGISTERS, "/".join(relevant[number].on), _explain(relevant, number))
    return None


def _relevant(calls: Sequence[Call]) -> list[Call]:
    """Return the calls that matter: a refused one did nothing, a read without an answer says nothing, and a
    write that may have happened and that no one saw can always be said not to have."""
    seen = {call.answer.get("value") for call in calls if call.do == GET and call.is_ok}
    seen |= {call.given.get("seen") for call in calls if call.do == EXCHANGE}
    kept: list[Call] = []
    for call in sorted(calls, key=lambda call: call.began):
        is_write = call.do in (PUT, EXCHANGE) and call.given["value"] in seen
        is_hidden = not call.is_ok and not (is_write or call.do == REMOVE)
        if not call.is_refused and not is_hidden:
            kept.append(call)
    return kept


def _advance(orders: set[_Order], due: int, under_way: set[int], calls: Sequence[Call]) -> set[_Order]:
    """Return every continuation of the orders in which the due call has taken effect."""
    reached, open_ends = set[_Order](), list(orders)
    known = set(orders)
    while open_ends:
        order = open_ends.pop()
        if due in order.effective:
            reached.add(_Order(order.value, order.effective - {due}))
            continue
        for number in under_way - order.effective:
            after = _apply(calls[number], order.value)
            if after is None:
                continue
            (value,) = after
            further = _Order(value, order.effective | {number})
            if further not in known:
                known.add(further)
                open_ends.append(further)
        if len(known) > _MOST:
            raise OverflowError(
                f"the item {'/'.join(calls[due].on)} has too many calls at once to be decided"
            )
    return reached


def _apply(call: Call, value: str | None) -> tuple[str | None] | None:
    """Return the register's value after a call, or ``None`` if it cannot have been answered so."""
    if call.do == GET:
        return (value,) if call.answer.get("value") == value else None
    if call.do == EXCHANGE:
        is_equal = call.given["seen"] == value
        if call.is_ok and call.answer["is_exchanged"] != is_equal:
            return None
        return (call.given["value"],) if is_equal else (value,)
    return (call.given["value"] if call.do == PUT else None,)


def _explain(calls: Sequence[Call], number: int) -> str:
    due = calls[number]
    before = [call for call in calls if call.do != GET and call.began < due.ended][-6:]
    return f"no order explains {due} with {due.answer}; the writes before are {', '.join(map(str, before))}"
