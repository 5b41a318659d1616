"""Rules of limits that processes share: what a process may use of a limit, given what all others hold of it.

A limit has one state for each of its keys, e.g. for each user. A state is changed as a whole, by
compare-and-set. A process asks for a share ahead of its calls and hands it out to them by itself:

- of a rate, a span of time in which each permit has its moment. A permit may be used from its moment on, and
  lapses after the time in which a burst gathers: so nothing has to be given back, a process that dies loses
  at most its span, and in no window of time more is used than a burst and the rate times the window. Tokens
  that were used without permits are owed: none are given until as many have lapsed;
- of a concurrency, places with a lease;
- of a budget, an amount that counts as used until the process has reported its spending. An amount held by a
  process that died counts as spent.

Times are microseconds of the database's clock, amounts of money millionths of the currency.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple
from zoneinfo import ZoneInfo

from perdure.model.budget_days import day_of, find_spending_ends

HORIZON_US = 1_000_000
"""How far ahead permits of a rate are given out."""
LEASE_US = 3_000_000
"""Duration of a process's lease on places and money; its demand counts for the same time."""
SKEW_US = 20_000
"""Time by which a permit lapses early: processes know the database's time only to this precision."""
MONEY = 1_000_000
_MINUTE_US = 60_000_000
_LONGEST_US = 100 * 366 * 24 * 60 * _MINUTE_US
_CHUNK_CALLS, _CHUNK_PART = 8, 16
"""Most that a process takes of a budget: the cost of so many calls, and such a fraction of the rest."""

