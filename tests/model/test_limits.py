"""Rules of limits: processes together never get more than a limit, whoever dies and whatever a clock does.

Covers perdure.model.budget_days.
"""

from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.model.budget_days import day_of
from perdure.model.limits import (
    HORIZON_US,
    LEASE_US,
    MONEY,
    Demand,
    LimitState,
    SharedLimit,
    compute_fair_share,
    find_blank_time,
    find_next_token,
    is_blank,
    take,
)

NOW = 1_800_000_000_000_000
steps = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 2_000_000), st.integers(0, 30), st.integers(1, 4)),
    max_size=60,
)


@given(steps, st.sampled_from([6.0, 60.0, 1200.0]), st.integers(2, 20))
def test_permits_never_exceed_burst_and_rate(
    taken: list[tuple[int, int, int, int]], rate: float, burst: int
) -> None:
    limit = SharedLimit(rate=rate, burst=burst)
    state, now = LimitState(), NOW
    moments: list[float] = []
    for owner, pause, wanted, users in taken:
        now += pause
        demand = Demand(f"p{owner}", calls=wanted, calls_ahead=wanted, users=users)
        state, share = take(limit, state, demand, now)
        assert share.calls.size <= wanted
        assert share.calls.size or share.again is not None or not wanted
        moments += [share.calls.start + i * limit.interval_us for i in range(share.calls.size)]
    # Each permit has a moment of its own, and may be used as long as the burst allows.
    spaces = [after - before for before, after in pairwise(moments)]
    assert all(space >= limit.interval_us - 1 for space in spaces)


@given(steps, st.integers(1, 6))
def test_places_never_exceed_the_concurrency(taken: list[tuple[int, int, int, int]], most: int) -> None:
    limit = SharedLimit(concurrency=most)
    state, now = LimitState(), NOW
    held: dict[str, tuple[int, int, int]] = {}
    for owner, pause, wanted, users in taken:
        now += pause
        name = f"p{owner}"
        places, until, in_use = held.get(name, (0, 0, 0))
        in_use = min(in_use, places) if now < until else 0
        demand = Demand(name, in_use=in_use, wants=max(in_use, wanted), users=users)
        state, share = take(limit, state, demand, now)
        held[name] = share.places, share.until, min(share.places, share.allotted, wanted)
        assert sum(places for places, until, _ in held.values() if now < until) <= most


def test_places_of_a_process_that_died_come_back_with_its_lease() -> None:
    limit = SharedLimit(concurrency=2)
    state, share = take(limit, LimitState(), Demand("dead", wants=2, users=1), NOW)
    assert share.places == 2
    state, share = take(limit, state, Demand("alive", wants=2, users=1), NOW + LEASE_US - 1)
    assert share.places == 0
    assert share.again is not None
    _, share = take(limit, state, Demand("alive", wants=2, users=1), NOW + LEASE_US)
    assert share.places == 2


def test_processes_take_turns_where_there_are_more_of_them_than_places() -> None:
    limit = SharedLimit(concurrency=1)
    state, now, had = LimitState(), NOW, {"a": 0, "b": 0, "c": 0}
    in_use = dict.fromkeys(had, 0)
    for _ in range(300):
        for name in had:
            now += 50_000
            state, share = take(limit, state, Demand(name, wants=1, users=1), now)
            had[name] += share.places
            in_use[name] = share.places
            assert sum(in_use.values()) <= 1
    assert min(had.values()) > 0.2 * sum(had.values())


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2_000_000)), min_size=1, max_size=80))
def test_a_budget_is_exceeded_by_at_most_one_call(taken: list[tuple[int, int]]) -> None:
    limit, cost = SharedLimit(budget=1.0), 70_000
    state, now, spent = LimitState(), datetime(2030, 5, 5, 1, tzinfo=UTC), 0
    at = round(now.timestamp() * 1_000_000)
    under_way: dict[str, int] = {}
    for owner, pause in taken:
        at += pause
        name = f"p{owner}"
        reserved = under_way.pop(name, 0)
        paid = cost if reserved else 0
        dearest = cost if reserved else 0
        spent += paid
        state, share = take(
            limit, state, Demand(name, paid=paid, needs_money=True, users=1, dearest=dearest), at
        )
        if share.money > 0:
            under_way[name] = min(share.money, cost)
    assert spent <= MONEY + cost


