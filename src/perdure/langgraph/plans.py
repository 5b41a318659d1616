"""What a loop's put becomes under a collection generation: the engine asks for a draft, again where another
write or a collection came between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from langgraph.checkpoint.base import WRITES_IDX_MAP, ChannelVersions, Checkpoint

from perdure.engine.checkpoints import Draft
from perdure.errors import PerdureError, TypeNotAllowed, Unserialisable
from perdure.langgraph import refusals, translate
from perdure.langgraph.loads import Loop
from perdure.langgraph.serde import Serde
from perdure.langgraph.values import Encoding, ThreadCache
from perdure.model.checkpoint import CheckpointRecord, PendingWrite
from perdure.model.chunks import Digester
from perdure.model.ops import Fetch, Get
from perdure.model.program import Program, ask
from perdure.model.records import CHECKPOINT, Partition


@dataclass(slots=True, eq=False)
class Encoder:
    """Encodes for one write of a thread; only the last draft counts."""

    serde: Serde
    digest: Digester
    partition: Partition
    cache: ThreadCache
    _last: Encoding | None = None

    def begin(self, generation: int, serde: Serde | None = None) -> Encoding:
        """A new draft's encoding; the one before is forgotten."""
        self._last = Encoding(serde or self.serde, self.digest, self.cache, generation)
        return self._last

    def acknowledge(self) -> None:
        """The write is durable: what the last draft held may be believed from now on."""
        if self._last is not None:
            self._last.acknowledge()


@dataclass(slots=True, eq=False)
class CheckpointPlan:
    """How a checkpoint will be stored, by the loop that made it (``None``: a bare put). ``beside`` is its
    parent, if both are to be stored by one commit."""

    encoder: Encoder
    loop: Loop | None
    namespace: str
    parent: str | None
    is_copy: bool
    checkpoint: Checkpoint
    metadata: Mapping[str, Any]
    new_versions: ChannelVersions
    beside: CheckpointRecord | None = None

    def draft(self, generation: int, seq: int, root_head: str | None) -> Program[Draft]:
        """The checkpoint for a place in the order, beside a root head."""
        encoder, checkpoint = self.encoder, self.checkpoint
        base = yield from self._base(generation)
        encoding = encoder.begin(generation)
        place = translate.Place(self.namespace, self.parent, seq, root_head, *self._authors())
        with translate.noted(encoder.partition, checkpoint["id"]):
            try:
                record = translate.to_record(
                    encoder.serde, encoding, place, checkpoint, self.metadata, self.new_versions, base
                )
            except (TypeNotAllowed, Unserialisable) as error:
                values = checkpoint["channel_values"].items()
                raise refusals.on_write(encoder.serde, error, values) from error
        return Draft(encoding.chunks, checkpoint=record)

    def _base(self, generation: int) -> Program[CheckpointRecord | None]:
        """The checkpoint whose references stand for the channels that have no new version: the one that this
        one is built on, or copies. ``None`` if there is no such channel, or nothing of it is stored."""
        loop, channels = self.loop, {*self.checkpoint["channel_values"]}
        channels.update(translate.delta_channels(self.metadata))
        if self.beside is not None or channels <= self.new_versions.keys():
            return self.beside
        name = loop.loaded.addressed if loop is not None and self.is_copy else self.parent
        if loop is not None and (known := loop.built_on(name, generation)) is not None:
            return known
        if name is None:
            return None
        # Put by another loop or process, or the thread was pruned since: what is stored now counts, and the
        # commit is refused if a collection comes after this look.
        key = (self.namespace, name)
        (found,) = yield from ask(Fetch(self.encoder.partition, (Get(CHECKPOINT, key),)))
        return CheckpointRecord.read(found[0]) if found else None

    def _authors(self) -> tuple[str, tuple[str, ...]]:
        """The nonce of the loop that makes the checkpoint, and those whose writes on the parent it had
        loaded. A copy stands where its original stands, so it takes the original's."""
        loop = self.loop
        if loop is None:
            return "", ()
        if self.is_copy and loop.base is not None:
            return loop.base.nonce, loop.base.seen
        return loop.nonce, loop.seen_nonces if self.parent == loop.loaded.addressed else ()


@dataclass(slots=True, eq=False)
class WritesPlan:
    """How a task's writes on a checkpoint will be stored."""

    encoder: Encoder
    loop: Loop | None
    namespace: str
    checkpoint_id: str
    writes: Sequence[tuple[str, Any]]
    task_id: str
    task_path: str
    refused: TypeNotAllowed | None = None

    def child(self) -> str | None:
        """The checkpoint that the loop has put, or tries to, on what it loaded."""
        return None if self.loop is None else self.loop.child

    def draft(self, generation: int) -> Draft:
        """The writes, one a slot.

        What a node was run for is not thrown away because a list lacks a type: data types that are not
        allowed are stored, and ``refused`` is then the error that the call has to end in.
        """
        serde = self.encoder.serde
        with translate.noted(self.encoder.partition, self.checkpoint_id):
            translate.require_text(self.task_id, self.task_path, *(channel for channel, _ in self.writes))
            try:
                return self._draft(self.encoder.begin(generation))
            except TypeNotAllowed as error:
                refused = refusals.on_write(serde, error, self.writes)
            except Unserialisable as error:
                raise refusals.on_write(serde, error, self.writes) from error
            if serde.types.is_open:
                raise refused
            try:
                draft = self._draft(self.encoder.begin(generation, serde.opened()))
            except PerdureError:
                raise refused from None
        place = f"thread {self.encoder.partition.thread!r}, checkpoint {self.checkpoint_id}"
        self.refused = TypeNotAllowed(
            f"{place}: {refused}. The step's result is stored: with the types allowed, invoke(None, config) "
            "goes on from it and repeats nothing"
        )
        return draft

    def raise_refused(self) -> None:
        """Raise the error that the write came to, although it is stored."""
        if self.refused is not None:
            raise self.refused

    def _draft(self, encoding: Encoding) -> Draft:
        nonce = "" if self.loop is None else self.loop.nonce
        # Of several writes to one reserved slot the last counts.
        slots: dict[int, PendingWrite] = {}
        for position, (channel, value) in enumerate(self.writes):
            idx = WRITES_IDX_MAP.get(channel, position)
            slots[idx] = PendingWrite(
                self.namespace,
                self.checkpoint_id,
                self.task_id,
                idx,
                channel,
                self.task_path,
                nonce,
                encoding.write(value),
            )
        return Draft(encoding.chunks, writes=tuple(slots.values()))
