"""Operations of an open database, for programs with an event loop.

``perdure.database.blocking`` has the same operations for programs without; it is generated from this module
by ``python -m tools.write_sync``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any

from perdure.database import thread_entries
from perdure.database.base import DatabaseBase, report_changes
from perdure.database.thread_entries import Thread
from perdure.engine.checks import fsck, fsck_report
from perdure.engine.checks.fsck_report import Damage, Finding, Repaired
from perdure.engine.complete_reads import list_all_partitions
from perdure.engine.queue.stuck import Survey, survey
from perdure.engine.retention.sweep import RetentionResult
from perdure.engine.threads import forking, tags, thread_digest
from perdure.engine.threads.measure import Measure, measure
from perdure.engine.threads.thread_digest import Digest
from perdure.errors import Corrupt
from perdure.langgraph.reading import plain_reading
from perdure.langgraph.reading.plain_reading import CheckpointView
from perdure.model.records import Partition
from perdure.retention.sweeper import RetentionOptions

if TYPE_CHECKING:
    from perdure.history.histories import Histories
    from perdure.langgraph.store_for_event_loops import AsyncPerdureStore


class Database(DatabaseBase["AsyncPerdureStore"]):
    """An open database, made by ``perdure.connect``, for any number of threads and event loops."""

    def history(self, *, tenant: str | None = None, ttl: timedelta | None = None) -> Histories:
        """Return the histories of sessions: conversations as plain messages, without checkpoints.

        Args:
            tenant: Owner of the sessions; that of the database unless given.
            ttl: Time from its last turn after which a session reads as absent; ``None`` for no end.
        """
        from perdure.history.histories import Histories

        return Histories(self._handle.driver, tenant=self.tenant if tenant is None else tenant, ttl=ttl)

    async def apply_retention(self, options: RetentionOptions | None = None) -> RetentionResult | None:
        """Remove data that the retention policies do not keep: old checkpoints, expired threads and items.

        It sweeps every thread of the tenant once, or those that ``options`` select, and is safe to interrupt:
        the next sweep continues.

        Returns:
            Counts of removed objects; ``None`` if another process sweeps.
        """
        sweeper = self._handle.sweeper(options)
        return await sweeper.arun(sweeper.apply())

    async def apply_retention_to(
        self, thread_id: str, options: RetentionOptions | None = None
    ) -> RetentionResult:
        """Apply the retention policies to one thread, independently of sweeps.

        Raises:
            LookupError: The thread's metadata names a policy that does not exist.
        """
        sweeper = self._handle.sweeper(options)
        return await sweeper.arun(sweeper.apply_to(self._handle.partition(thread_id)))

    async def threads(self) -> AsyncIterator[Thread]:
        """Iterate over the tenant's threads, by id."""
        after: Partition | None = None
        while page := await self._handle.arun(thread_entries.read_page(self.tenant, after)):
            for hit in page:
                yield await self._handle.arun(thread_entries.make_entry(hit))
            after = page[-1].partition

    async def tag(self, thread_id: str, name: str, checkpoint_id: str | None = None) -> str:
        """Tag a checkpoint, the latest if no id is given, so that it is never pruned; return its id."""
        partition = self._handle.partition(thread_id)
        return await self._handle.arun(tags.set_tag(partition, name, checkpoint_id=checkpoint_id))

    async def fork(self, thread_id: str, checkpoint_id: str) -> str:
        """Go on from an earlier checkpoint: make a copy of it the latest one, and return the copy's id.

        The checkpoints after it stay as a branch, and are reached by their ids. A step that was under way
        starts again, and questions are asked again.

        Args:
            thread_id: The thread.
            checkpoint_id: A checkpoint of the graph itself, not of a subgraph.

        Raises:
            NotFound: There is no such checkpoint.
            Fenced: A run of the thread is open.
            Conflict: The run of an accepted answer has not begun, or a subgraph that keeps its state from run
                to run had no state before the checkpoint.
        """
        from perdure.langgraph.checkpoint_ids import make_checkpoint_id

        new_id, now = make_checkpoint_id()
        partition = self._handle.partition(thread_id)
        return await self._handle.arun(forking.fork(partition, checkpoint_id, new_id=new_id, now=now))

    async def untag(self, thread_id: str, name: str) -> None:
        """Remove a tag; raises ``NotFound`` if there is none."""
        await self._handle.arun(tags.remove_tag(self._handle.partition(thread_id), name))

    async def tags(self, thread_id: str) -> dict[str, str]:
        """Return the tags of a thread: name to checkpoint id."""
        records = await self._handle.arun(tags.list_tags(self._handle.partition(thread_id)))
        return {record.key[0]: record.fields["checkpoint_id"] for record in records}

    async def show(
        self, thread_id: str, checkpoint_id: str | None = None, namespace: str = ""
    ) -> CheckpointView:
        """Return a checkpoint of a thread in plain data, the latest without an id; no type is built.

        Args:
            thread_id: The thread.
            checkpoint_id: The checkpoint; the latest by default.
            namespace: A subgraph's namespace; empty for the graph itself.

        Raises:
            NotFound: There is no such checkpoint.
        """
        partition = self._handle.partition(thread_id)
        return await self._handle.arun(
            plain_reading.load(partition, namespace, checkpoint_id, self._handle.digest)
        )

    async def timeline(self, thread_id: str, namespace: str = "", limit: int = 100) -> list[CheckpointView]:
        """Return the newest checkpoints of a thread's namespace, newest first, without values.

        Args:
            thread_id: The thread.
            namespace: A subgraph's namespace; empty for the graph itself.
            limit: Maximum number of checkpoints.
        """
        return await self._handle.arun(
            plain_reading.timeline(self._handle.partition(thread_id), namespace, limit)
        )

    async def export(self, thread_id: str) -> dict[str, Any]:
        """Return a thread as plain JSON data: every checkpoint with its values, pending writes and tags."""
        partition = self._handle.partition(thread_id)
        return await self._handle.arun(plain_reading.export(partition, self._handle.digest))

    async def fsck(self, thread_id: str | None = None) -> list[Finding]:
        """Check a thread, or every thread of the tenant, and return what is wrong; nothing is changed.

        The check reads everything: links, heads, tags, references, chunks against their names, and the queue.
        """
        if thread_id is not None:
            return await self._check(self._handle.partition(thread_id))
        findings: list[Finding] = []
        for partition in await self._handle.arun(list_all_partitions(self.tenant)):
            try:
                findings += await self._check(partition)
            except Corrupt as error:
                damage = Damage.UNREADABLE
                findings.append(Finding(partition.thread, "", None, damage, str(error), fsck_report.RESTORE))
        return findings

    async def _check(self, partition: Partition) -> list[Finding]:
        findings = await self._handle.arun(fsck.check(partition, self._handle.digest))
        return [*findings, *report_changes(partition, await self._handle.aexamine(partition))]

    async def repair(self, thread_id: str) -> Repaired:
        """Repair the holes and heads of a thread that ``fsck`` finds.

        Nothing is invented: lost bytes stay lost. If the rest of the thread is sound, the thread goes on with
        it; damage to the rest is reported.

        Raises:
            Fenced: A run is open.
        """
        partition = self._handle.partition(thread_id)
        program = partial(fsck.repair, partition, self._handle.digest, self._handle.budget)
        changed = report_changes(partition, await self._handle.aexamine(partition))
        repaired = await self._handle.arun(program())
        if not await self._handle.atrust(partition):
            return Repaired(repaired.fixed, (*repaired.left, *changed))
        # As the records are trusted now, a head that an older copy of the database has brought back is
        # readable.
        second = await self._handle.arun(program())
        return Repaired((*repaired.fixed, *second.fixed, *changed), second.left)

    async def find_stuck(
        self, older: float = 60.0, *, all_tenants: bool = False, most: int = 10_000
    ) -> Survey:
        """Count, by graph or channel, work that no worker has taken or that fails again and again.

        Args:
            older: Seconds after which due work counts as not taken.
            all_tenants: Include the other tenants.
            most: Most queues to examine, those due longest first.
        """
        tenant = None if all_tenants else self.tenant
        return await self._handle.arun(survey(tenant, round(older * 1_000_000), most))

    async def digest(self, thread_id: str) -> Digest:
        """Return the digest of a thread's content, which is the same under every key and on every backend."""
        partition = self._handle.partition(thread_id)
        return await self._handle.arun(
            thread_digest.compute_thread_digest(partition, self._handle.digest, thread_digest.report_nothing)
        )

    async def measure(self, thread_id: str) -> Measure:
        """Measure the bytes of a thread, by channel, by reading all of it."""
        return await self._handle.arun(measure(self._handle.partition(thread_id), self._handle.digest))

    async def close(self) -> None:
        """Finish accepted writes and close; repeatable. Leaving the block of ``connect`` does it."""
        await self._handle.aclose()

    def _store_class(self) -> type[AsyncPerdureStore]:
        from perdure.langgraph.store_for_event_loops import AsyncPerdureStore

        return AsyncPerdureStore
