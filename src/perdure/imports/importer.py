"""Imports threads: read an outline, translate what is new in batches, write, verify, and make it visible.

The progress of an import is derived from the records at the target, and stored nowhere else. So an import can
be stopped at any point and run again, and run again later for newer data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import groupby, islice
from typing import Literal, TypeVar

from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.database.handle import DatabaseHandle
from perdure.engine.complete_reads import list_all_partitions
from perdure.engine.threads import packing
from perdure.engine.threads.thread_state import HeadView
from perdure.engine.transfer import importing
from perdure.engine.transfer.importing import Arrival, CheckpointKey, StoredThread
from perdure.errors import Conflict, Contention, Corrupt, PerdureError, Unavailable
from perdure.imports import verify
from perdure.imports.encode import ThreadEncoder
from perdure.imports.order import find_missing, find_pruned, find_unfinished, is_begun_anew, make_extent
from perdure.imports.source import DAMAGED, CheckpointEntry, Outline, Source, WriteSlot
from perdure.imports.verify import Differs
from perdure.model.checkpoint import Carried, CarriedWrite, CheckpointRecord, PendingWrite
from perdure.model.ops import Put
from perdure.model.records import Partition
from perdure.model.write_records import group_by_record, plan_puts, put_over, record_key

ATTEMPTS = 5
"""Number of attempts to import a thread; an attempt fails if the thread is written to at the target
meanwhile."""

_READ_AT_ONCE = 256
T = TypeVar("T")

State = Literal["imported", "extended", "unchanged", "skipped"]


@dataclass(frozen=True, slots=True)
class ThreadReport:
    """Result for one thread: counts of what was written now, and the reason if it was skipped."""

    thread: str
    state: State
    checkpoints: int = 0
    writes: int = 0
    verified: int = 0
    why: str = ""


@dataclass(slots=True)
class ImportCounts:
    """Sum of the results of threads, and the threads of an earlier import that the source does not have any
    more."""

    states: Counter[str] = field(default_factory=Counter)
    checkpoints: int = 0
    writes: int = 0
    verified: int = 0
    skipped: list[ThreadReport] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)

    def add(self, report: ThreadReport) -> None:
        """Add the result for one thread."""
        self.states[report.state] += 1
        self.checkpoints += report.checkpoints
        self.writes += report.writes
        self.verified += report.verified
        if report.state == "skipped":
            self.skipped.append(report)


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """Options of an import.

    Attributes:
        tenant: The tenant of the imported threads.
        dry_run: Read and translate everything that is new; write nothing.
        verify: Compare every imported checkpoint with the source's before it becomes visible.
        report: Called with the number of checkpoints just written or compared.
        origin: The source's ``digest_place``, by which a later import knows its threads.
    """

    tenant: str = ""
    dry_run: bool = False
    verify: bool = True
    report: Callable[[int], None] = lambda count: None
    origin: bytes = b""


class Importer:
    """Imports the threads of a source into an open database.

    Args:
        source: The source.
        database: The target.
        options: The options.
    """

    def __init__(self, source: Source, database: SyncDatabase, options: ImportOptions) -> None:
        self.source = source
        self._db = handle_of(database)
        self._options = options
        self._budget = self._db.budget

    def has(self, thread: str) -> bool:
        """Return True if the source has a thread, readable or not."""
        try:
            outline = self.source.outline(thread)
        except DAMAGED:
            return True
        return bool(outline.checkpoints or outline.writes)

    def find_removed(self, threads: Collection[str]) -> list[str]:
        """Return the threads at the target that came from this source and are not among these, all threads
        that it has now."""
        partitions = self._db.run(list_all_partitions(self._options.tenant))
        others = [each for each in partitions if each.thread not in threads]
        return [
            each.thread for each in others if self._db.run(importing.came_from(each, self._options.origin))
        ]

    def import_thread(self, thread: str) -> ThreadReport:
        """Import one thread, or the part of it that is newer than its last import.

        A thread that cannot be imported is reported as skipped, with the reason, and stays at the target as
        it was. Raises ``Unavailable`` if the target or the source does not answer.
        """
        for left in reversed(range(ATTEMPTS)):
            try:
                return self._import_once(thread)
            except (Contention, Corrupt, Differs) as error:
                # The compared records may have been removed at the target meanwhile: try again.
                if not left:
                    return ThreadReport(thread, "skipped", why=str(error))
            except Unavailable:
                raise
            except PerdureError as error:
                return ThreadReport(thread, "skipped", why=str(error))
            except DAMAGED as error:
                # Rows of any content must not end the import of the other threads.
                why = f"its rows cannot be read ({type(error).__name__}); the source is damaged"
                return ThreadReport(thread, "skipped", why=why)
        raise AssertionError("the last attempt returns")

    def _import_once(self, thread: str) -> ThreadReport:
        partition = Partition(self._options.tenant, thread)
        outline = self.source.outline(thread)
        stored = self._db.run(importing.survey(partition))
        if not stored.exists:
            stored = StoredThread(stored.view, {}, {}, {}, stored.is_partial)
        numbers = importing.find_last_numbers(stored)
        # Checkpoints that an unfinished attempt has left count as missing: they are stored again, or refused
        # if the thread went on without them.
        leftover = find_unfinished(outline.checkpoints, stored.checkpoints, stored.extent)
        imported = {key: seq for key, seq in stored.checkpoints.items() if key not in leftover}
        stored = replace(stored, checkpoints=imported)
        pruned = find_pruned(outline.checkpoints, stored.checkpoints, stored.extent)
        new = find_missing(outline.checkpoints, stored.checkpoints, pruned)
        if not stored.exists and len(new) < len(outline.checkpoints):
            raise Corrupt("its checkpoints name each other as parents, in a circle: the source is damaged")
        plan = _Plan(partition, outline, stored, new, sorted(_choose_slots(outline, stored, new)))
        namespaces = {entry.namespace for entry in outline.checkpoints}
        latest = {ns: self.source.latest(thread, ns, outline) for ns in namespaces}
        heads = _plan_head_moves({ns: name for ns, name in latest.items() if (ns, name) not in pruned}, plan)
        new_keys = {(entry.namespace, entry.id) for entry in new}
        if any(head not in new_keys and head not in stored.checkpoints for head in heads.items()):
            raise Contention("its latest checkpoint was written during the import; import it again")
        if not new and not plan.slots and not heads:
            return ThreadReport(thread, "unchanged")
        if new:
            plan.refuse_diverged()
        self._refuse_answered(plan)
        if self._options.dry_run:
            encoder = ThreadEncoder(partition, self._db.digest, 0, numbers, stored.heads)
            touched: set[CheckpointKey] = set()
            written = self._write(plan, encoder, None, touched)
            return ThreadReport(thread, plan.state if any(written) or heads else "unchanged", *written)
        added = Counter(entry.namespace for entry in new)
        arrival = self._db.run(
            importing.begin(partition, stored, added, self._db.draw_version(), self._budget)
        )
        try:
            encoder = ThreadEncoder(
                partition, self._db.digest, arrival.view.generation, numbers, stored.heads
            )
            touched = set()
            written = self._write(plan, encoder, arrival, touched)
            if not any(written) and not heads:
                return ThreadReport(thread, "unchanged")
            verified = self._verify(plan, touched)
            last = {ns: HeadView(0, name, encoder.numbers[ns]) for ns, name in heads.items()}
            extent = make_extent(outline.checkpoints)
            self._db.run(importing.finish(arrival, last, extent, self._options.origin))
            self._db.run(packing.pack(partition, self._db.digest, self._budget))
        except Unavailable:
            raise
        except Exception:
            # ``Contention`` means that another import has taken over the thread: leave the thread to it.
            with suppress(Contention):
                self._db.run(importing.abandon(arrival))
            raise
        return ThreadReport(thread, plan.state, *written, verified)

    def _refuse_answered(self, plan: _Plan) -> None:
        """Refuse writes of a task that was answered or run at the target: its writes there must be neither
        replaced nor mixed with the source's."""
        stored = plan.found.writes
        changed_tasks = {tuple(key[:3]) for key, write in stored.items() if write.nonce}
        slots = [slot for slot in plan.slots if slot[:3] in changed_tasks]
        if not slots:
            return
        encoder = ThreadEncoder(plan.partition, self._db.digest, 0, {}, {})
        for page in _split_into_pages(slots, _READ_AT_ONCE):
            for write in self.source.writes(plan.partition.thread, page):
                pending, _ = encoder.encode_write(write)
                candidates = [stored.get(pending.key), stored.get(pending.aside.key)]
                if not any(each is not None and each.ref == pending.ref for each in candidates):
                    raise Conflict(
                        f"the thread went on at the target (task {pending.task_id} of checkpoint "
                        f"{pending.checkpoint_id} was answered or run there) and at the source; what is at "
                        "the target stays as it is"
                    )

    def _write(
        self, plan: _Plan, encoder: ThreadEncoder, arrival: Arrival | None, touched: set[CheckpointKey]
    ) -> tuple[int, int]:
        """Translate and store; return the number of checkpoints and of writes. The checkpoints to which
        writes were added are added to ``touched``."""
        source, thread = self.source, plan.partition.thread
        batch = _Batch(self._db, arrival, self._options.report)
        stored = set(plan.found.checkpoints)
        ancestors = _Ancestors(source, plan)
        for page in _split_into_pages(plan.new, _READ_AT_ONCE):
            for checkpoint in source.checkpoints(thread, page):
                record, chunks = encoder.encode_checkpoint(checkpoint, stored)
                if record.cut and record.deltas:
                    record, more = ancestors.carry_over(record, encoder)
                    chunks = {**chunks, **more}
                stored.add((record.namespace, record.id))
                batch.add(record.put(), chunks)
        writes = 0
        stored_writes, writes_by_record = plan.found.writes, group_by_record(plan.found.writes.values())
        found = (
            w for each in _split_into_pages(plan.slots, _READ_AT_ONCE) for w in source.writes(thread, each)
        )
        for _record, group in groupby(map(encoder.encode_write, found), key=lambda each: record_key(each[0])):
            unstored: list[PendingWrite] = []
            needed: dict[bytes, bytes] = {}
            for pending, chunks in group:
                needed.update(chunks)
                before = stored_writes.get(pending.key)
                if before is not None and (before.nonce or before.ref == pending.ref):
                    continue
                plan.refuse_diverged()
                if before is None:
                    unstored.append(pending)
                else:
                    batch.add(put_over(pending, before), needed)
                touched.add((pending.namespace, pending.checkpoint_id))
                writes += 1
            for put in plan_puts(unstored, writes_by_record):
                batch.add(put, needed)
        batch.flush()
        return len(plan.new), writes

    def _verify(self, plan: _Plan, touched: set[CheckpointKey]) -> int:
        """Compare what was imported with the source, if that is wanted; return the number of checkpoints."""
        if not self._options.verify:
            return 0
        digest, partition = self._db.digest, plan.partition
        new = plan.find_unpublished()
        entries = [e for e in plan.outline.checkpoints if e[:2] in new or e[:2] in touched]
        for namespace, group in groupby(sorted(entries), key=lambda e: e.namespace):
            for page in _split_into_pages(group, verify.PAGE):
                ids = [entry.id for entry in page]
                imported = self._db.run(verify.load(partition, namespace, ids, digest))
                expected = self.source.read_expected(partition.thread, page)
                for entry, wanted in zip(page, expected, strict=True):
                    # Only new checkpoints are compared in full. Values of an earlier import may have changed
                    # at the source: its saver may let one branch of a thread overwrite another's.
                    verify.compare(entry, wanted, imported.get(entry.id), whole=entry[:2] in new)
        return len(entries)


