"""Opening a database by URL, and what an open one offers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

from perdure.engine import checkpoints, retention, tags
from perdure.engine.fsck import Finding, Repaired
from perdure.engine.fsck import check as check_thread
from perdure.engine.fsck import repair as repair_thread
from perdure.langgraph import inspect
from perdure.langgraph.inspect import CheckpointView
from perdure.langgraph.saver import OnConflict, PerdureSaver
from perdure.langgraph.serde import TypeName
from perdure.model.chunks import Digester
from perdure.model.records import Partition
from perdure.storage.port import Driver, arun, run
from perdure.storage.sealed import Keyring, SealedDriver, admit
from perdure.storage.url import open_driver

DEFAULT_METADATA_KEYS = ("run_id", "assistant_id", "graph_id", "user_id", "langgraph_auth_user_id")
"""The configurable values that are persisted in checkpoint metadata unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Thread:
    """An entry of the catalogue. ``updated_at`` is the time of the latest checkpoint, ISO 8601."""

    tenant: str
    thread_id: str
    updated_at: str | None


class Database:
    """An open database. Make one with ``connect`` or ``connect_sync``; safe to share between threads and
    event loops."""

    def __init__(self, driver: Driver, *, tenant: str, digest: Digester) -> None:
        self._driver = driver
        self._tenant = tenant
        self._digest = digest

    def checkpointer(
        self,
        *,
        tenant: str | None = None,
        allow: Collection[type | TypeName] = (),
        on_conflict: OnConflict = "raise",
        may_list_all_threads: bool = False,
        metadata_keys: Collection[str] = DEFAULT_METADATA_KEYS,
    ) -> PerdureSaver:
        """A checkpointer for ``graph.compile(checkpointer=…)``, sync and async.

        ``allow`` names the types beyond LangChain's messages and the standard library's that checkpoints
        may hold: classes (their fields' types are included) or ``(module, name)``. With
        ``on_conflict="raise"`` a run that loses the race for its thread gets ``HeadConflict``; ``"fork"``
        lets both stand, as the stock savers do. ``may_list_all_threads`` permits ``list(None)``.
        ``metadata_keys`` are the configurable values that are persisted as metadata; all others stay out.
        """
        if on_conflict not in ("raise", "fork"):
            raise ValueError(f"on_conflict is 'raise' or 'fork', not {on_conflict!r}")
        return PerdureSaver(
            self._driver,
            tenant=self._tenant if tenant is None else tenant,
            digest=self._digest,
            allow=allow,
            on_conflict=on_conflict,
            may_list_all_threads=may_list_all_threads,
            metadata_keys=metadata_keys,
        )

    async def threads(self) -> AsyncIterator[Thread]:
        """The tenant's threads, by id."""
        for partition in await arun(retention.all_threads(self._tenant), self._driver):
            found = await arun(checkpoints.load(partition, "", None), self._driver)
            yield Thread(
                partition.tenant, partition.thread, found.checkpoint.ts if found.checkpoint else None
            )

    def threads_sync(self) -> Iterator[Thread]:
        """As ``threads``, blocking."""
        for partition in run(retention.all_threads(self._tenant), self._driver):
            found = run(checkpoints.load(partition, "", None), self._driver)
            yield Thread(
                partition.tenant, partition.thread, found.checkpoint.ts if found.checkpoint else None
            )

    def tag(self, thread_id: str, name: str, checkpoint_id: str | None = None) -> str:
        """Anchor a checkpoint, the latest when no id is given, so that no pruning removes it; its id."""
        return run(
            tags.set_tag(Partition(self._tenant, thread_id), name, checkpoint_id=checkpoint_id), self._driver
        )

    def untag(self, thread_id: str, name: str) -> None:
        """Take a tag away; ``NotFound`` when there is none."""
        run(tags.remove_tag(Partition(self._tenant, thread_id), name), self._driver)

    def tags(self, thread_id: str) -> dict[str, str]:
        """The tags of a thread: name to checkpoint id."""
        found = run(tags.list_tags(Partition(self._tenant, thread_id)), self._driver)
        return {record.key[0]: record.fields["checkpoint_id"] for record in found}

    def show(self, thread_id: str) -> CheckpointView:
        """The latest checkpoint of a thread in plain data; no type is built. ``NotFound`` without one."""
        return run(inspect.latest(Partition(self._tenant, thread_id), self._digest), self._driver)

    def timeline(self, thread_id: str, namespace: str = "", limit: int = 100) -> list[CheckpointView]:
        """The newest checkpoints of a thread's namespace, newest first, without values."""
        return run(inspect.timeline(Partition(self._tenant, thread_id), namespace, limit), self._driver)

    def export(self, thread_id: str) -> dict[str, Any]:
        """A thread as plain JSON data: every checkpoint with its values, pending writes and tags."""
        return run(inspect.export(Partition(self._tenant, thread_id), self._digest), self._driver)

    def fsck(self, thread_id: str | None = None) -> list[Finding]:
        """What is wrong with a thread, or with any thread of the tenant; nothing is changed.

        It reads everything: links, heads, tags, every reference, and every chunk against its name.
        """
        if thread_id is not None:
            return run(check_thread(Partition(self._tenant, thread_id), self._digest), self._driver)
        found: list[Finding] = []
        for partition in run(retention.all_threads(self._tenant), self._driver):
            found += run(check_thread(partition, self._digest), self._driver)
        return found

    def repair(self, thread_id: str) -> Repaired:
        """Mend the holes and heads of a thread that ``fsck`` finds; what was mended, and what is left.

        Nothing is invented: lost bytes stay lost and are reported. ``Fenced`` while a run is open.
        """
        return run(repair_thread(Partition(self._tenant, thread_id), self._digest), self._driver)

    def close(self) -> None:
        """Finish accepted writes and close; repeatable."""
        self._driver.close()


