"""The time of a checkpoint's id."""

from __future__ import annotations

import time

from langgraph.checkpoint.base.id import uuid6

from perdure.model.checkpoint_times import time_of


def test_an_id_of_langgraph_has_the_time_of_its_creation() -> None:
    before = time.time_ns() // 1000
    at = time_of(str(uuid6()))
    assert at is not None
    assert before - 1 <= at <= time.time_ns() // 1000 + 1_000_000


def test_other_ids_have_none() -> None:
    assert time_of("first") is None
    assert time_of("6ba7b810-9dad-11d1-80b4-00c04fd430c8") is None
