"""A graph as one step of another: it works without checkpoints of its own, and only its result is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.pregel import Pregel

State = TypeVar("State")

DURABILITY = "__pregel_durability"
"""LangGraph's configurable key for the durability that a graph's subgraphs take over."""


def distilled(
    graph: Pregel[Any, Any, Any, Any],
    give: Callable[[State], Any],
    take: Callable[[Any], Mapping[str, Any]],
    *,
    name: str | None = None,
) -> RunnableLambda[State, Mapping[str, Any]]:
    """A node that runs ``graph`` on ``give(state)`` and returns ``take(result)``. None of its steps is
    checkpointed, so the thread stays as thin as what it hands back. A crash in the middle repeats the whole
    step: let its side effects go through ``effect``, whose keys stay the same."""
    unsaved = graph.copy(update={"checkpointer": False})

    async def step(state: State, config: RunnableConfig) -> Mapping[str, Any]:
        return take(await unsaved.ainvoke(give(state), _own(config)))

    def step_sync(state: State, config: RunnableConfig) -> Mapping[str, Any]:
        return take(unsaved.invoke(give(state), _own(config)))

    return RunnableLambda(step_sync, afunc=step, name=name or graph.get_name())


def _own(config: RunnableConfig) -> RunnableConfig:
    """The config without the durability of the graph around: LangGraph waits for the checkpoint of a step,
    and fails where there is none."""
    return {**config, "configurable": {**config.get("configurable", {}), DURABILITY: "async"}}
