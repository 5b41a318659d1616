"""Plans of a loop's writes. The engine asks a plan for a draft in a collection generation, and for another
draft if a write or a collection came in between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar, cast

from langgraph.checkpoint.base import WRITES_IDX_MAP, ChannelVersions, Checkpoint
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT

from perdure.engine.threads.drafts import CheckpointDraft, WritesDraft
from perdure.engine.threads.steering import Taking
from perdure.engine.threads.thread_state import View
from perdure.errors import PerdureError, TypeNotAllowed, Unserialisable
from perdure.langgraph import translate
from perdure.langgraph.cache.encoding import Encoding, Frozen
from perdure.langgraph.cache.known_chunks import Reuse, WriteBasis
from perdure.langgraph.cache.thread_cache import ThreadCache
from perdure.langgraph.call_records import slot_of
from perdure.langgraph.loop_state import Loop
from perdure.langgraph.migration.schema_migration import Migration
from perdure.langgraph.task_statements import TaskStatements, Writes
from perdure.langgraph.translate import Address
from perdure.langgraph.values import value_errors
from perdure.langgraph.values.serde import Serde
from perdure.model.checkpoint import Carried, CheckpointRecord, PendingWrite, TaskSpan
from perdure.model.heads import ROOT, UNVERSIONED
from perdure.model.ops import ApplicationStatement, Check, Expect, Fetch, Get
from perdure.model.program import Program, ask
from perdure.model.records import CHECKPOINT, WRITE, Key, Partition
from perdure.model.values.chunks import Digester
from perdure.model.values.packs import Runs
from perdure.model.well_formed import require_text
from perdure.model.write_records import ERROR_SOURCE, NULL_TASK, RESUME

R = TypeVar("R")
_REPLAYED_MAX = 48
_OPS = 12
"""An upper bound of the operations of a write other than its records, its chunks and their proof."""


_ENDS = (ERROR, INTERRUPT)
"""Reserved channels: a task ends with a write to one of them."""


def drop_partial_output(writes: Writes) -> Writes:
    """Return the writes of a task, without its output if it failed or was cancelled before its end.

    A node writes its result and then asks its conditional edges. If an edge fails, LangGraph stores the
    result beside the error, takes the task for finished when the run is continued, and ends without the nodes
    that were to follow. If its output is not stored, the task runs again. A task whose error a handler takes
    over keeps its output.
    """
    channels = {channel for channel, _ in writes}
    if ERROR not in channels or ERROR_SOURCE in channels:
        return writes
    return [write for write in writes if write[0] in WRITES_IDX_MAP]


@dataclass(slots=True, eq=False)
class DraftEncoder:
    """Encodes the values of one write of a thread; only the last draft counts. ``budget`` is the maximum
    number of operations of the write's commit."""

    serde: Serde
    digest: Digester
    partition: Partition
    cache: ThreadCache
    budget: int
    has_drafted: bool = False
    _last: Encoding | None = None

    def encode(
        self, basis: WriteBasis, ops: int, encode_all: Callable[[Encoding], R], serde: Serde | None = None
    ) -> tuple[R, tuple[Check, ...]]:
        """Encode on a basis; the previous draft is discarded.

        Args:
            basis: The state of the thread on which the write is planned.
            ops: The number of other operations in the commit.
            encode_all: Encodes the values.
            serde: Packs the values, instead of the encoder's own serializer.

        Returns:
            The result of ``encode_all``, and the checks that prove the chunks that it left out.
        """
        if self.has_drafted:
            self.cache.forget_chunks(basis.generation, basis.root)
        self.has_drafted = True
        room = max(0, self.budget - ops)

        def attempt(reuse: Reuse) -> tuple[R, tuple[Check, ...] | None]:
            encoding = self._last = Encoding(serde or self.serde, self.digest, self.cache, basis, reuse=reuse)
            return encode_all(encoding), encoding.make_proof(room)

        for reuse in (Reuse.ALL, Reuse.OF_ROOT):
            written, checks = attempt(reuse)
            if checks is not None:
                return written, checks
        # There is no room for any proof, so every chunk is stored again, before the commit.
        return attempt(Reuse.NONE)[0], ()

    @property
    def chunks(self) -> Mapping[bytes, bytes]:
        """The chunks that the last draft adds."""
        if self._last is None:
            return {}
        return self._last.chunks

    def freeze(self) -> Mapping[tuple[str, str], Frozen]:
        """Return the values of channels as the last draft encoded them."""
        if self._last is None:
            return {}
        return self._last.freeze()

    def acknowledge(self, record: CheckpointRecord | None = None) -> None:
        """Update the cache from the last draft: the write is durable. ``record`` is the checkpoint that the
        write stored, if any."""
        if self._last is not None:
            self._last.acknowledge(record)


