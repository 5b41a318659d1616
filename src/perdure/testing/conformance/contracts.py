"""Contracts of a driver, a checkpointer and a store, in one class each."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from perdure.model.program import Effect
from perdure.storage.port import WrappingDriver
from perdure.testing.conformance.committing import Committing
from perdure.testing.conformance.concurrency import Concurrency
from perdure.testing.conformance.documents import Documents
from perdure.testing.conformance.expiry import Expiry
from perdure.testing.conformance.fences import Fences
from perdure.testing.conformance.going_back import GoingBack
from perdure.testing.conformance.heads import Heads
from perdure.testing.conformance.items import Items
from perdure.testing.conformance.lineage import Lineage
from perdure.testing.conformance.listing import Listing
from perdure.testing.conformance.meaning import Meaning
from perdure.testing.conformance.partitions import Partitions
from perdure.testing.conformance.queues import Queues
from perdure.testing.conformance.reading import Reading
from perdure.testing.conformance.retention import Pruning
from perdure.testing.conformance.store_operations import Operations

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


class Awaited(Blocking):
    """Driver whose ``perform`` awaits ``aperform`` in an event loop of its own."""

    def perform(self, effect: Effect[R]) -> R:
        return asyncio.run(self._inner.aperform(effect))


class SaverContract(Heads, Fences, Lineage, Listing, Pruning, GoingBack):
    """Contract of a checkpointer beyond LangGraph's own suite. Subclass it in a test and give it a fixture
    ``backend``: a ``Backend`` around an open, empty driver.

    >>> class TestMine(SaverContract):
    ...     @pytest.fixture
    ...     def backend(self):
    ...         with closing(MyDriver()) as driver:
    ...             yield Backend(driver)
    """


class StoreContract(Operations, Expiry, Meaning):
    """Contract of LangGraph's ``BaseStore``, and of questions that it leaves open. Subclass it in a test and
    give it a fixture ``backend``: a ``Backend`` around an open, empty driver.

    >>> class TestMine(StoreContract):
    ...     @pytest.fixture
    ...     def backend(self):
    ...         with closing(MyDriver()) as driver:
    ...             yield Backend(driver)
    """
