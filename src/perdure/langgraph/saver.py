"""The checkpoint saver: LangGraph's interface over the programs of the engine.

Every operation is written once, as a program (``langgraph.saver_programs``); the sync method runs it, the
async method awaits it.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import copy
from functools import partial
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.serde.types import ERROR

from perdure.engine.retention import checkpoint_removal
from perdure.errors import PerdureError
from perdure.langgraph import translate
from perdure.langgraph.channel_versions import make_next_version
from perdure.langgraph.commit_plans import WritesPlan
from perdure.langgraph.saver_programs import OnConflict, OnStored, SaverPrograms
from perdure.langgraph.step_commits import UnfinishedStep
from perdure.langgraph.task_statements import split_off_statements
from perdure.langgraph.translate import Address
from perdure.langgraph.values.datatypes import TypeName
from perdure.langgraph.values.serde import Serde
from perdure.model.checkpoint import Version
from perdure.model.heads import ROOT
from perdure.model.program import advance, resume
from perdure.model.values.packs import ends_block
from perdure.schema.schema import Schema
from perdure.storage.port import arun, run

_log = logging.getLogger("perdure.langgraph")

__all__ = ["SERDE", "OnConflict", "OnStored", "PerdureSaver"]

SERDE = (
    "Perdure's checkpointers take no serializer: pass allow=[…] for types that their state may hold, and "
    "codecs=[perdure.Codec(TheType, dump, load)] for types that need a form of their own"
)


class PerdureSaver(SaverPrograms):
    """A native LangGraph checkpoint saver. Make one with ``Database.checkpointer``.

    All methods are safe to call from many OS threads and event loops at once. A write is durable when its
    method returns; only ``aput`` of a run's input may return earlier, while an ``aput_writes`` or ``aput``
    that builds on it is under way: that call returns when both are durable, or raises. ``put`` raises
    ``HeadConflict`` when another run moved the head of the thread since this run loaded it (unless
    ``on_conflict="fork"``), and ``Fenced`` when a later lease epoch has replaced the run's.
    """

    def with_allowlist(self, extra_allowlist: Collection[TypeName]) -> PerdureSaver:
        """Return the same saver with more types allowed; it shares this one's caches."""
        clone = copy(self)
        clone._migration = self._migration.with_serde(self._packer.with_types(extra_allowlist))
        return clone

    def declare(self, types: Collection[type], place: str) -> None:
        """Allow the types that a graph declares.

        Args:
            types: The types.
            place: A format string with one field, with which errors show where an option is passed to this
                saver.
        """
        serde = Serde(self._packer.types.with_types(types, place), codecs=self._packer.codecs)
        self._migration = self._migration.with_serde(serde)

    @property
    def schema(self) -> Schema:
        """The schema of the application: its version, and the steps that lead to it."""
        return self._migration.schema

    @property
    def is_open(self) -> bool:
        """True if every imported data type is allowed."""
        return self._packer.types.is_open

    @property
    def serde(self) -> Any:  # pyright: ignore
        """Not available: raises an ``AttributeError`` that names what to use instead."""
        raise AttributeError(SERDE)

    @serde.setter
    def serde(self, serde: object) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        raise AttributeError(SERDE)

    @property
    def is_kept(self) -> bool:
        """True if stored data outlives the process; false for ``memory://``."""
        return self._driver.capabilities.is_kept

    def conflicts(self, thread_id: str) -> tuple[PerdureError, ...]:
        """Return the races that runs of this saver lost on a thread, oldest first (the last 32).

        LangGraph reports a failed background write only if nothing else failed; here all of them are found.
        """
        return self._loops.conflicts(thread_id)

    def get_next_version(self, current: Version | None, channel: None) -> Version:
        """Return the version that follows a channel's current one."""
        return make_next_version(current)

    # Reading

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that a config names, or the latest one of its thread."""
        return run(self._get(config), self._driver)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """Return the checkpoint that a config names, or the latest one of its thread."""
        at = self._address(config)
        if at.epoch is None:
            may_begin, at_exit = self._loops.may_be_under_way(at.partition, at.namespace or ROOT)
            await self._steps.wait_for_calls(at, may_begin=may_begin, stores_at_exit=at_exit)
        program = self._get_at(at, translate.run_of(config))
        request = advance(program)
        answer = self._early.pop(request, at.epoch)
        found = await arun(
            resume(program, request if answer is None else advance(program, answer)), self._driver
        )
        await _confirm(at)
        return found

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        """Yield checkpoints, newest first; those of several namespaces or threads by checkpoint id downwards.

        Args:
            config: The thread, and optionally the namespace and checkpoint. ``None`` selects every thread of
                this tenant: only for a saver made with ``may_list_all_threads=True``. Every thread is asked
                for its newest id before the first checkpoint is yielded, however small the limit: this takes
                time linear in the number of threads.
            filter: Metadata that have to be equal.
            before: List only checkpoints before this one. If the config names no namespace, or this
                checkpoint was removed, ids are compared.
            limit: Maximum number of checkpoints to yield.

        Raises:
            NotAllowed: ``config`` is ``None`` and the saver may not list all threads.
        """
        pages = self._pages(config, filter, before, limit)
        while not pages.done:
            yield from run(self._list(pages), self._driver)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """See ``list``."""
        pages = self._pages(config, filter, before, limit)
        while not pages.done:
            for item in await arun(self._list(pages), self._driver):
                yield item

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the writes from which the values of DeltaChannels are replayed."""
        return run(self._read_delta(config, channels), self._driver)

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """Return the writes from which the values of DeltaChannels are replayed."""
        return await arun(self._read_delta(config, channels), self._driver)

    def moved_interrupts(self, config: RunnableConfig) -> dict[str, str]:
        """Return the ids of interrupts that changed when a node was renamed, old to present: a client may
        know the old ones, and ``Command(resume=…)`` takes the present ones."""
        return run(self._migration.moved_interrupts(self._address(config)), self._driver)

    async def amoved_interrupts(self, config: RunnableConfig) -> dict[str, str]:
        """See ``moved_interrupts``."""
        return await arun(self._migration.moved_interrupts(self._address(config)), self._driver)

    # Writing

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint and return the config that names it."""
        at = self._address(config)
        try:
            for statements in self._get_pending_statements(at):
                statements.result()
            put, plan = self._plan_put(at, config, checkpoint, metadata, new_versions)
            run(self._store(put, plan), self._driver)
        except Exception as error:
            _report(at, error)
            raise
        if ends_block(plan.seq):
            with self._log_failure(at):
                run(self._pack(at.partition), self._driver)
        return translate.make_stored_config(at, checkpoint["id"])

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """Store a checkpoint and return the config that names it."""
        at = self._address(config)
        with self._steps.note_call(at):
            begun = self._steps.begin(at, checkpoint["id"])
            try:
                for statements in self._get_pending_statements(at):
                    await asyncio.wrap_future(statements)
                seqs = await self._aput(at, begun, config, checkpoint, metadata, new_versions)
                await _confirm(at)
            except Exception as error:
                _report(at, error)
                raise
            finally:
                # If the commit of another call stores this checkpoint, that call ends the step.
                if begun.planned is None:
                    begun.end()
        if any(map(ends_block, seqs)):
            with self._log_failure(at):
                await arun(self._pack(at.partition), self._driver)
        return translate.make_stored_config(at, checkpoint["id"])

    async def _aput(
        self,
        at: Address,
        begun: UnfinishedStep,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> tuple[int, ...]:
        """Store a checkpoint, with which the step ``begun`` starts. Return the number of each checkpoint that
        this call made durable: after the last one of a block, the caller packs chunks."""
        ended = self._steps.find(at)
        lasts = _may_be_cancelled(at)
        if ended is not None and ended.planned is not None:
            view, base = ended.planned
            put, plan = self._plan_put(at, config, checkpoint, metadata, new_versions, parent_in_commit=base)
            if await self._steps.store_with(ended, put, self._store(put, plan, view), lasts=lasts):
                return base.seq, plan.seq
            # ``store_with`` has frozen the plan: its checkpoint has the values as they were at this call.
            ended, checkpoint = None, plan.checkpoint
        put, plan = self._plan_put(at, config, checkpoint, metadata, new_versions)
        program = self._store(put, plan)
        if not self._may_return_early(at, put):
            await self._steps.store_with(ended, put, program, lasts=lasts)
        elif await self._steps.store_input(begun, put, program, lasts=lasts):
            # The call whose commit stores this checkpoint returns its number, too.
            return ()
        return (plan.seq,)

    @contextmanager
    def _log_failure(self, at: Address) -> Iterator[None]:
        """Log an error of packing: the checkpoint is stored, and a later put packs what is left."""
        try:
            yield
        except Exception as error:
            thread, kind = at.partition.thread, type(error).__name__
            _log.warning("thread %r: its newest chunks were not packed: %s", thread, kind)

    def put_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store the writes of a task on the checkpoint at which its step began."""
        at = self._address(config)
        try:
            plan = self._plan_writes(at, writes, task_id, task_path)
            with plan.note_outcome():
                for given in plan.given:
                    given.wait_for_parent()
                run(self._store_writes(at, plan), self._driver)
            plan.raise_refused()
        except Exception as error:
            for given in split_off_statements(writes)[1]:
                given.end(error)
            _report(at, error)
            raise

    async def aput_writes(
        self,
        config: RunnableConfig,
        writes: Sequence[tuple[str, Any]],
        task_id: str,
        task_path: str = "",
    ) -> None:
        """Store the writes of a task on the checkpoint at which its step began."""
        at = self._address(config)
        try:
            with self._steps.note_call(at):
                await self._aput_writes(at, self._plan_writes(at, writes, task_id, task_path))
        except Exception as error:
            for given in split_off_statements(writes)[1]:
                given.end(error)
            _report(at, error)
            raise

    async def _aput_writes(self, at: Address, plan: WritesPlan) -> None:
        with plan.note_outcome():
            for given in plan.given:
                await given.await_parent()
            await self._steps.store_writes(
                at,
                partial(self._store_writes, at, plan),
                may_wait=self._may_be_held(at, plan),
                # Before the handler of an error begins, LangGraph awaits these writes within the run's call.
                lasts=_may_be_cancelled(at)
                or (at.epoch is None and ERROR in [channel for channel, _ in plan.writes]),
            )
        plan.raise_refused()

    # Removing and copying

    def delete_thread(self, thread_id: str) -> None:
        """Remove a thread with all its checkpoints and writes."""
        run(self._delete_thread(thread_id), self._driver)

    async def adelete_thread(self, thread_id: str) -> None:
        """Remove a thread with all its checkpoints and writes."""
        await arun(self._delete_thread(thread_id), self._driver)

    def delete_for_runs(self, run_ids: Sequence[str | uuid.UUID]) -> None:
        """Remove what runs stored, in all threads. Each thread returns to its head before the runs.

        Raises:
            TypeError: An id is neither text nor a UUID.
            CannotTakeBack: A thread's head before the runs was pruned since. That thread is left unchanged,
                and the error is raised when the others are done.
        """
        run(
            checkpoint_removal.delete_for_runs(self._tenant, run_ids, self._digest, self._budget),
            self._driver,
        )

    async def adelete_for_runs(self, run_ids: Sequence[str | uuid.UUID]) -> None:
        """See ``delete_for_runs``."""
        await arun(
            checkpoint_removal.delete_for_runs(self._tenant, run_ids, self._digest, self._budget),
            self._driver,
        )

    def copy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread under another id."""
        run(self._copy(source_thread_id, target_thread_id), self._driver)

    async def acopy_thread(self, source_thread_id: str, target_thread_id: str) -> None:
        """Copy a thread under another id."""
        await arun(self._copy(source_thread_id, target_thread_id), self._driver)

    def prune(
        self, thread_ids: Sequence[str], *, strategy: str = "keep_latest", keep_last: int | None = None
    ) -> None:
        """Remove checkpoints of threads, and every chunk that is no longer needed.

        Heads, tagged checkpoints and what DeltaChannels need always stay; of a thread with an open run, the
        checkpoints to which a rollback would return stay as well.

        Args:
            thread_ids: The threads.
            strategy: ``keep_latest`` keeps the newest checkpoint of each namespace, ``delete`` none.
            keep_last: Keep this number of newest checkpoints of each namespace instead.

        Raises:
            ValueError: The strategy is unknown, or ``delete`` with ``keep_last``; or an id is empty.
        """
        run(self._prune(thread_ids, strategy, keep_last), self._driver)

    async def aprune(
        self, thread_ids: Sequence[str], *, strategy: str = "keep_latest", keep_last: int | None = None
    ) -> None:
        """See ``prune``."""
        await arun(self._prune(thread_ids, strategy, keep_last), self._driver)


def _may_be_cancelled(at: Address) -> bool:
    """Return True if LangGraph may await a put or writes within the call of a run, which may be cancelled: it
    does so unless the durability is "async"."""
    return at.epoch is None and at.configurable.get(translate.DURABILITY, "async") != "async"


def _report(at: Address, error: Exception) -> None:
    """Pass the error of a write on to the nodes that wait for a checkpoint: LangGraph stores none after
    it."""
    if at.carrier.stored is not None:
        at.carrier.stored.fail(at.named or ROOT, error)


async def _confirm(at: Address) -> None:
    """Confirm the lease of a run before it begins its next step: the database's answer may have come after
    the lease had ended."""
    if at.carrier.confirm is not None:
        await at.carrier.confirm()