def test_a_call_whose_prompt_costs_more_than_any_call_before_gets_the_amount_or_is_alone() -> None:
    limit, state = SharedLimit(budget=1.0), LimitState(dearest=200)
    ask = Demand("a", needs_money=True, users=1, next_cost=300_000)
    state, share = take(limit, state, ask, NOW)
    assert share.money == 300_000
    state, share = take(limit, state, ask._replace(reserved=300_000), NOW)
    assert share.money == 600_000
    state, share = take(limit, state, ask._replace(reserved=900_000), NOW)
    assert share.money == 900_000, "the rest is less than the next call costs, and others are under way"
    state, share = take(limit, state, ask._replace(paid=900_000), NOW)
    assert share.money == 100_000, "a call alone may begin"


def test_what_a_process_that_died_held_of_a_budget_is_spent() -> None:
    limit = SharedLimit(budget=1.0)
    state, share = take(limit, LimitState(dearest=100_000), Demand("dead", needs_money=True, users=1), NOW)
    assert share.money == 100_000
    state, _ = take(limit, state, Demand("alive", needs_money=True, users=1), NOW + LEASE_US)
    assert state.spent == 100_000


def test_a_budget_begins_anew_with_the_day_of_its_time_zone() -> None:
    at = round(datetime(2030, 3, 31, 21, 30, tzinfo=UTC).timestamp() * 1_000_000)
    assert day_of("UTC", at)[0] == "2030-03-31"
    name, ends = day_of("Europe/Berlin", at)
    assert (name, ends - at) == ("2030-03-31", 30 * 60 * 1_000_000)
    limit = SharedLimit(budget=1.0, timezone="Europe/Berlin")
    spent = LimitState(day=name, spent=2 * MONEY, dearest=1000)
    _, share = take(limit, spent, Demand("a", needs_money=True, users=1), at)
    assert share.day_ends == ends
    assert share.money == 0
    _, share = take(limit, spent, Demand("a", needs_money=True, users=1), ends)
    assert share.day_ends is None
    assert share.money > 0


def test_tokens_that_one_process_owes_hold_back_all_until_they_are_paid() -> None:
    limit, second = SharedLimit(tokens=6000), 1_000_000
    asks = Demand("b", tokens=200, tokens_ahead=200, users=1)
    state, _ = take(limit, LimitState(), Demand("a", owed_tokens=30_000), NOW)
    state, share = take(limit, state, asks, NOW)
    assert share.tokens.size == 0
    assert share.again is not None
    # Of 300 seconds' worth, 5 had gathered.
    assert 294 * second <= share.again - NOW <= 296 * second
    assert not is_blank(limit, state, NOW + 290 * second)
    assert find_blank_time(limit, state, NOW) >= NOW + 299 * second
    _, early = take(limit, state, asks, share.again - second)
    assert early.tokens.size == 0
    _, later = take(limit, state, asks, share.again)
    assert later.tokens.size > 0
    # What was owed and not used comes back, and a higher limit pays sooner.
    back, _ = take(limit, state, Demand("a", owed_tokens=-29_000), NOW)
    assert find_next_token(limit, back) - NOW <= 6 * second
    raised = SharedLimit(tokens=600_000)
    assert find_next_token(raised, state) - NOW <= 3 * second
    # Paid ones do not count again, and a clock that is set back forgets none.
    paid, _ = take(limit, state, Demand("a", owed_tokens=100), NOW + 400 * second)
    assert paid.owed_tokens == 100
    assert find_next_token(limit, take(limit, state, asks, NOW - 5 * second)[0]) - NOW > 280 * second


