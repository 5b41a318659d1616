"""Migration of checkpoints in memory: what an older version stored, as the present version would have
stored it.

Nothing here writes. A loop that starts from a migrated checkpoint stores the result with its next one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import Any

from langgraph.checkpoint.base import DeltaChannelHistory
from langgraph.constants import START
from langgraph.types import Send

from perdure.engine.threads import checkpoint_loading, history, schema_pin
from perdure.engine.threads.chunk_reads import resolve
from perdure.errors import MigrationFailed, SchemaTooNew
from perdure.langgraph.delta_channels import carry_over, read_replays, to_history
from perdure.langgraph.migration.schema_task_ids import SENDS, TaskMoves
from perdure.langgraph.migration.schema_values import ValueConverter
from perdure.langgraph.translate import COUNTERS, Address, Values, error_context
from perdure.langgraph.values.serde import Serde
from perdure.model.bounded_cache import BoundedCache
from perdure.model.checkpoint import Carried, CheckpointRecord, PendingWrite, Version
from perdure.model.heads import ROOT, schema_of
from perdure.model.program import Program
from perdure.model.records import Partition
from perdure.model.values.chunks import Digester
from perdure.model.values.joined_values import join_tree
from perdure.model.write_records import ERROR_SOURCE, INTERRUPT
from perdure.schema.changes import Changes
from perdure.schema.namespaces import NamespaceNames, is_by_name
from perdure.schema.schema import Schema
from perdure.schema.steps import ChannelConverted

ReadValues = Callable[[CheckpointRecord, tuple[PendingWrite, ...]], Program[Values]]
_JOIN = "join:"
_ALIASES_MAX = 20_000
_Edit = Callable[[Any], Any]


@dataclass(slots=True)
class _Write:
    """A stored write during a migration: its present names, and the conversions of its value."""

    stored: PendingWrite
    task_id: str
    task_path: str
    channel: str | None
    version: int
    steps: list[ChannelConverted] = field(default_factory=list[ChannelConverted])
    edits: list[_Edit] = field(default_factory=list[_Edit])

    @property
    def sort_key(self) -> tuple[str, str, int]:
        return (self.task_path, self.task_id, self.stored.idx)


class Migration:
    """Migration of threads to one schema version, for one checkpointer.

    Args:
        schema: The schema.
        serde: Reads and packs values for the graph.
        digest: Names the chunks.
    """

    def __init__(self, schema: Schema, serde: Serde, digest: Digester) -> None:
        self.schema = schema
        if schema.types:
            self.serde = serde.with_earlier_names(schema.types)
        else:
            self.serde = serde
        self._digest = digest
        self._names = NamespaceNames(schema.steps)
        self._converted = ValueConverter(self.serde)
        self._aliases: BoundedCache[tuple[Partition, str], str] = BoundedCache(_ALIASES_MAX)

    def with_serde(self, serde: Serde) -> Migration:
        """Return the same migration with another serializer."""
        new = copy(self)
        new.serde, new._converted = serde, ValueConverter(serde)
        return new

    # Names of namespaces

    def find_stored_address(self, at: Address) -> Address:
        """Return an address with the name under which its namespace is stored: what a subgraph of a renamed
        node has stored stays where it is."""
        name = at.named or ""
        if self._aliases:
            stored = self._aliases.get((at.partition, name))
        else:
            stored = None
        if stored is None and is_by_name(name) and not self._names.are_plain:
            stored = next(self._names.find_stored(name))
        if stored is None:
            return at
        return at._replace(namespace=stored)

    def find_present_namespace(self, partition: Partition, stored: str) -> str:
        """Return the present name of a stored namespace. One with task ids is returned unchanged unless this
        process has met its present name."""
        if is_by_name(stored):
            return self._names.rename(stored)
        met = self._aliases.items()
        return next((name for (where, name), s in met if s == stored and where == partition), stored)

    def find_namespace(self, at: Address) -> Program[bool]:
        """Look for a namespace under its former names, as nothing is stored under the present one.

        Returns:
            True if it was found; ``find_stored_address`` knows it then.
        """
        name, partition = at.named or "", at.partition
        if not name or self._names.are_plain or (partition, name) in self._aliases:
            return False
        if is_by_name(name):
            for former in filter(at.namespace.__ne__, self._names.find_stored(name)):
                found = yield from checkpoint_loading.load(partition, former, None)
                if found.checkpoint is not None:
                    self._aliases[partition, name] = former
                    return True
        elif ROOT not in (at.configurable.get("checkpoint_map") or ()):
            # The caller is not a run, which would have loaded the root before and so know the namespace.
            root = yield from checkpoint_loading.load(partition, ROOT, None)
            if root.checkpoint is not None and self.is_due(root.checkpoint):
                yield from self._find_moves(partition, root.checkpoint, root.writes, ROOT)
                return (partition, name) in self._aliases
        return False

    # Versions

    def is_due(self, record: CheckpointRecord) -> bool:
        """Return True if an older version stored a checkpoint."""
        return record.schema < self.schema.version

    def require_readable(
        self, partition: Partition, record: CheckpointRecord, writes: Iterable[PendingWrite] = ()
    ) -> None:
        """Raise ``SchemaTooNew`` if a newer version stored a checkpoint, or a write on it."""
        newest = max((record.schema, *(schema_of(write.nonce) for write in writes)))
        if newest > self.schema.version:
            raise SchemaTooNew(
                f"thread {partition.thread!r}, checkpoint {record.id}: schema version {newest} of the "
                f"application has stored it, this one is at version {self.schema.version} and would misread "
                "it; nothing was changed. Serve the thread by the newer version, or pass that version's "
                "schema=perdure.schema.Schema(…)"
            )

    def require_open(
        self, partition: Partition, record: CheckpointRecord | None, writes: Iterable[PendingWrite] = ()
    ) -> Program[None]:
        """Refuse a checkpoint that this version of the application may not build on.

        Raises:
            SchemaTooNew: A newer version stored it.
            ThreadPinned: The thread is pinned to an older version.
        """
        if record is None:
            return
        self.require_readable(partition, record, writes)
        if self.is_due(record):
            yield from schema_pin.require_unpinned(partition, self.schema.version)

    def moved_interrupts(self, at: Address) -> Program[dict[str, str]]:
        """Return the ids of a thread's interrupts that changed when a node was renamed, old to present."""
        if not self.schema.since(0).rename_nodes:
            return {}
        root = yield from checkpoint_loading.load(at.partition, ROOT, at.checkpoint_id)
        if root.checkpoint is None or not self.is_due(root.checkpoint):
            return {}
        moves = yield from self._find_moves(at.partition, root.checkpoint, root.writes, ROOT)
        out: dict[str, str] = {}
        for _, _, tasks in moves:
            out = {old: tasks.interrupts.get(new, new) for old, new in out.items()} | tasks.interrupts
        return out

    # Values

    def read_history(
        self, partition: Partition, record: CheckpointRecord, channels: Iterable[str], generation: int
    ) -> Program[dict[str, DeltaChannelHistory]]:
        """Return LangGraph's form of the values from which DeltaChannels are rebuilt at a checkpoint.

        Args:
            partition: The thread.
            record: The checkpoint.
            channels: The channels.
            generation: The thread's collection generation when the checkpoint was read.

        Raises:
            Corrupt: A part of the history is missing, or was removed since.
        """
        self.require_readable(partition, record)
        replays = yield from read_replays(
            partition, record, channels, self.schema, self._digest, generation=generation
        )
        return to_history(partition, record, replays, self._converted)

    def plan_crossing(
        self, partition: Partition, older: CheckpointRecord, new: CheckpointRecord
    ) -> Program[Callable[[Callable[[Any], bytes]], dict[str, Carried]]]:
        """Return the function that makes, given an encoder, the history that a checkpoint carries over from
        an older version.

        Args:
            partition: The thread.
            older: The checkpoint of the older version that it is built on.
            new: The new checkpoint, with its place in the history.

        Raises:
            ThreadPinned: The thread is pinned to an older version.
        """
        yield from schema_pin.require_unpinned(partition, self.schema.version)
        changes = self.schema.since(older.schema)
        crossed = [
            c for c in new.deltas if (f := changes.find_former_name(c)) is not None and changes.affects(f)
        ]
        if crossed:
            replays = yield from read_replays(partition, new, crossed, self.schema, self._digest)
        else:
            replays = {}
        return partial(carry_over, replays, self._converted)

    def make_base(self, record: CheckpointRecord) -> CheckpointRecord:
        """Return a checkpoint under the present names, with the references that are still valid; its schema
        version stays that of the stored one."""
        if not self.is_due(record):
            return record
        changes = self.schema.since(record.schema)
        kept = {c: ref for c, ref in record.refs.items() if not self._is_rebuilt(changes, c)}
        renamed = self._rename_record(record, changes)
        return renamed._replace(
            refs=_rename_channels(kept, changes),
            deltas=tuple(new for old in record.deltas if (new := changes.rename_channel(old)) is not None),
        )

    def translate_loop_writes(self, writes: Iterable[PendingWrite]) -> tuple[PendingWrite, ...]:
        """Return writes with the present names of their channels, and the task ids that they are stored
        with."""
        return tuple(
            write._replace(
                channel=self.schema.since(schema_of(write.nonce)).rename_channel(write.channel) or ""
            )
            for write in writes
        )

    def read(
        self,
        partition: Partition,
        record: CheckpointRecord,
        writes: tuple[PendingWrite, ...],
        namespace: str,
        read_values: ReadValues,
    ) -> Program[tuple[CheckpointRecord, Values]]:
        """Return a checkpoint under the present names, and its values.

        Args:
            partition: The thread.
            record: The checkpoint as it is stored.
            writes: Its pending writes.
            namespace: The present name of its namespace.
            read_values: Reads values that need no conversion.

        Raises:
            SchemaTooNew: A newer version stored it.
            MigrationFailed: A step cannot be applied.
        """
        self.require_readable(partition, record, writes)
        if not self.is_due(record):
            if record.namespace == namespace:
                shown = record
            else:
                shown = record._replace(namespace=namespace)
            return shown, (yield from read_values(record, writes))
        changes = self.schema.since(record.schema)
        moves = yield from self._find_moves(partition, record, writes, namespace)
        moved = self._move_writes(writes, moves)
        remaining = {c: ref for c, ref in record.refs.items() if changes.rename_channel(c) is not None}
        to_convert = {c: ref for c, ref in remaining.items() if changes.conversions(c)}
        unconverted = {c: ref for c, ref in remaining.items() if c not in to_convert}
        unconverted_writes = [w for w in moved if not w.steps]
        values = yield from read_values(
            record._replace(refs=unconverted), tuple(w.stored for w in unconverted_writes)
        )
        writes_to_convert = [w for w in moved if w.steps]
        wanted = {f"c{c}": ref for c, ref in to_convert.items()}
        wanted.update({f"w{i}": w.stored.ref for i, w in enumerate(writes_to_convert)})
        trees, _ = yield from resolve(partition, wanted, self._digest)
        with error_context(partition, record.id):
            channels = {c: self._rename_inside(changes, c, value) for c, value in values.channels.items()}
            for channel in to_convert:
                steps = changes.conversions(channel)
                channels[channel] = self._converted.convert_value(join_tree(trees[f"c{channel}"]), steps)
            out = {id(w): value for w, (_, _, value) in zip(unconverted_writes, values.writes, strict=True)}
            for i, write in enumerate(writes_to_convert):
                out[id(write)] = self._converted.convert_update(join_tree(trees[f"w{i}"]), write.steps)
            pending: list[tuple[str, str, Any]] = []
            for write in moved:
                value = out[id(write)]
                for edit in write.edits:
                    value = edit(value)
                pending.append((write.task_id, write.channel or "", value))
            shown = self._rename_record(record, changes)._replace(namespace=namespace)
            named = Values(
                {new: channels[old] for new, old in _find_former_names(remaining, changes).items()}, pending
            )
        return self._rename_counters(shown, changes), named

    def _is_rebuilt(self, changes: Changes, channel: str) -> bool:
        """Return True if the value of a channel is another one after the steps."""
        return (
            changes.rename_channel(channel) is None
            or bool(changes.conversions(channel))
            or channel in (START, SENDS)
            or channel.startswith(_JOIN)
        )

    def _rename_record(self, record: CheckpointRecord, changes: Changes) -> CheckpointRecord:
        """Return a checkpoint with the present names of channels and nodes, and its references as they are.

        Raises:
            MigrationFailed: Two channels would have one name, and both have a value.
        """
        holding: dict[str, str] = {}
        for channel in record.refs:
            name = changes.rename_channel(channel)
            if name is not None and holding.setdefault(name, channel) != channel:
                raise MigrationFailed(
                    f"the channels {holding[name]!r} and {channel!r} both have a value, and both are called "
                    f"{name!r} after the declared steps; drop one of them first"
                )
        versions: dict[str, Version] = {}
        for channel, version in record.versions.items():
            name = changes.rename_channel(channel)
            if name is not None and (name not in versions or holding.get(name) == channel):
                versions[name] = version
        seen: dict[str, dict[str, Version]] = {}
        for node, each in record.versions_seen.items():
            known = seen.setdefault(changes.rename_node(node), {})
            for channel, version in each.items():
                name = changes.rename_channel(channel)
                if name is not None:
                    known[name] = max(known.get(name, version), version)
        updated = record.updated
        if updated is not None:
            updated = tuple(dict.fromkeys(n for c in updated if (n := changes.rename_channel(c)) is not None))
        return record._replace(versions=versions, versions_seen=seen, updated=updated)

    def _rename_counters(self, record: CheckpointRecord, changes: Changes) -> CheckpointRecord:
        """Return a checkpoint whose metadata count the writes of DeltaChannels by their present names."""
        metadata = self.serde.unpack(record.metadata)
        counters = metadata.get(COUNTERS)
        if not isinstance(counters, dict):
            return record
        named = _rename_channels(counters, changes)
        return record._replace(metadata=self.serde.pack({**metadata, COUNTERS: named}))

    def _rename_inside(self, changes: Changes, channel: str, value: Any) -> Any:
        """Return a value in which LangGraph keeps names of channels or nodes, with the present names."""
        if channel == START and isinstance(value, dict):
            out: dict[Any, Any] = {}
            for key, held in value.items():
                if isinstance(key, str):
                    name = changes.rename_channel(key)
                else:
                    name = key
                if name is not None:
                    if isinstance(key, str):
                        steps = changes.conversions(key)
                    else:
                        steps = []
                    if steps:
                        out[name] = self._converted.convert_inner(held, steps)
                    else:
                        out[name] = held
            return out
        if channel == SENDS:
            return _rename_sends(value, changes)
        if channel.startswith(_JOIN):
            return _rename_nodes(value, changes)
        return value

    # Writes and tasks

    def _move_writes(
        self, writes: Iterable[PendingWrite], moves: Sequence[tuple[int, Changes, TaskMoves]]
    ) -> list[_Write]:
        """Return writes as they are named by now. Of two writes in a slot, the one of the newer version
        counts."""
        slots: dict[tuple[str, int], _Write] = {}
        found = sorted(writes, key=lambda write: schema_of(write.nonce))
        for stored in found:
            write = _Write(stored, stored.task_id, stored.task_path, stored.channel, schema_of(stored.nonce))
            for before, changes, tasks in moves:
                if before >= write.version and write.channel is not None:
                    self._move_write(write, changes, tasks)
            if write.channel is not None:
                slots[write.task_id, stored.idx] = write
        return sorted(slots.values(), key=lambda write: write.sort_key)

    def _move_write(self, write: _Write, changes: Changes, tasks: TaskMoves) -> None:
        channel = write.channel or ""
        write.task_id = tasks.ids.get(write.task_id, write.task_id)
        write.task_path = tasks.write_path(write.task_path)
        write.steps += changes.conversions(channel)
        write.channel = changes.rename_channel(channel)
        if channel == INTERRUPT:
            write.edits.append(tasks.rename_interrupts)
        elif channel == SENDS:
            write.edits.append(lambda value: _rename_sends(value, changes))
        elif channel == ERROR_SOURCE or channel.startswith(_JOIN):
            write.edits.append(lambda value: _rename_nodes(value, changes))

    def _find_moves(
        self,
        partition: Partition,
        record: CheckpointRecord,
        writes: tuple[PendingWrite, ...],
        namespace: str,
    ) -> Program[list[tuple[int, Changes, TaskMoves]]]:
        """Return the moves of a checkpoint's tasks: version by version, if it has writes of several versions.
        Stored namespaces of its subgraphs are remembered by their present names."""
        target = self.schema.version
        versions = sorted({record.schema, target, *(schema_of(write.nonce) for write in writes)})
        hops = [v for v in versions if record.schema <= v <= target]
        out: list[tuple[int, Changes, TaskMoves]] = []
        names: tuple[str, ...] | None = None
        sends: Any = []
        known, stored = record, record.namespace
        for before, after in pairwise(hops):
            changes = Changes([s for s in self.schema.steps if before < s.version <= after])
            is_last = after == target
            present = namespace if is_last else stored
            tasks = TaskMoves(known, changes, old=stored, new=present, sends=sends)
            out.append((before, changes, tasks))
            if not changes.rename_nodes and stored == present:
                known = self._rename_record(known, changes)
                continue
            if names is None:
                names = yield from history.read_namespaces(partition)
                sends = yield from self._read_sends(partition, record)
                tasks = out[-1][2].with_sends(sends)
                out[-1] = before, changes, tasks
            tasks.add_writes(w for w in writes if schema_of(w.nonce) <= before)
            tasks.add_namespaces(names)
            if record.namespace == ROOT:
                yield from self._follow_names_below(partition, tasks, names)
            yield from self._follow_tasks_below(partition, tasks, names)
            sends = _rename_sends(sends, changes)
            known, stored = self._rename_record(known, changes), present
        return out

    def _follow_tasks_below(
        self, partition: Partition, tasks: TaskMoves, names: Iterable[str]
    ) -> Program[None]:
        """Follow the tasks into their subgraphs, whose interrupts they have passed up."""
        for name in names:
            for before, now in tasks.namespaces.items():
                rest = name.removeprefix(before)
                if rest == name or not (rest == "" or (rest[0] == "|" and rest[1:].isdigit())):
                    continue
                present = now + rest
                if present != name:
                    self._aliases[partition, present] = name
                yield from self._take_interrupts(partition, tasks, name, present)

    def _follow_names_below(
        self, partition: Partition, tasks: TaskMoves, names: Iterable[str]
    ) -> Program[None]:
        """Take over the ids of interrupts in subgraphs that keep their state from run to run."""
        for name in filter(is_by_name, names):
            present = self._names.rename(name)
            if next((stored for stored in self._names.find_stored(present) if stored in names), name) != name:
                continue
            self._aliases[partition, present] = name
            yield from self._take_interrupts(partition, tasks, name, present)

    def _take_interrupts(
        self, partition: Partition, tasks: TaskMoves, stored: str, present: str
    ) -> Program[None]:
        """Take over the ids of the interrupts in a subgraph, given its old and its new name."""
        found = yield from checkpoint_loading.load(partition, stored, None)
        if found.checkpoint is not None and self.is_due(found.checkpoint):
            inner = yield from self._find_moves(partition, found.checkpoint, found.writes, present)
            for _, _, below in inner:
                tasks.interrupts.update(below.interrupts)

    def _read_sends(self, partition: Partition, record: CheckpointRecord) -> Program[list[Any]]:
        ref = record.refs.get(SENDS)
        if ref is None:
            return []
        trees, _ = yield from resolve(partition, {SENDS: ref}, self._digest)
        with error_context(partition, record.id):
            found = self.serde.value(*join_tree(trees[SENDS]))
        if isinstance(found, list):
            return found
        return []


def _find_former_names(held: Iterable[str], changes: Changes) -> dict[str, str]:
    """Return the former names of channels by their present ones."""
    return {new: old for old in held if (new := changes.rename_channel(old)) is not None}


def _rename_channels(held: Mapping[str, Any], changes: Changes) -> dict[str, Any]:
    """Return values by channel, under the present names."""
    return {new: held[old] for new, old in _find_former_names(held, changes).items()}


def _rename_sends(value: Any, changes: Changes) -> Any:
    """Return ``Send`` objects for the present names of their nodes."""
    if isinstance(value, list | tuple):
        return [_rename_sends(each, changes) for each in value]
    if not isinstance(value, Send) or changes.rename_node(value.node) == value.node:
        return value
    moved = copy(value)
    moved.node = changes.rename_node(value.node)
    return moved


def _rename_nodes(value: Any, changes: Changes) -> Any:
    """Return a value with the names of nodes in it replaced by their present names."""
    if isinstance(value, str):
        return changes.rename_node(value)
    if isinstance(value, set | frozenset):
        return type(value)(_rename_nodes(each, changes) for each in value)
    if isinstance(value, list | tuple):
        return [_rename_nodes(each, changes) for each in value]
    return value
