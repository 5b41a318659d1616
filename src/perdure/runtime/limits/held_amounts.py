"""Amounts of a limit that a process holds for one key, by the last answer of the database, and those in
use."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from perdure.engine.documents import Document
from perdure.model.limits import HORIZON_US

HORIZON_S = HORIZON_US / 1_000_000


@dataclass(slots=True)
class CallCounts:
    """Number of calls that began, and their recent rate a second."""

    at: float = 0.0
    speed: float = 0.0
    since: int = 0

    def note(self, now: float) -> None:
        self.since += 1
        self.advance(now)

    def advance(self, now: float) -> float:
        if now - self.at >= HORIZON_S:
            speed = self.since / (now - self.at) if self.at else 0.0
            self.speed = max(speed, self.speed * 0.5)
            self.at, self.since = now, 0
        return self.speed


@dataclass(slots=True)
class HeldAmounts:
    """Amounts granted by the last answer of the database."""

    places: int = 0
    asked: int = 0
    allotted: int = 0
    money: int = 0
    may_exceed: bool = False
    until: float = 0.0
    renew_at: float = math.inf
    again: float = 0.0
    frees_at: float = math.inf
    day_ends: float | None = None
    mean_tokens: float = 0.0
    dearest: int = 0
    known: tuple[Document | None] | None = None
    last_at: int = 0


@dataclass(slots=True)
class UsedAmounts:
    """Amounts in use now, and used since the last request to the database."""

    places: int = 0
    peak: int = 0
    reserved: int = 0
    paid: int = 0
    debt: float = 0.0
    calls: CallCounts = field(default_factory=CallCounts)