@dataclass(slots=True, eq=False, kw_only=True)
class CheckpointPlan:
    """The plan for storing a checkpoint.

    Attributes:
        loop: The loop that made the checkpoint, ``None`` for a bare put.
        parent: Id of the checkpoint that it follows, ``None`` for the first one.
        is_copy: True if it replaces the checkpoint that the loop loaded, with its values.
        migration: Brings the checkpoint that it is built on to the present schema version.
        parent_in_commit: Its parent, if both are to be stored by one commit.
        is_by_hand: True if the put is not one of a run: then each value of the checkpoint is encoded again.
        on_durable: Called when it is durable.
        seq: Its number in the last draft.
    """

    encoder: DraftEncoder
    loop: Loop | None
    namespace: str
    parent: str | None
    is_copy: bool
    checkpoint: Checkpoint
    metadata: Mapping[str, Any]
    new_versions: ChannelVersions
    migration: Migration
    parent_in_commit: CheckpointRecord | None = None
    is_by_hand: bool = False
    on_durable: Callable[[], None] | None = None
    seq: int = 0
    _is_frozen: bool = False

    def freeze(self) -> None:
        """Keep the values as they are now, or as the last draft encoded them: a node may change them in place
        while the thread is read, or read again."""
        if self._is_frozen:
            return
        self._is_frozen = True
        values = self.checkpoint["channel_values"]
        frozen = {channel: value for (_, channel), value in self.encoder.freeze().items()}
        try:
            unchanged = self.checkpoint["channel_versions"].keys() - self.new_versions.keys()
            for channel in values.keys() - (unchanged if self._follows_load else set()) - frozen.keys():
                if type(values[channel]) is not Frozen:
                    frozen[channel] = Frozen.of(self.encoder.serde, values[channel])
        except (TypeNotAllowed, Unserialisable):
            # Left unfrozen, so that the draft raises the error with its context.
            return
        self.checkpoint = cast(Checkpoint, {**self.checkpoint, "channel_values": {**values, **frozen}})

    @property
    def _follows_load(self) -> bool:
        """True if the channels without a new version have the values that were loaded or stored last: then
        they are not encoded again if the base is found."""
        return self.is_copy or not self.is_by_hand

    def draft(self, view: View, generation: int, seq: int) -> Program[CheckpointDraft]:
        """Return the draft of the checkpoint.

        Args:
            view: The thread as it is known.
            generation: Its collection generation.
            seq: The number of the checkpoint in the order of its namespace.
        """
        encoder, parent = self.encoder, self.parent_in_commit
        self.seq = seq
        base = yield from self._find_base(generation, trusts_loop=not encoder.has_drafted)
        checkpoint = self.checkpoint
        if self.namespace == ROOT:
            root_head = None
        else:
            root_head = view.root_head
        place = translate.CheckpointPosition(
            self.namespace, self.parent, seq, root_head, *self._find_authors()
        )
        head = view.head_id
        basis = WriteBasis(generation, self.namespace, head, view.root_head, is_guarded=True)
        if parent is not None:
            # A parent in the same commit does not prove that its chunks are stored; its own parent does.
            basis = WriteBasis(generation, ROOT, parent.parent_id, parent.parent_id, is_guarded=True)
        carried = yield from self._plan_schema_crossing(base, place)

        def encode_all(encoding: Encoding) -> CheckpointRecord:
            with translate.error_context(encoder.partition, checkpoint["id"]):
                try:
                    record = translate.to_record(
                        encoder.serde,
                        encoding,
                        place,
                        checkpoint,
                        self.metadata,
                        self.new_versions,
                        base=base,
                        are_unchanged=self._follows_load,
                        schema=self.migration.schema.version,
                    )._replace(blocks=self._find_blocks())
                    if self.is_copy and base is not None and base.cut:
                        # The original carries history that a removal cut off before it. The copy does not
                        # follow the original, so it carries that history, too.
                        kept = {c: base.carried[c] for c in record.deltas if c in base.carried}
                        record = record._replace(parent_id=base.parent_id, cut=True, carried=kept)
                    if carried is None:
                        more = {}
                    else:
                        more = carried(encoding.encode_write)
                    if more:
                        return record._replace(carried={**record.carried, **more})
                    return record
                except (TypeNotAllowed, Unserialisable) as error:
                    values = checkpoint["channel_values"].items()
                    raise value_errors.make_write_error(encoder.serde, error, values) from error

        replayed = self._prove_replayed()
        record, checks = encoder.encode(basis, _OPS + len(replayed), encode_all)
        if base is not None and base is not parent and base.id != head:
            checks = (*checks, Check(CHECKPOINT, (base.namespace, base.id), Expect.PRESENT))
        return CheckpointDraft(encoder.chunks, record, checks, replayed)

    def _find_blocks(self) -> Runs:
        """Return the blocks of packs in which the values of the checkpoint before it were found."""
        before = self.parent_in_commit or (None if self.loop is None else self.loop.base)
        if before is None:
            return ()
        return before.blocks

    def _prove_replayed(self) -> tuple[Check, ...]:
        """Return checks of the writes on the parent, from which DeltaChannels of this checkpoint will be
        replayed: writes that this loop loaded or stored may be gone, if the database was restored.

        A restored database lacks its last commits. So if there are more writes than a commit of every
        backend can check, the last ones also prove those that were stored before them.
        """
        if self.loop is None or self.parent is None:
            return ()
        deltas = translate.delta_channels(self.metadata).keys() - self.checkpoint["channel_values"].keys()
        keys = [key for key, channel in self.loop.written.get(self.parent, ()) if channel in deltas]
        records = list(dict.fromkeys(keys))[-_REPLAYED_MAX:]
        return tuple(Check(WRITE, key, Expect.PRESENT) for key in records)

    def _find_base(self, generation: int, *, trusts_loop: bool) -> Program[CheckpointRecord | None]:
        """Return the checkpoint whose references are reused for channels without a new version: the parent,
        or the original of a copy. ``None`` if there is no such channel, or that checkpoint is not stored."""
        loop, channels = self.loop, {*self.checkpoint["channel_values"]}
        channels.update(translate.delta_channels(self.metadata))
        if self.parent_in_commit is not None or channels <= self.new_versions.keys():
            return self.parent_in_commit
        if loop is not None and self.is_copy:
            name = loop.loaded.addressed
        else:
            name = self.parent
        if trusts_loop and loop is not None and (known := loop.find_base(name, generation)) is not None:
            return known
        return (yield from self._read_stored(name))

    def _plan_schema_crossing(
        self, base: CheckpointRecord | None, place: translate.CheckpointPosition
    ) -> Program[Callable[[Callable[[Any], bytes]], dict[str, Carried]] | None]:
        """Return the function that makes the history that the checkpoint carries over, ``None`` unless it is
        built on a checkpoint of an older schema version."""
        loop, migration = self.loop, self.migration
        older = base
        if older is None and migration.schema.version > UNVERSIONED and self.parent_in_commit is None:
            if loop is not None and self.is_copy:
                name = loop.loaded.addressed
            else:
                name = self.parent
            if loop is not None and loop.base is not None and loop.base.id == name:
                older = loop.base
            else:
                older = None
            if older is None:
                older = yield from self._read_stored(name)
        if older is None or not migration.is_due(older):
            return None
        deltas = translate.delta_channels(self.metadata).keys() - self.checkpoint["channel_values"].keys()
        new = older._replace(
            id=self.checkpoint["id"],
            seq=place.seq,
            parent_id=place.parent_id,
            nonce=place.nonce,
            seen=place.seen,
            deltas=tuple(deltas),
            carried=older.carried if self.is_copy else {},
            cut=False,
        )
        return (yield from migration.plan_crossing(self.encoder.partition, older, new))

    def _read_stored(self, name: str | None) -> Program[CheckpointRecord | None]:
        """Return a checkpoint as it is stored, under the present names."""
        if name is None:
            return None
        # Another loop or process put it, or the thread was pruned since: read what is stored now. The commit
        # is refused if a collection comes after this read.
        self.freeze()
        key = (self.namespace, name)
        (found,) = yield from ask(Fetch(self.encoder.partition, (Get(CHECKPOINT, key),)))
        if not found:
            return None
        record = CheckpointRecord.read(found[0])
        self.migration.require_readable(self.encoder.partition, record)
        return self.migration.make_base(record)

    def _find_authors(self) -> tuple[str, tuple[str, ...]]:
        """Return the nonce of the loop that makes the checkpoint, and the nonces of the loops whose writes on
        the parent it had loaded. A copy replaces its original in the history, so it takes the original's
        nonces."""
        loop = self.loop
        if loop is None:
            return "", ()
        if self.is_copy and loop.base is not None:
            return loop.base.nonce, loop.base.seen
        return loop.nonce, loop.seen_nonces if self.parent == loop.loaded.addressed else ()


