"""The operations of the checkpoint saver, each as one program over the engine, and the state that they share.

A program is run or awaited by the saver's methods (``langgraph.saver``), so each is written once.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, Literal

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)

from perdure.engine.queue.questions import Asked
from perdure.engine.retention import checkpoint_removal, thread_removal
from perdure.engine.retention.checkpoint_plan import keep_as_asked, keep_tagged
from perdure.engine.threads import checkpoint_loading, checkpoints, copying, history, packing
from perdure.engine.threads.chunk_reads import ChunkReader, MissingChunk, resolve
from perdure.engine.threads.thread_state import View, has_gone_back
from perdure.engine.threads.undisturbed import read_undisturbed
from perdure.engine.transact import Budget
from perdure.errors import Conflict, NotAllowed, NotFound, OtherGraph
from perdure.langgraph import translate
from perdure.langgraph.cache.thread_cache import Caches, ThreadCache
from perdure.langgraph.call_records import CallRecorder
from perdure.langgraph.codecs import Codec
from perdure.langgraph.commit_plans import (
    CheckpointPlan,
    DraftEncoder,
    WritesPlan,
    drop_partial_output,
    find_consumed,
    settle_taking,
)
from perdure.langgraph.early_loads import EarlyLoads
from perdure.langgraph.listing import CheckpointListing, WholeListing
from perdure.langgraph.loop_state import Loop, Loops, ThreadId, without_loop
from perdure.langgraph.migration.schema_migration import Migration
from perdure.langgraph.reading import open_interrupts
from perdure.langgraph.step_commits import Planned, StepCommits
from perdure.langgraph.task_statements import TaskStatements, split_off_statements, statements_of
from perdure.langgraph.translate import Address
from perdure.langgraph.values.datatypes import Allow
from perdure.langgraph.values.serde import Serde
from perdure.model.arguments import list_ids, refuse_text, require_id
from perdure.model.bounded_cache import BoundedCache
from perdure.model.checkpoint import CheckpointRecord, PendingWrite
from perdure.model.heads import ROOT, HeadClaim, claim, make_loop_name
from perdure.model.ops import Fetch
from perdure.model.program import Program, advance
from perdure.model.record_versions import first_version
from perdure.model.records import Partition
from perdure.model.values.chunks import Digester
from perdure.model.values.joined_values import join_tree
from perdure.model.write_records import visible
from perdure.schema.schema import Schema
from perdure.storage.port import Answers, Driver, MakesStatements

OnConflict = Literal["raise", "fork"]
OnStored = Callable[[Partition, str, Mapping[str, int]], None]
"""Arguments: the thread, the namespace, and the known serialised sizes of channel values in bytes."""
_VIEWS_MAX = 20_000
GRAPH_ID = "graph_id"
"""Name in a checkpoint's metadata of the graph that made it."""
_log = logging.getLogger("perdure.langgraph")


