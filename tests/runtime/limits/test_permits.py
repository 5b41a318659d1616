"""Permits of a rate, by their moments."""

import pytest

from perdure.runtime.limits.permits import Permits


def test_a_permit_is_there_from_its_moment_until_it_lapses() -> None:
    permits = Permits(1.0, 2.0)
    permits.add(10.0, 3)
    assert (permits.find_moment(), permits.find_moment(3), permits.find_moment(4), permits.ends) == (
        10.0,
        12.0,
        None,
        12.0,
    )
    assert [permits.count_ready(now) for now in (9.9, 10.0, 11.9, 12.0, 99.0)] == [0, 1, 2, 3, 3]
    permits.lapse(12.0)
    assert len(permits) == 3
    permits.lapse(12.5)
    assert (len(permits), permits.find_moment()) == (2, 11.0)
    permits.lapse(100.0)
    assert (len(permits), permits.find_moment()) == (0, None)


def test_a_permit_that_was_used_for_nothing_is_there_again() -> None:
    permits = Permits(1.0, 2.0)
    permits.add(10.0, 3)
    moment = permits.find_moment()
    permits.use()
    assert moment is not None
    permits.put_back(moment)
    assert (permits.find_moment(), len(permits)) == (10.0, 3)


def test_permits_of_several_spans_are_used_in_order() -> None:
    permits = Permits(0.5, 60.0)
    permits.add(1.0, 2)
    permits.add(9.0, 2)
    assert permits.find_moment(3) == 9.0
    permits.use(3)
    assert len(permits) == 1
    assert permits.find_moment() == pytest.approx(9.5)