@dataclass(frozen=True, slots=True)
class _Plan:
    """Plan of a thread's import: new checkpoints, and the slots of writes to read, both in order."""

    partition: Partition
    outline: Outline
    found: StoredThread
    new: list[CheckpointEntry]
    slots: list[WriteSlot]

    @property
    def state(self) -> State:
        if self.found.exists:
            return "extended"
        return "imported"

    def refuse_diverged(self) -> None:
        """Raise ``Conflict`` if the thread's latest checkpoint at the target is not one of the source's: the
        thread went on there, or was begun anew at the source."""
        head = self.found.view.head
        is_of_source = head is None or any(
            e.namespace == "" and e.id == head.checkpoint_id for e in self.outline.checkpoints
        )
        if head is None or is_of_source:
            return
        if is_begun_anew(self.outline.checkpoints, head.checkpoint_id, self.found.extent):
            raise Conflict(
                "nothing that was imported of the thread is left at the source: it was deleted there and "
                "begun anew, or pruned; what is at the target stays as it is. Delete it at the target, and "
                "import it again"
            )
        raise Conflict(
            f"the thread went on at the target (its latest checkpoint there is {head.checkpoint_id}) and "
            f"at the source ({len(self.new)} new checkpoints); what is at the target stays as it is"
        )

    def find_unpublished(self) -> set[CheckpointKey]:
        """Return the new checkpoints, and those that an interrupted import left after the head."""
        chosen = {(e.namespace, e.id) for e in self.new}
        stored = self.found.checkpoints
        for (namespace, name), seq in stored.items():
            head = self.found.heads.get(namespace)
            if head is None or seq > stored.get((namespace, head.checkpoint_id), 0):
                chosen.add((namespace, name))
        return chosen