@dataclass(slots=True, eq=False, kw_only=True)
class WritesPlan:
    """The plan for storing a task's writes on a checkpoint.

    Attributes:
        loop: The loop in which the task runs, ``None`` if no load preceded.
        bare: The nonce of writes that no load preceded.
        span: The time in which the task ran, if it is to be stored.
        refused: The error that the call has to raise although the writes are stored.
        checkpoint_in_commit: The checkpoint, if the same commit is to store it.
        statements: Statements on the application's tables, which the commit of the writes executes.
        given: Notified whether the statements were executed.
    """

    encoder: DraftEncoder
    loop: Loop | None
    namespace: str
    checkpoint_id: str
    writes: Sequence[tuple[str, Any]]
    task_id: str
    task_path: str
    bare: str = ""
    span: TaskSpan | None = None
    refused: TypeNotAllowed | None = None
    checkpoint_in_commit: CheckpointRecord | None = None
    statements: tuple[ApplicationStatement, ...] = ()
    given: Sequence[TaskStatements] = ()
    _last: tuple[PendingWrite, ...] = ()

    @contextmanager
    def note_outcome(self) -> Iterator[None]:
        """Tell those who wait for the statements whether they were executed."""
        try:
            yield
        except BaseException as error:
            for each in self.given:
                each.end(error)
            raise
        for each in self.given:
            each.end()

    def freeze(self) -> None:
        """Keep the values as they are now: a node may change them in place while the thread is read."""
        # If a value is refused, all are left unfrozen, so that the draft raises the error with its context.
        with suppress(TypeNotAllowed, Unserialisable):
            serde = self.encoder.serde
            self.writes = [
                (channel, value if type(value) is Frozen else Frozen.of(serde, value))
                for channel, value in self.writes
            ]

    def acknowledge(self) -> None:
        """Update the cache and the loop: the writes are durable."""
        self.encoder.acknowledge()
        if self.loop is not None:
            self.loop.note(self.checkpoint_id, self._last)

    def child(self) -> str | None:
        """Return the checkpoint that the loop has put, or tries to put, on what it loaded."""
        if self.loop is None:
            return None
        return self.loop.child

    def before(self) -> tuple[str, str] | None:
        """Return the checkpoint that the loop stored last, if the writes belong to it or to its parent and
        are in a commit of their own."""
        if self.loop is None or self.checkpoint_in_commit is not None:
            base = None
        else:
            base = self.loop.base
        if base is None or self.checkpoint_id not in (base.id, base.parent_id):
            return None
        return base.namespace, base.id

    def draft(self, view: View, generation: int) -> WritesDraft:
        """Return the draft of the writes, one for each slot.

        The results of a node are not discarded because a type is not allowed: values of such types are
        stored, too, and ``refused`` is then the error that the call has to raise.
        """
        serde = self.encoder.serde
        if self.checkpoint_in_commit is None:
            root = view.root_head
        else:
            root = self.checkpoint_in_commit.parent_id
        basis = WriteBasis(generation, self.namespace, None, root, is_guarded=False)
        with translate.error_context(self.encoder.partition, self.checkpoint_id):
            names = (self.task_id, self.task_path, *(channel for channel, _ in self.writes))
            if not all(isinstance(name, str) for name in names):
                raise TypeError("the id and the path of a task and the channels of its writes are text")
            require_text(names)
            try:
                return self._draft(basis)
            except TypeNotAllowed as error:
                refused = value_errors.make_write_error(serde, error, self.writes)
            except Unserialisable as error:
                raise value_errors.make_write_error(serde, error, self.writes) from error
            if serde.types.is_open:
                raise refused
            try:
                draft = self._draft(basis, serde.with_imported_types())
            except PerdureError:
                raise refused from None
        place = f"thread {self.encoder.partition.thread!r}, checkpoint {self.checkpoint_id}"
        self.refused = TypeNotAllowed(
            f"{place}: {refused}. The step's result is stored: with the types allowed, invoke(None, config) "
            "goes on from it and repeats nothing"
        )
        return draft

    def raise_refused(self) -> None:
        """Raise the error of writes that were stored although a type in them is not allowed."""
        if self.refused is not None:
            raise self.refused

    def _draft(self, basis: WriteBasis, serde: Serde | None = None) -> WritesDraft:
        nonce = self.bare if self.loop is None else self.loop.nonce

        def encode_all(encoding: Encoding) -> dict[int, PendingWrite]:
            # The last of several writes to one reserved slot counts.
            slots: dict[int, PendingWrite] = {}
            for position, (channel, value) in enumerate(self.writes):
                idx = slot_of(channel, position)
                slots[idx] = PendingWrite(
                    self.namespace,
                    self.checkpoint_id,
                    self.task_id,
                    idx,
                    channel,
                    self.task_path,
                    nonce,
                    encoding.encode_write(value),
                    span=self.span if idx >= 0 or channel in _ENDS else None,
                )
            return slots

        slots, checks = self.encoder.encode(basis, _OPS + len(self.writes), encode_all, serde)
        self._last = tuple(slots.values())
        return WritesDraft(self.encoder.chunks, self._last, checks)


