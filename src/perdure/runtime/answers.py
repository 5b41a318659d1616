"""What of an answer is still to be given: it goes to the question it was given for, and once.

LangGraph notes an answer that names no interrupt beside the checkpoint, where the next question of the same
step finds it too; and an answer to a task's first question that is given again counts as the next one's. So
every answer is given by name, and an attempt that is not the first leaves out what is stored already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from string import hexdigits
from typing import Any, TypeGuard

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.pregel import Pregel
from langgraph.types import Command, Interrupt, StateSnapshot

from perdure.engine.runs import Held
from perdure.model.messages import ANSWERS

RESUME_CHANNEL = "__resume__"
"""The channel of a task's writes that holds the answers it was given."""
_ID_DIGITS = 32


async def still_to_give(
    graph: Pregel[Any, Any, Any, Any], config: RunnableConfig, held: Held, given: Command[Any]
) -> Command[Any] | None:
    """The command of a run that answers, by name, without what an earlier attempt has stored; ``None`` when
    nothing is left of it. The answer to a pause that asked nothing has no name."""
    asked = held.messages[0].options.get(ANSWERS, ())
    if is_by_name(given.resume):
        resume: dict[str, Any] = dict(given.resume)
    elif len(asked) == 1:
        resume = {asked[0]: given.resume}
    else:
        return given
    if not held.run.is_fresh and isinstance(graph.checkpointer, BaseCheckpointSaver):
        used = await _used(graph.checkpointer, await graph.aget_state(config, subgraphs=True))
        resume = {name: answer for name, answer in resume.items() if name not in used}
    if resume or given.update is not None or given.goto:
        return replace(given, resume=resume or None)
    return None


def is_by_name(resume: Any) -> TypeGuard[Mapping[str, Any]]:
    """Whether it says of each answer which interrupt it is for, by LangGraph's own rule."""
    return (
        isinstance(resume, Mapping)
        and len(resume) > 0
        and all(
            isinstance(name, str) and len(name) == _ID_DIGITS and set(name) <= set(hexdigits)
            for name in resume
        )
    )


async def _used(saver: BaseCheckpointSaver[Any], state: StateSnapshot) -> set[str]:
    """The ids of first questions whose tasks hold an answer already, in the subgraphs too. LangGraph itself
    tells later questions from each other: their ids count the answers before them."""
    found = await saver.aget_tuple(state.config)
    writes = found.pending_writes or () if found is not None else ()
    answered = {task_id for task_id, channel, _ in writes if channel == RESUME_CHANNEL}
    within = state.config.get("configurable", {}).get("checkpoint_ns", "")
    used: set[str] = set()
    for task in state.tasks:
        if task.id in answered:
            place = f"{task.name}:{task.id}"
            used.add(Interrupt.from_ns(None, f"{within}|{place}" if within else place).id)
        if isinstance(task.state, StateSnapshot):
            used |= await _used(saver, task.state)
    return used
