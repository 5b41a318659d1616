"""One script for sync and async, and a record of everything that a user of the graph could see."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from itertools import cycle
from typing import Any, TypeVar

from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.errors import EmptyInputError
from langgraph.types import Interrupt, StateSnapshot, StateUpdate

T = TypeVar("T")

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\b[0-9a-f]{32}\b")


def config(thread: str = "t", **more: Any) -> RunnableConfig:
    return {"configurable": {"thread_id": thread, **more}}


class Session:
    """Calls of one graph, sync or async, and the record of what came back, with ids named in order of
    appearance: two sessions that saw the same have equal records. With several savers the calls go to one
    after the other, as in a service of several processes."""

    def __init__(
        self, graph: Any, mode: str, durability: str, savers: Sequence[BaseCheckpointSaver[Any]] = ()
    ) -> None:
        self.graph = graph
        self._savers = cycle(savers or (graph.checkpointer,))
        self.mode = mode
        self.durability = durability
        self.record: list[Any] = []
        self._names: dict[str, str] = {}

    async def _call(self, name: str, *args: Any, **more: Any) -> Any:
        self.graph.checkpointer = next(self._savers)
        if self.mode == "sync":
            return getattr(self.graph, name)(*args, **more)
        return await getattr(self.graph, f"a{name}")(*args, **more)

    async def invoke(self, given: Any, at: RunnableConfig | None = None) -> Any:
        """Run and record the result, or the error."""
        try:
            out = await self._call("invoke", given, at or config(), durability=self.durability)
        except (RuntimeError, EmptyInputError) as error:
            out = error
        self.record.append(("result", self._plain(out)))
        return out

    async def update(self, at: RunnableConfig, values: Any, as_node: str | None = None) -> RunnableConfig:
        return await self._call("update_state", at, values, as_node)

    async def bulk(self, at: RunnableConfig, steps: Sequence[Sequence[StateUpdate]]) -> RunnableConfig:
        return await self._call("bulk_update_state", at, steps)

    async def state(self, at: RunnableConfig | None = None, *, subgraphs: bool = False) -> StateSnapshot:
        """Read the state and record it."""
        found = await self._call("get_state", at or config(), subgraphs=subgraphs)
        self.record.append(("state", self._plain(found)))
        return found

    async def history(self, at: RunnableConfig | None = None) -> list[StateSnapshot]:
        """Read the history, newest first, and record it."""
        self.graph.checkpointer = next(self._savers)
        if self.mode == "sync":
            found = list(self.graph.get_state_history(at or config()))
        else:
            found = [item async for item in self.graph.aget_state_history(at or config())]
        self.record.append(("history", [self._plain(item) for item in found]))
        return found

    async def at(self, *, step: int) -> RunnableConfig:
        """The newest checkpoint of a step. With durability "exit" not every one is stored: the one before
        it, or the oldest of all."""
        found = await self.history()
        before = [item for item in found if item.metadata is not None and item.metadata["step"] <= step]
        return (before[0] if before else found[-1]).config

    def _name(self, found: str) -> str:
        return self._names.setdefault(found, f"id{len(self._names)}")

    def _plain(self, value: Any) -> Any:
        """A value to compare: ids named, classes and objects that only repeat what is there left out."""
        if isinstance(value, str):
            return _ID.sub(lambda match: self._name(match.group()), value)
        if isinstance(value, Interrupt):
            return ("interrupt", self._plain(value.value), self._name(value.id))
        if isinstance(value, BaseMessage):
            return (value.type, value.content, value.id)
        if isinstance(value, BaseException):
            return (type(value).__name__, str(value))
        if isinstance(value, StateSnapshot):
            return self._snapshot(value)
        if isinstance(value, Mapping):
            return {self._plain(k): self._plain(v) for k, v in value.items()}
        if isinstance(value, list | tuple):
            if value and all(isinstance(item, Interrupt) for item in value):
                # Branches that ran side by side ask in any order.
                value = sorted(value, key=lambda item: str(item.value))
            return [self._plain(item) for item in value]
        return value

    def _snapshot(self, found: StateSnapshot) -> dict[str, Any]:
        def place(at: RunnableConfig | None) -> Any:
            keys = ("checkpoint_ns", "checkpoint_id", "checkpoint_map")
            return None if at is None else [self._plain(at["configurable"].get(key)) for key in keys]

        return {
            "config": place(found.config),
            "parent": place(found.parent_config),
            "values": self._plain(found.values),
            "next": list(found.next),
            "metadata": self._plain(found.metadata),
            "interrupts": self._plain(found.interrupts),
            "tasks": [
                {
                    "name": task.name,
                    "error": self._plain(task.error),
                    "interrupts": self._plain(task.interrupts),
                    "result": self._plain(task.result),
                    "state": self._plain(task.state)
                    if isinstance(task.state, StateSnapshot)
                    else place(task.state),
                }
                for task in found.tasks
            ],
        }


Script = Callable[[Session], Coroutine[Any, Any, None]]


def play(script: Callable[[Session], Awaitable[None]], session: Session) -> list[Any]:
    """Run a script to its end and hand back the record. In sync mode there is no event loop."""
    coroutine = script(session)
    assert asyncio.iscoroutine(coroutine)
    if session.mode == "async":
        asyncio.run(coroutine)
        return session.record
    try:
        coroutine.send(None)
    except StopIteration:
        return session.record
    raise AssertionError("a sync script waited for something")
