"""Isolated subgraphs: a graph as one step of another, without checkpoints of its own; only its result is
stored."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.pregel import Pregel

from perdure.runtime.nodes.repeatable_task_names import isolate

State = TypeVar("State")


def isolated_subgraph(
    graph: Pregel[Any, Any, Any, Any],
    give: Callable[[State], Any],
    take: Callable[[Any], Mapping[str, Any]],
    *,
    name: str | None = None,
) -> RunnableLambda[State, Mapping[str, Any]]:
    """Return a node that runs ``graph`` without checkpoints of its steps or of graphs inside it.

    The thread stores only its result. A crash repeats the whole step: pass its side effects through
    ``effect``, whose keys stay the same.

    Args:
        graph: The graph to run.
        give: Returns the graph's input from the state.
        take: Returns the node's update from the graph's result.
        name: The name of the node; by default the graph's.
    """
    unsaved = graph.copy(update={"checkpointer": False})

    async def step(state: State, config: RunnableConfig) -> Mapping[str, Any]:
        return take(await unsaved.ainvoke(give(state), isolate(config)))

    def step_sync(state: State, config: RunnableConfig) -> Mapping[str, Any]:
        return take(unsaved.invoke(give(state), isolate(config)))

    return RunnableLambda(step_sync, afunc=step, name=name or graph.get_name())
