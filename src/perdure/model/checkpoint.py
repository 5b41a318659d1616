"""Stored form of a checkpoint: its place in the tree, its versions, and references instead of values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import ormsgpack

from perdure.errors import Corrupt
from perdure.model.heads import UNVERSIONED
from perdure.model.ops import Expect, Expectation, Put
from perdure.model.records import CHECKPOINT, Record
from perdure.model.short_forms import (
    PLAIN_METADATA,
    expand_name,
    expand_nonce,
    expand_time,
    shorten_name,
    shorten_nonce,
    shorten_time,
)
from perdure.model.times import read_time, time_of
from perdure.model.values.packs import Runs
from perdure.model.well_formed import ill_formed_error

FORMAT = 3
"""Version of the body's layout, its first element."""

Version = int | str | float

_DEFAULTS: tuple[object, ...] = (b"", (), None, None, False, (), [], None, (), UNVERSIONED, ())
"""Values of the body's last elements if they are left out."""

_FIELDS = tuple(column.name for column in CHECKPOINT.fields)

_ASIDE = -16
"""Offset that is added to the index of a write that is set aside: no index of LangGraph is as low."""


class CarriedWrite(NamedTuple):
    """A write on an ancestor that was removed: its task, and the reference of its value. ``schema`` is the
    schema version that it was written by. It is not stored: the reader sets that of the checkpoint that
    carries the write (``Carried.by``)."""

    task_id: str
    ref: bytes
    schema: int = UNVERSIONED


class Carried(NamedTuple):
    """Data of removed ancestors that a DeltaChannel needs: a seed, and the writes after it, in order.
    ``schema`` is the schema version that the seed was written by, not stored either."""

    seed: bytes | None
    writes: tuple[CarriedWrite, ...]
    schema: int = UNVERSIONED

    def with_schema(self, schema: int) -> Carried:
        """Return the same data with this schema version, that of the checkpoint that stores it."""
        return Carried(self.seed, tuple(w._replace(schema=schema) for w in self.writes), schema)


_NOTHING: Mapping[str, Carried] = MappingProxyType({})