class _Ancestors:
    """The ancestors of new checkpoints at the source; some were pruned at the target."""

    def __init__(self, source: Source, plan: _Plan) -> None:
        self._source = source
        self._plan = plan

    @cached_property
    def _entries(self) -> dict[CheckpointKey, CheckpointEntry]:
        return {(e.namespace, e.id): e for e in self._plan.outline.checkpoints}

    @cached_property
    def _slots(self) -> dict[CheckpointKey, list[WriteSlot]]:
        found: dict[CheckpointKey, list[WriteSlot]] = {}
        for slot in self._plan.outline.writes:
            found.setdefault((slot.namespace, slot.checkpoint_id), []).append(slot)
        return found

    def carry_over(
        self, record: CheckpointRecord, encoder: ThreadEncoder
    ) -> tuple[CheckpointRecord, Mapping[bytes, bytes]]:
        """Return the record of a checkpoint whose parent is not at the target, together with the values from
        which its DeltaChannels are replayed there, and the chunks of these values."""
        thread, namespace = self._plan.partition.thread, record.namespace
        writes: dict[str, list[CarriedWrite]] = {channel: [] for channel in record.deltas}
        seeds: dict[str, bytes] = {}
        chunks: dict[bytes, bytes] = {}
        visited: set[str] = set()
        ancestor = self._entries.get((namespace, record.parent_id or ""))
        while ancestor is not None and ancestor.id not in visited and len(seeds) < len(writes):
            visited.add(ancestor.id)
            found = self._source.writes(thread, self._slots.get((namespace, ancestor.id), []))
            for write in sorted(found, key=lambda each: each.order, reverse=True):
                if write.channel in writes.keys() - seeds.keys():
                    pending, more = encoder.encode_write(write)
                    writes[write.channel].append(CarriedWrite(pending.task_id, pending.ref))
                    chunks.update(more)
            for checkpoint in self._source.checkpoints(thread, [ancestor]):
                values = checkpoint.checkpoint["channel_values"]
                for channel in values.keys() & (writes.keys() - seeds.keys()):
                    seeds[channel], more = encoder.encode_value(namespace, values[channel])
                    chunks.update(more)
            ancestor = self._entries.get((namespace, ancestor.parent_id or ""))
        if not visited:
            return record._replace(carried={}), chunks
        carried = {c: Carried(seeds.get(c), tuple(reversed(found))) for c, found in writes.items()}
        return record._replace(carried=carried), chunks


