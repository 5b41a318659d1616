"""A view of a saver that shows only some parts of the checkpoints that it loads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

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
from langgraph.checkpoint.serde.types import ERROR, INTERRUPT, TASKS
from langgraph.errors import InvalidUpdateError

NULL_TASK = "00000000-0000-0000-0000-000000000000"
"""Task id under which LangGraph stores updates of commands."""
_INTERNAL = ("__", "branch:")
"""Prefixes of LangGraph's own channels."""


class StatePart(NamedTuple):
    """A part of a checkpoint: the value of a channel, the tasks that come next, or the update of a task."""

    namespace: str
    checkpoint_id: str
    kind: Literal["value", "tasks", "update"]
    name: str


def update_refused(by: str, channels: Sequence[str], kind: str) -> str:
    """Return the description of an update that a graph refuses."""
    of = f" of {', '.join(channels)}" if channels else ""
    return f"The graph refused the update{of} by {by} ({kind}); it is left out."


class PartialSaver(BaseCheckpointSaver[Any]):
    """A view of a saver: of the checkpoints that are loaded it shows only the parts that are admitted.

    Attributes:
        parts: the parts of the loaded state, in the order in which a graph uses them.
        channels: the names of the channels of each value and update.

    Args:
        saver: the saver.
        nodes: the nodes of the graph and its subgraphs.
        admits: returns True for a part that is shown.
        refused: the parts that the graph refuses, with the error of each. A task whose update is refused is
            shown as failed.
    """

    def __init__(
        self,
        saver: BaseCheckpointSaver[Any],
        nodes: Iterable[str],
        admits: Callable[[StatePart], bool],
        refused: Mapping[StatePart, Exception],
    ) -> None:
        super().__init__()
        self._saver, self._nodes, self._admits, self._refused = saver, tuple(nodes), admits, refused
        self.parts: list[StatePart] = []
        self.channels: dict[StatePart, Sequence[str]] = {}

    def get_next_version(self, current: Any, channel: None) -> Any:
        """See the base class."""
        return self._saver.get_next_version(current, channel)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """See the base class."""
        found = self._saver.get_tuple(config)
        if found is None:
            return None
        return self._make_partial(found)

    async def aget_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        """See the base class."""
        found = await self._saver.aget_tuple(config)
        if found is None:
            return None
        return self._make_partial(found)

    async def alist(
        self,
        config: RunnableConfig | None,
        *,
        filter: dict[str, Any] | None = None,
        before: RunnableConfig | None = None,
        limit: int | None = None,
    ) -> AsyncIterator[CheckpointTuple]:
        """See the base class."""
        async for found in self._saver.alist(config, filter=filter, before=before, limit=limit):
            yield self._make_partial(found)

    def get_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """See the base class."""
        return self._saver.get_delta_channel_history(
            config=config, channels=self._find_replayed(config, channels)
        )

    async def aget_delta_channel_history(
        self, *, config: RunnableConfig, channels: Sequence[str]
    ) -> Mapping[str, DeltaChannelHistory]:
        """See the base class."""
        names = self._find_replayed(config, channels)
        return await self._saver.aget_delta_channel_history(config=config, channels=names)

    async def aput(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        """See the base class."""
        return await self._saver.aput(config, checkpoint, metadata, new_versions)

    async def aput_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        """See the base class."""
        await self._saver.aput_writes(config, writes, task_id, task_path)

    def _make_partial(self, found: CheckpointTuple) -> CheckpointTuple:
        configurable = found.config.get("configurable") or {}
        namespace, found_id = configurable.get("checkpoint_ns", ""), found.checkpoint["id"]
        values = {
            name: value
            for name, value in found.checkpoint["channel_values"].items()
            if name == TASKS or self._admit_part(StatePart(namespace, found_id, "value", name), [name])
        }
        checkpoint: Checkpoint = {**found.checkpoint, "channel_values": values}
        if not self._admit_part(StatePart(namespace, found_id, "tasks", "")):
            values.pop(TASKS, None)
            # As if all nodes had seen all channels, so that no task comes next.
            checkpoint["versions_seen"] = {name: dict(checkpoint["channel_versions"]) for name in self._nodes}
        pending = list(found.pending_writes or ())
        updates: dict[str, list[str]] = {}
        for task_id, channel, _ in pending:
            if channel not in WRITES_IDX_MAP:
                named = updates.setdefault(task_id, [])
                if channel.startswith(_INTERNAL):
                    named += []
                else:
                    named += [channel]
        hidden: dict[str, Exception | None] = {}
        for task_id, channels in updates.items():
            part = StatePart(namespace, found_id, "update", task_id)
            if not self._admit_part(part, channels):
                hidden[task_id] = self._refused.get(part)
        # Of a hidden task, errors and answers are shown, but no questions: they were answered before its
        # update.
        shown = [
            each
            for each in pending
            if each[0] not in hidden or (each[1] in WRITES_IDX_MAP and each[1] != INTERRUPT)
        ]
        for task_id, error in hidden.items():
            if error is not None and task_id != NULL_TASK:
                text = update_refused("this task", updates[task_id], type(error).__name__)
                shown.append((task_id, ERROR, InvalidUpdateError(text)))
        return found._replace(checkpoint=checkpoint, pending_writes=shown)

    def _find_replayed(self, config: RunnableConfig, channels: Sequence[str]) -> list[str]:
        """Return the channels whose values are admitted, of those that are replayed from writes."""
        configurable = config.get("configurable") or {}
        place = configurable.get("checkpoint_ns", ""), configurable.get("checkpoint_id", "")
        return [name for name in channels if self._admit_part(StatePart(*place, "value", name), [name])]

    def _admit_part(self, part: StatePart, channels: Sequence[str] = ()) -> bool:
        if part not in self.channels:
            self.parts.append(part)
        self.channels[part] = channels
        return self._admits(part)
