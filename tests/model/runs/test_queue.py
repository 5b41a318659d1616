"""The rules of a lane, and a lane that lives through any sequence of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from perdure.model.ops import Expect
from perdure.model.records import LANE, Record
from perdure.model.runs.queue import IN, OUT, Debounce, Lane

TIMES = st.integers(0, 10**15)
SPANS = st.integers(0, 10**9)
DEBOUNCES = st.builds(lambda quiet, more: Debounce(quiet, quiet + more), SPANS, SPANS)


@given(st.lists(st.tuples(SPANS, DEBOUNCES), min_size=1, max_size=20), TIMES)
def test_nobody_waits_for_longer_than_the_first_message_may(
    arrivals: list[tuple[int, Debounce]], now: int
) -> None:
    lane = Lane(IN)
    by: list[int] = []
    for after, debounce in arrivals:
        now += after
        lane = lane.accept(now, debounce)
        by.append(now + (debounce.most if debounce.quiet else 0))
        assert lane.due_at == min(now + debounce.quiet, *by), "quiet since the last, none too long"
        assert lane.is_due(lane.due_at)
        assert not lane.is_due(lane.due_at - 1)
    assert lane.pending == lane.last == len(arrivals)


@given(st.lists(st.tuples(SPANS, DEBOUNCES), max_size=20), TIMES, SPANS)
def test_what_does_not_wait_is_due_at_once_whatever_comes_after_it(
    arrivals: list[tuple[int, Debounce]], now: int, before: int
) -> None:
    lane = Lane(IN).accept(now - before, Debounce(10**9, 10**9)).accept(now, Debounce())
    assert lane.is_due(now)
    # As long as a run is open nothing is taken; once it has ended, all that is pending is due.
    lane = lane.take("r", 1, now).hold("w", 1, now, 10**9)
    at = now
    for after, debounce in arrivals:
        at += after
        lane = lane.accept(at, debounce)
    assert lane.close().is_due(now)


@given(TIMES, st.integers(2, 10**9), st.integers(1, 100))
def test_a_steady_stream_is_due_at_the_latest_after_the_longest_wait(
    now: int, quiet: int, steps: int
) -> None:
    debounce = Debounce(quiet, 3 * quiet)
    lane = Lane(IN)
    for step in range(steps):
        at = now + step * (quiet // 2)
        if lane.is_due(at):
            assert at >= now + 3 * quiet
            return
        lane = lane.accept(at, debounce)
    assert lane.due_at is not None
    assert lane.due_at <= now + 3 * quiet


@given(TIMES, SPANS.filter(bool))
def test_fragments_are_due_once_it_is_quiet(now: int, quiet: int) -> None:
    lane = Lane(IN)
    for step in range(3):
        assert not lane.is_due(now + step * (quiet - 1))
        lane = lane.accept(now + step * (quiet - 1), Debounce(quiet, 10 * quiet))
    assert lane.due_at == now + 2 * (quiet - 1) + quiet


@given(TIMES, SPANS, st.integers(1, 5), st.integers(1, 5))
def test_a_reply_that_comes_does_not_hurry_one_that_pauses(
    now: int, pause: int, first: int, more: int
) -> None:
    lane = Lane(OUT).append(now, first).hold("a", 1, now, 10).release(now + pause)
    after = lane.append(now + 1, more)
    assert (after.due_at, after.pending) == (now + pause, first + more)
    settled = after.complete(after.last)
    assert settled.due_at is None
    assert settled.append(now + 2, 1).due_at == now + 2


def test_a_lane_without_anything_is_never_due() -> None:
    lane = Lane(IN)
    assert (lane.due_at, lane.pending, lane.is_due(10**18)) == (None, 0, False)
    assert Lane.read(IN, ()) == lane


@pytest.mark.parametrize("version", [0, 7])
def test_it_is_stored_over_the_version_that_was_read(version: int) -> None:
    lane = Lane(IN, version).accept(5, Debounce()).take("r", 1, None).hold("w", 3, 5, 10)
    put = lane.put(900)
    assert put.expect == (version or Expect.ABSENT)
    assert put.version > version if version else put.version == 900
    assert lane.mark_stored(900).version == put.version
    record = Record(put.kind, put.key, put.fields, put.version)
    assert Lane.read(IN, (record,)) == lane.mark_stored(900)
    assert set(put.fields) == {column.name for column in LANE.fields}
    assert put.fields["due_at"] == 15


@given(TIMES, SPANS)
def test_a_run_that_nobody_holds_is_due_for_its_end(now: int, pause: int) -> None:
    lane = Lane(IN).accept(now, Debounce()).take("r", 1, None).hold("w", 1, now, 30)
    assert lane.request_stop("interrupt", now).due_at == now + 30, "its holder ends it"
    assert lane.postpone(now + pause).request_stop("rollback", now).due_at == now
    assert lane.request_stop("rollback", now).close().stop is None


class Life(RuleBasedStateMachine):
    """An inbox and what a plain list says of it."""

    def __init__(self) -> None:
        super().__init__()
        self.lane = Lane(IN)
        self.now = 0
        self.waiting: list[int] = []  # when each pending message came
        self.open = False

    @initialize(now=TIMES)
    def begin(self, now: int) -> None:
        self.now = now

    @rule(span=SPANS)
    def wait(self, span: int) -> None:
        self.now += span

    @rule(debounce=DEBOUNCES)
    def accept(self, debounce: Debounce) -> None:
        before = self.lane.due_at
        self.lane = self.lane.accept(self.now, debounce)
        self.waiting.append(self.now)
        if self.open:
            assert self.lane.due_at == before, "a message does not change when an open run is looked at"

    @precondition(lambda self: not self.open and self.lane.is_due(self.now))
    @rule(data=st.data(), ttl=SPANS.filter(bool))
    def claim(self, data: st.DataObject, ttl: int) -> None:
        count = data.draw(st.integers(1, len(self.waiting)))
        bound = self.lane.bound + count
        self.waiting = self.waiting[count:]
        since = self.waiting[0] if self.waiting else None
        self.lane = self.lane.take("r", bound, since).hold("w", self.lane.epoch + 1, self.now, ttl)
        self.open = True
        assert not self.lane.is_due(self.now)
        assert self.lane.due_at == self.now + ttl

    @precondition(lambda self: self.open and self.lane.owner is not None)
    @rule(ttl=SPANS)
    def renew(self, ttl: int) -> None:
        self.lane = self.lane.renew(self.now, ttl)
        assert self.lane.due_at == self.now + ttl

    @precondition(lambda self: self.open and self.lane.owner is not None)
    @rule(pause=SPANS)
    def put_off(self, pause: int) -> None:
        self.lane = self.lane.postpone(self.now + pause)
        assert self.lane.due_at == self.now + pause

    @precondition(lambda self: self.open and self.lane.owner is None and self.lane.is_due(self.now))
    @rule(ttl=SPANS.filter(bool))
    def adopt(self, ttl: int) -> None:
        epoch = self.lane.epoch
        self.lane = self.lane.hold("x", epoch + 1, self.now, ttl)
        assert (self.lane.run_id, self.lane.retry_at) == ("r", None)

    @precondition(lambda self: self.open)
    @rule(how=st.sampled_from(["interrupt", "rollback"]))
    def stop(self, how: str) -> None:
        self.lane = self.lane.request_stop(how, self.now)
        if self.lane.owner is None:
            assert self.lane.is_due(self.now)

    @precondition(lambda self: self.open)
    @rule(waits=st.booleans())
    def close(self, waits: bool) -> None:
        self.lane = self.lane.close("r" if waits else None)
        self.open = False
        assert self.lane.waiting == ("r" if waits else None)

    @invariant()
    def whoever_waits_is_looked_at(self) -> None:
        assert self.lane.pending == len(self.waiting)
        assert (self.lane.due_at is not None) == bool(self.waiting or self.open)
        if not self.open and self.waiting:
            assert self.lane.ready_at is not None
            assert self.lane.since is not None
            assert self.lane.ready_at <= self.lane.since
        if not self.open:
            lane = self.lane
            assert (lane.run_id, lane.owner, lane.lease_until, lane.retry_at, lane.stop) == (None,) * 5


TestLife = Life.TestCase


@given(DEBOUNCES, TIMES, SPANS)
def test_what_is_left_by_a_run_does_not_wait_again(debounce: Debounce, now: int, more: int) -> None:
    later = debounce.most + more
    lane = Lane(IN).accept(now, debounce).accept(now, debounce)
    lane = lane.take("r", 1, now).hold("w", 1, now + later, 10).close()
    assert lane.is_due(now + later)
