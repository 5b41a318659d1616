"""Amounts of a limit for one key: those that the database's last answer granted to a process, and those in
use."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from perdure.engine.documents import Document
from perdure.model.limits import HORIZON_US

HORIZON_S = HORIZON_US / 1_000_000


@dataclass(slots=True)
class CallCounts:
    """Calls that began: ``count`` is their number after the time ``counted_from``, ``speed`` their recent
    rate a second."""

    counted_from: float = 0.0
    speed: float = 0.0
    count: int = 0

    def note(self, now: float) -> None:
        self.count += 1
        self.advance(now)

    def advance(self, now: float) -> float:
        if now - self.counted_from >= HORIZON_S:
            speed = self.count / (now - self.counted_from) if self.counted_from else 0.0
            self.speed = max(speed, self.speed * 0.5)
            self.counted_from, self.count = now, 0
        return self.speed


@dataclass(slots=True)
class HeldAmounts:
    """Amounts granted by the last answer of the database. Times are those of the event loop's clock.

    Attributes:
        places: Places that this process holds.
        asked: Places that it requested.
        allotted: Places that it may fill while other processes wait.
        money: Amount of the budget that it holds.
        may_exceed: True if one call may begin although its cost may exceed ``money``.
        until: The end of the lease of places and money.
        renew_at: The time at which the lease is renewed.
        next_request_at: The earliest time of another request.
        more_at: The time at which more may be granted.
        frees_at: The time at which places of a process that died become free.
        day_ends: The time at which a used up budget is reset, ``None`` if it is not used up.
        mean_tokens: Average number of tokens of a call.
        dearest: The highest cost of a call, set aside for each one; 0 if unknown.
        stored_dearest: The highest cost that the database knows.
        known: The state's document in a tuple, if the next request can start from it without reading it.
        last_at: The database's time of the last request, in microseconds.
    """

    places: int = 0
    asked: int = 0
    allotted: int = 0
    money: int = 0
    may_exceed: bool = False
    until: float = 0.0
    renew_at: float = math.inf
    next_request_at: float = 0.0
    more_at: float = 0.0
    frees_at: float = math.inf
    day_ends: float | None = None
    mean_tokens: float = 0.0
    dearest: int = 0
    stored_dearest: int = 0
    known: tuple[Document | None] | None = None
    last_at: int = 0


@dataclass(slots=True)
class UsedAmounts:
    """Amounts in use now, and used since the last request to the database.

    Attributes:
        places: Places in use.
        peak: The greatest number of them since the last request.
        reserved: Money that is set aside for the calls under way.
        paid: Cost of ended calls that the database does not know yet.
        debt: Tokens used without a permit that the database does not know yet, or, below 0, paid for and not
            used.
        calls: The calls that began.
    """

    places: int = 0
    peak: int = 0
    reserved: int = 0
    paid: int = 0
    debt: int = 0
    calls: CallCounts = field(default_factory=CallCounts)
