"""What a container keeps from call to call is opened once, and again when it is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest

from perdure.errors import Unavailable
from perdure.serverless import warm_resources
from perdure.serverless.warm_resources import Container


class Resource:
    """Counts how often it was opened and closed; may be lost, or fail to open."""

    def __init__(self) -> None:
        self.opened = self.closed = self.checked = 0
        self.is_away = self.is_lost = False

    @asynccontextmanager
    async def opening(self) -> AsyncIterator[int]:
        if self.is_away:
            raise Unavailable("away")
        self.opened += 1
        self.is_lost = False
        try:
            yield self.opened
        finally:
            self.closed += 1

    async def check(self, _: int) -> None:
        self.checked += 1
        if self.is_lost:
            raise Unavailable("lost")


@pytest.fixture
def resource() -> Resource:
    return Resource()


@pytest.fixture
def container(resource: Resource) -> Iterator[Container[int]]:
    made = Container(resource.opening, resource.check)
    yield made
    made.close()


async def use(resource: int) -> int:
    return resource


def thaw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every call come after a long pause."""
    monkeypatch.setattr(warm_resources, "THAWED_AFTER_S", -1.0)


def test_it_is_opened_in_the_first_call_and_kept(resource: Resource, container: Container[int]) -> None:
    assert resource.opened == 0
    assert [container.call(use) for _ in range(3)] == [1, 1, 1]
    assert (resource.opened, resource.checked) == (1, 0)
    container.close()
    container.close()
    assert resource.closed == 1
    assert container.call(use) == 2


def test_after_a_pause_it_is_checked_and_opened_again_if_lost(
    resource: Resource, container: Container[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert container.call(use) == 1
    thaw(monkeypatch)
    assert container.call(use) == 1
    assert resource.checked == 1
    resource.is_lost = True
    assert container.call(use) == 2
    assert (resource.opened, resource.closed) == (2, 1)


def test_a_start_that_fails_is_tried_again_by_the_next_call(
    resource: Resource, container: Container[int]
) -> None:
    resource.is_away = True
    with pytest.raises(Unavailable):
        container.call(use)
    resource.is_away = False
    assert container.call(use) == 1


def test_nothing_runs_between_two_calls(container: Container[int]) -> None:
    ticks: list[int] = []

    async def begin(_: int) -> asyncio.Task[None]:
        async def tick() -> None:
            while True:
                ticks.append(1)
                await asyncio.sleep(0)

        return asyncio.create_task(tick())

    async def end(_: int) -> None:
        task.cancel()
        await asyncio.wait([task])

    task = container.call(begin)
    before = len(ticks)
    assert len(ticks) == before
    container.call(use)
    assert len(ticks) > before
    container.call(end)


def test_an_error_of_a_call_leaves_the_resource_open(resource: Resource, container: Container[int]) -> None:
    async def fail(_: int) -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        container.call(fail)
    assert container.call(use) == 1
    assert resource.closed == 0