def _choose_slots(outline: Outline, found: StoredThread, new: list[CheckpointEntry]) -> list[WriteSlot]:
    """Return the slots that the target lacks, and the reserved ones (below 0), which may be overwritten.
    Slots of checkpoints that were pruned at the target are left out."""
    in_source = {(e.namespace, e.id) for e in outline.checkpoints}
    at_target = {*found.checkpoints, *((e.namespace, e.id) for e in new)}

    def is_wanted(slot: WriteSlot) -> bool:
        key = (slot.namespace, slot.checkpoint_id)
        return (slot.idx < 0 or tuple(slot) not in found.writes) and (
            key in at_target or key not in in_source
        )

    return list(filter(is_wanted, outline.writes))


def _plan_head_moves(latest: dict[str, str], plan: _Plan) -> dict[str, str]:
    """Return the heads to set, by namespace: the source's latest checkpoint, if the target has no head or
    its head is another checkpoint of the source."""
    in_source = {(e.namespace, e.id) for e in plan.outline.checkpoints}
    heads = {ns: head.checkpoint_id for ns, head in plan.found.heads.items()}
    return {
        namespace: name
        for namespace, name in latest.items()
        if namespace not in heads or (heads[namespace] != name and (namespace, heads[namespace]) in in_source)
    }


class _Batch:
    """Rows and chunks that are stored together; without an ``arrival``, in a dry run, nothing is stored."""

    def __init__(
        self, database: DatabaseHandle, arrival: Arrival | None, report: Callable[[int], None]
    ) -> None:
        self._db = database
        self._arrival = arrival
        self._report = report
        self._rows: list[Put] = []
        self._chunks: dict[bytes, bytes] = {}
        self._size = 0
        limits = database.limits
        self._most = max(1, min(limits.ops - 12, 500))
        self._bytes = limits.bytes

    def add(self, row: Put, chunks: Mapping[bytes, bytes]) -> None:
        size = len(row.body) + sum(map(len, chunks.values()))
        if self._rows and (len(self._rows) >= self._most or self._size + size > self._bytes):
            self.flush()
        self._rows.append(row)
        self._chunks.update(chunks)
        self._size += size

    def flush(self) -> None:
        if self._rows and self._arrival is not None:
            self._db.run(importing.store(self._arrival, self._rows, self._chunks))
        self._report(len(self._rows))
        self._rows, self._chunks, self._size = [], {}, 0


def _split_into_pages(items: Iterable[T], size: int) -> Iterator[list[T]]:
    rest = iter(items)
    while page := list(islice(rest, size)):
        yield page