Target = Literal["model", "tool", "run"]
AtEnd = Literal["refuse", "wait"]
BY = ("user", "model", "tool", "graph", "assistant")
AMOUNTS = ("of", "concurrency", "rate", "burst", "tokens", "budget", "timezone", "at_end")
"""Fields of a limit that are stored with its state, so that a reader of the state needs no configuration."""
_NOT_BY: Mapping[Target, tuple[str, ...]] = {"model": ("tool",), "tool": ("model",), "run": ("model", "tool")}


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedLimit:
    """Limit on calls of models or tools, or on runs, over all processes that use a database.

    Args:
        of: The limited work: calls within nodes, of a ``"model"`` or a ``"tool"``, or a whole ``"run"``,
            which waits in its queue and holds nothing meanwhile.
        names: Patterns of the names of models or tools; every one by default.
        graphs: Patterns of the names of the graphs whose runs or calls count; by default all.
        by: The subjects that have an amount of their own, of ``"user"``, ``"model"``, ``"tool"``, ``"graph"``
            and ``"assistant"``; by default all share one.
        concurrency: The number that may be under way at once.
        rate: The number a minute that may begin. A run that is tried again keeps its count.
        burst: The number that may begin at once after a pause; by default that of 5 seconds, at least 2.
        tokens: Tokens of models a minute. A call begins if as many are free as calls take on average; what it
            took is counted when it ends.
        budget: Money a day, in the currency of the prices. At most one call begins when the rest is less than
            the amount that is set aside for it.
        timezone: The time zone in which a day of the budget begins.
        at_end: The effect of a used-up budget: ``"refuse"`` fails the call and its run, ``"wait"`` postpones
            the run until the next day.
        cheaper: A model, e.g. ``"openai:gpt-4o-mini"``, with which runs go on when a budget is used up: they
            get it as ``model`` among their configurable values. Its calls do not count towards the budget.
        wait: Seconds for which a call within a node waits for its turn; then its run is put off, and
            goes on from its last step.
        refuse: True refuses a run that would have to wait when it is submitted, with ``LimitReached``.

    Raises:
        ValueError: A field is out of range; the message has the valid range.
    """

    of: Target = "model"
    names: tuple[str, ...] = ()
    graphs: tuple[str, ...] = ()
    by: tuple[str, ...] = ()
    concurrency: int | None = None
    rate: float | None = None
    burst: int | None = None
    tokens: float | None = None
    budget: float | None = None
    timezone: str = "UTC"
    at_end: AtEnd = "refuse"
    cheaper: str | None = None
    wait: float = 60.0
    refuse: bool = False

    def __post_init__(self) -> None:
        for name in ("names", "graphs", "by"):
            value = getattr(self, name)
            if isinstance(value, str) or not all(isinstance(each, str) and each for each in value):
                raise ValueError(f"{name} is a list of names, e.g. [{str(value)!r}], not {value!r}")
            object.__setattr__(self, name, tuple(value))
        if self.of not in _NOT_BY:
            raise ValueError(f"of is 'model', 'tool' or 'run', not {self.of!r}")
        if unknown := [each for each in self.by if each not in BY]:
            raise ValueError(f"by is of {', '.join(BY)}, not {unknown[0]!r}")
        if other := [each for each in self.by if each in _NOT_BY[self.of]]:
            raise ValueError(f"a limit of {self.of!r} has no {other[0]!r} to be counted by")
        if self.of == "run" and self.names:
            raise ValueError("a limit of runs has no names of models or tools; name graphs=…")
        if type(self.refuse) is not bool:
            raise ValueError(f"refuse is true or false, not {self.refuse!r}")
        if self.refuse and self.of != "run":
            raise ValueError("refuse is of limits of runs, which are submitted; set of='run'")
        self._require_amounts()
        try:
            ZoneInfo(self.timezone)
        except (ValueError, KeyError, OSError):
            raise ValueError(f"timezone is a name such as 'Europe/Berlin', not {self.timezone!r}") from None
        if self.at_end not in ("refuse", "wait"):
            raise ValueError(f"at_end is 'refuse' or 'wait', not {self.at_end!r}")

    def _require_amounts(self) -> None:
        amounts = ("concurrency", "rate", "tokens", "budget")
        if all(getattr(self, name) is None for name in amounts):
            raise ValueError(f"a limit sets one of {', '.join(amounts)}")
        for name, least in (("concurrency", 1), ("burst", 2)):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not least <= value <= 1_000_000):
                raise ValueError(f"{name} is a whole number from {least} to 1,000,000, not {value!r}")
        for name in ("rate", "tokens", "budget", "wait"):
            value = getattr(self, name)
            if value is None:
                continue
            if type(value) not in (int, float) or not math.isfinite(value) or value <= 0 or value > 1e12:
                raise ValueError(f"{name} is a number above 0, and at most 1e12, not {value!r:.40}")
        if self.of != "model" and (self.tokens is not None or self.budget is not None):
            what = "calls of tools" if self.of == "tool" else "runs"
            raise ValueError(f"{what} have no tokens and no price; limit their rate or concurrency")
        if self.cheaper is not None and (self.budget is None or "model" in self.by):
            raise ValueError("cheaper is of a budget that is not counted by model; set the budget, too")
        if self.cheaper is not None and not str(self.cheaper).strip():
            raise ValueError(f"cheaper is a model, e.g. 'openai:gpt-4o-mini', not {self.cheaper!r}")
        if self.burst is not None and self.rate is None:
            raise ValueError("burst is of a rate; set the rate, too")
        bursts = {
            "rate": self.burst_size * self.interval_us,
            "tokens": self.token_burst * self.token_interval_us,
        }
        for name, gather_us in bursts.items():
            if gather_us > _LONGEST_US:
                raise ValueError(
                    f"{name} is too low with {getattr(self, name):g} a minute: a burst would take more than "
                    "100 years to gather"
                )

    @property
    def amounts(self) -> dict[str, Any]:
        """The fields that say how much the limit allows, for ``with_amounts`` and for display."""
        return {name: value for name in AMOUNTS if (value := getattr(self, name)) is not None}

    def with_amounts(self, amounts: Mapping[str, Any]) -> SharedLimit:
        """Return the limit with other amounts; raises ``ValueError`` as the class does, ``TypeError`` for a
        field that does not exist."""
        if amounts:
            return replace(self, **amounts)
        return self

    def counts(self, name: str, graph: str) -> bool:
        """Return True if a call of a model or tool in a graph, or a run of the graph, counts towards it."""
        # Only the part before the first colon can be a provider: names of models have colons, too.
        cheaper = self.cheaper or ""
        is_cheaper_model = bool(cheaper) and name in (cheaper, cheaper.partition(":")[2] or cheaper)
        return _matches_any(name, self.names) and self.is_of(graph) and not is_cheaper_model

    def is_of(self, graph: str) -> bool:
        """Return True if runs of a graph, or calls in them, may count towards the limit."""
        return _matches_any(graph, self.graphs)

    @property
    def interval_us(self) -> float:
        """Time between two permits."""
        return _MINUTE_US / (self.rate or 1)

    @property
    def burst_size(self) -> int:
        """Number of calls that may begin at once."""
        return self.burst or max(2, math.ceil((self.rate or 1) / 12))

    @property
    def token_interval_us(self) -> float:
        """Time between two tokens."""
        return _MINUTE_US / (self.tokens or 1)

    @property
    def token_burst(self) -> int:
        """Number of tokens that may be used at once."""
        return max(2, math.ceil((self.tokens or 1) / 12))


