"""Pauses of chats."""

from __future__ import annotations

import math

import pytest

from perdure.channels.retry_after import ChatBackoff
from perdure.runtime import NotSent


def test_a_pause_is_of_one_chat_and_ends() -> None:
    now = [100.0]
    backoff = ChatBackoff(lambda: now[0])
    assert backoff.note_limit("1", 5.0).retry_after == 5.0
    with pytest.raises(NotSent) as waiting:
        backoff.check("1")
    assert waiting.value.retry_after == 5.0
    backoff.check("2")
    now[0] = 105.0
    backoff.check("1")


@pytest.mark.parametrize("asked", [1e9, math.inf, 10**400], ids=["long", "endless", "no float"])
def test_a_pause_is_at_most_an_hour(asked: float) -> None:
    now = [0.0]
    backoff = ChatBackoff(lambda: now[0])
    assert backoff.note_limit("1", asked).retry_after == 3600.0
    now[0] = 3600.0
    backoff.check("1")


@pytest.mark.parametrize("asked", [-5.0, 0.0, math.nan])
def test_a_pause_of_no_length_stops_nothing(asked: float) -> None:
    backoff = ChatBackoff(lambda: 0.0)
    assert backoff.note_limit("1", asked).retry_after == 0.0
    backoff.check("1")


def test_a_shorter_pause_does_not_end_a_longer_one_and_old_ones_are_dropped() -> None:
    now = [0.0]
    backoff = ChatBackoff(lambda: now[0])
    backoff.note_limit("1", 5.0)
    backoff.note_limit("1", 1.0)
    now[0] = 2.0
    with pytest.raises(NotSent):
        backoff.check("1")
    now[0] = 10.0
    for chat in range(5000):
        backoff.note_limit(str(chat), 0.0)
    assert len(backoff._until) < 2000
