"""One saver behind one graph, driven as its users would: `invoke` for a sync saver, else `ainvoke`.

The line without a checkpointer carries its state from turn to turn itself, as a program without one has to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from datetime import UTC, datetime
from functools import partial
from typing import Any

from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import Checkpoint, CheckpointTuple, copy_checkpoint
from langgraph.checkpoint.base.id import uuid6

from bench.candidate import Candidate, Saver
from bench.corpus import text
from bench.graphs import MESSAGE_BYTES, Payload, Scenario

State = dict[str, Any]


def config_of(thread: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread}}


class Client:
    """Not safe for two turns of one thread at once when the candidate keeps nothing."""

    def __init__(
        self,
        candidate: Candidate,
        scenario: Scenario,
        saver: Saver | None,
        *,
        pause: float = 0.0,
        executor: Executor | None = None,
    ) -> None:
        self._sync = candidate.sync
        self._saver = saver
        self._executor = executor
        builder = scenario.graph(sync=candidate.sync, delta=candidate.delta, pause=pause)
        self._graph: Any = builder.compile(checkpointer=saver)
        self._held: dict[str, State] = {}

    @property
    def saver(self) -> Saver:
        if self._saver is None:
            raise RuntimeError("this candidate has no saver; ask only for turns")
        return self._saver

    async def turn(self, thread: str, payload: Payload) -> State:
        """Returns once the saver has acknowledged everything that the turn wrote."""
        if self._saver is None:
            return await self._turn_without_saver(thread, payload)
        config = config_of(thread)
        if not self._sync:
            state: State = await self._graph.ainvoke(payload, config)
        elif self._executor is None:
            state = self._graph.invoke(payload, config)
        else:
            call = partial(self._graph.invoke, payload, config)
            state = await asyncio.get_running_loop().run_in_executor(self._executor, call)
        return state

    async def _turn_without_saver(self, thread: str, payload: Payload) -> State:
        held = self._held.get(thread, {})
        messages = [*held.get("messages", ()), *payload["messages"]]
        state: State = await self._graph.ainvoke({**held, **payload, "messages": messages})
        self._held[thread] = state
        return state

    async def state(self, thread: str) -> State:
        if self._saver is None:
            return self._held[thread]
        config = config_of(thread)
        snapshot = self._graph.get_state(config) if self._sync else await self._graph.aget_state(config)
        values: State = snapshot.values
        return values

    async def load(self, thread: str) -> CheckpointTuple | None:
        config = config_of(thread)
        return self.saver.get_tuple(config) if self._sync else await self.saver.aget_tuple(config)

    async def list_checkpoints(self, thread: str, limit: int | None) -> Sequence[CheckpointTuple]:
        config = config_of(thread)
        if self._sync:
            return list(self.saver.list(config, limit=limit))
        return [found async for found in self.saver.alist(config, limit=limit)]

    async def history(self, thread: str, limit: int) -> int:
        config = config_of(thread)
        if self._sync:
            return sum(1 for _ in self._graph.get_state_history(config, limit=limit))
        count = 0
        async for _ in self._graph.aget_state_history(config, limit=limit):
            count += 1
        return count

    async def prune(self, thread: str) -> None:
        """Raise ``NotImplementedError`` if the saver cannot."""
        if self._sync:
            self.saver.prune([thread], strategy="keep_latest")
        else:
            await self.saver.aprune([thread], strategy="keep_latest")

    async def put(self, found: CheckpointTuple, checkpoint: Checkpoint) -> RunnableConfig:
        metadata: Any = {"source": "loop", "step": int(found.metadata.get("step", 0)) + 1, "parents": {}}
        versions = {"messages": checkpoint["channel_versions"]["messages"]}
        if self._sync:
            return self.saver.put(found.config, checkpoint, metadata, versions)
        return await self.saver.aput(found.config, checkpoint, metadata, versions)

    def successor(self, found: CheckpointTuple, number: int) -> Checkpoint:
        """What a loop would put next: one more message, a new id, a new version of the channel."""
        checkpoint = copy_checkpoint(found.checkpoint)
        checkpoint["id"] = str(uuid6(clock_seq=number))
        checkpoint["ts"] = datetime.now(UTC).isoformat()
        values = dict(checkpoint["channel_values"])
        if isinstance(values.get("messages"), list):
            said = HumanMessage(text(f"put {number}", MESSAGE_BYTES), id=f"put-{number}")
            values["messages"] = [*values["messages"], said]
        checkpoint["channel_values"] = values
        version = self.saver.get_next_version(checkpoint["channel_versions"]["messages"], None)
        checkpoint["channel_versions"] = {**checkpoint["channel_versions"], "messages": version}
        return checkpoint
