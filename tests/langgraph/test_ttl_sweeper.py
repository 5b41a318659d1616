"""A sweeper keeps to its interval, and an interval that is none is refused.

Covers perdure.langgraph.store_arguments.
"""

from __future__ import annotations

import asyncio
import threading
from math import inf, nan
from typing import Any, cast

import pytest

import perdure
from perdure.langgraph.ttl_sweeper import TtlSweeper
from perdure.storage.memory import MemoryDriver
from perdure.testing.conformance import Backend


@pytest.mark.parametrize("wrong", [0, -1, -0.5, nan, inf, -inf, True, "5", []], ids=repr)
def test_an_interval_that_is_none_is_refused(wrong: Any) -> None:
    store = Backend(MemoryDriver()).store()
    running = store.start_ttl_sweeper(60)
    try:
        with pytest.raises((ValueError, TypeError), match="sweep_interval_minutes is a number of minutes"):
            store.start_ttl_sweeper(wrong)
        assert not running.done()
    finally:
        assert store.stop_ttl_sweeper()
    for name in ("sweep_interval_minutes", "default_ttl"):
        with (
            perdure.connect_sync("memory://") as db,
            pytest.raises((ValueError, TypeError), match=f"{name} is a number of minutes"),
        ):
            db.store(ttl=cast(Any, {name: wrong}))


@pytest.mark.parametrize("wrong", [0, nan])
def test_a_wrong_interval_leaves_the_sweeper_of_an_event_loop_running(wrong: float) -> None:
    async def main() -> None:
        async with perdure.connect("memory://") as db:
            store = db.store()
            running = await store.start_ttl_sweeper(60)
            with pytest.raises(ValueError, match="number of minutes above 0"):
                await store.start_ttl_sweeper(wrong)
            assert not running.done()
            assert await store.stop_ttl_sweeper()
            await running

    asyncio.run(main())


def test_a_setting_of_another_type_is_refused() -> None:
    with (
        perdure.connect_sync("memory://") as db,
        pytest.raises(TypeError, match="True or False, not 'no'"),
    ):
        db.store(ttl=cast(Any, {"refresh_on_read": "no"}))


def test_any_finite_interval_is_waited_for() -> None:
    for config, minutes in (
        ({}, None),
        ({"sweep_interval_minutes": None, "default_ttl": None}, None),
        ({}, 1e300),
        ({}, 5e9),
    ):
        with perdure.connect_sync("memory://") as db:
            store = db.store(ttl=config)  # type: ignore[arg-type]
            ended = store.start_ttl_sweeper(minutes)
            (sweeper,) = [each for each in threading.enumerate() if each.name == "perdure-ttl-sweeper"]
            sweeper.join(0.05)
            assert sweeper.is_alive()
            assert store.stop_ttl_sweeper()
            assert ended.result(5) is None


def test_the_future_of_a_sweeper_that_fails_has_its_error() -> None:
    def fail() -> int:
        raise KeyError("unexpected")

    with pytest.raises(KeyError, match="unexpected"):
        TtlSweeper(fail, 0.001).ended.result(30)
