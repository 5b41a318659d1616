"""Consistency check of a thread: links between its records, its chunks, and its queue.

A check reads everything and writes nothing. A thread that is written to meanwhile is read again, so that
a write in progress is not reported as damage. Orphan chunks, and writes whose checkpoint is not stored, are
not damage: a crash may leave them, and the next prune removes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

from perdure.engine.checks.fsck_queue import check_queue
from perdure.engine.checks.fsck_report import ARRIVE, REPAIR, RESTORE, Damage, Finding, Repaired
from perdure.engine.checks.scan import Walk, start
from perdure.engine.requests import try_commit
from perdure.engine.threads import transfer_claim
from perdure.engine.threads.chunk_reads import ChunkReader
from perdure.engine.threads.thread_records import put_head, raise_generation
from perdure.engine.threads.thread_state import HeadView, guards, load_view
from perdure.engine.transact import ATTEMPTS, Budget, split_into_batches
from perdure.errors import Contention, Corrupt
from perdure.model.checkpoint import CheckpointRecord, PendingWrite
from perdure.model.ops import Delete, Expect, Fetch, Op, Range
from perdure.model.program import Program, ask
from perdure.model.record_versions import successor
from perdure.model.records import BLOB, CHECKPOINT, GC, HEAD, LANE, SEAL, TAG, WRITE, Key, Partition, Record
from perdure.model.removal_plan import Name
from perdure.model.values.chunks import Digester
from perdure.model.values.packs import format_name
from perdure.model.values.tree import Expansion
from perdure.model.write_records import read_writes

T = TypeVar("T")


@dataclass(slots=True)
class _Contents:
    """A thread as it was read. ``places`` maps every stored checkpoint, readable or not, to its sequence."""

    heads: dict[str, Record]
    tags: tuple[Record, ...]
    places: dict[Name, int] = field(default_factory=dict)
    checkpoints: list[CheckpointRecord] = field(default_factory=list)
    writes: list[PendingWrite] = field(default_factory=list)
    unreadable: list[tuple[Key, str]] = field(default_factory=list)

    def decode(self, page: Walk, read: Callable[[Record], T]) -> Iterator[T]:
        """Yield the decoded records of a page, and note those that cannot be read."""
        for record in page.records:
            try:
                yield read(record)
            except Corrupt as error:
                self.unreadable.append((record.key, str(error)))
        self.unreadable += page.unreadable

    def newest(self, namespace: str) -> tuple[str, int] | None:
        """Return the stored checkpoint of a namespace with the highest sequence, and that sequence."""
        found = [(i, seq) for (ns, i), seq in self.places.items() if ns == namespace]
        return max(found, key=lambda place: place[1], default=None)


def check(partition: Partition, digest: Digester) -> Program[list[Finding]]:
    """Return everything that is wrong with a thread; empty for a sound one, or one that does not exist.

    Raises:
        Contention: there are signs of damage, but the thread is written to too often to be sure.
    """
    try:
        _, findings = yield from _read_settled(partition, digest)
    except Corrupt as error:
        return [_to_finding(partition, error)]
    return findings


def repair(partition: Partition, digest: Digester, budget: Budget) -> Program[Repaired]:
    """Repair what can be repaired without inventing data.

    A checkpoint whose parent is not stored is linked to its nearest stored ancestor if the sequence proves
    which one that is; otherwise the history ends there, marked as a cut. A head that is missing or names
    nothing stored is set to the newest checkpoint of its namespace by sequence. The repair is one commit if
    it fits one.

    Raises:
        Fenced: a run is open on the thread.
        Contention: the thread keeps being written to.
    """
    repairable: list[Finding] = []
    last_findings: list[Finding] = []
    refusals = 0
    while refusals < ATTEMPTS:
        try:
            contents, findings = yield from _read_settled(partition, digest)
            view = yield from load_view(partition, "")
        except Corrupt as error:
            # The records that a repair would build on are themselves damaged.
            return Repaired((), (_to_finding(partition, error),))
        repairable += [f for f in findings if f.repairable and f not in repairable]
        ops = [*_fix_links(contents, findings), *_fix_heads(contents, findings)]
        # Findings that a commit has not mended would not be mended by the next one either.
        if not ops or findings == last_findings:
            return Repaired(tuple(f for f in repairable if f not in findings), tuple(findings))
        some = next(split_into_batches(ops, budget, reserve=2))
        fence, _ = guards(partition, view, None)
        # A new generation makes every writer, and every prune, plan again on the repaired thread.
        generation = raise_generation(view.generation, *(str(op.key) for op in some))
        if (yield from try_commit(partition, (fence, generation, *some))):
            last_findings = findings
        else:
            refusals += 1
    raise Contention(f"thread {partition.thread!r} keeps being written to; repair it later")


def _read_settled(partition: Partition, digest: Digester) -> Program[tuple[_Contents, list[Finding]]]:
    """Return a thread and its findings, read while it was not written to, if there are any findings."""
    for _ in range(ATTEMPTS):
        pulse_before = yield from _pulse(partition)
        *walks, blobs = yield from start(partition, (HEAD, TAG, CHECKPOINT, WRITE, BLOB))
        contents = yield from _read(partition, *walks)
        findings = [
            *_find_unreadable(partition, contents),
            *_find_holes(partition, contents),
            *_check_heads(partition, contents),
            *_check_tags(partition, contents),
        ]
        findings += yield from _check_chunks(partition, contents, blobs, digest)
        try:
            findings += yield from check_queue(partition)
        except Corrupt as error:
            findings.append(_to_finding(partition, error))
        if findings and (yield from transfer_claim.is_claimed(partition)):
            # A repair would make a part of the thread visible as if it were all.
            arriving = Finding(partition.thread, "", None, Damage.HEAD, "it has not arrived", ARRIVE)
            return _Contents({}, ()), [arriving]
        if not findings or pulse_before == (yield from _pulse(partition)):
            return contents, findings
    raise Contention(f"thread {partition.thread!r} keeps being written to; check it later")


def _pulse(partition: Partition) -> Program[tuple[tuple[Key, int], ...]]:
    """Return a value that changes with every put, every removal, every arrival, and every step of the
    queue."""
    kinds = (GC, HEAD, LANE, SEAL)
    found = yield from ask(Fetch(partition, tuple(Range(kind, verify=False) for kind in kinds)))
    return tuple((record.key, record.version) for records in found for record in records)


# Reading


def _read(
    partition: Partition, heads: Walk, tags: Walk, checkpoints: Walk, writes: Walk
) -> Program[_Contents]:
    contents = _Contents({}, ())
    while not heads.is_last:
        yield from heads.read_next_page(partition)
        contents.heads.update({r.key[0]: r for r in heads.stubs if isinstance(r.fields["seq"], int)})
        contents.unreadable += [((key[0], None), error) for key, error in heads.unreadable]
    while not tags.is_last:
        yield from tags.read_next_page(partition)
        contents.tags += tuple(tags.records)
        contents.unreadable += [(("", None), error) for _, error in tags.unreadable]
    while not checkpoints.is_last:
        yield from checkpoints.read_next_page(partition)
        # A stub is not verified, and may hold anything.
        places = {(r.key[0], r.key[1]): r.fields["seq"] for r in checkpoints.stubs}
        contents.places.update({k: seq for k, seq in places.items() if isinstance(seq, int)})
        contents.checkpoints += contents.decode(checkpoints, CheckpointRecord.read)
    while not writes.is_last:
        yield from writes.read_next_page(partition)
        for some in contents.decode(writes, lambda record: read_writes((record,))):
            contents.writes += some
    return contents


def _to_finding(partition: Partition, error: Corrupt) -> Finding:
    return Finding(partition.thread, "", None, Damage.UNREADABLE, str(error), RESTORE)


# Links, heads, tags


def _find_unreadable(partition: Partition, contents: _Contents) -> Iterator[Finding]:
    for key, error in contents.unreadable:
        yield Finding(partition.thread, key[0], key[1], Damage.UNREADABLE, error, RESTORE)


def _find_holes(partition: Partition, contents: _Contents) -> Iterator[Finding]:
    taken: dict[tuple[str, int], str] = {}
    for (namespace, checkpoint_id), seq in contents.places.items():
        twin = taken.setdefault((namespace, seq), checkpoint_id)
        if twin != checkpoint_id:
            detail = f"has the sequence {seq} of checkpoint {twin}, so history may skip one of them"
            yield Finding(partition.thread, namespace, checkpoint_id, Damage.ORDER, detail, RESTORE)
    for record in contents.checkpoints:
        parent = record.parent_id
        if parent is None:
            continue
        place = contents.places.get((record.namespace, parent))
        if place is None:
            if record.cut:
                continue
            detail, advice = f"its parent {parent} is not stored, and no removal has marked the cut", REPAIR
            if record.deltas:
                names = ", ".join(record.deltas)
                advice = f"the values of {names} are replayed from what is gone: {RESTORE}"
            yield Finding(partition.thread, *record.name, Damage.HOLE, detail, advice, not record.deltas)
        elif place >= record.seq:
            detail = f"has the sequence {record.seq}, its parent {parent} the later {place}"
            yield Finding(partition.thread, record.namespace, record.id, Damage.ORDER, detail, RESTORE)


def _check_heads(partition: Partition, contents: _Contents) -> Iterator[Finding]:
    for namespace in sorted({*contents.heads, *(ns for ns, _ in contents.places)}):
        head = contents.heads.get(namespace)
        newest = contents.newest(namespace)
        if head is None:
            detail = "there are checkpoints but no head, so the thread looks empty"
            yield Finding(partition.thread, namespace, None, Damage.HEAD, detail, REPAIR, True)
            continue
        target = head.fields["checkpoint_id"]
        if (namespace, target) not in contents.places:
            detail = "the head names this checkpoint, which is not stored"
            yield Finding(partition.thread, namespace, target, Damage.HEAD, detail, REPAIR, True)
        elif newest is not None and head.fields["seq"] < newest[1]:
            detail = f"the head is at sequence {head.fields['seq']}, {newest[0]} already has {newest[1]}"
            yield Finding(partition.thread, namespace, target, Damage.ORDER, detail, REPAIR, True)


def _check_tags(partition: Partition, contents: _Contents) -> Iterator[Finding]:
    for tag in contents.tags:
        namespace, target = tag.fields["namespace"], tag.fields["checkpoint_id"]
        if (namespace, target) not in contents.places:
            detail = f"the tag {tag.key[0]!r} points at this checkpoint, which is not stored"
            advice = "set the tag on another checkpoint, or remove it"
            yield Finding(partition.thread, namespace, target, Damage.TAG, detail, advice)


# Chunks


def _check_chunks(
    partition: Partition, contents: _Contents, blobs: Walk, digest: Digester
) -> Program[list[Finding]]:
    """Return findings for references to chunks that are absent or do not match their names."""
    reader = ChunkReader(partition, digest)
    yield from reader.read()
    sound, damaged = yield from _classify_chunks(partition, blobs, reader, digest)
    owners = list(_references(contents))
    error, needs = yield from _expand(reader, dict.fromkeys(ref for _, _, ref in owners), sound)
    if not error and needs <= sound:
        return []
    in_packs = ", ".join(f"pack {format_name(name)}" for name in reader.damaged_packs)
    findings: list[Finding] = []
    for name, what, ref in owners:
        error, needs = yield from _expand(reader, (ref,), sound)
        faults: list[tuple[Damage, str]] = []
        if error:
            faults.append((Damage.UNREADABLE, f"cannot be read: {error}"))
        absent = sorted(needs - sound - damaged)
        needed = f"needs {len(absent)} chunks that are not stored"
        if absent and in_packs:
            faults.append((Damage.DAMAGED, f"{needed} or in damaged records: {in_packs}"))
        elif absent:
            faults.append((Damage.DANGLING, f"{needed}, the first {absent[0].hex()}"))
        if changed := sorted(needs & damaged):
            needed = f"needs {len(changed)} chunks whose bytes do not match their digests"
            faults.append((Damage.DAMAGED, f"{needed}, the first {changed[0].hex()}"))
        findings += [
            Finding(partition.thread, *name, kind, f"{what} {fault}", RESTORE) for kind, fault in faults
        ]
    return findings


def _references(contents: _Contents) -> Iterator[tuple[Name, str, bytes]]:
    """Yield each reference with the checkpoint that holds it and a description of its place there."""
    for record in contents.checkpoints:
        for channel, ref in record.refs.items():
            yield (record.namespace, record.id), f"channel {channel!r}", ref
        for ref in record.references()[len(record.refs) :]:
            yield (record.namespace, record.id), "a write carried over from an ancestor", ref
    for write in contents.writes:
        what = f"the write of task {write.task_id} to {write.channel!r}"
        yield (write.namespace, write.checkpoint_id), what, write.ref


def _classify_chunks(
    partition: Partition, blobs: Walk, reader: ChunkReader, digest: Digester
) -> Program[tuple[set[bytes], set[bytes]]]:
    """Return the names of the sound chunks, and of the damaged ones."""
    sound, damaged = set(reader.bodies), set(reader.damaged)
    while not blobs.is_last:
        yield from blobs.read_next_page(partition)
        for record in blobs.records:
            name = record.key[0]
            if digest.read_stored(name, record.body) is None:
                damaged.add(name)
            else:
                sound.add(name)
        damaged.update(key[0] for key, _ in blobs.unreadable)
    return sound, damaged


def _expand(
    reader: ChunkReader, references: Iterable[bytes], sound: set[bytes]
) -> Program[tuple[str, set[bytes]]]:
    """Return an error found in the references, empty if there is none, and the chunks that the references
    need, as far as sound chunks show."""
    expansion = Expansion(payloads=False)
    pending = list(references)
    asked: set[bytes] = set()
    while True:
        try:
            pending = [ref for ref in pending if expansion.try_expand(ref) is None]
        except Corrupt as error:
            return str(error), expansion.used
        wanted = (expansion.take_missing() & sound) - asked
        if not wanted:
            return "", expansion.used
        asked.update(wanted)
        expansion.feed((yield from reader.find(wanted)))


# Repair


def _fix_links(contents: _Contents, findings: list[Finding]) -> Iterator[Op]:
    holes = {(f.namespace, f.checkpoint_id) for f in findings if f.kind is Damage.HOLE and f.repairable}
    for record in contents.checkpoints:
        if (record.namespace, record.id) in holes:
            ancestor = _find_proven_ancestor(record, contents.checkpoints)
            yield record._replace(parent_id=ancestor, cut=True).put()


def _find_proven_ancestor(record: CheckpointRecord, stored: Iterable[CheckpointRecord]) -> str | None:
    """Return the nearest stored checkpoint before one whose parent is not stored, if it is certainly an
    ancestor.

    Along one line of history the sequence number and the step rise together. Across a fork the sequence
    counts the checkpoints of both lines, the step those of one only. So the nearest checkpoint is on the same
    line if both numbers are lower by the same amount.
    """
    earlier = [c for c in stored if c.namespace == record.namespace and c.seq < record.seq]
    nearest = max(earlier, key=lambda c: c.seq, default=None)
    if nearest is None or nearest.step is None or record.step is None:
        return None
    if record.seq - nearest.seq == record.step - nearest.step:
        return nearest.id
    return None


def _fix_heads(contents: _Contents, findings: list[Finding]) -> Iterator[Op]:
    broken = [f.namespace for f in findings if f.repairable and f.kind in (Damage.HEAD, Damage.ORDER)]
    for namespace in dict.fromkeys(broken):
        head = contents.heads.get(namespace)
        newest = contents.newest(namespace)
        if newest is None:
            if head is not None:
                yield Delete(HEAD, (namespace,), head.version)
            continue
        (target, seq), version = newest, 0
        if head is not None:
            # A sequence is never reused; a head that names a stored checkpoint stays there.
            version, seq = head.version, max(seq, head.fields["seq"])
            named = head.fields["checkpoint_id"]
            if (namespace, named) in contents.places:
                target = named
        after = HeadView(successor(version, target), target, seq)
        yield put_head(namespace, after, version or Expect.ABSENT)
