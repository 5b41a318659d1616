"""Life of a tenant's threads as their clients see them: creation, change, copy and removal.

A thread's metadata is stored in the thread itself, where a run is accepted in one commit that also creates
the thread, or checks that it exists.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from perdure.database.asynchronous import Database
from perdure.engine import documents
from perdure.engine.documents import Document
from perdure.engine.queue import inbox, questions
from perdure.engine.threads import history, tags
from perdure.engine.threads.measure import Measure
from perdure.engine.transact import ATTEMPTS
from perdure.errors import Contention, NotFound
from perdure.model.heads import ROOT
from perdure.model.ops import Check, Expect, Fetch, Get, Put
from perdure.model.program import ask
from perdure.model.records import DOCUMENT, EDITED, HEAD, OF_THREAD, Partition
from perdure.model.retention_policy import make_stored_ttl
from perdure.model.runs.messages import dedupe_digest
from perdure.model.thread_agents import Agent, add_agents, change_metadata, list_agents
from perdure.runtime.control import Control
from perdure.runtime.runtime_context import RuntimeContext
from perdure.runtime.threads.index import ThreadIndex
from perdure.runtime.threads.rows import ThreadRow, load_row, row_of

_TOUCHED_US = 3600 * 1_000_000
"""Longest time for which records of runs alone show that a thread is in use."""

THERE = Check(DOCUMENT, OF_THREAD, Expect.PRESENT)
"""Condition that a thread is known to clients: a commit that carries it is refused once the thread is
deleted."""


class ThreadDraft(NamedTuple):
    """A thread that is created with its first message: ``precondition`` is for ``submit``, ``row`` is the
    thread once it is created."""

    precondition: Put
    row: ThreadRow
    document: Document
    indexed: Document | None


class Threads:
    """Threads of one tenant; ``index`` finds them. Made by ``runtime.for_tenant(…).threads``."""

    def __init__(self, context: RuntimeContext, control: Control, tenant: str) -> None:
        self._context = context
        self._control = control
        self._database = context.database
        self._tenant = tenant
        self.index = ThreadIndex(context.database, tenant)

    async def draft(
        self, thread_id: str, metadata: Mapping[str, Any], ttl: Mapping[str, Any] | None = None
    ) -> ThreadDraft:
        """Return a new thread for the commit that accepts its first message; call ``index_draft`` after that.

        Args:
            thread_id: the thread, which must not exist.
            metadata: the thread's metadata.
            ttl: time to live, in minutes under "ttl"; by default that of the runtime.
        """
        now = await self._context.clock.now()
        body = self._make_body(metadata, ttl, now)
        put, document = documents.plan_create(*OF_THREAD, body, now, self._database.draw_version())
        indexed: Document | None = None
        if body["ttl"] is not None:
            # Expired threads are found in the index: a crash after the commit must not lose this one.
            indexed = await self.index.add(thread_id, document)
        return ThreadDraft(put, row_of(self._partition(thread_id), document), document, indexed)

    async def index_draft(self, draft: ThreadDraft) -> None:
        """Add a thread that was created with its first message to the index, unless ``draft`` did."""
        if draft.indexed is None:
            await self._index_new(draft.row.thread_id, draft.document)

    async def discard(self, draft: ThreadDraft) -> None:
        """Remove what ``draft`` stored of a thread that was not created, as its message was refused."""
        if draft.indexed is not None:
            await self.index.remove(draft.row.thread_id, draft.indexed)

    async def create(
        self, thread_id: str, metadata: Mapping[str, Any], ttl: Mapping[str, Any] | None = None
    ) -> ThreadRow | None:
        """Create a thread without a message.

        A thread that an application created without a server counts as existing; ``adopt`` makes it known to
        clients.

        Args:
            thread_id: the thread.
            metadata: the thread's metadata.
            ttl: time to live, in minutes under "ttl"; by default that of the runtime.

        Returns:
            The thread, or None if it exists already.
        """
        if await self.find(thread_id) is not None:
            return None
        now = await self._context.clock.now()
        body = self._make_body(metadata, ttl, now)
        fresh = self._database.draw_version()
        _, document = documents.plan_create(*OF_THREAD, body, now, fresh)
        await self._index_new(thread_id, document)
        partition = self._partition(thread_id)
        program = documents.put(partition, *OF_THREAD, body, now, Expect.ABSENT, fresh=fresh)
        made = await self._database.arun(program)
        if made is None:
            return None
        return row_of(partition, made)

    async def find(self, thread_id: str) -> ThreadRow | None:
        """Return a thread as it is now, or None."""
        return await self._database.arun(load_row(self._partition(thread_id)))

    async def get(self, thread_id: str) -> ThreadRow:
        """Return a thread as ``find`` does. ``NotFound`` if it does not exist."""
        row = await self.find(thread_id)
        if row is None:
            raise missing_error(thread_id)
        return row

    async def adopt(self, row: ThreadRow) -> None:
        """Add a thread that an application created without a server to the index, unless it has it."""
        body = {"metadata": dict(row.metadata), "created_at": row.created_at, "ttl": row.ttl}
        now = await self._context.clock.now()
        made = await self._put(row.thread_id, body, now, Expect.ABSENT) or await self._read_document(
            row.thread_id
        )
        if made is not None:
            await self.index.write(row.thread_id, made)

    async def redraft(self, row: ThreadRow, agent: Agent, *, is_first: bool) -> Put | None:
        """Return the precondition of a message that adds the graph and the assistant of its run to a thread,
        if the thread is unchanged since ``row`` was read; call ``reindex`` after the acceptance. ``None`` if
        it was changed already.

        Args:
            row: the thread.
            agent: the graph and the assistant.
            is_first: true if nothing has run on the thread: they are its own from now on.
        """
        before = await self._read_document(row.thread_id)
        if before is None or before.version != row.version:
            return None
        now = await self._context.clock.now()
        body = before.body
        if is_first:
            body = {**body, "metadata": {**body["metadata"], **agent}}
        body = add_agents(body, (*list_agents(before.body), agent))
        await self.index.announce(row.thread_id, before, now)
        return documents.plan_replace(OF_THREAD[0], before, body, now)

    async def reindex(self, thread_id: str) -> None:
        """Store the copy of a thread's document in the index."""
        if (found := await self._read_document(thread_id)) is not None:
            await self.index.write(thread_id, found)

    async def change(
        self,
        thread_id: str,
        metadata: Mapping[str, Any],
        ttl: Mapping[str, Any] | None = None,
        *,
        seen: int | None = None,
        agents: Sequence[Agent] = (),
    ) -> ThreadRow:
        """Merge into a thread's metadata, key by key, and return the thread.

        Args:
            thread_id: the thread.
            metadata: the entries to add or replace.
            ttl: a new time to live, in minutes under "ttl".
            seen: the only version of the thread's document to change; by default any.
            agents: further graphs and assistants of its checkpoints.

        Raises:
            NotFound: there is no such thread.
            Contention: the document has another version than ``seen``, or changes all the time.
        """
        if await self._read_document(thread_id) is None and (row := await self.find(thread_id)) is not None:
            await self.adopt(row)
        now = await self._context.clock.now()
        for _ in range(ATTEMPTS):
            before = await self._read_document(thread_id)
            if before is None:
                raise missing_error(thread_id)
            if seen is not None and before.version != seen:
                raise Contention(f"thread {thread_id!r} was changed meanwhile; try again")
            body = add_agents(
                change_metadata(before.body, metadata, await self._find_head(thread_id)), agents
            )
            if ttl is not None:
                body["ttl"] = make_stored_ttl(ttl, now)
            await self.index.announce(thread_id, before, now)
            changed = await self._put(thread_id, body, now, before.version)
            if changed is not None:
                await self.index.write(thread_id, changed)
                return await self.get(thread_id)
        raise Contention(f"thread {thread_id!r}: {ATTEMPTS} changes lost to other writers; try again")

    async def note_edit(self, thread_id: str, run_id: str | None, *, goes_on: bool) -> None:
        """Record that a thread's state was edited.

        Args:
            thread_id: the thread.
            run_id: the newest run at the time of the edit, if any.
            goes_on: True if the graph has steps left to execute.
        """
        now = await self._context.clock.now()
        body = {"run_id": run_id, "goes_on": goes_on}
        fresh = self._database.draw_version()
        program = documents.put(self._partition(thread_id), *EDITED, body, now, Expect.ANY, fresh=fresh)
        await self._database.arun(program)
        await self._database.arun(questions.note_edit(self._partition(thread_id), goes_on=goes_on))
        self._context.queues.forget(self._partition(thread_id))
        await self.reindex(thread_id)

    def needs_touch(self, before: ThreadRow) -> bool:
        """Return True if ``touch`` has to follow a message that was accepted on a thread.

        Where this process works on the message, the record of its run shows the activity, and nothing more
        has to be written. Still the document is written once an hour, because records of runs are removed in
        time, and do not move with a thread; and after every message if the thread has a time to live, which
        starts again.

        Args:
            before: the thread as it was before the message.
        """
        is_shown = before.status != "busy" and self._control.serves(self._partition(before.thread_id))
        is_recent = before.touched_at + _TOUCHED_US > self._context.clock.estimate()
        return before.ttl is not None or not is_shown or not is_recent

    async def touch(self, thread_id: str) -> None:
        """Record an activity on a thread: it is listed first from now on, and its time to live starts
        again."""
        now = await self._context.clock.now()

        def restart_ttl(before: Document | None) -> Mapping[str, Any] | None:
            if before is None:
                return None
            if before.body.get("ttl") is None:
                return before.body
            return {**before.body, "ttl": make_stored_ttl(before.body["ttl"], now)}

        fresh = self._database.draw_version()
        program = documents.change(self._partition(thread_id), *OF_THREAD, restart_ttl, now, fresh)
        changed = await self._database.arun(program)
        if changed is not None and changed.body.get("ttl") is not None:
            await self.index.write(thread_id, changed)

    async def remove(self, thread_id: str) -> bool:
        """Remove a thread with everything in it, and return True if it existed. A run that is under way
        stores nothing more."""
        row = await self.find(thread_id)
        await self._control.delete(self._partition(thread_id))
        return row is not None

    async def remove_unchanged(self, thread_id: str, checks: Sequence[Check]) -> bool:
        """Remove a thread like ``remove``, and return True; False if a check does not hold."""
        return await self._control.delete(self._partition(thread_id), checks)

    async def remove_resting(self, thread_id: str, *, only_unused: bool = False) -> bool:
        """Remove a thread without pending work, and return True if it was removed. A thread
        for which a message is accepted meanwhile is kept; with ``only_unused``, one that ever accepted
        any."""
        return await self._control.remove_resting(self._partition(thread_id), only_unused=only_unused)

    async def copy(self, thread_id: str, into: str) -> None:
        """Copy a thread's checkpoints with their whole history to another thread."""
        await Database(self._database).checkpointer(tenant=self._tenant).acopy_thread(thread_id, into)

    async def keep_latest(self, thread_id: str) -> None:
        """Remove all of a thread's history but its latest state."""
        saver = Database(self._database).checkpointer(tenant=self._tenant)
        await saver.aprune([thread_id], strategy="keep_latest")

    async def measure(self, thread_id: str) -> Measure:
        """Measure the bytes of a thread, by channel, by reading all of it."""
        return await self._database.measure(self._partition(thread_id))

    async def tags(self, thread_id: str) -> list[dict[str, str]]:
        """Return a thread's tags by name: ``name``, ``checkpoint_ns``, ``checkpoint_id``."""
        found = await self._database.arun(tags.list_tags(self._partition(thread_id)))
        return [
            {
                "name": each.key[0],
                "checkpoint_ns": each.fields["namespace"],
                "checkpoint_id": each.fields["checkpoint_id"],
            }
            for each in found
        ]

    async def set_tag(
        self, thread_id: str, name: str, checkpoint_id: str | None = None, namespace: str = ""
    ) -> str:
        """Point a tag at a checkpoint, the latest of the namespace by default; return the checkpoint's id.

        Raises:
            NotFound: there is no such checkpoint.
        """
        program = tags.set_tag(
            self._partition(thread_id), name, namespace=namespace, checkpoint_id=checkpoint_id
        )
        return await self._database.arun(program)

    async def remove_tag(self, thread_id: str, name: str) -> None:
        """Remove a tag; ``NotFound`` if there is none."""
        await self._database.arun(tags.remove_tag(self._partition(thread_id), name))

    async def has_checkpoint(self, thread_id: str, namespace: str, checkpoint_id: str) -> bool:
        """Return True if a thread has a checkpoint of this id in a namespace."""
        program = history.find(self._partition(thread_id), namespace, checkpoint_id)
        return await self._database.arun(program) is not None

    async def was_accepted(self, thread_id: str, dedupe_key: str) -> bool:
        """Return True if a message was accepted on a thread under a dedupe key."""
        program = inbox.was_accepted(self._partition(thread_id), dedupe_digest(dedupe_key))
        return await self._database.arun(program)

    def _make_body(
        self, metadata: Mapping[str, Any], ttl: Mapping[str, Any] | None, now: int
    ) -> dict[str, Any]:
        if not ttl and self._context.thread_ttl is not None:
            ttl = self._context.thread_ttl.client_form
        return {"metadata": dict(metadata), "created_at": now, "ttl": make_stored_ttl(ttl, now)}

    async def _index_new(self, thread_id: str, document: Document) -> None:
        if await self.index.add(thread_id, document) is None:
            await self.index.write(thread_id, document)

    async def _read_document(self, thread_id: str) -> Document | None:
        return await self._database.arun(documents.get(self._partition(thread_id), *OF_THREAD))

    async def _find_head(self, thread_id: str) -> str | None:
        """Return the id of a thread's latest checkpoint, if it has one."""
        (found,) = await self._database.arun(ask(Fetch(self._partition(thread_id), (Get(HEAD, (ROOT,)),))))
        return next((head.fields["checkpoint_id"] for head in found), None)

    async def _put(
        self, thread_id: str, body: Mapping[str, Any], now: int, expect: Expect | int
    ) -> Document | None:
        fresh = self._database.draw_version()
        program = documents.put(self._partition(thread_id), *OF_THREAD, body, now, expect, fresh=fresh)
        return await self._database.arun(program)

    def _partition(self, thread_id: str) -> Partition:
        return Partition(self._tenant, thread_id)


def missing_error(thread_id: str) -> NotFound:
    """Return the error for a thread that does not exist, or that belongs to another user."""
    return NotFound(f"Thread {thread_id!r} not found.")
