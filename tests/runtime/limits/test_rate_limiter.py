"""LangChain's models wait for a rate that processes share, through ``RateLimiter``."""

import asyncio
import time
from itertools import cycle
from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

import perdure
from perdure.limits import LimitReached, RateLimiter, SharedLimit


def model(limiter: RateLimiter) -> GenericFakeChatModel:
    return GenericFakeChatModel(messages=cycle([AIMessage("yes")]), rate_limiter=limiter)


@pytest.fixture
def url(tmp_path: Any) -> str:
    return f"sqlite:///{tmp_path / 'limits.db'}"


def test_models_that_block_wait_in_their_threads(url: str) -> None:
    with perdure.connect_sync(url, migrate=True) as db, perdure.connect_sync(url) as other:
        limit = SharedLimit(rate=1200, burst=2)
        models = [model(RateLimiter(each, "openai", limit)) for each in (db, other)]
        models[0].invoke("?")
        began = time.monotonic()
        for number in range(20):
            assert models[number % 2].invoke("?").text == "yes"
        assert time.monotonic() - began >= (20 - 2) / 20 - 0.05


def test_models_that_are_awaited_wait_in_any_event_loop(url: str) -> None:
    async def calls(one: GenericFakeChatModel) -> None:
        await asyncio.gather(*(one.ainvoke("?") for _ in range(10)))

    with perdure.connect_sync(url, migrate=True) as db:
        one = model(RateLimiter(db, "openai", SharedLimit(rate=1200, burst=2)))
        one.invoke("?")
        began = time.monotonic()
        for _ in range(2):
            asyncio.run(calls(one))
        assert time.monotonic() - began >= (20 - 2) / 20 - 0.05


def test_who_does_not_wait_is_told(url: str) -> None:
    with perdure.connect_sync(url, migrate=True) as db:
        limiter = RateLimiter(db, "slow", SharedLimit(rate=2, burst=2), timeout=0.2)
        patient = RateLimiter(db, "slow")
        assert patient.acquire()
        assert patient.acquire()
        assert not limiter.acquire(blocking=False)
        assert asyncio.run(limiter.aacquire(blocking=False)) is False
        with pytest.raises(LimitReached, match="limit 'slow'"):
            limiter.acquire()


@pytest.mark.parametrize(
    "fields", [{"concurrency": 1}, {"rate": 1, "tokens": 5}, {"rate": 1, "by": ["user"]}]
)
def test_a_limit_that_needs_the_end_of_a_call_is_refused(fields: dict[str, Any], url: str) -> None:
    with (
        perdure.connect_sync(url, migrate=True) as db,
        pytest.raises(ValueError, match="limit 'openai'"),
    ):
        RateLimiter(db, "openai", SharedLimit(**fields))
