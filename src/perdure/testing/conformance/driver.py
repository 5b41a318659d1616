"""Contract of the storage port, in one class, for both the blocking and the awaited methods of a driver."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from perdure.model.program import Effect
from perdure.storage.port import WrappingDriver
from perdure.testing.conformance.committing import Committing
from perdure.testing.conformance.concurrency import Concurrency
from perdure.testing.conformance.documents import Documents
from perdure.testing.conformance.items import Items
from perdure.testing.conformance.partitions import Partitions
from perdure.testing.conformance.queues import Queues
from perdure.testing.conformance.reading import Reading

R = TypeVar("R")


class DriverContract(Reading, Committing, Partitions, Queues, Items, Documents, Concurrency):
    """Contract of every driver. Subclass it in a test and give it a fixture ``driver``: an open, empty one.

    >>> class TestMine(DriverContract):
    ...     @pytest.fixture(params=[Blocking, Awaited])
    ...     def driver(self, request):
    ...         with closing(MyDriver()) as driver:
    ...             yield request.param(driver)
    """


class Blocking(WrappingDriver):
    """Driver whose ``perform`` calls the driver's blocking method."""

    def perform(self, effect: Effect[R]) -> R:
        return self._inner.perform(effect)

    async def aperform(self, effect: Effect[R]) -> R:
        return await self._inner.aperform(effect)

    def close(self) -> None:
        self._inner.close()


class Awaited(Blocking):
    """Driver whose ``perform`` awaits ``aperform`` in an event loop of its own."""

    def perform(self, effect: Effect[R]) -> R:
        return asyncio.run(self._inner.aperform(effect))
