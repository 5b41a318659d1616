"""Lists checkpoints page by page: those of one namespace, newest first, or those of several, by descending
id."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointMetadata, CheckpointTuple

from perdure.engine.threads import history
from perdure.engine.threads.chunk_reads import MissingChunk
from perdure.engine.threads.tenant_checkpoints import Entry, Merge
from perdure.engine.threads.thread_state import load_view
from perdure.engine.threads.undisturbed import is_disturbed
from perdure.engine.transact import ATTEMPTS
from perdure.errors import Contention
from perdure.langgraph.loop_state import ThreadId
from perdure.langgraph.migration.schema_migration import Migration
from perdure.langgraph.translate import Address, Values, read_configurable, read_metadata, read_page, to_tuple
from perdure.model.arguments import read_count
from perdure.model.checkpoint import CheckpointRecord, PendingWrite
from perdure.model.heads import ROOT
from perdure.model.program import Program
from perdure.model.records import Partition
from perdure.model.values.chunks import Digester
from perdure.model.write_records import visible

ThreadOf = Callable[[CheckpointRecord, tuple[PendingWrite, ...]], ThreadId | None]
"""Returns the thread's id for the config of a listed checkpoint with its writes; ``None``: the id as plain
text."""


def _plain(record: CheckpointRecord, writes: tuple[PendingWrite, ...]) -> None:
    return None


def _check_arguments(
    filter: Mapping[str, Any] | None, before: RunnableConfig | None, limit: int | None
) -> None:
    """Raise ``TypeError`` for an argument of a type that databases would take for something else."""
    if filter is not None and not isinstance(filter, Mapping):
        raise TypeError(f"a filter of checkpoints is a dict of metadata, not {filter!r}")
    if before is not None:
        read_configurable(before)
    if limit is not None:
        read_count("limit", limit)


@dataclass(slots=True)
class CheckpointListing:
    """A walk over the checkpoints that a config, a filter and ``before`` select, at most ``remaining``.

    A run from an old checkpoint asks for the state that a subgraph had before the run's first checkpoint,
    with that one as ``before``; ``run_checkpoint_id`` is then the root checkpoint that the run has loaded or
    stored last. If ``before`` is not stored yet, or not any more, the subgraph's state up to
    ``run_checkpoint_id`` is used; if that is not stored either, or no run asks, ids are compared with that of
    ``before``."""

    at: Address
    filter: Mapping[str, Any] | None
    before: RunnableConfig | None
    remaining: int | None
    run_checkpoint_id: str | None = None
    thread_of: ThreadOf = _plain
    done: bool = False
    _namespaces: list[str] | None = None
    _started: bool = False
    _below: int | None = None
    _below_id: str | None = None
    _ancestors: frozenset[str] | None = field(default=None)

    def __post_init__(self) -> None:
        _check_arguments(self.filter, self.before, self.remaining)

    def read_next_page(self, migration: Migration, digest: Digester) -> Program[list[CheckpointTuple]]:
        """Return the next matching checkpoints; ``done`` is set after the last."""
        if self._namespaces is None:
            named = self.at.namespace
            if named is not None:
                self._namespaces = [named]
            else:
                self._namespaces = list((yield from history.read_namespaces(self.at.partition)))
        if not self._namespaces or (self.remaining is not None and self.remaining <= 0):
            self.done = True
            return []
        namespace = self._namespaces[0]
        if not self._started:
            self._started = True
            yield from self._find_start(namespace)
        if self.at.checkpoint_id is not None:
            record = yield from history.find(self.at.partition, namespace, self.at.checkpoint_id)
            if record is None or (self._below is not None and record.seq >= self._below):
                records = []
            else:
                records = [record]
        else:
            records = yield from history.read_page(
                self.at.partition, namespace, below=self._below, limit=self._choose_page_size()
            )
        if not records:
            return self._go_to_next_namespace()
        self._below, partition = records[-1].seq, self.at.partition
        if self._ancestors is not None:
            records = yield from history.before_root(self.at.partition, records, self._ancestors)
        chosen = [
            r
            for r in records
            if (self._below_id is None or r.id < self._below_id)
            and (not self.filter or _matches(read_metadata(migration.serde, partition, r), self.filter))
        ]
        if self.remaining is not None:
            chosen = chosen[: self.remaining]
            self.remaining -= len(chosen)
        if self.at.checkpoint_id is not None:
            self._go_to_next_namespace()
        return (
            yield from _make_tuples(migration, digest, self.at.partition, namespace, chosen, self.thread_of)
        )

    def _go_to_next_namespace(self) -> list[CheckpointTuple]:
        """Go on to the next namespace."""
        rest = (self._namespaces or [])[1:]
        self._namespaces = rest
        self._started, self._below, self._below_id, self._ancestors = False, None, None, None
        self.done = not rest
        return []

    def _find_start(self, namespace: str) -> Program[None]:
        """Find where ``before`` cuts this namespace."""
        conf: Mapping[str, Any] = (self.before or {}).get("configurable") or {}
        before = conf.get("checkpoint_id")
        if not before:
            return
        same = yield from history.find(self.at.partition, namespace, before)
        if same is not None:
            self._below = same.seq
            return
        if namespace != ROOT and not conf.get("checkpoint_ns"):
            # A run asks by the id alone. A config of a checkpoint is another caller's, who may page in the
            # context of a run that has ended: its ``run_checkpoint_id`` may be later than ``before``.
            run_checkpoint_id = None if "thread_id" in conf else self.run_checkpoint_id
            self._ancestors = yield from self._find_roots_before(before, run_checkpoint_id)
        if self._ancestors is None:
            # The checkpoint was removed since the caller saw it: those with smaller ids are still listed.
            self._below_id = before

    def _find_roots_before(
        self, checkpoint_id: str, run_checkpoint_id: str | None
    ) -> Program[frozenset[str] | None]:
        """Return the root checkpoints before a given one, all read at one moment; ``None`` if neither that
        one nor ``run_checkpoint_id`` is stored."""
        partition = self.at.partition
        for _ in range(ATTEMPTS):
            generation = (yield from load_view(partition, ROOT)).generation
            found = yield from history.list_root_ancestors(partition, checkpoint_id)
            if found is None and run_checkpoint_id is not None:
                found = yield from history.list_root_ancestors(partition, run_checkpoint_id)
                found = None if found is None else found | {run_checkpoint_id}
            if not (yield from is_disturbed(partition, generation)):
                return found
        raise Contention(f"thread {partition.thread!r} keeps being pruned; read it later")

    def _choose_page_size(self) -> int:
        is_filtered = self.filter or self._ancestors is not None or self._below_id is not None
        if self.remaining is None or is_filtered:
            return history.PAGE
        return min(self.remaining, history.PAGE)


@dataclass(slots=True)
class WholeListing:
    """A walk over the checkpoints of all threads, or over all namespaces of one ``thread``, by id downwards
    as with the stock savers: those whose id is below ``before``'s and whose metadata passes the filter, at
    most ``remaining``."""

    tenant: str
    filter: Mapping[str, Any] | None
    before: RunnableConfig | None
    remaining: int | None
    thread: Partition | None = None
    thread_of: ThreadOf = _plain
    done: bool = False
    _merge: Merge | None = None

    def __post_init__(self) -> None:
        _check_arguments(self.filter, self.before, self.remaining)

    def read_next_page(self, migration: Migration, digest: Digester) -> Program[list[CheckpointTuple]]:
        """Return the next matching checkpoints; ``done`` is set after the last."""
        if self._merge is None:
            conf: Mapping[str, Any] = (self.before or {}).get("configurable") or {}
            most = None if self.filter else self.remaining
            self._merge = Merge(self.tenant, conf.get("checkpoint_id") or None, most, self.thread)
        size = history.PAGE
        if self.remaining is not None and not self.filter:
            size = min(self.remaining, size)
        if size > 0:
            entries = yield from self._merge.read_next(size)
        else:
            entries = []
        if not entries:
            self.done = True
            return []
        records: dict[Entry, CheckpointRecord] = {}
        for place, ids in _by_place(entries):
            for record in (yield from history.find_all(*place, ids)):
                entry = Entry(record.id, *place)
                if not self.filter or _matches(read_metadata(migration.serde, place[0], record), self.filter):
                    records[entry] = record
        chosen = [entry for entry in entries if entry in records]
        if self.remaining is not None:
            chosen = chosen[: self.remaining]
        found: dict[Entry, CheckpointTuple] = {}
        for place, ids in _by_place(chosen):
            partition, namespace = place
            wanted = [records[Entry(one, partition, namespace)] for one in ids]
            for item in (
                yield from _make_tuples(migration, digest, partition, namespace, wanted, self.thread_of)
            ):
                found[Entry(item.checkpoint["id"], *place)] = item
        if self.remaining is not None:
            self.remaining -= len(found)
            self.done = self.remaining <= 0
        return [found[entry] for entry in chosen if entry in found]


def _by_place(entries: Iterable[Entry]) -> Iterable[tuple[tuple[Partition, str], list[str]]]:
    """Group checkpoint ids by thread and namespace, in their order."""
    places: dict[tuple[Partition, str], list[str]] = {}
    for entry in entries:
        places.setdefault((entry.partition, entry.namespace), []).append(entry.checkpoint_id)
    return places.items()


def _make_tuples(
    migration: Migration,
    digest: Digester,
    partition: Partition,
    namespace: str,
    records: list[CheckpointRecord],
    thread_of: ThreadOf = _plain,
) -> Program[list[CheckpointTuple]]:
    """Return the tuples of the records of one namespace, without those that were removed meanwhile."""
    while records:
        found = yield from history.read_pending_writes(partition, namespace, [r.id for r in records])
        pending = {name: visible(writes) for name, writes in found.items()}
        try:
            pages = yield from _read_all(migration, digest, partition, records, pending)
        except MissingChunk:
            # Pruned while it was read: removed checkpoints are left out. A checkpoint that is still present
            # and does not resolve is damaged.
            there = yield from history.find_all(partition, namespace, [r.id for r in records])
            if len(there) == len(records):
                raise
            records = there
            continue
        out: list[CheckpointTuple] = []
        for record, (shown, values) in zip(records, pages, strict=True):
            thread = thread_of(record, found[record.id])
            if thread is not None and thread.stored is not None:
                thread.stored.note(namespace, record.id)
            out.append(to_tuple(migration.serde, partition, shown, values, thread))
        return out
    return []


def _read_all(
    migration: Migration,
    digest: Digester,
    partition: Partition,
    records: list[CheckpointRecord],
    writes: Mapping[str, tuple[PendingWrite, ...]],
) -> Program[list[tuple[CheckpointRecord, Values]]]:
    """Return the checkpoints of one namespace under their present names, with their values.

    Args:
        migration: Brings checkpoints of older schema versions to the present one.
        digest: Names the chunks.
        partition: The thread.
        records: The checkpoints.
        writes: Their pending writes, by checkpoint.
    """
    present = [record for record in records if not migration.is_due(record)]
    for record in present:
        migration.require_readable(partition, record, writes[record.id])
    values = yield from read_page(migration.serde, digest, partition, present, writes)
    found = dict(zip((record.id for record in present), values, strict=True))
    out: list[tuple[CheckpointRecord, Values]] = []

    def read_one(record: CheckpointRecord, pending: tuple[PendingWrite, ...]) -> Program[Values]:
        return (yield from read_page(migration.serde, digest, partition, [record], {record.id: pending}))[0]

    for record in records:
        name = migration.find_present_namespace(partition, record.namespace)
        if record.id in found:
            out.append((record._replace(namespace=name), found[record.id]))
        else:
            out.append((yield from migration.read(partition, record, writes[record.id], name, read_one)))
    return out


def _matches(found: CheckpointMetadata, wanted: Mapping[str, Any]) -> bool:
    return all(found.get(key) == value for key, value in wanted.items())
