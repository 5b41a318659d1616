"""Translates between LangGraph's configs, checkpoints and tuples and Perdure's records."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    EXCLUDED_METADATA_KEYS,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
)

from perdure.engine.threads.chunk_reads import FEW, PACKS, ChunkReader, resolve
from perdure.engine.threads.thread_state import View
from perdure.errors import PerdureError, Unreadable
from perdure.langgraph.cache.decoding import ListingDecoder, decode_into_cache, recall
from perdure.langgraph.cache.encoding import Encoding
from perdure.langgraph.cache.gc_pause import collection_paused
from perdure.langgraph.cache.known_chunks import HeadRefs
from perdure.langgraph.cache.thread_cache import ThreadCache
from perdure.langgraph.loop_state import ThreadId, read_carrier, to_plain_id
from perdure.langgraph.values import value_errors
from perdure.langgraph.values.serde import Serde
from perdure.model.checkpoint import CheckpointRecord, PendingWrite
from perdure.model.heads import ROOT, UNVERSIONED
from perdure.model.program import Program
from perdure.model.records import Partition
from perdure.model.values.chunks import Digester
from perdure.model.values.joined_values import join_tree
from perdure.model.values.packs import Runs
from perdure.model.well_formed import require_text

_CHECKPOINT_KEYS = frozenset(
    {"v", "ts", "id", "channel_values", "channel_versions", "versions_seen", "updated_channels"}
)
COUNTERS = "counters_since_delta_snapshot"

_RUN_KEY_PREFIX = "__pregel_"
"""Prefix of the configurable keys that only runs of graphs have."""

_RUNTIME = f"{_RUN_KEY_PREFIX}runtime"
"""The key among them that every run has."""

DURABILITY = f"{_RUN_KEY_PREFIX}durability"
"""LangGraph's configurable key for the durability that the caller of a run asked for; absent if none."""


class Address(NamedTuple):
    """The target of a config.

    Attributes:
        namespace: The name under which the namespace is stored; ``None`` if the config names no namespace.
        carrier: The thread's id, if it is one that carries data of a run; else an empty one.
        named: The config's own name for the namespace.
    """

    partition: Partition
    namespace: str | None
    checkpoint_id: str | None
    configurable: Mapping[str, Any]
    carrier: ThreadId
    named: str | None = None

    @property
    def epoch(self) -> int | None:
        """The epoch of the lease under which the caller writes, if it has one."""
        return self.carrier.epoch


def address(tenant: str, config: RunnableConfig) -> Address:
    configurable = read_configurable(config)
    thread_id = configurable.get("thread_id")
    partition = Partition(tenant, read_thread_id(thread_id))
    namespace, checkpoint_id = configurable.get("checkpoint_ns"), configurable.get("checkpoint_id") or None
    require_text((*partition, namespace, checkpoint_id))
    return Address(partition, namespace, checkpoint_id, configurable, read_carrier(configurable), namespace)


def read_configurable(config: RunnableConfig) -> Mapping[str, Any]:
    """Return what a config names. Raise ``TypeError`` unless it is a dict, as the config is, and its
    namespace and checkpoint are text, if they are named."""
    if not isinstance(config, dict | Mapping):
        raise TypeError(f"a config is a dict, not {config!r}")
    configurable: Mapping[str, Any] = config.get("configurable") or {}
    if not isinstance(configurable, dict | Mapping):
        raise TypeError(f"configurable of a config is a dict, not {configurable!r}")
    for name in ("checkpoint_ns", "checkpoint_id"):
        given = configurable.get(name)
        if given and not isinstance(given, str):
            raise TypeError(f"{name} of a config is text, not {given!r}")
    return configurable


def read_thread_id(thread_id: object) -> str:
    """Return a thread's id as text that carries nothing; raise ``ValueError`` if it is missing or empty."""
    if thread_id is None or thread_id == "":
        raise ValueError(
            'a checkpointer needs a thread, whose id is not empty: pass it, as config={"configurable": '
            '{"thread_id": "…"}} or by itself'
        )
    return to_plain_id(thread_id)


def durability_of(at: Address) -> str | None:
    """Return the durability of the run that makes a call, ``None`` for a call that no run makes."""
    values = at.configurable
    if _RUNTIME in values or any(key.startswith(_RUN_KEY_PREFIX) for key in values):
        durability: str = values.get(DURABILITY, "async")
        return durability
    return None


