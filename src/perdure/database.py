"""Opening of a database by URL, and the operations of an open one."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

from perdure.care.sweeper import RetentionSweeper, SweepOptions
from perdure.engine import checkpoints, content, fsck_report, retention, tags, transfer, transfer_items
from perdure.engine.content import Digest, Report
from perdure.engine.fsck import check as check_thread
from perdure.engine.fsck import repair as repair_thread
from perdure.engine.fsck_report import Damage, Finding, Repaired
from perdure.engine.measure import Measure, measure
from perdure.engine.stuck import Survey, survey
from perdure.engine.transact import Budget
from perdure.engine.transfer import OnSide, Side, TransferOptions, TransferResult
from perdure.errors import Corrupt, DecryptionError
from perdure.history.histories import Histories, SyncHistories
from perdure.langgraph import inspect
from perdure.langgraph.codecs import Codec
from perdure.langgraph.datatypes import Allow, by_default
from perdure.langgraph.inspect import CheckpointView
from perdure.langgraph.saver import SERDE, OnConflict, PerdureSaver
from perdure.langgraph.store import PerdureStore, TTLConfig
from perdure.model.arguments import refuse_text
from perdure.model.chunks import Digester
from perdure.model.ops import Fetch, Find, Get, IndexHit
from perdure.model.program import Effect, Program, ask
from perdure.model.records import OF_ITEMS, RESERVED, SEAL, SPACES, Partition
from perdure.model.retention_policy import Retention, RetentionRules
from perdure.schema.schema import Schema
from perdure.storage.archive import Archive
from perdure.storage.encryption import EncryptedDriver, Keyring, admit
from perdure.storage.port import CommitLimits, Driver, arun, bell_of, examine, has_listing, run
from perdure.storage.url import open_driver, redacted

R = TypeVar("R")

DEFAULT_METADATA_KEYS = ("run_id", "assistant_id", "graph_id", "user_id", "langgraph_auth_user_id")
"""Configurable values that are stored in checkpoint metadata by default."""


@dataclass(frozen=True, slots=True)
class Thread:
    """Entry of the thread listing.

    ``updated_at`` is the time of the last change, ISO 8601. If it is read from the latest checkpoint, and
    that cannot be read, it is ``None`` and ``error`` is the reason.
    """

    tenant: str
    thread_id: str
    updated_at: str | None
    error: str | None = None


class Database:
    """An open database, made by ``connect`` or ``connect_sync``; it can be shared between threads and event
    loops."""

    def __init__(
        self, driver: Driver, *, tenant: str, digest: Digester, retention: RetentionRules | None = None
    ) -> None:
        self._driver = driver
        self._tenant = tenant
        self._digest = digest
        self._stores: WeakSet[PerdureStore] = WeakSet()
        self._rules = retention or RetentionRules()

    def checkpointer(
        self,
        *,
        tenant: str | None = None,
        allow: Allow | None = None,
        codecs: Collection[Codec] = (),
        on_conflict: OnConflict = "raise",
        may_list_all_threads: bool = False,
        metadata_keys: Collection[str] = DEFAULT_METADATA_KEYS,
        schema: Schema | None = None,
        serde: None = None,
    ) -> PerdureSaver:
        """Return a checkpointer for ``graph.compile(checkpointer=…)``, sync and async.

        Args:
            tenant: owner of the threads; that of the database unless given.
            allow: types that checkpoints may hold beyond LangChain's messages and the standard library's
                values. ``"imported"``: every pydantic model, dataclass, enum and named tuple that this
                program has imported. ``"listed"``: none. A list: those in it, classes (the types of their
                fields are included) or ``(module, name)``. The default is ``"imported"``, or ``"listed"`` if
                ``LANGGRAPH_STRICT_MSGPACK`` is set.
            codecs: store objects of other types.
            on_conflict: with ``"raise"`` a run that loses the race for its thread gets ``HeadConflict``;
                ``"fork"`` keeps both, as the stock savers do.
            may_list_all_threads: permits ``list(None)``.
            metadata_keys: configurable values that are stored as metadata; all others are left out.
            schema: version of the graph, and the steps by which threads of older versions are migrated when
                they are read; version 1 unless given.
            serde: not supported; anything but ``None`` raises ``TypeError``.
        """
        if serde is not None:
            raise TypeError(SERDE)
        refuse_text("metadata_keys", metadata_keys)
        if on_conflict not in ("raise", "fork"):
            raise ValueError(f"on_conflict is 'raise' or 'fork', not {on_conflict!r}")
        return PerdureSaver(
            self._driver,
            tenant=self._tenant if tenant is None else tenant,
            digest=self._digest,
            allow=by_default() if allow is None else allow,
            codecs=codecs,
            on_conflict=on_conflict,
            may_list_all_threads=may_list_all_threads,
            metadata_keys=metadata_keys,
            schema=schema,
        )

    def store(self, *, tenant: str | None = None, ttl: TTLConfig | None = None) -> PerdureStore:
        """Return a store for ``graph.compile(store=…)``, sync and async.

        Args:
            tenant: owner of the items; that of the database unless given.
            ttl: LangGraph's ``TTLConfig``: ``default_ttl`` and ``sweep_interval_minutes`` in minutes,
                ``refresh_on_read``. An expired item is never returned, swept or not.
        """
        store = PerdureStore(self._driver, tenant=self._tenant if tenant is None else tenant, ttl=ttl)
        self._stores.add(store)
        return store

    def history(self, *, tenant: str | None = None, ttl: timedelta | None = None) -> Histories:
        """Return the histories of sessions: conversations as plain messages, without checkpoints, awaited.

        Args:
            tenant: owner of the sessions; that of the database unless given.
            ttl: time from its last turn after which a session reads as absent; ``None`` for no end.
        """
        return Histories(self._driver, tenant=self._tenant if tenant is None else tenant, ttl=ttl)

    def history_sync(self, *, tenant: str | None = None, ttl: timedelta | None = None) -> SyncHistories:
        """Blocking variant of ``history``."""
        return SyncHistories(self._driver, tenant=self._tenant if tenant is None else tenant, ttl=ttl)

    async def threads(self) -> AsyncIterator[Thread]:
        """Iterate over the tenant's threads, by id."""
        after: Partition | None = None
        while page := await arun(_page(self._tenant, after), self._driver):
            for found in page:
                entry = _entry(found)
                yield entry if entry is not None else await arun(_thread(found.partition), self._driver)
            after = page[-1].partition

    def threads_sync(self) -> Iterator[Thread]:
        """Blocking variant of ``threads``."""
        after: Partition | None = None
        while page := run(_page(self._tenant, after), self._driver):
            for found in page:
                entry = _entry(found)
                yield entry if entry is not None else run(_thread(found.partition), self._driver)
            after = page[-1].partition

    def tag(self, thread_id: str, name: str, checkpoint_id: str | None = None) -> str:
        """Tag a checkpoint, the latest if no id is given, so that it is never pruned; return its id."""
        return run(
            tags.set_tag(Partition(self._tenant, thread_id), name, checkpoint_id=checkpoint_id), self._driver
        )

    def untag(self, thread_id: str, name: str) -> None:
        """Remove a tag; raises ``NotFound`` if there is none."""
        run(tags.remove_tag(Partition(self._tenant, thread_id), name), self._driver)

    def tags(self, thread_id: str) -> dict[str, str]:
        """Return the tags of a thread: name to checkpoint id."""
        found = run(tags.list_tags(Partition(self._tenant, thread_id)), self._driver)
        return {record.key[0]: record.fields["checkpoint_id"] for record in found}

    def show(self, thread_id: str, checkpoint_id: str | None = None, namespace: str = "") -> CheckpointView:
        """Return a checkpoint of a thread in plain data, the latest without an id; no type is built.

        Raises:
            NotFound: There is no such checkpoint.
        """
        program = inspect.load(Partition(self._tenant, thread_id), namespace, checkpoint_id, self._digest)
        return run(program, self._driver)

    def timeline(self, thread_id: str, namespace: str = "", limit: int = 100) -> list[CheckpointView]:
        """Return the newest checkpoints of a thread's namespace, newest first, without values."""
        return run(inspect.timeline(Partition(self._tenant, thread_id), namespace, limit), self._driver)

    def export(self, thread_id: str) -> dict[str, Any]:
        """Return a thread as plain JSON data: every checkpoint with its values, pending writes and tags."""
        return run(inspect.export(Partition(self._tenant, thread_id), self._digest), self._driver)

    def fsck(self, thread_id: str | None = None) -> list[Finding]:
        """Check a thread, or every thread of the tenant, and return what is wrong; nothing is changed.

        The check reads everything: links, heads, tags, references, chunks against their names, and the queue.
        """
        if thread_id is not None:
            return self._check(Partition(self._tenant, thread_id))
        found: list[Finding] = []
        for partition in run(retention.all_threads(self._tenant), self._driver):
            try:
                found += self._check(partition)
            except Corrupt as error:
                found.append(
                    Finding(partition.thread, "", None, Damage.UNREADABLE, str(error), fsck_report.RESTORE)
                )
        return found

    def _check(self, partition: Partition) -> list[Finding]:
        found = run(check_thread(partition, self._digest), self._driver)
        for detail in examine(self._driver, partition):
            found.append(Finding(partition.thread, "", None, Damage.CHANGED, detail, fsck_report.RESTORE))
        return found

    def examine(self) -> list[str]:
        """Return what the backend's own check finds wrong with the database, the tenant's store and a
        server's records for it, in addition to ``fsck``; empty if the backend has no such check."""
        found = examine(self._driver, None)
        for space in SPACES[1:]:
            try:
                for partition in run(retention.all_partitions(self._tenant, space), self._driver):
                    found += [f"{space} {partition.thread!r}: {s}" for s in examine(self._driver, partition)]
            except Corrupt as error:
                found.append(str(error))
        return found

    def repair(self, thread_id: str) -> Repaired:
        """Repair the holes and heads of a thread that ``fsck`` finds.

        Nothing is invented: lost bytes stay lost and are reported. Raises ``Fenced`` while a run is open.
        """
        return run(repair_thread(Partition(self._tenant, thread_id), self._digest), self._driver)

    def stuck(self, older: float = 60.0, *, all_tenants: bool = False, most: int = 10_000) -> Survey:
        """Count, by graph or channel, work that no worker has taken or that fails again and again.

        Args:
            older: seconds after which due work counts as not taken.
            all_tenants: include the other tenants.
            most: most queues to examine, those due longest first.
        """
        tenant = None if all_tenants else self._tenant
        return run(survey(tenant, round(older * 1_000_000), most), self._driver)

    @property
    def retention(self) -> RetentionRules:
        """Retention policies of these threads."""
        return self._rules

    def sweeper(self, options: SweepOptions | None = None) -> RetentionSweeper:
        """Return a sweeper that applies the retention policies to the tenant's threads, or as ``options``
        have it."""
        options = options or SweepOptions()
        rules = self._rules if options.rules is None else options.rules
        return RetentionSweeper.of(self._driver, self._digest, self._tenant, rules, options)

    def digest(self, thread_id: str) -> Digest:
        """Return the digest of a thread's content, which is the same under every key and on every backend."""
        return self.digest_of(Partition(self._tenant, thread_id))

    def digest_of(self, partition: Partition, report: Report = content.silent) -> Digest:
        """Return the digest of any tenant's thread, or of a namespace of its store."""
        if partition.space in OF_ITEMS:
            return run(transfer_items.digest_items(partition, _now(), report), self._driver)
        return run(content.digest_thread(partition, self._digest, report), self._driver)

    def partitions(self, tenant: str | None) -> list[Partition]:
        """Return every thread of a tenant, or of all if ``None``, then every namespace of its store, then a
        server's records for it, then the histories of its sessions, in order."""
        return [
            partition
            for space in SPACES
            for partition in run(retention.all_partitions(tenant, space), self._driver)
        ]

    def move(
        self,
        partition: Partition,
        target: Database,
        into: Partition | None = None,
        *,
        replace: bool = False,
        dry_run: bool = False,
        report: Report = content.silent,
    ) -> TransferResult:
        """Transfer a thread, or a namespace of the store, to another database and compare its digest there.

        An interrupted transfer can be repeated and continues. Content that is there already and equal stays.

        Args:
            into: name at the target; the same unless given.
            replace: replace different content at the target.
            dry_run: compare only.
            report: called with the number of bytes just read.

        Raises:
            Conflict: the target has different content and ``replace`` is false, or a message is under way.
            NotFound: there is no such thread.
        """
        terms = TransferOptions(
            self._digest,
            target._digest,
            Budget(target._driver.limits.ops, target._driver.limits.bytes),
            self.fresh(),
            replace,
            report,
        )
        into = into or partition
        if partition.space in OF_ITEMS:
            items = transfer_items.compare_items if dry_run else transfer_items.move_items
            program = items(partition, into, terms, _now)
        else:
            program = (transfer.compare_thread if dry_run else transfer.move_thread)(partition, into, terms)
        return run(program, _Between(self._driver, target._driver))

    @property
    def tenant(self) -> str:
        """Tenant of these threads unless a call names another."""
        return self._tenant

    @property
    def limits(self) -> CommitLimits:
        """Limits of one commit."""
        return self._driver.limits

    def run(self, program: Program[R]) -> R:
        """Run a use case of ``perdure.engine`` on this database, blocking."""
        return run(program, self._driver)

    async def arun(self, program: Program[R]) -> R:
        """Run a use case of ``perdure.engine`` on this database, awaiting each request."""
        return await arun(program, self._driver)

    def fresh(self) -> int:
        """Return a start for the versions of a thread that may be new, far from any version of an earlier
        thread of its name."""
        return (1 + secrets.randbelow(1 << 30)) << 24

    @property
    def digester(self) -> Digester:
        """Names chunks by their digests, keyed if the database is encrypted."""
        return self._digest

    @property
    def has_listing(self) -> bool:
        """True if threads can be listed by time and status without reading them."""
        return has_listing(self._driver)

    @property
    def has_bell(self) -> bool:
        """True if processes on this database can notify each other of changes."""
        return bell_of(self._driver) is not None

    def ring(self, *words: str) -> None:
        """Notify all processes on this database, soon but without a guarantee; a no-op without a bell.

        It neither blocks nor raises. Words are short, have no spaces, and are visible to all.
        """
        if (bell := bell_of(self._driver)) is not None:
            bell.ring(words)

    def listen(self, notify: Callable[[str], None]) -> Callable[[], None]:
        """Call ``notify``, in another thread, for every word that any process rings; a no-op without a bell.

        The returned function ends the subscription.
        """
        bell = bell_of(self._driver)
        return (lambda: None) if bell is None else bell.listen(notify)

    def alias(self, *names: str) -> str:
        """Return 16 hex digits that stand for names. With an encryption key, the first key makes them, and
        they reveal nothing without it."""
        text = "".join(f"{len(name)}:{name}" for name in ("perdure.alias", *names))
        return self._digest(text.encode("utf-8", "surrogatepass")).hex()[:16]

    async def take_back(self, partition: Partition, run_id: str, *, epoch: int | None = None) -> None:
        """Roll back a run: remove what it stored in a thread, which is then as before the run.

        Args:
            epoch: lease under which the caller holds the run, ``None`` for a run that is over.

        Raises:
            Fenced: the lease is over.
            CannotTakeBack: the checkpoint to return to was pruned since.
        """
        budget = Budget(self.limits.ops, self.limits.bytes)
        await self.arun(retention.take_back(partition, run_id, self._digest, budget, epoch))

    async def measure(self, partition: Partition) -> Measure:
        """Measure the bytes of a thread, by channel, by reading all of it."""
        return await self.arun(measure(partition, self._digest))

    def close(self) -> None:
        """Finish accepted writes and close; repeatable."""
        for store in list(self._stores):
            store.stop_ttl_sweeper()
        self._driver.close()