def _matches_any(name: str, patterns: Sequence[str]) -> bool:
    return not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)


class LimitPart(NamedTuple):
    """Amounts of a limit that one process holds, and those that it would use.

    Attributes:
        until: Time at which its lease ends.
        places: Places of the concurrency that it holds.
        wants: Places that it would use.
        turn: Time by which processes take turns where there are fewer places than processes.
        calls: Calls that it would begin within the horizon.
        tokens: Tokens that it would use within the horizon.
        users: Number of users who wait in it.
        money: Amount of the budget that it holds.
        waiting: Number of calls or runs that waited in it when it asked last.
    """

    until: int
    places: int = 0
    wants: int = 0
    turn: int = 0
    calls: float = 0.0
    tokens: float = 0.0
    users: int = 0
    money: int = 0
    waiting: int = 0


class LimitState(NamedTuple):
    """State of a limit for one key.

    Attributes:
        at: Time of the last change.
        next_call: Moment of the next permit of the rate.
        next_token: Moment of the next token, if none are owed.
        day: Day of the budget, ``""`` before the first.
        spent: Amount that was spent on that day.
        other_day: The previous day, or the day that began too early, if a clock was set back.
        other_spent: Amount that was spent on the other day.
        dearest: Highest cost of a call, 0 if none is known.
        mean_tokens: Average number of tokens of a call, 0 if none is known.
        parts: Parts of the processes by their names.
        owed_tokens: Tokens that were used without permits, from the moment ``next_token`` on.
    """

    at: int = 0
    next_call: int = 0
    next_token: int = 0
    day: str = ""
    spent: int = 0
    other_day: str = ""
    other_spent: int = 0
    dearest: int = 0
    mean_tokens: float = 0.0
    parts: Mapping[str, LimitPart] = {}
    owed_tokens: int = 0

    def to_body(self) -> dict[str, Any]:
        """Return the state as plain data."""
        return {**self._asdict(), "parts": {name: list(part) for name, part in self.parts.items()}}

    @classmethod
    def of_body(cls, body: Mapping[str, Any]) -> LimitState:
        """Return the state of plain data."""
        fields: dict[str, Any] = {name: body[name] for name in cls._fields if name in body}
        fields["parts"] = {name: LimitPart(*part) for name, part in body["parts"].items()}
        return cls(**fields)


class Demand(NamedTuple):
    """Demand of a process.

    Attributes:
        owner: Name of the process.
        in_use: Places in use.
        wants: Places that it would use, those in use included.
        calls: Permits of the rate to be given now.
        tokens: Tokens to be given now.
        calls_ahead: Calls that it would begin within the horizon, also with permits that it has.
        tokens_ahead: Tokens that it would use within the horizon, likewise.
        users: Number of users who wait in it.
        waiting: Number of calls or runs that wait in it.
        paid: Money that was spent since it asked the last time.
        reserved: Money of calls that are under way.
        needs_money: True if calls wait for money.
        dearest: Highest cost of its calls.
        mean_tokens: Average number of tokens of its calls, 0 if it had none.
        next_cost: Amount to set aside for the call whose turn is next, 0 if unknown.
        owed_tokens: Tokens used without permits since it asked last; below 0 owed ones that were not used.
    """

    owner: str
    in_use: int = 0
    wants: int = 0
    calls: int = 0
    tokens: int = 0
    calls_ahead: float = 0.0
    tokens_ahead: float = 0.0
    users: int = 0
    waiting: int = 0
    paid: int = 0
    reserved: int = 0
    needs_money: bool = False
    dearest: int = 0
    mean_tokens: float = 0.0
    next_cost: int = 0
    owed_tokens: int = 0


