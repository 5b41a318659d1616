"""Sessions grow by whole turns over what was read, stay bounded a turn, and expire, on every backend."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from perdure.engine import session_histories
from perdure.engine.items import items
from perdure.engine.session_histories import NOTHING, TAIL, Session, Terms, Turn
from perdure.engine.transact import Budget
from perdure.errors import Corrupt, TooLarge, Unavailable, Unserialisable
from perdure.model.ops import Commit, Delete, Fetch, FindThreads, Range
from perdure.model.program import Effect
from perdure.model.records import ITEM, SESSIONS, STORE, Partition
from perdure.model.runs.messages import MESSAGE_MAX
from perdure.model.store_items import LAST
from perdure.storage.memory import MemoryDriver
from perdure.storage.port import CommitLimits, Driver, run
from perdure.testing.conformance import Narrow
from perdure.testing.faults import Fault, FaultyDriver, fail, refuse
from tests import backends

AT = Partition("acme", "s1", SESSIONS)
NOW = 1_700_000_000_000_000
HOUR = 3_600_000_000


@pytest.fixture(params=backends.BACKENDS)
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    with backends.fresh(request.param) as driver:
        yield driver


_fresh = iter(range(1 << 24, 1 << 50, 1 << 24))


def terms(driver: Driver, now: int = NOW, ttl: int | None = None) -> Terms:
    return Terms(now, ttl, next(_fresh), Budget(driver.limits.ops, driver.limits.bytes))


def row(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def load(driver: Driver, now: int = NOW) -> Session:
    return run(session_histories.load(AT, now), driver)


def add(driver: Driver, held: Session, *texts: str, now: int = NOW, ttl: int | None = None) -> Session | None:
    return run(
        session_histories.append(AT, held, Turn([row(t) for t in texts]), terms(driver, now, ttl)), driver
    )


def test_a_turn_is_added_to_what_was_read_and_to_nothing_else(driver: Driver) -> None:
    assert load(driver) == NOTHING
    turn = Turn([row("a")], {"used": 1}, "k1")
    first = run(session_histories.append(AT, NOTHING, turn, terms(driver)), driver)
    assert first == load(driver)
    assert first is not None
    assert (first.messages, first.budget, first.created_at) == ([row("a")], {"used": 1}, NOW)
    assert first.keys == (session_histories.digest_of("k1"),)
    assert add(driver, NOTHING, "lost") is None
    second = add(driver, first, "b", "c", now=NOW + 1)
    assert second == load(driver)
    assert second is not None
    assert (second.messages, second.budget) == ([row("a"), row("b"), row("c")], {"used": 1})
    assert second.version > first.version
    assert (second.created_at, second.updated_at) == (NOW, NOW + 1)
    assert add(driver, first, "lost") is None
    assert not run(session_histories.remove(AT, first.version), driver)
    assert run(session_histories.remove(AT, second.version), driver)
    assert load(driver) == NOTHING
    assert add(driver, second, "lost") is None, "the session was removed"
    again = add(driver, NOTHING, "d")
    assert again is not None
    assert again.version not in (first.version, second.version)
    assert run(session_histories.read_names("acme", None, NOW), driver) == ([AT], None)
    assert run(session_histories.remove(AT), driver)
    assert run(session_histories.read_names("acme", None, NOW), driver) == ([], None)


def test_a_session_read_before_a_loss_overwrites_no_turn_since() -> None:
    lost, restored = MemoryDriver(), MemoryDriver()
    begun = Turn([row("a")]), terms(lost)
    for driver in (lost, restored):
        run(session_histories.append(AT, NOTHING, *begun), driver)
    read_before = add(lost, load(lost), "lost")
    assert read_before is not None
    since = add(restored, load(restored), "since")
    assert add(restored, read_before, "late") is None
    assert load(restored) == since


def test_a_long_history_is_whole_and_a_turn_of_it_writes_no_more(driver: Driver) -> None:
    sizes: list[int] = []

    def weigh(_: int, effect: Effect[Any]) -> None:
        assert isinstance(effect, Commit)
        sizes.append(sum(len(getattr(op, "body", b"")) for op in effect.ops))

    watched = FaultyDriver(driver, counts=[Commit], on_effect=weigh)
    held, texts = NOTHING, [f"{n:03}" * 7_000 for n in range(40)]
    for text in texts:
        after = add(watched, held, text)
        assert after is not None
        held = load(driver)
        assert held == after
    assert [m["content"] for m in held.messages] == texts
    assert len(held.segments) == 6
    assert len(sizes) == len(texts), "one commit a turn"
    assert max(sizes) < 2 * TAIL + 4096


def test_a_history_that_no_commit_holds_is_stored_before_its_head(driver: Driver) -> None:
    narrow = Narrow(driver, CommitLimits(ops=3, bytes=150_000))
    texts = [f"{n:02}" * 40_000 for n in range(8)]
    after = add(narrow, NOTHING, *texts)
    assert after is not None
    assert load(driver) == after
    assert [m["content"] for m in after.messages] == texts
    lost = add(narrow, NOTHING, *texts)
    assert lost is None
    (found,) = driver.perform(Fetch(AT, (Range(ITEM, bodies=False),)))
    assert len(found) == 1 + len(after.segments), "what the loser had stored is gone"


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_crash_at_any_step_leaves_the_session_as_before_or_with_the_turn(when: Any) -> None:
    texts = [str(n) * 60_000 for n in range(9)]
    at, crashed = 0, True
    while crashed:
        at += 1
        inner = MemoryDriver()
        before = add(inner, NOTHING, "first" * 20_000)
        assert before is not None
        faulty = FaultyDriver(inner, Fault(at, fail("unavailable"), when))
        try:
            add(Narrow(faulty, CommitLimits(ops=3, bytes=150_000)), before, *texts)
            crashed = False
        except Unavailable:
            held = load(inner)
            assert [m["content"] for m in held.messages] in (["first" * 20_000], ["first" * 20_000, *texts])
            assert add(inner, held, "next") == load(inner)
    assert at > 4


def test_a_session_that_is_removed_while_its_first_turn_is_stored_has_all_of_it_or_nothing() -> None:
    inner = MemoryDriver()

    def removing(number: int, _: Effect[Any]) -> None:
        if number == 3:
            assert run(session_histories.remove(AT), inner)

    faulty = FaultyDriver(inner, counts=[Commit], on_effect=removing)
    narrow = Narrow(faulty, CommitLimits(ops=3, bytes=150_000))
    assert add(narrow, NOTHING, *(str(n) * 60_000 for n in range(9))) is None
    assert load(inner) == NOTHING


def test_an_expired_session_is_absent_before_it_is_removed(driver: Driver) -> None:
    first = add(driver, NOTHING, "old", ttl=HOUR)
    assert first is not None
    assert load(driver, NOW + HOUR - 1) == first
    assert load(driver, NOW + HOUR) == NOTHING
    assert run(session_histories.read_names("acme", None, NOW + HOUR), driver) == ([], None)
    anew = add(driver, NOTHING, "new", now=NOW + HOUR, ttl=HOUR)
    assert anew is not None
    assert anew.messages == [row("new")]
    assert load(driver, NOW + HOUR) == anew
    assert load(driver, NOW + 2 * HOUR) == NOTHING


def test_each_turn_prolongs_the_whole_session(driver: Driver) -> None:
    now, held, texts = NOW, NOTHING, [f"{n:02}" * 35_000 for n in range(12)]
    for text in texts:
        after = add(driver, held, text, now=now, ttl=HOUR)
        assert after is not None
        now += HOUR * 3 // 4
        held = load(driver, now)
        assert held == after
    assert [m["content"] for m in held.messages] == texts
    (found,) = driver.perform(Fetch(AT, (Range(ITEM, bodies=False),)))
    assert min(r.fields["expires_at"] for r in found) >= NOW + HOUR * 11 * 3 // 4 + HOUR
    assert load(driver, now + HOUR) == NOTHING


def test_a_time_to_live_that_begins_or_ends_counts_for_the_whole_session(driver: Driver) -> None:
    texts = [f"{n:02}" * 35_000 for n in range(4)]
    held, now = NOTHING, NOW
    for ttl in (None, HOUR, None):
        now += HOUR // 2
        after = add(driver, held, *texts, now=now, ttl=ttl)
        assert after is not None
        held = load(driver, now)
        assert held == after
        (found,) = driver.perform(Fetch(AT, (Range(ITEM, bodies=False),)))
        assert len(found) == 1 + len(held.segments)
        assert {r.fields["expires_at"] is None for r in found} == {ttl is None}


@pytest.mark.parametrize(
    ("winner", "loser"), [(None, HOUR), (HOUR, None), (30 * HOUR, HOUR), (HOUR, 30 * HOUR)]
)
def test_a_refused_turn_leaves_the_expiry_of_all_records(
    driver: Driver, winner: int | None, loser: int | None
) -> None:
    held = add(driver, NOTHING, *(f"{n:02}" * 35_000 for n in range(4)), ttl=winner)
    assert held is not None
    later = NOW + HOUR * 9 // 10
    won = add(driver, held, "won", now=later, ttl=winner)
    assert won is not None

    def stored() -> list[Any]:
        (found,) = driver.perform(Fetch(AT, (Range(ITEM),)))
        return [(r.key, r.version, dict(r.fields), r.body) for r in found]

    before = stored()
    assert add(driver, held, "lost", now=later, ttl=loser) is None
    assert stored() == before


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("winner", "loser"), [(None, HOUR), (HOUR, None), (30 * HOUR, HOUR)])
def test_a_turn_that_dies_takes_nothing_along_and_leaves_nothing_for_good(
    winner: int | None, loser: int | None, when: Any
) -> None:
    at, died = 0, True
    while died:
        at += 1
        inner = MemoryDriver()
        held = add(inner, NOTHING, *(f"{n:02}" * 35_000 for n in range(12)), ttl=winner)
        assert held is not None
        faulty = FaultyDriver(inner, Fault(at, fail("unavailable"), when), counts=[Commit])
        try:
            add(Narrow(faulty, CommitLimits(ops=3, bytes=150_000)), held, "next", ttl=loser)
            died = False
        except Unavailable:
            pass
        session = load(inner)
        (found,) = inner.perform(Fetch(AT, (Range(ITEM, (), bodies=False),)))
        (head,) = (r for r in found if r.key == session_histories.HEAD)
        over = LAST if head.fields["expires_at"] is None else head.fields["expires_at"]
        assert load(inner, over - 1) == session
        for now in (over, over + 2 * session_histories.LEASE_US):
            run(items.sweep("acme", now, Budget(1000, 1 << 20)), inner)
            run(session_histories.sweep(AT, now, Budget(1000, 1 << 20)), inner)
        (left,) = inner.perform(Fetch(AT, (Range(ITEM, bodies=False),)))
        kept = 0 if head.fields["expires_at"] else 1 + len(session.segments)
        assert len(left) == kept
    assert at > 1


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_first_turn_that_dies_is_swept_a_day_later(driver: Driver, when: Any) -> None:
    faulty = FaultyDriver(driver, Fault(3, fail("unavailable"), when), counts=[Commit])
    with pytest.raises(Unavailable):
        add(Narrow(faulty, CommitLimits(ops=3, bytes=150_000)), NOTHING, *(str(n) * 60_000 for n in range(9)))
    budget = Budget(driver.limits.ops, driver.limits.bytes)
    day = session_histories.LEASE_US
    assert load(driver) == NOTHING
    assert run(session_histories.sweep(AT, NOW + day - 1, budget), driver) == 0
    assert run(session_histories.sweep(AT, NOW + day, budget), driver) > 0
    assert driver.perform(Fetch(AT, (Range(ITEM, bodies=False),))) == ((),)
    assert driver.perform(FindThreads(None, space=SESSIONS)) == ()


def test_a_missing_part_is_damage_and_not_a_shorter_history() -> None:
    driver = MemoryDriver()
    held = add(driver, NOTHING, "a" * 100_000, "b" * 100_000, "c")
    assert held is not None
    driver.perform(Commit(AT, (Delete(ITEM, (held.segments[0].key,)),)))
    with pytest.raises(Corrupt, match="a part of its history is missing"):
        load(driver)


def test_a_session_reset_between_the_two_reads_is_read_again() -> None:
    inner = MemoryDriver()
    held = add(inner, NOTHING, "a" * 100_000, "b" * 100_000)
    assert held is not None

    def removing(number: int, _: Effect[Any]) -> None:
        if number == 2:
            run(session_histories.remove(AT), inner)

    assert load(FaultyDriver(inner, counts=[Fetch], on_effect=removing)) == NOTHING


def test_a_refused_turn_is_no_turn() -> None:
    inner = MemoryDriver()
    assert add(FaultyDriver(inner, Fault(1, refuse), counts=[Commit]), NOTHING, "a") is None
    assert load(inner) == NOTHING


def test_what_is_too_large_or_no_json_is_refused_and_changes_nothing() -> None:
    driver = MemoryDriver()
    with pytest.raises(TooLarge, match=str(MESSAGE_MAX)) as refused:
        add(driver, NOTHING, "small", "secret" * MESSAGE_MAX)
    assert "secret" not in str(refused.value)
    with pytest.raises(Unserialisable):
        run(session_histories.append(AT, NOTHING, Turn([], {"x": {1}}), terms(driver)), driver)
    assert load(driver) == NOTHING


def test_only_the_latest_keys_are_kept() -> None:
    driver, held = MemoryDriver(), NOTHING
    for n in range(session_histories.KEYS + 1):
        after = run(session_histories.append(AT, held, Turn([], key=f"k{n}"), terms(driver)), driver)
        assert after is not None
        held = after
    assert held.keys == tuple(
        session_histories.digest_of(f"k{n}") for n in range(1, session_histories.KEYS + 1)
    )


def test_sessions_are_listed_apart_from_threads_and_the_store(driver: Driver) -> None:
    add(driver, NOTHING, "a")
    assert driver.perform(FindThreads(None)) == ()
    assert driver.perform(FindThreads(None, space=STORE)) == ()
    assert [f.partition for f in driver.perform(FindThreads(None, space=SESSIONS))] == [AT]
