"""A checkpointer for graphs whose conversation is kept elsewhere: each call has a thread of its own, which is
removed when the call ends."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import ChannelVersions, Checkpoint, CheckpointMetadata, CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver

from perdure.errors import NotAllowed


class DisposableSaver(InMemorySaver):
    """Checkpoints in memory for the length of one call, so that a node may interrupt, or look at the state.

    >>> saver = DisposableSaver()
    >>> graph = builder.compile(checkpointer=saver)
    >>> with saver.call() as config:
    ...     result = graph.invoke(state, config)

    A graph that is called without ``call`` is refused: its checkpoints would stay in memory for ever.
    """

    def __init__(self) -> None:
        super().__init__()
        self._open: set[str] = set()

    @property
    def threads(self) -> int:
        """Number of threads in memory."""
        return len({*self.storage, *(key[0] for key in self.writes), *(key[0] for key in self.blobs)})

    @contextmanager
    def call(self, config: RunnableConfig | None = None) -> Iterator[RunnableConfig]:
        """Return a config with a new thread for one call; the thread is removed at the end of the block."""
        thread_id = uuid.uuid4().hex
        self._open.add(thread_id)
        given: RunnableConfig = config or {}
        try:
            yield {**given, "configurable": {**given.get("configurable", {}), "thread_id": thread_id}}
        finally:
            self._open.discard(thread_id)
            self.delete_thread(thread_id)

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        self._admit(config)
        return super().get_tuple(config)

    def put(
        self,
        config: RunnableConfig,
        checkpoint: Checkpoint,
        metadata: CheckpointMetadata,
        new_versions: ChannelVersions,
    ) -> RunnableConfig:
        self._admit(config)
        return super().put(config, checkpoint, metadata, new_versions)

    def put_writes(
        self, config: RunnableConfig, writes: Sequence[tuple[str, Any]], task_id: str, task_path: str = ""
    ) -> None:
        self._admit(config)
        super().put_writes(config, writes, task_id, task_path)

    def _admit(self, config: RunnableConfig) -> None:
        if config.get("configurable", {}).get("thread_id") not in self._open:
            raise NotAllowed(
                "this graph keeps its checkpoints for one call only; call it with the config of "
                "`with saver.call() as config`. To keep threads, compile it with `db.checkpointer()`"
            )