def open_database(
    url: str,
    *,
    migrate: bool = False,
    tenant: str = "",
    encryption_key: bytes | Collection[bytes] | None = None,
    wrap: Callable[[Driver], Driver] = lambda driver: driver,
) -> Database:
    """Open a database; the caller closes it. Prefer ``connect`` and ``connect_sync``.

    ``wrap`` may put a driver of the caller's around the one of the URL, e.g. one that fails on purpose.
    """
    keyring = None if encryption_key is None else Keyring.of(encryption_key)
    driver = open_driver(url, migrate=migrate)
    try:
        admit(driver, keyring, url)
    except BaseException:
        driver.close()
        raise
    return Database(
        wrap(SealedDriver(driver, keyring)),
        tenant=tenant,
        digest=Digester(*(keyring.digest_keys if keyring is not None else ())),
    )


@contextmanager
def connect_sync(
    url: str,
    *,
    migrate: bool = False,
    tenant: str = "",
    encryption_key: bytes | Collection[bytes] | None = None,
) -> Iterator[Database]:
    """As ``connect``, for programs without an event loop."""
    database = open_database(url, migrate=migrate, tenant=tenant, encryption_key=encryption_key)
    try:
        yield database
    finally:
        database.close()


@asynccontextmanager
async def connect(
    url: str,
    *,
    migrate: bool = False,
    tenant: str = "",
    encryption_key: bytes | Collection[bytes] | None = None,
) -> AsyncIterator[Database]:
    """Open a database for the length of a ``with`` block.

    ``url`` is ``sqlite:///relative/path.db``, ``sqlite:////absolute/path.db`` or ``memory://``. A URL that
    cannot be used raises ``BadUrl`` or ``Unavailable``, a database without this release's schema
    ``Unmigrated`` unless ``migrate`` is true. ``tenant`` separates threads of equal names.
    ``encryption_key`` is 32 bytes, or several such keys of which the first seals and all open; a database
    that is encrypted otherwise, or not at all, raises ``Sealed``.
    """
    database = await asyncio.to_thread(
        open_database, url, migrate=migrate, tenant=tenant, encryption_key=encryption_key
    )
    try:
        yield database
    finally:
        await asyncio.to_thread(database.close)