def run_of(config: RunnableConfig) -> object:
    """Return the run that a config names in its metadata, ``None`` for none."""
    return (config.get("metadata") or {}).get("run_id")


def make_stored_config(at: Address, checkpoint_id: str) -> RunnableConfig:
    """Return the config of a checkpoint that was stored at an address; its thread's id carries no loop."""
    return config_of(at.partition, at.named or ROOT, checkpoint_id)


def config_of(
    partition: Partition, namespace: str, checkpoint_id: str, thread: str | None = None
) -> RunnableConfig:
    """Return the config that names a checkpoint.

    Args:
        partition: The thread.
        namespace: The checkpoint's namespace.
        checkpoint_id: Its id.
        thread: The thread's id that carries a loop; by default the plain id.
    """
    return {
        "configurable": {
            "thread_id": partition.thread if thread is None else thread,
            "checkpoint_ns": namespace,
            "checkpoint_id": checkpoint_id,
        }
    }


def metadata(config: RunnableConfig, own: CheckpointMetadata, keys: frozenset[str]) -> dict[str, Any]:
    """Return the metadata to persist: the checkpoint's own, the scalars of the config's metadata, and the
    configurable values whose keys are on an allowlist, so that a secret in a config is not stored.

    Args:
        config: The config of the put.
        own: The checkpoint's own metadata.
        keys: The allowlist.
    """
    out: dict[str, Any] = dict(own)
    configurable: Mapping[str, Any] = config.get("configurable") or {}
    for key, value in (config.get("metadata") or {}).items():
        if _persists(key, value, out) and (key in keys or key not in configurable):
            out[key] = value
    for key in keys:
        if key in configurable and _persists(key, configurable[key], out):
            out[key] = configurable[key]
    return out


def _persists(key: str, value: object, out: Mapping[str, Any]) -> bool:
    return (
        key not in out
        and key not in EXCLUDED_METADATA_KEYS
        and not key.startswith("__")
        and isinstance(value, str | int | bool | float)
    )


class CheckpointPosition(NamedTuple):
    """The position of a new checkpoint in the history: see ``CheckpointRecord``."""

    namespace: str
    parent_id: str | None
    seq: int
    root_head: str | None
    nonce: str
    seen: tuple[str, ...]


