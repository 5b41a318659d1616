"""Internal handle of an open database, through which the runtime, the server and the commands run programs.

Not part of the public surface: ``perdure.database.base.handle_of`` returns the handle of a ``Database`` or
``SyncDatabase``.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol, TypeVar
from weakref import WeakSet

from perdure.engine.retention import checkpoint_removal
from perdure.engine.threads.measure import Measure, measure
from perdure.engine.transact import Budget
from perdure.langgraph.values.large_channel_warning import LargeChannels
from perdure.model.ops import Commit, Fetch
from perdure.model.program import Program, advance, resume
from perdure.model.records import Partition
from perdure.model.retention_policy import RetentionRules
from perdure.model.values.chunks import Digester
from perdure.model.well_formed import require_text
from perdure.retention.expiring_driver import ExpiringDriver
from perdure.retention.sweeper import RetentionOptions, Sweeper
from perdure.storage.own_threads import run_in_own_thread
from perdure.storage.port import (
    Answers,
    CommitLimits,
    Driver,
    acommit_and_fetch,
    arun,
    run,
)
from perdure.storage.stored_keys import StoredKeys

if TYPE_CHECKING:
    from perdure.langgraph.store import PerdureStore

R = TypeVar("R")


class Closeable(Protocol):
    """Part of a process that uses a database until it is closed."""

    def close(self) -> None:
        """End its use; repeatable."""
        ...


class DatabaseHandle:
    """An open driver with its tenant and digests; OS threads and event loops can share it.

    Args:
        driver: The driver, which ``close`` closes.
        tenant: The tenant of threads unless a call names another.
        digest: Names chunks of stored values.
        retention: The retention policies of the threads; everything is kept by default.
        keys: The keys with which the database is encrypted, if it is.

    Attributes:
        closed_first: Closed by ``close`` while the database still answers.
    """

    def __init__(
        self,
        driver: Driver,
        *,
        tenant: str,
        digest: Digester,
        retention: RetentionRules | None = None,
        keys: StoredKeys | None = None,
    ) -> None:
        self.driver = driver
        self.tenant = tenant
        self.digest = digest
        self.retention = retention or RetentionRules()
        self.keys = keys
        self._stores: WeakSet[PerdureStore] = WeakSet()
        self._large_channels: dict[int, LargeChannels] = {}
        self.closed_first: list[Closeable] = []

    def honour_thread_ttl(self) -> None:
        """Let threads expire by the time to live that a client gave them, too, from now on and for every user
        of this handle."""
        self.retention = replace(self.retention, thread_ttl=True)
        if not isinstance(self.driver, ExpiringDriver):
            self.driver = ExpiringDriver(self.driver, self.retention)

    def sweeper(self, options: RetentionOptions | None = None) -> Sweeper:
        """Return a sweeper that applies retention to the threads of the tenant, or of all tenants if
        ``options`` ask for it."""
        return Sweeper(self.driver, self.digest, self.tenant, self.retention, options or RetentionOptions())

    def get_large_channels(self, warn_bytes: int) -> LargeChannels:
        """Return the object that warns of channels from a size on. Checkpointers share it: some programs make
        a checkpointer for each request, and a thread's channel is to be named only once. Raises
        ``ValueError`` for anything but a size."""
        return self._large_channels.setdefault(warn_bytes, LargeChannels(warn_bytes))

    def run(self, program: Program[R]) -> R:
        """Run a use case of ``perdure.engine`` on this database, blocking."""
        return run(program, self.driver)

    async def arun(self, program: Program[R]) -> R:
        """Run a use case of ``perdure.engine`` on this database, awaiting each request."""
        return await arun(program, self.driver)

    async def arun_and_fetch(self, program: Program[R], fetch: Fetch | None) -> tuple[R, Answers | None]:
        """Run a use case, and return its result and the answers to ``fetch`` as they are after its first
        commit; ``None`` if it does not begin with a commit, or these answers need a round trip of their own
        (``port.acommit_and_fetch``)."""
        step = advance(program)
        if fetch is None or not isinstance(step, Commit):
            return await self.arun(resume(program, step)), None
        try:
            outcome, answers = await acommit_and_fetch(self.driver, step, fetch)
        except Exception as error:
            return await self.arun(resume(program, advance(program, error=error))), None
        return await self.arun(resume(program, advance(program, outcome))), answers

    def partition(self, thread_id: str) -> Partition:
        """Return the partition of a thread of the handle's tenant."""
        return Partition(self.tenant, thread_id)

    def examine(self, partition: Partition | None) -> list[str]:
        """Return the damage that the backend's own check finds in a partition, or, with ``None``, in the
        database as a whole."""
        require_text(partition or ())
        examiner = self.driver.capabilities.examiner
        if examiner is None:
            return []
        return examiner.examine(partition)

    async def aexamine(self, partition: Partition | None) -> list[str]:
        """Return the same as ``examine``, without blocking the event loop."""
        if not self.driver.capabilities.has_threads:
            return self.examine(partition)
        return await run_in_own_thread(self.examine, partition)

    async def acount_bytes(self) -> int | None:
        """Return the bytes that the database takes, of all tenants, see ``port.Capabilities.count_bytes``;
        ``None`` if it cannot tell."""
        count = self.driver.capabilities.count_bytes
        if count is None or not self.driver.capabilities.has_threads:
            return None
        return await run_in_own_thread(count)

    async def acut_log(self) -> bool:
        """Empty the database's log, so that it does not hold what was removed any more; see
        ``port.Capabilities.cut_log``. Return False if it may still hold that."""
        cut = self.driver.capabilities.cut_log
        if cut is None:
            return True
        return await run_in_own_thread(cut)

    def trust(self, partition: Partition) -> bool:
        """Accept the records of a partition as the latest ones; see ``port.Examines``."""
        require_text(partition)
        examiner = self.driver.capabilities.examiner
        return examiner is not None and examiner.trust(partition)

    async def atrust(self, partition: Partition) -> bool:
        """Trust the records like ``trust``, without blocking the event loop."""
        if not self.driver.capabilities.has_threads:
            return self.trust(partition)
        return await run_in_own_thread(self.trust, partition)

    @property
    def limits(self) -> CommitLimits:
        """Limits of one commit."""
        return self.driver.limits

    @property
    def budget(self) -> Budget:
        """Limits of one commit, for programs that divide their work."""
        return Budget(self.driver.limits.ops, self.driver.limits.bytes)

    def draw_version(self) -> int:
        """Return a start for the versions of a thread that may be new, far from any version of an earlier
        thread of its name."""
        # One system call; ``secrets.randbelow`` of a power of two would repeat its draw half of the time.
        return (1 + secrets.randbits(30)) << 24

    @property
    def has_listing(self) -> bool:
        """True if threads can be listed by time and status without reading them."""
        return self.driver.capabilities.has_listing

    def notify(self, *words: str) -> None:
        """Notify all processes on this database, soon but without a guarantee; a no-op without a bell.

        It neither blocks nor raises. Words are short, have no spaces, and are visible to all.
        """
        if (bell := self.driver.capabilities.bell) is not None:
            bell.notify(words)

    def listen(self, notify: Callable[[str], None]) -> Callable[[], None]:
        """Call ``notify``, in another OS thread, for every word of any process; a no-op without a bell.

        The returned function ends the subscription.
        """
        bell = self.driver.capabilities.bell
        return (lambda: None) if bell is None else bell.listen(notify)

    def alias(self, *names: str) -> str:
        """Return an alias of 16 hex digits for names. In an encrypted database an alias reveals nothing
        without the keys, and stays the same when the keys are rotated."""
        text = "".join(f"{len(name)}:{name}" for name in ("perdure.alias", *names))
        return self.digest(text.encode("utf-8", "surrogatepass")).hex()[:16]

    async def roll_back(
        self,
        partition: Partition,
        run_id: str,
        *,
        epoch: int | None = None,
        within: Collection[str] | None = None,
    ) -> None:
        """Roll back a run: remove what it stored in a thread, which is then as before the run.

        Args:
            partition: The thread.
            run_id: The run.
            epoch: Lease under which the caller holds the run, ``None`` for a run that is over.
            within: The namespaces of subgraphs to roll back; by default the whole thread is.

        Raises:
            Fenced: The lease is over.
            CannotTakeBack: The checkpoint to return to was pruned since.
        """
        await self.arun(
            checkpoint_removal.roll_back(partition, run_id, self.digest, self.budget, epoch, within)
        )

    async def measure(self, partition: Partition) -> Measure:
        """Measure the bytes of a thread, by channel, by reading all of it."""
        return await self.arun(measure(partition, self.digest))

    def add_store(self, store: PerdureStore) -> None:
        """Register a store, whose sweeper is stopped when the database is closed."""
        self._stores.add(store)

    def close(self) -> None:
        """Finish accepted writes and close; repeatable."""
        for each in (*self.closed_first, *self._stores):
            each.close()
        self.driver.close()

    async def aclose(self) -> None:
        """Close without blocking the event loop."""
        if self.driver.capabilities.has_threads:
            await run_in_own_thread(self.close)
        else:
            self.close()