def _page(tenant: str, after: Partition | None) -> Program[tuple[IndexHit, ...]]:
    return (yield from ask(Find("threads", tenant, after=after)))


def _entry(found: IndexHit) -> Thread | None:
    if found.listed is None:
        return None
    try:
        at = datetime.fromtimestamp(found.listed.updated_at / 1_000_000, UTC)
    except (ValueError, OverflowError, OSError):
        return Thread(*found.partition[:2], None, "the time in the listing is none: run `perdure fsck`")
    return Thread(found.partition.tenant, found.partition.thread, at.isoformat(timespec="microseconds"))


def _thread(partition: Partition) -> Program[Thread]:
    try:
        found = yield from checkpoints.load(partition, "", None)
    except Corrupt as error:
        return Thread(partition.tenant, partition.thread, None, str(error))
    if found.checkpoint is None and found.view.head is not None:
        missing = f"its head names checkpoint {found.view.head.checkpoint_id}, which is not stored"
        return Thread(partition.tenant, partition.thread, None, missing)
    return Thread(partition.tenant, partition.thread, found.checkpoint.ts if found.checkpoint else None)


class _Between:
    """Two drivers, for programs whose effects name the side at which they are performed."""

    def __init__(self, source: Driver, target: Driver) -> None:
        self._drivers = {Side.SOURCE: source, Side.TARGET: target}
        self.limits = target.limits

    def perform(self, effect: Effect[R]) -> R:
        if not isinstance(effect, OnSide):
            raise TypeError(f"not a request to one of two databases: {type(effect).__name__}")
        answer: R = self._drivers[effect.place].perform(effect.effect)
        return answer

    async def aperform(self, effect: Effect[R]) -> R:
        if not isinstance(effect, OnSide):
            raise TypeError(f"not a request to one of two databases: {type(effect).__name__}")
        answer: R = await self._drivers[effect.place].aperform(effect.effect)
        return answer

    def close(self) -> None:
        """Leave the databases open: their owners close them."""


