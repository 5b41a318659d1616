"""Translates a source's checkpoints and writes to records and chunks, in the order of their arrival."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.engine.threads.thread_state import HeadView
from perdure.engine.transfer.importing import CheckpointKey
from perdure.errors import Unserialisable
from perdure.imports.channel_versions import translate_versions
from perdure.imports.payloads import SERDE
from perdure.imports.source import SourceCheckpoint, SourceWrite
from perdure.langgraph import translate
from perdure.langgraph.cache.encoding import Encoding, Frozen
from perdure.langgraph.cache.known_chunks import HeadRefs, WriteBasis
from perdure.langgraph.cache.thread_cache import ThreadCache
from perdure.model.checkpoint import CheckpointRecord, PendingWrite
from perdure.model.records import Partition
from perdure.model.removal_plan import ORIGIN
from perdure.model.values.chunks import Digester
from perdure.model.well_formed import require_text


class ThreadEncoder:
    """Encodes the checkpoints of one thread one after the other; each shares chunks with the earlier ones.

    Args:
        partition: The thread at the target.
        digest: Names the chunks.
        generation: The thread's collection generation.
        numbers: The last sequence number in use, by namespace.
        heads: The heads, by namespace, after which the first new checkpoints are stored.
    """

    def __init__(
        self,
        partition: Partition,
        digest: Digester,
        generation: int,
        numbers: Mapping[str, int],
        heads: Mapping[str, HeadView],
    ) -> None:
        self.partition = partition
        self._digest = digest
        self._generation = generation
        self.numbers = dict(numbers)
        self._previous = {namespace: head.checkpoint_id for namespace, head in heads.items()}
        self._cache = ThreadCache()

    def encode_checkpoint(
        self, found: SourceCheckpoint, stored: Mapping[CheckpointKey, object] | set[CheckpointKey]
    ) -> tuple[CheckpointRecord, Mapping[bytes, bytes]]:
        """Return a checkpoint's record, and the chunks that were not returned before.

        Args:
            found: The checkpoint.
            stored: The checkpoints that are at the target when this one is stored.
        """
        namespace, checkpoint_id, parent = found.entry
        require_text((namespace, checkpoint_id, parent))
        checkpoint = translate_versions(found.checkpoint)
        if checkpoint.get("id") != checkpoint_id:
            raise Unserialisable(
                f"checkpoint {checkpoint_id} contains another one, {checkpoint.get('id')!r}: the source is "
                "damaged"
            )
        before = self._previous.get(namespace)
        encoding = self._make_encoding(namespace, before)
        self.numbers[namespace] = self.numbers.get(namespace, 0) + 1
        place = translate.CheckpointPosition(
            namespace,
            parent,
            self.numbers[namespace],
            None if namespace == "" else self._previous.get(""),
            "",
            (),
        )
        values = checkpoint["channel_values"]
        record = translate.to_record(
            SERDE,
            encoding,
            place,
            checkpoint,  # type: ignore[arg-type]
            found.metadata,
            dict.fromkeys(values, 0),
            base=None,
        )
        if before != parent:
            record = record._replace(prior=before or ORIGIN)
        if parent is not None and (namespace, parent) not in stored:
            record = record._replace(cut=True)
        chunks = dict(encoding.chunks)
        encoding.acknowledge()
        self._cache.note_head(namespace, HeadRefs(record.id, record.refs))
        self._previous[namespace] = checkpoint_id
        return record, chunks

    def encode_write(self, found: SourceWrite) -> tuple[PendingWrite, Mapping[bytes, bytes]]:
        """Return a pending write's record, and the chunks that were not returned before."""
        slot = found.slot
        require_text((slot.namespace, slot.checkpoint_id, slot.task_id, found.task_path, found.channel))
        ref, chunks = self.encode_value(slot.namespace, Frozen(payload=(found.kind, found.body)))
        return PendingWrite(*slot, found.channel, found.task_path, "", ref), chunks

    def encode_value(self, namespace: str, value: Any) -> tuple[bytes, Mapping[bytes, bytes]]:
        """Return the reference and the chunks of a channel's value at a checkpoint that is itself not
        stored."""
        encoding = self._make_encoding(namespace, None)
        ref = encoding.encode_write(value)
        chunks = dict(encoding.chunks)
        encoding.acknowledge()
        return ref, chunks

    def _make_encoding(self, namespace: str, before: str | None) -> Encoding:
        basis = WriteBasis(self._generation, namespace, before, None, is_guarded=before is not None)
        return Encoding(SERDE, self._digest, self._cache, basis)