class CheckpointRecord(NamedTuple):
    """A stored checkpoint.

    Attributes:
        seq: orders the checkpoints of a namespace by commit.
        root: for a subgraph's checkpoint, the root checkpoint that its metadata names; that one need not be
            stored.
        root_head: for a subgraph's checkpoint, the head of the root namespace when it was stored.
        nonce: name of the loop that wrote this checkpoint.
        seen: names of the other loops whose writes on the parent that loop had loaded; a write on the parent
            by any further loop is not part of this checkpoint's history.
        cut: marks a parent link that a removal moved.
        deltas: channels whose value is not stored here but replayed from ancestors' writes.
        carried: the data from which ``deltas`` are replayed, by channel, once the ancestors are removed.
        prior: the head that this checkpoint replaced, stored or not, ``""`` if there was none; ``None`` if
            that head was the parent.
        passed: removed root checkpoints between this one and its parent that subgraphs' checkpoints still
            name as ``root`` or ``root_head``.
        schema: schema version of the application that stored it; not stored if it is the first.
        blocks: blocks in whose packs its values are (``model.values.packs``): a hint, empty if not known.
    """

    namespace: str
    id: str
    seq: int
    parent_id: str | None
    run_id: str | None
    source: str | None
    step: int | None
    v: int
    ts: str
    versions: Mapping[str, Version]
    refs: Mapping[str, bytes]
    versions_seen: Mapping[str, Mapping[str, Version]]
    updated: tuple[str, ...] | None
    metadata: bytes
    extra: bytes = b""
    nonce: str = ""
    seen: tuple[str, ...] = ()
    root: str | None = None
    root_head: str | None = None
    cut: bool = False
    deltas: tuple[str, ...] = ()
    carried: Mapping[str, Carried] = _NOTHING
    prior: str | None = None
    passed: tuple[str, ...] = ()
    schema: int = UNVERSIONED
    blocks: Runs = ()

    @property
    def name(self) -> tuple[str, str]:
        """Its namespace and id."""
        return self.namespace, self.id

    @property
    def replaced_head(self) -> str | None:
        """Head that this checkpoint replaced, stored or not; ``None`` if there was none."""
        if self.prior is None:
            return self.parent_id
        return self.prior or None

    @property
    def made_at(self) -> int | None:
        """Time of its creation by its writer's clock, in microseconds since 1970: the time in its id, else
        its ``ts``; ``None`` if neither is a time."""
        at = time_of(self.id)
        if at is None:
            try:
                at = read_time(self.ts)
            except (ValueError, TypeError, OverflowError):
                return None
        return at

    def put(self, expect: Expectation = Expect.ANY) -> Put:
        """Return the operation that stores this checkpoint, in place of a stored one of the same id."""
        # Channels without a version come last.
        names = [*self.versions, *(name for name in self.refs if name not in self.versions)]
        positions = {name: i for i, name in enumerate(names)}
        node_numbers = {node: i for i, node in enumerate(self.versions_seen)}
        elements = [
            FORMAT,
            self.v,
            shorten_time(self.ts),
            [shorten_name(name, node_numbers) for name in names],
            list(self.versions.values()),
            [self.refs.get(name) for name in names],
            [
                [shorten_name(node, {}), [positions.get(ch, ch) for ch in seen], list(seen.values())]
                for node, seen in self.versions_seen.items()
            ],
            None if self.updated is None else [positions.get(ch, ch) for ch in self.updated],
            None if self.metadata == PLAIN_METADATA else self.metadata,
            shorten_nonce(self.nonce),
            *self.list_last_elements(),
        ]
        try:
            body = ormsgpack.packb(elements)
        except TypeError as error:
            if "surrogates" in str(error):
                raise ill_formed_error(
                    f"of a channel, node, version or parent of checkpoint {self.id}"
                ) from error
            raise
        fields = {name: getattr(self, name) for name in _FIELDS}
        return Put(CHECKPOINT, self.name, fields, body, expect)

    def list_last_elements(self) -> tuple[object, ...]:
        """Return the body's optional elements, up to the last one that differs from its default."""
        elements: list[object] = [
            self.extra,
            tuple(map(shorten_nonce, self.seen)),
            self.root,
            self.root_head,
            self.cut,
            self.deltas,
            [[ch, c.seed, [(w.task_id, w.ref) for w in c.writes]] for ch, c in self.carried.items()],
            self.prior,
            self.passed,
            self.schema,
            self.blocks,
        ]
        count = len(elements)
        while count and elements[count - 1] == _DEFAULTS[count - 1]:
            count -= 1
        return tuple(elements[:count])

    @classmethod
    def read(cls, record: Record) -> CheckpointRecord:
        """Decode a stored record; raises ``Corrupt`` if it cannot be read."""
        checkpoint_id = record.key[1]
        try:
            layout, *parts = ormsgpack.unpackb(record.body)
        except (ValueError, TypeError) as error:
            raise Corrupt(f"checkpoint {checkpoint_id} cannot be read: {error}") from error
        if layout != FORMAT:
            raise Corrupt(f"checkpoint {checkpoint_id} has format {layout}; this release reads {FORMAT}")
        try:
            return cls._decode(record, parts)
        except (ValueError, TypeError, AttributeError, LookupError, OverflowError) as error:
            raise Corrupt(f"checkpoint {checkpoint_id} cannot be read: {error}") from error

    @classmethod
    def _decode(cls, record: Record, parts: list[Any]) -> CheckpointRecord:
        namespace, checkpoint_id = record.key
        v, ts, short_names, versions, listed_refs, seen_nodes, updated, metadata, nonce, *last = parts
        last += _DEFAULTS[len(last) :]
        extra, seen, root, root_head, cut, deltas, carried, prior, passed, schema, blocks = last
        node_names = [expand_name(node, ()) for node, _, _ in seen_nodes]
        names = [expand_name(short, node_names) for short in short_names]

        def expand_position(position: int | str) -> str:
            if isinstance(position, int):
                return names[position]
            return position

        fields = record.fields
        return cls(
            namespace=namespace,
            id=checkpoint_id,
            seq=fields["seq"],
            parent_id=fields["parent_id"],
            run_id=fields["run_id"],
            source=fields["source"],
            step=fields["step"],
            v=v,
            ts=expand_time(ts),
            versions=dict(zip(names[: len(versions)], versions, strict=True)),
            refs={n: ref for n, ref in zip(names, listed_refs, strict=True) if ref is not None},
            versions_seen={
                node: dict(zip(map(expand_position, chs), vers, strict=True))
                for node, (_, chs, vers) in zip(node_names, seen_nodes, strict=True)
            },
            updated=None if updated is None else tuple(map(expand_position, updated)),
            metadata=PLAIN_METADATA if metadata is None else metadata,
            extra=extra,
            nonce=expand_nonce(nonce),
            seen=tuple(map(expand_nonce, seen)),
            root=root,
            root_head=root_head,
            cut=cut,
            deltas=tuple(deltas),
            carried={
                ch: Carried(seed, tuple(CarriedWrite(t, r) for t, r in writes))
                for ch, seed, writes in carried
            },
            prior=prior,
            passed=tuple(passed),
            schema=schema,
            blocks=tuple(blocks),
        )

    def references(self) -> list[bytes]:
        """Return the references of all values that this checkpoint has or carries."""
        all_refs = list(self.refs.values())
        for carried in self.carried.values():
            if carried.seed is not None:
                all_refs.append(carried.seed)
            all_refs.extend(write.ref for write in carried.writes)
        return all_refs