def open_database(
    url: str,
    *,
    migrate: bool = False,
    tenant: str = "",
    encryption_key: bytes | Collection[bytes] | None = None,
    retention: Retention | RetentionRules | None = None,
    wrap: Callable[[Driver], Driver] = lambda driver: driver,
) -> Database:
    """Open a database; the caller closes it. Prefer ``connect`` and ``connect_sync``.

    Arguments are those of ``connect``; ``wrap`` may return another driver around that of the URL, e.g. one
    that fails on purpose.
    """
    keyring = None if encryption_key is None else Keyring.of(encryption_key)
    driver = open_driver(url, migrate=migrate)
    try:
        admit(driver, keyring, redacted(url))
    except BaseException:
        driver.close()
        raise
    return Database(
        wrap(EncryptedDriver(driver, keyring)),
        tenant=tenant,
        digest=Digester(*(keyring.digest_keys if keyring is not None else ())),
        retention=RetentionRules.of(retention),
    )


@contextmanager
def new_archive(path: Path, *, encryption_key: bytes | Collection[bytes] | None = None) -> Iterator[Database]:
    """Create a file to move threads into. It appears at ``path``, complete, when the block ends without an
    error. With a key everything that a user could have typed is encrypted."""
    archive = Archive.create(path)
    try:
        yield _archived(archive, path, encryption_key)
        archive.finish()
    finally:
        archive.close()