class PermitSpan(NamedTuple):
    """Permits with their moments: ``size`` of them, the first at ``start``."""

    start: int
    size: int


class Share(NamedTuple):
    """Grant to a process.

    Attributes:
        calls: Permits of the rate.
        tokens: Permits of tokens.
        places: Places that it holds until the lease ends.
        allotted: Places that it may fill while others wait, at most ``places``.
        money: Amount of the budget that it holds.
        dearest: Least amount to set aside for a call; 0 if unknown: then calls begin one by one.
        mean_tokens: Average number of tokens of a call, 0 if none is known.
        until: Time at which places and money are lost.
        again: Time at which more of the demand may be granted, ``None`` if all was granted.
        day_ends: Time at which a used up budget is reset, ``None`` if it is not used up.
        frees_at: Earliest end of another process's lease: its places are free then if that process died;
            ``None`` if all places that were asked for were given.
    """

    calls: PermitSpan
    tokens: PermitSpan
    places: int
    allotted: int
    money: int
    dearest: int
    mean_tokens: float
    until: int
    again: int | None
    day_ends: int | None
    frees_at: int | None = None


def compute_fair_share(capacity: float, demands: Mapping[str, tuple[float, float]], name: str) -> float:
    """Return one process's share of a capacity that several divide, each with a demand and a weight. A
    process that needs less than its share leaves the rest to the others."""
    left, others = capacity, dict(demands)
    while others:
        unit = max(0.0, left) / sum(weight for _, weight in others.values())
        satisfied = [each for each, (demand, weight) in others.items() if demand <= unit * weight]
        if not satisfied:
            return unit * others[name][1]
        for each in satisfied:
            demand, _ = others.pop(each)
            left -= demand
            if each == name:
                return demand
    return 0.0


def find_blank_time(limit: SharedLimit, state: LimitState, now: int) -> int:
    """Return the time from which an unchanged state has no effect any more, as if it were absent."""
    state = drop_expired(limit, state, now)
    ends = [part.until for part in state.parts.values()]
    ends += _list_spending_ends(limit, state, now)
    if limit.rate is not None:
        ends.append(state.next_call + math.ceil(limit.burst_size * limit.interval_us))
    if limit.tokens is not None:
        ends.append(find_next_token(limit, state) + math.ceil(limit.token_burst * limit.token_interval_us))
    return max((now, *ends))


def _list_spending_ends(limit: SharedLimit, state: LimitState, now: int) -> list[int]:
    if limit.budget is None:
        return []
    spent = {state.day: state.spent, state.other_day: state.other_spent}
    return find_spending_ends(limit.timezone, spent, now)


def is_blank(limit: SharedLimit, state: LimitState, now: int) -> bool:
    """Return True if a state has no effect: the limit allows the same without it."""
    has_spending = bool(_list_spending_ends(limit, state, now))
    has_future_permits = state.next_call > find_earliest(now, limit.interval_us, limit.burst_size)
    earliest_token = find_earliest(now, limit.token_interval_us, limit.token_burst)
    has_future_permits |= find_next_token(limit, state) > earliest_token
    return not state.parts and not has_spending and not has_future_permits