def test_tokens_beyond_belief_are_owed_for_a_hundred_years_at_most() -> None:
    limit = SharedLimit(tokens=6000)
    state, _ = take(limit, LimitState(), Demand("a", owed_tokens=1 << 60), NOW)
    assert find_next_token(limit, state) < NOW + 101 * 366 * 86_400 * 1_000_000


def test_a_clock_that_was_set_back_blocks_nobody_for_long() -> None:
    limit = SharedLimit(rate=60)
    state, _ = take(limit, LimitState(), Demand("a", calls=5, calls_ahead=5, users=1), NOW)
    back = NOW - 3600 * 1_000_000
    state, share = take(limit, state, Demand("a", calls=5, calls_ahead=5, users=1), back)
    assert share.calls.size or (share.again is not None and share.again - back <= 3 * HORIZON_US)
    assert share.again is not None
    _, share = take(limit, state, Demand("a", calls=5, calls_ahead=5, users=1), share.again)
    assert share.calls.size


@given(
    st.floats(0, 100),
    st.dictionaries(st.sampled_from("abcd"), st.tuples(st.floats(0, 100), st.floats(1, 9)), min_size=1),
)
def test_shares_are_fair_and_leave_nothing_that_is_wanted(
    capacity: float, demands: dict[str, tuple[float, float]]
) -> None:
    shares = {name: compute_fair_share(capacity, demands, name) for name in demands}
    assert all(shares[name] <= demand + 1e-6 for name, (demand, _) in demands.items())
    wanted = sum(demand for demand, _ in demands.values())
    assert sum(shares.values()) == pytest.approx(min(capacity, wanted), abs=1e-6)


