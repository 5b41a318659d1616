"""One attempt at a run: the graph is called under the run's epoch, and what it came to becomes an ending."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, cast

from langchain_core.runnables import RunnableConfig
from langgraph.pregel import Pregel
from langgraph.types import Interrupt

from perdure.engine.runs import Ending, Held
from perdure.langgraph.loads import EPOCH
from perdure.model.messages import DONE, WAITING
from perdure.runtime.agents import RESUME, Agent
from perdure.runtime.effects import JOURNAL, Journal

INTERRUPTS = "__interrupt__"


async def attempt(agent: Agent, graph: Pregel[Any, Any, Any, Any], held: Held, journal: Journal) -> Ending:
    """Run the graph for the held run, or go on with it: LangGraph applies an input once for each run id, and
    skips what the run has finished; an answer that an earlier attempt used up is not given again. When
    cancelled, it returns only after the last of its writes has ended."""
    config = config_of(agent, held, journal)
    is_answer = RESUME in held.messages[0].payload
    given = None if is_answer and held.head != held.run.base else agent.to_input(held.messages)
    try:
        values = await graph.ainvoke(given, config, durability=agent.durability)
    except asyncio.CancelledError as cancelled:
        # LangGraph hands over the task in which its last writes go on.
        await _ended(cancelled)
        raise
    snapshot = None
    if graph.interrupt_before_nodes or graph.interrupt_after_nodes or held.run.channel:
        snapshot = await graph.aget_state(config)
    interrupts = values.get(INTERRUPTS, ()) if isinstance(values, Mapping) else ()
    if interrupts or (snapshot is not None and snapshot.next):
        return Ending(WAITING, {"interrupts": [_shown(interrupt) for interrupt in interrupts]})
    replies = agent.to_replies(snapshot.values, held.messages) if snapshot is not None else ()
    return Ending(DONE, {}, tuple(replies))


def config_of(agent: Agent, held: Held, journal: Journal) -> RunnableConfig:
    """The config of a run's invocation: the agent's own, the messages', then what the run is."""
    options = held.messages[0].options.get("config", {})
    configurable = {
        **agent.config.get("configurable", {}),
        **options.get("configurable", {}),
        "thread_id": held.partition.thread,
        EPOCH: held.epoch,
        JOURNAL: journal,
    }
    metadata = {
        **agent.config.get("metadata", {}),
        **options.get("metadata", {}),
        "run_id": held.run.id,
        "graph_id": held.run.graph,
    }
    rest = {**agent.config, **options}
    return cast(RunnableConfig, {**rest, "configurable": configurable, "metadata": metadata})


async def _ended(cancelled: asyncio.CancelledError) -> None:
    for left in cancelled.args:
        if isinstance(left, asyncio.Task):
            await asyncio.wait([left])


def _shown(interrupt: Interrupt) -> dict[str, Any]:
    """An interrupt as it is noted: its id. What it asks stands in the checkpoint."""
    return {"id": interrupt.id}
