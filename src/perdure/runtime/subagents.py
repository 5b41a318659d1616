"""A graph as one step of another: it works without checkpoints of its own, and only its result is kept."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from langchain_core.runnables import RunnableConfig, RunnableLambda
from langgraph.pregel import Pregel

from perdure.runtime.isolated_tasks import isolate

State = TypeVar("State")


def isolated_subgraph(
    graph: Pregel[Any, Any, Any, Any],
    give: Callable[[State], Any],
    take: Callable[[Any], Mapping[str, Any]],
    *,
    name: str | None = None,
) -> RunnableLambda[State, Mapping[str, Any]]:
    """A node that runs ``graph`` on ``give(state)`` and returns ``take(result)``. None of its steps is
    checkpointed, nor of graphs inside it, so the thread stays as thin as what it hands back. A crash in the
    middle repeats the whole step: let its side effects go through ``effect``, whose keys stay the same."""
    unsaved = graph.copy(update={"checkpointer": False})

    async def step(state: State, config: RunnableConfig) -> Mapping[str, Any]:
        return take(await unsaved.ainvoke(give(state), isolate(config)))

    def step_sync(state: State, config: RunnableConfig) -> Mapping[str, Any]:
        return take(unsaved.invoke(give(state), isolate(config)))

    return RunnableLambda(step_sync, afunc=step, name=name or graph.get_name())