def test_a_state_that_says_nothing_is_blank() -> None:
    limit = SharedLimit(concurrency=1)
    state, _ = take(limit, LimitState(), Demand("a", wants=1), NOW)
    assert not is_blank(limit, state, NOW)
    state, _ = take(limit, state, Demand("a"), NOW)
    assert is_blank(limit, state, NOW)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "sets one of concurrency, rate, tokens, budget"),
        ({"rate": 0}, "rate is a number above 0"),
        ({"rate": True}, "rate is a number above 0"),
        ({"rate": float("nan")}, "rate is a number above 0"),
        ({"concurrency": 0}, "concurrency is a whole number from 1"),
        ({"rate": 1, "by": "user"}, "by is a list of names"),
        ({"rate": 1, "by": ["owner"]}, "by is of user, model, tool, graph"),
        ({"rate": 1, "of": "tool", "by": ["model"]}, "has no 'model' to be counted by"),
        ({"of": "tool", "tokens": 5}, "calls of tools have no tokens"),
        ({"budget": 5, "timezone": "Mars/North"}, "timezone is a name"),
        ({"budget": 5, "at_end": "stop"}, "at_end is 'refuse' or 'wait'"),
        ({"concurrency": 5, "burst": 2}, "burst is of a rate"),
        ({"of": "node", "rate": 1}, "of is 'model', 'tool' or 'run'"),
        ({"of": "run", "rate": 1, "names": ["m"]}, "no names of models or tools"),
        ({"of": "run", "rate": 1, "by": ["model"]}, "has no 'model' to be counted by"),
        ({"of": "run", "budget": 5}, "runs have no tokens"),
        ({"rate": 1, "refuse": True}, "refuse is of limits of runs"),
        ({"of": "run", "rate": 1, "refuse": "yes"}, "refuse is true or false"),
        ({"rate": 5, "burst": 1}, "burst is a whole number from 2"),
        ({"rate": -1}, "rate is a number above 0"),
        ({"concurrency": -3}, "concurrency is a whole number from 1"),
        ({"concurrency": 2.5}, "concurrency is a whole number from 1"),
        ({"budget": float("inf")}, "budget is a number above 0"),
        ({"rate": 1, "wait": -1}, "wait is a number above 0"),
        ({"rate": 1, "cheaper": "small"}, "cheaper is of a budget"),
        ({"budget": 1, "cheaper": " "}, "cheaper is a model"),
        ({"rate": 1, "graphs": "a"}, "graphs is a list of names"),
        ({"rate": 1e-12}, "rate is too low .* more than 100 years"),
        ({"rate": 5e-324}, "rate is too low"),
        ({"rate": 1e-6, "burst": 1_000_000}, "rate is too low"),
        ({"tokens": 5e-324}, "tokens is too low"),
    ],
)
def test_what_is_out_of_range_is_refused(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        SharedLimit(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("cheaper", "name"),
    [
        ("openai:gpt-4o-mini", "gpt-4o-mini"),
        ("gpt-4o-mini", "gpt-4o-mini"),
        ("ollama:llama3:8b", "llama3:8b"),
        ("bedrock_converse:anthropic.claude-v1:0", "anthropic.claude-v1:0"),
        ("ft:gpt-4o:org::id", "ft:gpt-4o:org::id"),
    ],
)
def test_calls_of_the_cheaper_model_are_spared_whatever_colons_its_name_has(cheaper: str, name: str) -> None:
    limit = SharedLimit(budget=1, cheaper=cheaper)
    assert not limit.counts(name, "agent")
    assert limit.counts("8b", "agent")
    assert limit.counts("", "agent")


MIDNIGHT = round(datetime(2030, 5, 2, tzinfo=UTC).timestamp() * 1_000_000)
MINUTE = 60 * 1_000_000


def _spend(limit: SharedLimit, state: LimitState, at: int) -> tuple[LimitState, int]:
    """Spend what the limit gives at a time, in one call after the other."""
    total = 0
    for _ in range(20):
        state, share = take(limit, state, Demand("a", needs_money=True, users=1, dearest=MONEY // 10), at)
        if not share.money:
            break
        total += share.money
        state, _ = take(limit, state, Demand("a", paid=share.money), at)
    return state, total


@pytest.mark.parametrize("ahead", [1, 5, 24 * 60, 400 * 24 * 60])
def test_a_clock_that_was_set_back_over_midnight_gives_no_day_its_budget_twice(ahead: int) -> None:
    limit = SharedLimit(budget=1.0)
    state, first = _spend(limit, LimitState(dearest=MONEY // 10), MIDNIGHT - 2 * MINUTE)
    assert first == MONEY
    # The clock goes ahead over midnight, where half of the budget is spent, and is set back.
    early = MIDNIGHT - 2 * MINUTE + ahead * MINUTE + 2 * MINUTE
    state, share = take(limit, state, Demand("a", needs_money=True, users=1), early)
    state, _ = take(limit, state, Demand("a", paid=MONEY // 2), early)
    assert share.money
    for minute in (2, 1):
        assert not is_blank(limit, state, MIDNIGHT - minute * MINUTE)
        state, again = _spend(limit, state, MIDNIGHT - minute * MINUTE)
        assert again == 0, "the day before is spent"
    state, left = _spend(limit, state, MIDNIGHT + MINUTE)
    # A day that has come too early has what is left of it; that of a clock further ahead does not count.
    assert left == (MONEY // 2 if ahead < 24 * 60 else MONEY), "the day that comes is not lost"


def test_what_was_spent_is_kept_for_an_hour_after_its_day() -> None:
    limit = SharedLimit(budget=1.0)
    state, _ = _spend(limit, LimitState(dearest=MONEY // 10), MIDNIGHT - MINUTE)
    state, _ = take(limit, state, Demand("a"), MIDNIGHT)
    assert not is_blank(limit, state, MIDNIGHT + MINUTE)
    assert find_blank_time(limit, state, MIDNIGHT + MINUTE) == MIDNIGHT + 60 * MINUTE
    assert is_blank(limit, state, MIDNIGHT + 60 * MINUTE)
    assert _spend(limit, state, MIDNIGHT - MINUTE)[1] == 0