def delta_channels(full: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the DeltaChannels of a checkpoint, from its metadata."""
    counters = full.get(COUNTERS)
    if isinstance(counters, dict):
        return counters
    return {}


def to_record(
    serde: Serde,
    encoding: Encoding,
    place: CheckpointPosition,
    checkpoint: Checkpoint,
    full: Mapping[str, Any],
    new_versions: ChannelVersions,
    *,
    base: CheckpointRecord | None,
    are_unchanged: bool = True,
    schema: int = UNVERSIONED,
) -> CheckpointRecord:
    """Return the record of a checkpoint. Channels that ``base`` has at the same version keep its references.

    A value without a version is stored too, as the stock savers that store whole checkpoints do.

    A DeltaChannel's value is passed only if it is a snapshot. It is also the value of later checkpoints,
    until the channel's version changes.

    Args:
        serde: Packs the metadata.
        encoding: Encodes the channel values.
        place: The checkpoint's position in the history.
        checkpoint: LangGraph's checkpoint.
        full: The metadata to persist.
        new_versions: The channels with new versions.
        base: The checkpoint whose references may be reused.
        are_unchanged: True if channels without new versions have the values of ``base``; otherwise only
            channels without a value keep the references of ``base``.
        schema: The schema version of the application.
    """
    values, versions = checkpoint["channel_values"], checkpoint["channel_versions"]
    deltas = delta_channels(full)
    references: dict[str, bytes] = {}
    for channel in (*versions, *(c for c in values if c not in versions)):
        if channel not in values and channel not in deltas:
            continue
        if (
            base is not None
            and channel in versions
            and channel not in new_versions
            and (are_unchanged or channel not in values)
            and base.versions.get(channel) == versions[channel]
            and (ref := base.refs.get(channel)) is not None
        ):
            references[channel] = ref
        elif channel in values:
            references[channel] = encoding.encode_channel(place.namespace, channel, values[channel])
    if not isinstance(checkpoint["id"], str):
        raise TypeError(f"the id of a checkpoint is text, not {checkpoint['id']!r}")
    source, step, run_id = full.get("source"), full.get("step"), full.get("run_id")
    clear_source = source if isinstance(source, str) else None
    if type(step) is int and abs(step) < 1 << 62:
        clear_step = step
    else:
        clear_step = None
    clear_run = run_id if isinstance(run_id, str) else None
    clear = {"source": clear_source, "step": clear_step, "run_id": clear_run}
    require_text(
        (checkpoint["id"], clear_source, clear_run, *versions, *values, *checkpoint["versions_seen"])
    )
    rest = {k: v for k, v in full.items() if clear.get(k) is None}
    extra = {k: v for k, v in checkpoint.items() if k not in _CHECKPOINT_KEYS and v}
    updated = checkpoint.get("updated_channels")
    parents = full.get("parents")
    return CheckpointRecord(
        namespace=place.namespace,
        id=checkpoint["id"],
        seq=place.seq,
        parent_id=place.parent_id,
        run_id=clear_run,
        source=clear_source,
        step=clear_step,
        v=checkpoint["v"],
        ts=checkpoint["ts"],
        versions=versions,
        refs=references,
        versions_seen=checkpoint["versions_seen"],
        updated=None if updated is None else tuple(updated),
        metadata=serde.pack(rest),
        extra=serde.pack(extra) if extra else b"",
        nonce=place.nonce,
        seen=place.seen,
        root=parents.get("") if isinstance(parents, dict) and place.namespace else None,
        root_head=place.root_head,
        deltas=tuple(c for c in deltas if c not in references),
        schema=schema,
    )


@dataclass(slots=True)
class Values:
    """The values of a checkpoint as read: of its channels, and of its pending writes. ``blocks`` are the runs
    of chunks that contain them, ``None`` if they need not be remembered."""

    channels: dict[str, Any]
    writes: list[tuple[str, str, Any]]
    blocks: Runs | None = None


def read_values(
    serde: Serde,
    digest: Digester,
    cache: ThreadCache,
    partition: Partition,
    record: CheckpointRecord,
    writes: Iterable[PendingWrite],
    *,
    view: View,
    reader: ChunkReader | None = None,
) -> Program[Values]:
    """Read the values of the checkpoint that a loop starts from: from the cache if it has the stored values,
    otherwise from the database, and then cache them.

    Args:
        serde: Unpacks the values.
        digest: Names the chunks.
        cache: The thread's cache.
        partition: The thread.
        record: The checkpoint.
        writes: Its pending writes.
        view: The state of the thread that was read with the checkpoint.
        reader: The reader with the chunks that were read with the checkpoint.
    """
    generation, root = view.generation, view.root_head
    channels: dict[str, Any] = {}
    wanted: dict[str, bytes] = {}
    for channel, ref in record.refs.items():
        slot = (record.namespace, channel)
        with cache.lock, collection_paused:
            known = cache.values.get(slot)
            if known is None or known.ref != ref:
                wanted[channel] = ref
            else:
                channels[channel], cache.values[slot] = recall(serde, known, generation)
    missing = list(wanted)
    pending = list(writes)
    if not missing and not pending:
        cache.note_head(record.namespace, HeadRefs(record.id, record.refs))
        return Values(channels, [])
    wanted.update(_write_refs(record, pending))
    with error_context(partition, record.id):
        if reader is None:
            # Chunks that only the pending writes need are recent, so few packs have to be read.
            if missing:
                runs, packs = (record.blocks, PACKS)
            else:
                runs, packs = ((), FEW)
            reader = ChunkReader(partition, digest, runs, packs)
        trees, expansion = yield from resolve(partition, wanted, digest, reader)
        new = {channel: trees[channel] for channel in missing}
        try:
            with collection_paused:
                are_roots = (record.namespace, record.id) == (ROOT, root) and not pending
                channels.update(
                    decode_into_cache(
                        serde,
                        cache,
                        record.namespace,
                        new,
                        expansion,
                        record.refs,
                        generation=generation,
                        root=root,
                        are_roots=are_roots,
                    )
                )
            out = [
                (w.task_id, w.channel, serde.value(*join_tree(trees[n])))
                for n, w in _name_writes(record, pending)
            ]
        except Unreadable as error:
            new.update((write.channel, trees[name]) for name, write in _name_writes(record, pending))
            raise value_errors.make_read_error(serde, error, new) from error
    cache.note_head(record.namespace, HeadRefs(record.id, record.refs))
    blocks = reader.find_runs(expansion.used) if missing else None
    return Values({c: channels[c] for c in record.refs}, out, blocks)


def read_page(
    serde: Serde,
    digest: Digester,
    partition: Partition,
    records: list[CheckpointRecord],
    writes: Mapping[str, tuple[PendingWrite, ...]],
) -> Program[list[Values]]:
    """Read the values of many checkpoints of one namespace; what they share is read and decoded once.

    Args:
        serde: Unpacks the values.
        digest: Names the chunks.
        partition: The thread.
        records: The checkpoints.
        writes: Their pending writes, by checkpoint.
    """
    wanted: dict[str, bytes] = {}
    for record in records:
        wanted.update({f"{record.id}\0{channel}": ref for channel, ref in record.refs.items()})
        wanted.update(_write_refs(record, writes[record.id]))
    trees, _ = yield from resolve(partition, wanted, digest)
    decoder = ListingDecoder(serde)
    out: list[Values] = []
    for record in records:
        named = list(_name_writes(record, writes[record.id]))
        own = {channel: trees[f"{record.id}\0{channel}"] for channel in record.refs}
        with error_context(partition, record.id), collection_paused:
            try:
                values = {channel: decoder.value(tree) for channel, tree in own.items()}
                pending = [(w.task_id, w.channel, serde.value(*join_tree(trees[name]))) for name, w in named]
            except Unreadable as error:
                own.update((write.channel, trees[name]) for name, write in named)
                raise value_errors.make_read_error(serde, error, own) from error
            out.append(Values(values, pending))
    return out


def _name_writes(
    record: CheckpointRecord, writes: Iterable[PendingWrite]
) -> Iterator[tuple[str, PendingWrite]]:
    return ((f"{record.id}\0\0{position}", write) for position, write in enumerate(writes))


def _write_refs(record: CheckpointRecord, writes: Iterable[PendingWrite]) -> dict[str, bytes]:
    return {name: write.ref for name, write in _name_writes(record, writes)}


class error_context:  # noqa: N801 - read as a statement: with error_context(…)
    """Context manager that adds the thread and the checkpoint to errors about the checkpoint's content."""

    __slots__ = ("_checkpoint_id", "_partition")

    def __init__(self, partition: Partition, checkpoint_id: str) -> None:
        self._partition = partition
        self._checkpoint_id = checkpoint_id

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, PerdureError):
            thread, checkpoint = self._partition.thread, self._checkpoint_id
            raise type(error)(f"thread {thread!r}, checkpoint {checkpoint}: {error}") from error


