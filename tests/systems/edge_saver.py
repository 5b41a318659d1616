"""A loop of one's own over a checkpoint saver on D1: no graph, only ``put``, ``put_writes``, ``get_tuple``
and ``list``.

The state is a conversation. A step reads the latest checkpoint, adds two messages, stores its writes and then
the next checkpoint. A cron trigger compacts.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, Checkpoint, CheckpointMetadata, empty_checkpoint
from langgraph.checkpoint.base.id import uuid6

import perdure
from perdure.retention.sweeper import RetentionOptions

R = TypeVar("R")


def at(thread_id: str, checkpoint_id: str | None = None) -> RunnableConfig:
    """The config of a thread's latest checkpoint, or of a given one."""
    found = {"thread_id": thread_id, "checkpoint_ns": ""}
    return {"configurable": found if checkpoint_id is None else {**found, "checkpoint_id": checkpoint_id}}


def step(saver: BaseCheckpointSaver[Any], where: RunnableConfig, text: str) -> RunnableConfig:
    """Answer a text after the checkpoint of a config; return the config of the next one."""
    before = saver.get_tuple(where)
    checkpoint = empty_checkpoint() if before is None else before.checkpoint
    number = 0 if before is None else int(before.metadata.get("step", 0)) + 1
    messages = [*checkpoint["channel_values"].get("messages", []), text, f"{number}: heard {text}"]
    parent = at(where["configurable"]["thread_id"]) if before is None else before.config
    if before is not None:
        saver.put_writes(before.config, [("messages", messages[-2:])], task_id=f"task-{number}")
    version: Any = saver.get_next_version(checkpoint["channel_versions"].get("messages"), None)
    following: Checkpoint = {
        **checkpoint,
        "id": str(uuid6()),
        "channel_values": {**checkpoint["channel_values"], "messages": messages},
        "channel_versions": {**checkpoint["channel_versions"], "messages": version},
    }
    metadata: CheckpointMetadata = {"source": "loop", "step": number, "parents": {}}
    return saver.put(parent, following, metadata, {"messages": version})


def messages(saver: BaseCheckpointSaver[Any], where: RunnableConfig) -> list[str]:
    """The conversation at a checkpoint."""
    found = saver.get_tuple(where)
    return [] if found is None else list(found.checkpoint["channel_values"].get("messages", []))


def compact(database: perdure.SyncDatabase) -> int:
    """What the scheduled trigger does; return how many checkpoints went."""
    swept = database.apply_retention(RetentionOptions(share=1.0))
    return 0 if swept is None else swept.checkpoints


class DurableObject:
    """The object of a thread: requests to it are served one after the other, as a Durable Object's are."""

    def __init__(self, open_saver: Callable[[], BaseCheckpointSaver[Any]], thread_id: str) -> None:
        self._gate = threading.Lock()
        self._saver = open_saver()
        self._thread_id = thread_id

    def fetch(self, text: str) -> RunnableConfig:
        """Serve a request; the next one waits at the gate."""
        with self._gate:
            return step(self._saver, at(self._thread_id), text)