@contextmanager
def open_archive(
    path: Path, *, encryption_key: bytes | Collection[bytes] | None = None, sealed_only: bool = False
) -> Iterator[Database]:
    """Open the threads in a file as a read-only database.

    Args:
        encryption_key: used if the file is encrypted.
        sealed_only: refuse a file that is not encrypted.

    Raises:
        BadArchive: the file is not complete.
        DecryptionError: the key is another one, or the file is refused.
    """
    archive = Archive.read(path)
    try:
        (sealed,) = archive.perform(Fetch(RESERVED, (Get(SEAL, ("key",)),)))
        if sealed_only and not sealed:
            raise DecryptionError(
                f"{path} is in the clear, although a key was given for it; nothing of it was used. If you "
                "trust its author, import it without that key"
            )
        yield _archived(archive, path, encryption_key if sealed else None)
    finally:
        archive.close()


def _archived(archive: Archive, path: Path, key: bytes | Collection[bytes] | None) -> Database:
    keyring = None if key is None else Keyring.of(key)
    admit(archive, keyring, str(path))
    digest = Digester(*(keyring.digest_keys if keyring is not None else ()))
    return Database(EncryptedDriver(archive, keyring), tenant="", digest=digest)


def _now() -> int:
    return time.time_ns() // 1000