def to_tuple(
    serde: Serde, partition: Partition, record: CheckpointRecord, values: Values, thread: str | None = None
) -> CheckpointTuple:
    """Return LangGraph's form of a stored checkpoint.

    Args:
        serde: Unpacks the metadata.
        partition: The thread.
        record: The checkpoint.
        values: Its values.
        thread: The thread's id that carries a loop. It is part of the configs of the checkpoint and of its
            parent, as a copy of a checkpoint is put on the parent.
    """
    checkpoint: dict[str, Any] = {
        "v": record.v,
        "ts": record.ts,
        "id": record.id,
        "channel_values": values.channels,
        "channel_versions": dict(record.versions),
        "versions_seen": {node: dict(seen) for node, seen in record.versions_seen.items()},
        "updated_channels": None if record.updated is None else list(record.updated),
    }
    if record.extra:
        with error_context(partition, record.id):
            checkpoint.update(serde.unpack(record.extra))
    parent = record.parent_id
    return CheckpointTuple(
        config=config_of(partition, record.namespace, record.id, thread),
        checkpoint=checkpoint,  # type: ignore[arg-type]
        metadata=read_metadata(serde, partition, record),
        parent_config=None if parent is None else config_of(partition, record.namespace, parent, thread),
        pending_writes=values.writes,
    )


def read_metadata(serde: Serde, partition: Partition, record: CheckpointRecord) -> CheckpointMetadata:
    clear = {"source": record.source, "step": record.step, "run_id": record.run_id}
    out: dict[str, Any] = {name: value for name, value in clear.items() if value is not None}
    with error_context(partition, record.id):
        out.update(serde.unpack(record.metadata))
    return out  # type: ignore[return-value]
