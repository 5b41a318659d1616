"""A checkpointer in memory that holds one step of a replay: what it starts from, and what it stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import (
    WRITES_IDX_MAP,
    BaseCheckpointSaver,
    ChannelVersions,
    Checkpoint,
    CheckpointMetadata,
    CheckpointTuple,
    DeltaChannelHistory,
)
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import INTERRUPT
from langgraph.types import Interrupt

from perdure.langgraph.channel_versions import make_next_version
from perdure.model.write_records import NULL_TASK
from perdure.replay.plain_values import snapshot
from perdure.replay.recording import StoredTask, TaskKey, config_of, pair_with_keys

_RESUMING = "__pregel_resuming"
_Place = tuple[str, str, str]


class StepSaver(InMemorySaver):
    """Saver for the runs that replay one step. It overrides the blocking methods of ``InMemorySaver``; the
    asynchronous ones call these.

    Args:
        thread_id: The thread.
        start: Checkpoints from which to start, by namespace.
        deltas: Histories of the outermost graph's DeltaChannels at the start.
    """

    def __init__(
        self,
        thread_id: str,
        start: Mapping[str, CheckpointTuple],
        deltas: Mapping[str, DeltaChannelHistory],
    ) -> None:
        super().__init__()
        self._thread_id = thread_id
        self._deltas = deltas
        self._root_start = start[""]
        self._latest = {name: found._replace(pending_writes=[]) for name, found in start.items()}
        self._steps = {found.checkpoint["id"]: _read_step(found.metadata) for found in start.values()}
        self._fresh = {found.checkpoint["id"] for name, found in start.items() if name}
        self._written: dict[_Place, dict[int, tuple[str, Any, Any]]] = {}
        self._paths: dict[_Place, str] = {}
        self.reached: dict[str, Any] | None = None
        """Values of the outermost graph's channels after the step, as plain data; ``None`` before the
        step's end."""

    def list_stored(self) -> list[StoredTask]:
        """Return the tasks that have stored something, as plain data."""
        return [
            StoredTask(
                place[0],
                self._steps[place[1]] + 1,
                place[2],
                self._paths[place],
                [(channel, shown) for channel, _, shown in slots.values()],
            )
            for place, slots in self._written.items()
        ]

    def list_interrupts(self) -> dict[TaskKey, list[Interrupt]]:
        """Return the interrupts at which tasks wait, each with the innermost task that raised it."""
        out: dict[TaskKey, list[Interrupt]] = {}
        owners: dict[str, TaskKey] = {}
        for key, task in sorted(pair_with_keys(self.list_stored()), key=lambda each: len(each[0])):
            place = next(p for p in self._written if p[0] == task.namespace and p[2] == task.task_id)
            slots = self._written[place]
            if any(slot >= 0 for slot in slots):
                continue
            for _, value, _ in (slots[s] for s in slots if slots[s][0] == INTERRUPT):
                for each in value:
                    if each.id in owners:
                        out[owners[each.id]].remove(each)
                    owners[each.id] = key
                    out.setdefault(key, []).append(each)
        return {key: found for key, found in out.items() if found}

    def get_next_version(self, current: Any, channel: None) -> Any:
        return make_next_version(current)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        namespace = config.get("configurable", {}).get("checkpoint_ns", "")
        found = self._latest.get(namespace)
        if found is None:
            return None
        if namespace and found.checkpoint["id"] in self._fresh:
            # The replayed graph resumes from a checkpoint, and tells its subgraphs to resume as well. But a
            # subgraph with a state of its own got new input in this step; resuming would ignore that input.
            config.get("configurable", {})[_RESUMING] = False
            self._fresh.discard(found.checkpoint["id"])
        pending = [
            (place[2], channel, value)
            for place, slots in self._written.items()
            if place[:2] == (namespace, found.checkpoint["id"])
            for channel, value, _ in slots.values()
        ]
        return found._replace(pending_writes=pending)

    def list(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> Iterator[CheckpointTuple]:
        found = None if config is None else self.get_tuple(config)
        return iter([] if found is None else [found])

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        given = config.get("configurable", {})
        if not given.get("checkpoint_ns") and given.get("checkpoint_id") == self._root_start.checkpoint["id"]:
            return {channel: self._deltas[channel] for channel in channels if channel in self._deltas}
        return BaseCheckpointSaver.get_delta_channel_history(self, config=config, channels=channels)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        namespace = config.get("configurable", {}).get("checkpoint_ns", "")
        stored: RunnableConfig = config_of(self._thread_id, namespace, checkpoint["id"])
        if not namespace and self.reached is not None:
            return stored
        if not namespace:
            self.reached = {name: snapshot(value) for name, value in checkpoint["channel_values"].items()}
        self._steps[checkpoint["id"]] = _read_step(metadata)
        self._latest[namespace] = CheckpointTuple(stored, checkpoint, metadata, config, [])
        return stored

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        given = config.get("configurable", {})
        place = (given.get("checkpoint_ns", ""), given.get("checkpoint_id", ""), task_id)
        if place[1] not in self._steps or (not place[0] and self.reached is not None):
            return
        self._paths[place] = task_path
        slots = self._written.setdefault(place, {})
        for position, (channel, value) in enumerate(writes):
            # Make plain data at once: a node may change the value later.
            slots[WRITES_IDX_MAP.get(channel, position)] = (channel, value, snapshot(value))

    def store_command(self, writes: Sequence[tuple[str, Any]]) -> None:
        """Store the writes of a command on the checkpoint from which the step starts."""
        place = ("", self._root_start.checkpoint["id"], NULL_TASK)
        self._written[place] = {i: (c, v, snapshot(v)) for i, (c, v) in enumerate(writes)}
        self._paths[place] = ""


def _read_step(metadata: Mapping[str, Any]) -> int:
    return int(metadata.get("step", -1))