def take(limit: SharedLimit, state: LimitState, demand: Demand, now: int) -> tuple[LimitState, Share]:
    """Return the state after a process has taken the permitted part of its demand, and its share."""
    state = drop_expired(limit, state, now)
    if limit.concurrency is not None:
        demand = demand._replace(wants=min(demand.wants, max(limit.concurrency, demand.in_use)))
    parts = dict(state.parts)
    mine = parts.pop(demand.owner, LimitPart(0))
    ask = LimitPart(
        now + LEASE_US,
        wants=demand.wants,
        calls=demand.calls_ahead,
        tokens=demand.tokens_ahead,
        users=demand.users,
        waiting=demand.waiting,
    )
    asks = {**parts, demand.owner: ask}
    again: list[int] = []
    next_call, calls, tokens = state.next_call, PermitSpan(0, 0), PermitSpan(0, 0)
    if limit.rate is not None and demand.calls > 0:
        loads = {name: (part.calls, max(1, part.users)) for name, part in asks.items()}
        how = limit.interval_us, limit.burst_size
        next_call, calls, later = _space_permits(next_call, how, demand.calls, loads, demand.owner, now)
        again += later
    if demand.owed_tokens:
        state = _add_owed_tokens(limit, state, demand.owed_tokens, now)
    if limit.tokens is not None and demand.tokens > 0:
        loads = {name: (part.tokens, max(1, part.users)) for name, part in asks.items()}
        how, moment = (limit.token_interval_us, limit.token_burst), find_next_token(limit, state)
        moment, tokens, later = _space_permits(moment, how, demand.tokens, loads, demand.owner, now)
        if tokens.size:
            state = state._replace(next_token=moment, owed_tokens=0)
        again += later
    places = allotted = turn = 0
    frees_at = None
    if limit.concurrency is not None:
        places, allotted, turn = _divide_places(limit.concurrency, parts, mine, demand, now)
        if (not places and demand.wants) or places < min(allotted, demand.wants):
            again.append(now + _LOOK_US)
        if places < demand.wants:
            frees_at = _first([part.until for part in parts.values() if part.places])
    spent, dearest = state.spent + demand.paid, max(state.dearest, demand.dearest)
    money, day_ends, until = 0, None, now + LEASE_US
    if limit.budget is not None:
        until = min(until, day_of(limit.timezone, now)[1])
        held = sum(part.money for part in parts.values())
        left = round(limit.budget * MONEY) - spent - held
        money = _divide_money(left, held, demand, dearest)
        if demand.needs_money and money <= demand.reserved:
            if left + held <= 0:
                day_ends = day_of(limit.timezone, now)[1]
            else:
                again.append(now + _LOOK_US)
    part = ask._replace(places=places, turn=turn, money=money)
    is_used = calls.size or tokens.size or demand.paid or demand.owed_tokens
    if is_unchanged(mine, part, now) and not is_used:
        # It waits as before, and the state need not be written.
        until = min(until, mine.until)
    else:
        if demand.wants or demand.calls_ahead or demand.tokens_ahead or money or demand.users:
            parts[demand.owner] = part
        state = state._replace(
            at=now,
            next_call=next_call,
            spent=spent,
            dearest=dearest,
            mean_tokens=demand.mean_tokens or state.mean_tokens,
            parts=parts,
        )
    mean, more_at = state.mean_tokens, _first(again)
    return state, Share(
        calls, tokens, places, allotted, money, dearest, mean, until, more_at, day_ends, frees_at
    )


def is_unchanged(before: LimitPart, after: LimitPart, now: int) -> bool:
    """Return True if a process holds what it held before, under a lease that need not be renewed yet."""
    is_fresh = before.until > now + LEASE_US // 2
    return is_fresh and before[1:4] == after[1:4] and before.money == after.money


def _first(times: list[int]) -> int | None:
    return min(times, default=None)


_LOOK_US = 200_000
"""Time after which a process looks again for a place that others may have given back."""


def drop_expired(limit: SharedLimit, state: LimitState, now: int) -> LimitState:
    """Return a state without expired leases, for the current day, and without moments that are too far ahead
    because a clock was set back."""
    live = {
        name: part._replace(until=min(part.until, now + LEASE_US))
        for name, part in state.parts.items()
        if now < part.until
    }
    lost_money = sum(part.money for name, part in state.parts.items() if name not in live)
    state = state._replace(parts=live, spent=state.spent + lost_money)
    if limit.budget is not None and (day := day_of(limit.timezone, now)[0]) != state.day:
        if day > state.day:
            # Money that a process holds lapses with its day, unless a clock was set back over midnight.
            live = {name: part._replace(money=0) for name, part in live.items()}
        days = {state.other_day: state.other_spent}
        state = state._replace(
            day=day, spent=days.get(day, 0), other_day=state.day, other_spent=state.spent, parts=live
        )
    # A span of permits begins at most a horizon ahead, and is at most a horizon long.
    furthest = now + 2 * HORIZON_US
    return state._replace(
        next_call=min(state.next_call, furthest + math.ceil(limit.interval_us)),
        next_token=min(
            state.next_token, furthest + math.ceil(limit.token_interval_us * (limit.token_burst + 1))
        ),
    )