def find_consumed(at: Address, plan: WritesPlan) -> list[Key]:
    """Return the keys of the answers without an interrupt's id that a task may have taken, to be removed: the
    task's own writes hold what it took. Such an answer is stored with the task's checkpoint or, for a task of
    a subgraph, with the root's."""
    if plan.task_id == NULL_TASK or not any(channel == RESUME for channel, _ in plan.writes):
        return []
    places = [(plan.namespace, plan.checkpoint_id)]
    root = (at.configurable.get("checkpoint_map") or {}).get(ROOT)
    if plan.namespace != ROOT and isinstance(root, str):
        places.append((ROOT, root))
    return [(*place, NULL_TASK, WRITES_IDX_MAP[RESUME]) for place in places]


def settle_taking(at: Address, plan: WritesPlan) -> Taking | None:
    """Return the messages that a run takes with a task's writes: those that the task holds, if the writes are
    its result. With an error or an interrupt the task gives its messages back, and the result is ``None``."""
    taking = at.carrier.taking
    if taking is None or plan.namespace != ROOT or taking.is_held_by_another(plan.task_id):
        return None
    channels = {channel for channel, _ in plan.writes}
    # An error that a handler takes over comes with further writes, which are not a result either.
    if not channels.isdisjoint((ERROR, INTERRUPT)):
        taking.offer(plan.task_id, ())
    elif not channels <= WRITES_IDX_MAP.keys():
        taking.note_written(plan.task_id)
        return taking
    return None