class SaverPrograms(BaseCheckpointSaver[Any]):
    """Programs of the saver's methods, whose signatures are in ``perdure.langgraph.saver``."""

    def __init__(
        self,
        driver: Driver,
        *,
        tenant: str,
        digest: Digester,
        allow: Allow,
        codecs: Collection[Codec],
        on_conflict: OnConflict,
        may_list_all_threads: bool,
        metadata_keys: Collection[str],
        schema: Schema | None = None,
    ) -> None:
        # The base class's initialiser is not called: it would set up a serializer of its own.
        self._driver = driver
        self._tenant = tenant
        self._digest = digest
        self._migration = Migration(schema or Schema(), Serde(allow, codecs=codecs), digest)
        self._fork = on_conflict == "fork"
        self._may_list_all = may_list_all_threads
        self._metadata_keys = frozenset(metadata_keys)
        self._budget = Budget(driver.limits.ops, driver.limits.bytes)
        # One draw of randomness for the saver's life: names of loops and first versions count up from it.
        self._name = secrets.token_hex(4)
        self._fresh = itertools.count(1 + secrets.randbelow(1 << 30))
        self._loops = Loops()
        self._caches = Caches()
        self._early = EarlyLoads()
        self._steps = StepCommits(driver, self._budget)
        self._views: BoundedCache[tuple[Partition, str], View] = BoundedCache(_VIEWS_MAX)
        self.on_stored: OnStored | None = None
        """Called for each checkpoint once it is durable, in the OS thread that stored it; never blocks."""
        self.task_times = True
        """Store, with a task's writes, when the task ran."""
        self.graph: str | None = None
        """For the runtime: the name of this saver's graph, noted with each root checkpoint that it stores."""
        self.is_apart = False
        """For the runtime: loading a thread whose checkpoint names another graph raises ``OtherGraph``."""
        self.recorder: CallRecorder | None = None
        """Collector of the calls of models and tools, which are stored with the writes of their tasks."""
        self.on_older: Callable[[Partition], None] | None = None
        """For the runtime: called, as ``on_stored`` is, for a thread that is found in an earlier state than
        this process has known; ``None`` to log a warning."""

    @property
    def _packer(self) -> Serde:
        return self._migration.serde

    def _partition(self, thread_id: object, what: str = "thread_id") -> Partition:
        require_id(what, thread_id)
        return Partition(self._tenant, translate.read_thread_id(thread_id))

    def _first_version(self) -> int:
        """Return the start of a new thread's versions: random, and far from the start of the thread before,
        so that an earlier thread of the same name is unlikely to have reached the same versions."""
        return first_version(next(self._fresh))

    def _address(self, config: RunnableConfig) -> Address:
        return self._migration.find_stored_address(translate.address(self._tenant, config))

    def _get(self, config: RunnableConfig) -> Program[CheckpointTuple | None]:
        return (yield from self._get_at(self._address(config), translate.run_of(config)))

    def _get_at(self, at: Address, run_id: object) -> Program[CheckpointTuple | None]:
        namespace = at.namespace or ""
        guess = self._views.get((at.partition, namespace))
        # A process that does not know the thread needs its whole state, so that is read with the head.
        is_new = guess is None and at.checkpoint_id is None
        reader = ChunkReader(at.partition, self._digest) if is_new else None
        found = yield from checkpoint_loading.load(
            at.partition,
            namespace,
            at.checkpoint_id,
            guess=guess and guess.head_id,
            reader=reader,
            head_first=self._driver.capabilities.reads_heads_first,
        )
        if found.checkpoint is None and (yield from self._migration.find_namespace(at)):
            return (yield from self._get_at(self._migration.find_stored_address(at), run_id))
        if guess is not None and has_gone_back(guess, found.view):
            self._report_older(at.partition)
        while True:
            try:
                return (yield from self._read(at, run_id, namespace, found, reader))
            except MissingChunk:
                reader = None
                again = yield from checkpoint_loading.load(at.partition, namespace, at.checkpoint_id)
                if again.checkpoint is not None and again.view == found.view:
                    raise
                # The checkpoint was pruned while it was read: read the present state instead.
                found = again

    def plan_early_load(self, thread_id: str) -> Fetch | None:
        """Return the first request of a load of a thread's latest state, if that request is a fetch."""
        step = advance(self._get({"configurable": {"thread_id": thread_id, "checkpoint_ns": ROOT}}))
        return step if isinstance(step, Fetch) else None

    def keep_early_load(self, load: Fetch, answers: Answers) -> None:
        """Keep the answer to the request of ``plan_early_load``, read after a run's claim, for the first load
        under the lease."""
        self._early.add(load, answers)

    def _read(
        self,
        at: Address,
        run_id: object,
        namespace: str,
        found: checkpoint_loading.LoadedCheckpoint,
        reader: ChunkReader | None,
    ) -> Program[CheckpointTuple | None]:
        self._views[at.partition, namespace] = found.view
        migration = self._migration
        yield from migration.require_open(at.partition, found.checkpoint, found.writes)
        loop = self._loops.start(
            at.partition,
            namespace,
            self._name_loop(run_id),
            checkpoint=None if found.checkpoint is None else migration.make_base(found.checkpoint),
            writes=migration.translate_loop_writes(found.writes),
            was_head=found.is_head,
            version=found.view.head.version if found.view.head else None,
            generation=found.view.generation,
            began_at=self._now(),
            durability=translate.durability_of(at),
        )
        if namespace == ROOT and at.checkpoint_id is not None:
            self._loops.enter(loop)
        if found.checkpoint is None or loop is None:
            return None
        if at.carrier.stored is not None:
            at.carrier.stored.note(at.named or ROOT, found.checkpoint.id)
        # Only the latest state is worth caching: loops start from it again and again.
        is_kept = found.is_head and not at.carrier.is_scan
        cache = self._caches.of(at.partition) if is_kept else ThreadCache()
        common = self._packer, self._digest, cache, at.partition
        read = partial(translate.read_values, *common, view=found.view, reader=reader)
        shown, values = yield from migration.read(
            at.partition, found.checkpoint, visible(found.writes), at.named or ROOT, read
        )
        self._caches.weigh(at.partition)
        if values.blocks is not None and loop.base is not None:
            loop.base = loop.base._replace(blocks=values.blocks)
        thread = ThreadId.of(at.carrier or at.partition.thread, keeper=self._loops, loop=loop)
        found_tuple = translate.to_tuple(self._packer, at.partition, shown, values, thread)
        if self.is_apart and namespace == ROOT:
            self._require_own(at.partition, found_tuple.metadata.get(GRAPH_ID))
        return found_tuple

    def _require_own(self, partition: Partition, graph: object) -> None:
        if graph is not None and graph != self.graph:
            raise OtherGraph(
                f"thread {partition.thread!r} belongs to the graph {graph!r}, and {self.graph!r} is another; "
                "use another thread, or let graphs share threads: shared_threads=True in the "
                "runtime's settings"
            )

    def stored_writes(
        self, partition: Partition, namespace: str, checkpoint_ids: Sequence[str]
    ) -> Program[dict[str, list[tuple[PendingWrite, Any]]]]:
        """Return the writes of tasks with their values, by checkpoint. Records of calls are included, and
        channels have the names under which they are stored."""
        found = yield from history.read_pending_writes(partition, namespace, checkpoint_ids)
        wanted = {f"{name}|{i}": w.ref for name, writes in found.items() for i, w in enumerate(writes)}
        trees, _ = yield from resolve(partition, wanted, self._digest)
        return {
            name: [(w, self._packer.value(*join_tree(trees[f"{name}|{i}"]))) for i, w in enumerate(writes)]
            for name, writes in found.items()
        }

    def read_asked(self, partition: Partition, checkpoint_id: str | None = None, /) -> Program[Asked]:
        """Return the open questions of a thread's latest checkpoint, or of another one."""
        asked = yield from open_interrupts.read(partition, self._digest, checkpoint_id)
        if not asked.interrupts:
            return asked
        at = self._address({"configurable": {"thread_id": partition.thread, "checkpoint_id": checkpoint_id}})
        moved = yield from self._migration.moved_interrupts(at)
        return asked._replace(renamed=tuple(moved[name] for name in asked.interrupts if name in moved))

    def is_of_older_schema(self, record: CheckpointRecord) -> bool:
        """Return True if an older schema version than this saver's has stored a checkpoint."""
        return self._migration.is_due(record)

    def _list(self, pages: CheckpointListing | WholeListing) -> Program[Sequence[CheckpointTuple]]:
        return (yield from pages.read_next_page(self._migration, self._digest))

    def _pages(
        self,
        config: RunnableConfig | None,
        filter: Mapping[str, Any] | None,
        before: RunnableConfig | None,
        limit: int | None,
    ) -> CheckpointListing | WholeListing:
        if config is not None:
            at = self._address(config)
            root = self._loops.find_current(at.partition)
            run_checkpoint_id = None if root is None or root.base is None else root.base.id
            begin = partial(self._begin_by_listing, at, translate.run_of(config))
            if at.namespace is None and at.checkpoint_id is None:
                return WholeListing(self._tenant, filter, before, limit, at.partition, begin)
            return CheckpointListing(at, filter, before, limit, run_checkpoint_id, begin)
        if not self._may_list_all:
            raise NotAllowed(
                "listing without a thread shows the checkpoints of every thread; ask for this right by "
                "name: db.checkpointer(may_list_all_threads=True)"
            )
        return WholeListing(self._tenant, filter, before, limit)

    def _begin_by_listing(
        self, at: Address, run_id: object, record: CheckpointRecord, writes: tuple[PendingWrite, ...]
    ) -> ThreadId | None:
        """Return the thread's id that a listed checkpoint's config carries. If a run starts from an old
        checkpoint, LangGraph begins a subgraph's loop with a listed one, and that loop writes under the run's
        lease."""
        leased = without_loop(at.carrier)
        if record.namespace == ROOT:
            return leased
        loop = self._loops.start(
            at.partition,
            record.namespace,
            self._name_loop(run_id),
            checkpoint=self._migration.make_base(record),
            writes=self._migration.translate_loop_writes(writes),
            was_head=False,
            version=None,
            generation=-1,
            began_at=self._now(),
        )
        return ThreadId.of(leased or at.partition.thread, keeper=self._loops, loop=loop)

    def _now(self) -> int | None:
        """Return the time in microseconds since 1970, ``None`` if the times of tasks are not stored."""
        return time.time_ns() // 1000 if self.task_times else None

    def _name_loop(self, run_id: object) -> str:
        return make_loop_name(f"{self._name}{next(self._fresh):x}", run_id, self._migration.schema.version)

    def _read_delta(
        self, config: RunnableConfig, channels: Sequence[str]
    ) -> Program[Mapping[str, DeltaChannelHistory]]:
        refuse_text("channels", channels)
        if not channels:
            return {}
        at = self._address(config)
        return (yield from read_undisturbed(at.partition, partial(self._load_delta, at, channels)))

    def _load_delta(self, at: Address, channels: Sequence[str]) -> Program[Mapping[str, DeltaChannelHistory]]:
        found = yield from checkpoint_loading.load(at.partition, at.namespace or "", at.checkpoint_id)
        if found.checkpoint is not None:
            read = self._migration.read_history
            return (yield from read(at.partition, found.checkpoint, channels, found.view.generation))
        if at.checkpoint_id is not None:
            # The caller has loaded this checkpoint: its DeltaChannels would be wrong without their history.
            raise NotFound(
                f"thread {at.partition.thread!r}: checkpoint {at.checkpoint_id} was removed while it was "
                "read; load the thread again"
            )
        return {channel: {"writes": []} for channel in channels}

    def _plan_put(
        self,
        at: Address,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
        *,
        parent_in_commit: CheckpointRecord | None = None,
    ) -> tuple[checkpoints.CheckpointPut, CheckpointPlan]:
        partition, namespace, parent = at.partition, at.namespace or "", at.checkpoint_id
        self._early.forget(partition)
        loop = self._loops.of(partition, namespace, at.configurable)
        if loop is not None:
            loop.refuse_if_lost()
        full = translate.metadata(config, metadata, self._metadata_keys)
        if self.graph is not None and namespace == ROOT:
            full.setdefault(GRAPH_ID, self.graph)
        source = full.get("source")
        addressed = None if loop is None else loop.loaded.addressed
        is_copy = source == "fork" and addressed is not None and parent != addressed
        if loop is not None:
            loop.stores_at_exit = False
            if parent == loop.loaded.addressed:
                loop.child = checkpoint["id"]
        plan = CheckpointPlan(
            encoder=self._make_encoder(partition),
            loop=loop,
            namespace=namespace,
            parent=parent,
            is_copy=is_copy,
            checkpoint=checkpoint,
            metadata=full,
            new_versions=new_versions,
            migration=self._migration,
            parent_in_commit=parent_in_commit,
            is_by_hand=translate.durability_of(at) is None,
        )
        if at.carrier.stored is not None:
            plan.on_durable = partial(at.carrier.stored.note, at.named or ROOT, checkpoint["id"])
        put = checkpoints.CheckpointPut(
            partition=partition,
            namespace=namespace,
            plan=plan,
            parent=parent,
            source=source,
            loaded=None if loop is None else loop.loaded,
            before=None if loop is None or loop.base is None else loop.base.id,
            claim=self._claim(loop, namespace, parent),
            epoch=at.epoch,
            fork_on_conflict=self._fork,
            first_version=self._first_version(),
            budget=self._budget,
            base_generation=0 if loop is None else loop.generation,
            on_older=self._report_older,
            taking=at.carrier.taking if namespace == ROOT else None,
        )
        return put, plan

    def _store(
        self, put: checkpoints.CheckpointPut, plan: CheckpointPlan, remembered: View | None = None
    ) -> Program[None]:
        partition, namespace, loop = put.partition, put.namespace, plan.loop
        try:
            view, record = yield from put.store(remembered or self._views.get((partition, namespace)))
        except Conflict as error:
            self._views.pop((partition, namespace), None)
            self._loops.note_lost_race(partition.thread, loop, error)
            raise
        plan.encoder.acknowledge(record)
        if plan.on_durable is not None:
            plan.on_durable()
        if loop is not None:
            loop.base, loop.generation = record, view.generation
        self._views[partition, namespace] = view
        self._caches.weigh(partition)
        if self.on_stored is not None:
            self.on_stored(partition, namespace, plan.encoder.cache.sizes(namespace, record.refs))

    def _pack(self, partition: Partition) -> Program[None]:
        """Pack the thread's newest chunks."""
        places = yield from packing.pack(partition, self._digest, self._budget)
        self._caches.of(partition).known.move(places)

    def _make_encoder(self, partition: Partition) -> DraftEncoder:
        return DraftEncoder(
            self._packer, self._digest, partition, self._caches.of(partition), self._budget.ops
        )

    def _claim(self, loop: Loop | None, namespace: str, checkpoint_id: str | None) -> HeadClaim | None:
        if loop is None or self._fork or namespace != ROOT:
            return None
        return claim(loop.loaded, checkpoint_id, loop.nonce)

    def _plan_writes(
        self, at: Address, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str
    ) -> WritesPlan:
        if at.checkpoint_id is None:
            raise ValueError("put_writes needs the checkpoint_id that the writes belong to")
        namespace = at.namespace or ""
        self._early.forget(at.partition)
        loop = self._loops.of(at.partition, namespace, at.configurable)
        writes, given = split_off_statements(writes)
        writes = drop_partial_output(writes)
        if self.recorder is not None:
            writes = self.recorder.with_calls(writes, task_id, self._packer)
        now = self._now()
        span = None if loop is None or now is None or not task_path else loop.span(at.checkpoint_id, now)
        plan = WritesPlan(
            encoder=self._make_encoder(at.partition),
            loop=loop,
            namespace=namespace,
            checkpoint_id=at.checkpoint_id,
            writes=writes,
            task_id=task_id,
            task_path=task_path,
            bare=make_loop_name("", None, self._migration.schema.version),
            span=span,
            statements=statements_of(writes, given),
            given=given,
        )
        plan.freeze()
        return plan

    def give_statements(self, config: RunnableConfig) -> TaskStatements:
        """Return the collection for a task's statements, which the commit of its writes executes. The caller
        adds it to the task's writes, in the channel ``task_statements.NOTHING``.

        Args:
            config: The config that ``put_writes`` will have.

        Raises:
            NotAllowed: This saver has not loaded the thread of the config.
        """
        at = self._address(config)
        loop = self._loops.of(at.partition, at.namespace or "", at.configurable)
        if loop is None or at.checkpoint_id is None:
            raise NotAllowed(
                f"thread {at.partition.thread!r}: this checkpointer did not load the thread of this "
                "node, or too many threads have begun since; run it again"
            )
        return loop.give_statements(at.checkpoint_id)

    def _get_pending_statements(self, at: Address) -> list[Future[None]]:
        """Return the outcomes of the application's statements of a step, which must have been executed before
        the next checkpoint is stored."""
        loop = self._loops.of(at.partition, at.namespace or "", at.configurable)
        return [] if loop is None or at.checkpoint_id is None else loop.take_outcomes(at.checkpoint_id)

    @property
    def statements(self) -> MakesStatements | str:
        """The factory of statements for the database's commits, or the name of a database that takes none."""
        return self._driver.capabilities.statements

    def _may_return_early(self, at: Address, put: checkpoints.CheckpointPut) -> bool:
        """Return True if a put may return before it is durable, as a later write stores it in the same
        commit: a run's input on the root namespace, unless the durability is ``exit``. With ``sync``
        LangGraph awaits the checkpoint after START, which shares the commit, before the first node begins."""
        return (
            put.loaded is not None
            and put.source == "input"
            and at.namespace == ROOT
            and at.configurable.get(translate.DURABILITY, "async") in ("async", "sync")
            and not self._fork
        )

    def _may_be_held(self, at: Address, plan: WritesPlan) -> bool:
        """Return True if a loop's writes may wait a moment for the next checkpoint. They may not while a
        task holds messages: what is stored when that task ends decides which commit takes the messages."""
        taking = at.carrier.taking
        return plan.loop is not None and not self._fork and (taking is None or not taking.held)

    def _store_writes(self, at: Address, plan: WritesPlan, planned: Planned | None = None) -> Program[None]:
        """Store a task's writes, on what is stored or on a checkpoint that the same commit stores."""
        partition, namespace, loop = at.partition, plan.namespace, plan.loop
        remembered, plan.checkpoint_in_commit = planned or (self._views.get((partition, ROOT)), None)
        if loop is not None:
            loop.refuse_if_lost()
        put = checkpoints.WritesPut(
            partition=partition,
            plan=plan,
            seen=loop.seen if loop is not None and not self._fork else None,
            claim=self._claim(loop, namespace, plan.checkpoint_id),
            epoch=at.epoch,
            first_version=self._first_version(),
            budget=self._budget,
            on_older=self._report_older,
            taking=settle_taking(at, plan),
            consumed=find_consumed(at, plan),
            statements=plan.statements,
            checkpoint=(namespace, plan.checkpoint_id),
        )
        try:
            yield from put.store(remembered)
        except Conflict as error:
            self._loops.note_lost_race(partition.thread, loop, error)
            raise
        plan.acknowledge()

    def _delete_thread(self, thread_id: str) -> Program[None]:
        partition = self._partition(thread_id)
        yield from thread_removal.delete_thread(partition)
        self.forget_thread(partition)

    def _copy(self, source: str, target: str) -> Program[None]:
        here, there = self._partition(source, "source_thread_id"), self._partition(target, "target_thread_id")
        yield from copying.copy_thread(here, there, self._digest, self._budget, self._first_version())
        self.forget_thread(there)

    def _prune(self, thread_ids: Sequence[str], strategy: str, keep_last: int | None) -> Program[None]:
        planner = keep_as_asked(strategy, keep_last)
        for partition in list(map(self._partition, list_ids("thread_ids", thread_ids))):
            yield from checkpoint_removal.prune(partition, planner, self._digest, self._budget)
            if planner is keep_tagged:
                self.forget_thread(partition)

    def _report_older(self, partition: Partition) -> None:
        if self.on_older is not None:
            self.on_older(partition)
            return
        _log.warning(
            "thread %r is older than it was: the database came back to an earlier state, and what was stored "
            "since is lost; what is there now counts",
            partition.thread,
        )

    def forget_thread(self, partition: Partition) -> None:
        """Forget a thread, which may have been removed: drop what this process keeps of it."""
        for key in [k for k in self._views if k[0] == partition]:
            del self._views[key]
        self._caches.forget(partition)
        self._loops.forget(partition)
        self._early.forget(partition)
