"""History of DeltaChannels, whose values are replayed from older checkpoints. The history is read for the
graph, and copied into the first checkpoint of a newer schema version, so that no replay crosses a change of
the schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from langgraph.checkpoint.base import DeltaChannelHistory

from perdure.engine.threads import history
from perdure.engine.threads.chunk_reads import resolve
from perdure.langgraph.migration.schema_values import Payload, ValueConverter
from perdure.langgraph.translate import error_context
from perdure.model.checkpoint import Carried, CarriedWrite, CheckpointRecord
from perdure.model.program import Program
from perdure.model.records import Partition
from perdure.model.values.chunks import Digester
from perdure.model.values.joined_values import join_tree
from perdure.schema.schema import Schema
from perdure.schema.steps import ChannelConverted


class Replay(NamedTuple):
    """The stored history of a DeltaChannel, its payloads by reference, and ``steps``, which returns the
    conversions that apply to values stored by a schema version."""

    carried: Carried
    payloads: Mapping[bytes, Payload]
    steps: Callable[[int], list[ChannelConverted]]

    def seed(self, converted: ValueConverter) -> Any:
        """Return the value from which the replay starts."""
        return converted.convert_value(
            self.payloads[self.carried.seed or b""], self.steps(self.carried.schema)
        )

    def read_update(self, converted: ValueConverter, write: CarriedWrite) -> Any:
        """Return the update of the channel that a write stored."""
        return converted.convert_update(self.payloads[write.ref], self.steps(write.schema))


def read_replays(
    partition: Partition,
    record: CheckpointRecord,
    channels: Iterable[str],
    schema: Schema,
    digest: Digester,
    *,
    generation: int | None = None,
) -> Program[dict[str, Replay]]:
    """Return the histories of DeltaChannels at a checkpoint, by their current names.

    Args:
        partition: The thread.
        record: The stored checkpoint.
        channels: The channels' current names.
        schema: The schema of the application.
        digest: Names the chunks.
        generation: As for ``read_delta_history``.
    """

    def find_former(channel: str, version: int) -> str | None:
        return schema.since(version).find_former_name(channel)

    def steps(channel: str) -> Callable[[int], list[ChannelConverted]]:
        return lambda version: schema.since(version).conversions(find_former(channel, version) or channel)

    found = yield from history.read_delta_history(
        partition, record, channels, find_former, generation=generation
    )
    refs: dict[str, bytes] = {}
    for name, carried in found.items():
        if carried.seed is not None:
            refs[f"{name}\0seed"] = carried.seed
        refs.update((f"{name}\0{i}", write.ref) for i, write in enumerate(carried.writes))
    trees, _ = yield from resolve(partition, refs, digest)
    payloads = {ref: join_tree(trees[key]) for key, ref in refs.items()}
    return {name: Replay(carried, payloads, steps(name)) for name, carried in found.items()}


def to_history(
    partition: Partition, record: CheckpointRecord, replays: Mapping[str, Replay], converted: ValueConverter
) -> dict[str, DeltaChannelHistory]:
    """Return LangGraph's form of the values from which DeltaChannels are rebuilt.

    Args:
        partition: The thread.
        record: The checkpoint.
        replays: The histories, by channel.
        converted: Converts the values.
    """
    out: dict[str, DeltaChannelHistory] = {}
    with error_context(partition, record.id):
        for channel, replay in replays.items():
            writes = [(w.task_id, channel, replay.read_update(converted, w)) for w in replay.carried.writes]
            entry: DeltaChannelHistory = {"writes": writes}
            if replay.carried.seed is not None:
                entry["seed"] = replay.seed(converted)
            out[channel] = entry
    return out


def carry_over(
    replays: Mapping[str, Replay], converted: ValueConverter, encode: Callable[[Any], bytes]
) -> dict[str, Carried]:
    """Return the histories in the form in which a checkpoint of the current version stores them.

    Args:
        replays: The histories, by channel.
        converted: Converts the values.
        encode: Returns the reference of a value.
    """
    out: dict[str, Carried] = {}
    for channel, replay in replays.items():
        carried = replay.carried
        seed = carried.seed
        if seed is not None and replay.steps(carried.schema):
            seed = encode(replay.seed(converted))
        writes = (
            write._replace(ref=encode(replay.read_update(converted, write)))
            if replay.steps(write.schema)
            else write
            for write in carried.writes
        )
        out[channel] = Carried(seed, tuple(writes))
    return out
