"""DynamoDB: one table on demand, each commit one conditional transaction, every read strongly consistent.

``items`` has the form of records in the table, ``reading`` the fetches in one snapshot, ``find`` the search
across partitions, ``writing`` the writes to a partition and its removal, and ``clock`` the service's time.
Requests are blocking calls of the low-level client; awaited ones are made in OS threads.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar, cast

from perdure.errors import Unavailable
from perdure.model.ops import Commit, Drop, Fetch, Find, Now, Stage
from perdure.model.program import Effect
from perdure.storage.batching import Batcher, PendingRequest
from perdure.storage.dynamodb import table
from perdure.storage.dynamodb.client import Client, target_of
from perdure.storage.dynamodb.find import find
from perdure.storage.dynamodb.reading import Reader
from perdure.storage.dynamodb.writing import Writer
from perdure.storage.port import Capabilities, CommitLimits

R = TypeVar("R")

SCHEMA_VERSION = table.SCHEMA_VERSION
_WORKERS = 16
_FAN_OUT = 16


class DynamoDriver:
    """One table. Creating the driver neither creates nor checks it."""

    def __init__(self, client: Client) -> None:
        # A transaction takes 100 actions and 4 MB; one action is the root's, and keys and fields count too.
        self.limits = CommitLimits(ops=99, bytes=2_500_000)
        self.client = client
        self.capabilities = Capabilities(
            removes_expired=True,
            reads_heads_first=True,
            statements="DynamoDB",
            count_bytes=partial(table.count_bytes, client),
        )
        self._fan_out = ThreadPoolExecutor(_FAN_OUT, thread_name_prefix="perdure-dynamodb")
        self._reader = Reader(client, self._fan_out)
        self._writer = Writer(client, self._reader)
        self._awaited = Batcher(self._execute, name=str(client.target), workers=_WORKERS, most=1)

    def perform(self, effect: Effect[R]) -> R:
        self._awaited.refuse_when_closed()
        try:
            return cast(R, self._perform(effect))
        except RuntimeError as error:
            # The pool was closed during this request.
            self._awaited.refuse_when_closed()
            raise Unavailable(f"{self.client.target}: {error}") from error

    async def aperform(self, effect: Effect[R]) -> R:
        return await self._awaited.aperform(effect)

    def close(self) -> None:
        self._awaited.close()
        self._fan_out.shutdown(wait=True)
        self.client.boto.close()

    def _execute(self, group: Sequence[PendingRequest]) -> None:
        for job in group:
            job.answer = self._perform(job.effect)

    def _perform(self, effect: Effect[Any]) -> Any:
        if isinstance(effect, Fetch):
            return self._reader.fetch(effect)
        if isinstance(effect, Commit):
            return self._writer.commit(effect)
        if isinstance(effect, Stage):
            return self._writer.stage(effect)
        if isinstance(effect, Find):
            return find(self._reader, effect)
        if isinstance(effect, Now):
            return self._read_time()
        if isinstance(effect, Drop):
            return self._writer.drop(effect)
        raise TypeError(f"not a storage request: {type(effect).__name__}")

    def _read_time(self) -> int:
        clock = self.client.clock
        if not clock.is_fresh:
            table.ask(self.client)
        return clock.now()


def open_driver(url: str) -> DynamoDriver:
    """Open the table of a URL; it must exist and hold this release's layout."""
    return DynamoDriver(table.connect(url))


def schema_version(url: str) -> int:
    """Return the version of the table's layout, 0 when there is no table or no layout in it."""
    return table.version(Client(target_of(url)))


def plan_migration(url: str) -> list[str]:
    """Return the steps that ``migrate`` would execute now, in words."""
    return table.plan_migration(Client(target_of(url)))


def migrate(url: str) -> int:
    """Create the table, or check its definition; return the version that the table's layout had."""
    return table.migrate(Client(target_of(url)))