def is_set_aside(idx: int) -> bool:
    """Return True for the slot of a write that is set aside, as another run has overwritten it."""
    return idx < _ASIDE


class TaskSpan(NamedTuple):
    """Time in which a task ran, in microseconds: ``waited`` from the creation of its checkpoint until the
    task's run loaded it, 0 if that run created it itself; ``took`` from then until the task ended."""

    waited: int
    took: int


class PendingWrite(NamedTuple):
    """A write of a task. Its slot is (namespace, checkpoint, task, index).

    If a run overwrites a write of another run, the overwritten one is set ``aside``; a rollback restores it.

    Attributes:
        version: the version of the slot's content; only reserved slots (index below 0) are overwritten.
        record_version: version of the record that holds this write (``model.write_records``), 0 if none does.
        span: when its task ran, ``None`` if that is not stored.
    """

    namespace: str
    checkpoint_id: str
    task_id: str
    idx: int
    channel: str
    task_path: str
    nonce: str
    ref: bytes
    version: int = 1
    record_version: int = 0
    span: TaskSpan | None = None

    @property
    def key(self) -> tuple[str, str, str, int]:
        return (self.namespace, self.checkpoint_id, self.task_id, self.idx)

    @property
    def is_aside(self) -> bool:
        return is_set_aside(self.idx)

    @property
    def aside(self) -> PendingWrite:
        """This write in the slot into which it is set aside."""
        return self._replace(idx=self.idx + _ASIDE, version=1)

    @property
    def sort_key(self) -> tuple[str, str, int]:
        """Sort key of the order in which a super-step applies its writes (LangGraph's
        ``writes_sort_key``)."""
        return (self.task_path, self.task_id, self.idx)


def sort_writes(writes: Iterable[PendingWrite]) -> tuple[PendingWrite, ...]:
    """Return the writes not set aside, in the order in which a super-step applies them."""
    return tuple(sorted((w for w in writes if not w.is_aside), key=lambda w: w.sort_key))
