"""The service's time from the dates of its answers, whatever the host's clocks do."""

from __future__ import annotations

import random
from email.utils import formatdate

import pytest

from perdure.storage.dynamodb.clock import FRESH, LOOSE, SECOND, ServiceClock

HOUR = 3600 * SECOND
START = 1_700_000_000 * SECOND + 123_456


class World:
    """The service's true time, and a host whose clocks are off."""

    def __init__(self, ahead: int = 0, drift: float = 0.0) -> None:
        self.time = START
        self.ahead = ahead
        self.drift = drift
        self.asleep = 0
        self.clock = ServiceClock(self.wall, self.steady)

    def wall(self) -> int:
        return self.time + self.ahead

    def steady(self) -> int:
        awake = self.time - START - self.asleep
        return 5 * SECOND + round(awake * (1 + self.drift))

    def answer(self, there: int = 2000, back: int = 2000, skew: int = 0) -> None:
        """A request, ``there`` and ``back`` again, to a machine whose clock has a skew."""
        asked = self.clock.start_request()
        self.time += there
        date = formatdate((self.time + skew) // SECOND, usegmt=True)
        self.time += back
        self.clock.note_answer(asked, date)

    def answers(self, count: int = 60, seed: int = 0) -> None:
        """Answers at any moment, some of them slow."""
        dice = random.Random(seed)
        for _ in range(count):
            self.time += dice.randrange(SECOND)
            slow = 100 if dice.random() < 0.1 else 1
            self.answer(dice.randrange(3000) * slow, dice.randrange(3000) * slow)

    def sleep(self, span: int) -> None:
        self.time += span
        self.asleep += span

    @property
    def error(self) -> int:
        return self.clock.now() - self.time


@pytest.mark.parametrize("off", [0, 20_000, -20_000])
def test_a_host_that_can_be_right_is_believed_to_the_microsecond(off: int) -> None:
    world = World(off)
    world.answers()
    assert world.error == off
    world.time += FRESH
    assert world.error == off


@pytest.mark.parametrize("drift", [450e-6, -450e-6])
def test_a_host_that_is_right_is_never_doubted(drift: float) -> None:
    """Whatever the bounds are, they hold the truth: with slow answers, machines that disagree, a steady clock
    that is not quite so."""
    world = World(drift=drift)
    dice = random.Random(2)
    for _ in range(500):
        world.time += dice.randrange(FRESH)
        assert world.error == 0
        slow = dice.choice((1, 1, 1, 1000))
        skew = dice.randrange(-LOOSE, LOOSE)
        world.answer(dice.randrange(3000) * slow, dice.randrange(3000) * slow, skew)
        assert world.error == 0


@pytest.mark.parametrize("ahead", [HOUR, -HOUR, 3 * SECOND, -3 * SECOND, 10**6 * HOUR])
def test_a_host_that_is_off_is_corrected_by_one_answer_and_better_by_several(ahead: int) -> None:
    for fraction in range(0, SECOND, 99_999):
        world = World(ahead)
        world.time += fraction
        world.answer()
        assert abs(world.error) <= SECOND // 2 + 4000
    world.answers()
    assert abs(world.error) <= 60_000


def test_an_error_that_one_answer_cannot_tell_is_found_by_several() -> None:
    world = World(SECOND // 4)
    world.answer()
    world.answers(200)
    assert abs(world.error) <= 60_000


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("ahead", [0, HOUR, -HOUR])
def test_with_jitter_and_drift_the_truth_is_never_left(ahead: int, seed: int) -> None:
    world = World(ahead, drift=(seed - 10) * 40e-6)
    for n in range(30):
        world.answers(5, seed=seed * 1000 + n)
        assert abs(world.error) <= SECOND // 2 + 300_000
        world.time += FRESH // 2
        assert world.clock.is_fresh
        assert abs(world.error) <= SECOND // 2 + 300_000


def test_machines_that_disagree_a_little_do_not_count_as_contradiction() -> None:
    world = World(HOUR)
    dice = random.Random(1)
    for _ in range(300):
        world.time += dice.randrange(SECOND)
        world.answer(skew=dice.randrange(-LOOSE, LOOSE))
    assert abs(world.error) <= 2 * LOOSE


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_jump_of_the_hosts_clock_is_seen_and_changes_nothing(jump: int) -> None:
    world = World()
    world.answers()
    before = world.clock.now()
    world.ahead = jump
    assert not world.clock.is_fresh, "the next who wants to know has to ask"
    assert world.clock.now() >= before
    assert abs(world.error) <= 60_000
    world.answer()
    assert world.clock.is_fresh
    assert abs(world.error) <= 60_000
    world.ahead = 0
    world.answer()
    world.time += SECOND
    assert world.error == 0


def test_a_sleep_of_the_host_is_seen_and_forgotten_with_the_next_answer() -> None:
    for ahead in (0, HOUR):
        world = World(ahead)
        world.answers()
        world.sleep(HOUR)
        assert not world.clock.is_fresh
        world.answer()
        assert world.clock.is_fresh
        assert abs(world.error) <= SECOND // 2 + 4000


def test_a_service_whose_clock_was_set_back_lets_time_stand_but_not_return() -> None:
    world = World(HOUR)
    world.answers()
    before = world.clock.now()
    world.time -= 10 * SECOND
    world.ahead += 10 * SECOND
    world.asleep -= 10 * SECOND
    world.answer()
    assert world.clock.now() == before
    world.time += 20 * SECOND
    assert abs(world.error) <= SECOND


def test_time_never_goes_back() -> None:
    world = World()
    dice = random.Random(3)
    last = 0
    for _ in range(2000):
        world.time += dice.randrange(SECOND // 10)
        if dice.random() < 0.3:
            world.answer(dice.randrange(50_000), dice.randrange(50_000))
        if dice.random() < 0.05:
            world.ahead = dice.choice((0, HOUR, -HOUR, SECOND // 3))
        now = world.clock.now()
        assert now >= last
        last = now


def test_without_an_answer_lately_somebody_has_to_ask() -> None:
    world = World(HOUR)
    assert not world.clock.is_fresh
    assert world.error == HOUR, "the host is all there is"
    world = World(HOUR)
    world.answer()
    world.time += FRESH
    assert world.clock.is_fresh
    world.time += 1
    assert not world.clock.is_fresh
    assert abs(world.error) <= SECOND


@pytest.mark.parametrize(
    "date",
    [
        None,
        "",
        "0",
        "soon",
        "Sat, 21 Nov 9999999999999 18:08:03 GMT",
        "Sat, 99 Nov 2026 99:99:99 GMT",
        "Sat, 21 Nov 2026 18:08:03 -0000",
    ],
)
def test_a_date_that_cannot_be_read_teaches_nothing(date: str | None) -> None:
    world = World()
    world.clock.note_answer(world.clock.start_request(), date)
    assert not world.clock.is_fresh
    world.answer()
    world.clock.note_answer(world.clock.start_request(), date)
    assert world.clock.is_fresh
    assert world.error == 0


def test_the_hosts_own_clocks_are_the_default() -> None:
    clock = ServiceClock()
    clock.note_answer(clock.start_request(), formatdate(usegmt=True))
    assert clock.is_fresh
    assert 0 <= clock.now() <= clock.now()