def find_next_token(limit: SharedLimit, state: LimitState) -> int:
    """Return the moment of the next token, after those that are owed."""
    return state.next_token + min(math.ceil(state.owed_tokens * limit.token_interval_us), _LONGEST_US)


def _add_owed_tokens(limit: SharedLimit, state: LimitState, number: int, now: int) -> LimitState:
    earliest = find_earliest(now, limit.token_interval_us, limit.token_burst)
    if find_next_token(limit, state) <= earliest:
        # Those that were owed before are paid.
        state = state._replace(next_token=earliest, owed_tokens=0)
    return state._replace(owed_tokens=max(0, state.owed_tokens + number))


_USABLE_US = 200_000
"""Least time for which a permit can still be used when it is given."""


def find_earliest(now: int, interval: float, burst: int) -> int:
    """Return the earliest moment of a permit that is given now; the past ones were gathered in a pause."""
    lasts = math.floor((burst - 1) * interval)
    return now - lasts + min(_USABLE_US, lasts // 2)


def _space_permits(
    moment: int,
    rate: tuple[float, int],
    wanted: int,
    loads: Mapping[str, tuple[float, float]],
    owner: str,
    now: int,
) -> tuple[int, PermitSpan, list[int]]:
    """Give permits of a rate. Return the moment of the next permit, the given ones, and, if they are not all
    that were wanted, the time at which there are more; otherwise no time."""
    interval, burst = rate
    start = max(moment, find_earliest(now, interval, burst))
    if start > now + HORIZON_US:
        return moment, PermitSpan(0, 0), [start - HORIZON_US]
    # Permits gathered in a pause are divided among the processes, too.
    available = (HORIZON_US + max(0, now - start)) / interval
    share = max(1, math.ceil(compute_fair_share(available, loads, owner)))
    count = min(wanted, share)
    after = start + math.ceil(count * interval)
    later = []
    if count < wanted:
        later = [max(now, after - HORIZON_US)]
    return after, PermitSpan(start, count), later


def _divide_places(
    capacity: int, parts: Mapping[str, LimitPart], mine: LimitPart, demand: Demand, now: int
) -> tuple[int, int, int]:
    """Return the places that a process holds from now on, how many it may fill, and its turn."""
    free = capacity - sum(part.places for part in parts.values())
    turn = mine.turn if mine.wants else now
    asks = {name: part for name, part in parts.items() if part.wants}
    asks[demand.owner] = mine._replace(wants=demand.wants, turn=turn, users=demand.users)
    loads = {name: (float(part.wants), float(max(1, part.users))) for name, part in asks.items()}
    shares = {name: math.floor(compute_fair_share(capacity, loads, name) + 1e-9) for name in asks}
    spare = capacity - sum(shares.values())

    def rank(name: str) -> tuple[int, int]:
        part = asks[name]
        return (1 if not part.places else 0 if now < part.turn else 2), part.turn

    # A process that has just got a place keeps it for a while; next come those that have waited longest.
    for name in sorted(asks, key=rank):
        if spare > 0 and asks[name].wants > shares[name]:
            shares[name] += 1
            spare -= 1
    allotted = shares[demand.owner]
    places = max(demand.in_use, min(demand.wants, allotted, free))
    if places and not mine.places:
        turn = now + LEASE_US
    elif mine.places and not places:
        turn = now
    return places, allotted, turn


def _divide_money(left: int, held: int, demand: Demand, dearest: int) -> int:
    """Return the amount that a process holds from now on. ``left`` is the rest that no other process holds,
    ``held`` the amount that others hold."""
    if not (demand.needs_money or demand.reserved):
        return 0
    need = max(dearest, demand.next_cost)
    if dearest and left >= demand.reserved + need:
        chunk = max(need, min(left // _CHUNK_PART, dearest * _CHUNK_CALLS))
        return min(left, demand.reserved + chunk)
    if left > 0 and held == 0 and not demand.reserved:
        # One call alone may begin though it may exceed the rest.
        return min(left, need or 1)
    if demand.reserved:
        return min(max(0, left), demand.reserved)
    return 0
