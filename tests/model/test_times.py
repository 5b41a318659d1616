"""Times of checkpoints, and their conversion from and to dates."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from langgraph.checkpoint.base.id import uuid6

from perdure.model.times import read_time, time_of, to_datetime, to_micros


def test_an_id_of_langgraph_has_the_time_of_its_creation() -> None:
    before = time.time_ns() // 1000
    at = time_of(str(uuid6()))
    assert at is not None
    assert before - 1 <= at <= time.time_ns() // 1000 + 1_000_000


def test_other_ids_have_none() -> None:
    assert time_of("first") is None
    assert time_of("6ba7b810-9dad-11d1-80b4-00c04fd430c8") is None


@pytest.fixture(params=["Pacific/Kiritimati", "UTC", "America/Los_Angeles"])
def _host_zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.usefixtures("_host_zone")
def test_a_text_is_the_same_time_on_every_host() -> None:
    assert read_time("1970-01-02T00:00:00") == 86_400_000_000
    assert read_time("1970-01-02T00:00:00.000001+00:00") == 86_400_000_001
    assert read_time("1970-01-02T00:00:00-10:00") == 122_400_000_000


@pytest.mark.parametrize("text", ["", "soon", None, 5])
def test_what_is_no_time_is_refused(text: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        read_time(text)


@pytest.mark.usefixtures("_host_zone")
@given(st.integers(to_micros(datetime.min), to_micros(datetime.max)))
def test_a_date_is_the_same_time_exactly(micros: int) -> None:
    at = to_datetime(micros)
    assert to_micros(at) == to_micros(at.replace(tzinfo=None)) == read_time(at.isoformat()) == micros


@pytest.mark.parametrize("micros", [to_micros(datetime.max) + 1, to_micros(datetime.min) - 1, 10**30])
def test_there_are_no_dates_beyond_the_calendar(micros: int) -> None:
    with pytest.raises(OverflowError):
        to_datetime(micros)