@contextmanager
def connect_sync(
    url: str,
    *,
    migrate: bool = False,
    tenant: str = "",
    encryption_key: bytes | Collection[bytes] | None = None,
    retention: Retention | RetentionRules | None = None,
) -> Iterator[Database]:
    """Blocking variant of ``connect``, for programs without an event loop."""
    database = open_database(
        url, migrate=migrate, tenant=tenant, encryption_key=encryption_key, retention=retention
    )
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
    retention: Retention | RetentionRules | None = None,
) -> AsyncIterator[Database]:
    """Open a database for the length of a ``with`` block.

    Args:
        url: ``sqlite:///relative/path.db``, ``sqlite:////absolute/path.db``, ``memory://`` or a server's URL.
        migrate: create or upgrade the schema.
        tenant: separates threads of equal names.
        encryption_key: 32 bytes, or several such keys of which the first encrypts and all decrypt.
        retention: what is kept of the threads; everything by default.

    Raises:
        BadUrl: the URL cannot be used.
        Unavailable: the database does not answer.
        MigrationRequired: the schema is not this release's, and ``migrate`` is false.
        DecryptionError: the database is encrypted with other keys, or not at all.
    """
    opening = asyncio.create_task(
        asyncio.to_thread(
            open_database,
            url,
            migrate=migrate,
            tenant=tenant,
            encryption_key=encryption_key,
            retention=retention,
        )
    )
    try:
        database = await asyncio.shield(opening)
    except asyncio.CancelledError:
        # The thread cannot be stopped, and no other code would close what it opens.
        await asyncio.wait([opening])
        if opening.exception() is None:
            await asyncio.to_thread(opening.result().close)
        raise
    try:
        yield database
    finally:
        await asyncio.to_thread(database.close)
