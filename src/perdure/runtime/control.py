"""Control of threads and runs: stop, withdraw and remove them, and notify the worker that executes them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from perdure.engine.queue import inbox, outbox, runs, scheduled, waits
from perdure.engine.retention import queue_retention, thread_removal
from perdure.model.ops import Check
from perdure.model.records import Partition
from perdure.model.runs.messages import Reply, Run
from perdure.model.runs.queue import IN, Stop
from perdure.runtime.notifications import ENDED, STOP
from perdure.runtime.runtime_context import RuntimeContext
from perdure.runtime.worker.leases import DELETED
from perdure.runtime.worker.worker import Worker


class Control:
    """Ends and removes the messages, runs and threads of a runtime."""

    def __init__(self, context: RuntimeContext, worker: Worker) -> None:
        self._context = context
        self._worker = worker
        self._database = context.database

    async def stop(self, partition: Partition, run_id: str, how: Stop) -> bool:
        """End an open run; with ``ROLLBACK`` also remove what it stored. Return True if the run was open."""
        now = await self._context.clock.now()
        stopping = await self._database.arun(runs.stop(partition, run_id, how, now))
        if stopping:
            self.request_stop(partition, how, run_id)
            self._context.notifications.notify_due(partition)
            self._worker.end_stopped(partition)
        return stopping

    def notify_of_message(self, partition: Partition) -> None:
        """Notify the worker of a thread's open run of a message that the run may take up."""
        if not self._worker.runner.leases.notify_of_message(partition):
            self._context.notifications.notify_due(partition)

    async def withdraw(self, partition: Partition, run_id: str, how: Stop, *, most: int = 1) -> bool:
        """Withdraw a waiting message, with the messages that would be one run with it, of at most ``most``
        messages. Return True if it was waiting."""
        now = await self._context.clock.now()
        withdrawn = await self._database.arun(inbox.withdraw(partition, run_id, how, now, most))
        if not withdrawn:
            postponed = scheduled.withdraw(partition, run_id, how, now, self._database.draw_version())
            withdrawn = await self._database.arun(postponed)
        if withdrawn:
            self._context.queues.forget(partition)
            self._context.notifications.notify(ENDED, partition)
            if self._context.works:
                self._worker.dispatch.serve_soon((partition, IN))
            else:
                self._context.notifications.notify_due(partition)
        return withdrawn

    async def cancel(self, partition: Partition, run_id: str, how: Stop) -> bool:
        """End a waiting or open run, also by the id of a message that is joined with others. Return True if
        there was one."""
        withdraw = partial(self.withdraw, most=self._context.settings.max_batch)
        for end in (withdraw, self.stop, withdraw):
            # Between two calls a waiting run may begin, and an open one may be postponed until its next
            # attempt.
            if await end(partition, run_id, how):
                return True
        standing = await self._database.arun(inbox.find(partition, run_id))
        if standing is None or standing.run is None or standing.run.id == run_id or standing.is_over:
            return False
        return standing.message.id != run_id and await self.stop(partition, standing.run.id, how)

    async def retry_reply(self, partition: Partition, number: int) -> Reply:
        """Send a dead or held reply again, after all others of its thread."""
        now = await self._context.clock.now()
        reply = await self._database.arun(outbox.retry(partition, number, now))
        self._context.notifications.notify_due(partition)
        return reply

    async def delete(self, partition: Partition, checks: Sequence[Check] = ()) -> bool:
        """Remove a thread with everything in it, and return True; False if a check does not hold. A current
        run, in any process, can store nothing more."""
        leases = self._worker.runner.leases
        run_id = leases.run_of(partition)
        if not await self._database.arun(thread_removal.delete_thread(partition, checks)):
            return False
        self.request_stop(partition, DELETED, run_id)
        if leases.run_of(partition) not in (None, run_id):
            # A run was claimed meanwhile, before the removal or on a new thread with the same id.
            leases.renew_now(lambda other: other == partition)
        self._note_removed(partition)
        return True

    async def remove_resting(self, partition: Partition, *, only_unused: bool = False) -> bool:
        """Remove a thread without current work, and return True if it was removed. The thread is kept if it
        changes meanwhile, and with ``only_unused`` if a message was ever accepted for it."""
        removed = await self._database.arun(thread_removal.remove_if_idle(partition, only_unused=only_unused))
        if removed:
            self._note_removed(partition)
        return removed

    async def remove_run(self, partition: Partition, run: Run, *, rollback: bool) -> None:
        """Remove the records of a run that has ended; with ``rollback`` also what it stored in the thread."""
        if rollback:
            await self._database.roll_back(partition, run.id)
            # A question that the run had replaced is open again, with the rest of its time.
            now = await self._context.clock.now()
            await self._database.arun(waits.make_due(partition, now, self._database.draw_version()))
        await self._database.arun(queue_retention.remove(partition, run, self._database.limits.ops))

    def serves(self, partition: Partition) -> bool:
        """Return True if this process works on a thread's inbox now."""
        return self._worker.dispatch.is_served((partition, IN))

    def request_stop(self, partition: Partition, how: str, run_id: str | None) -> None:
        """Notify the worker of a thread's run that the run has to end."""
        self._worker.runner.request_stop(partition, how, run_id)
        self._context.notifications.notify(STOP, partition)

    def _note_removed(self, partition: Partition) -> None:
        self._worker.runner.conversations.forget(partition)
        self._worker.runner.graphs.forget(partition)
        self._context.queues.forget(partition)
        self._context.subscriptions.forget(partition)
        self._context.notifications.notify(ENDED, partition)
        self._context.observers.thread_event("thread.deleted", partition)
