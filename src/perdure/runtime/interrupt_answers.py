"""What of an answer is still to be given: it goes to the question it was given for, and once.

The first attempt gives it as it came. LangGraph keeps it with the task that used it; one that names no
interrupt also stays beside the checkpoint, where the task's next question would find it. So a later attempt
looks which questions have their answer, takes away what is left over, and gives the rest by name.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver, PendingWrite
from langgraph.pregel import Pregel
from langgraph.types import Command, Interrupt, StateSnapshot

from perdure.engine.runs import HeldRun
from perdure.langgraph.loop_state import holding
from perdure.model.messages import ANSWERS

_RESUME = "__resume__"
"""The channel of the writes that hold answers: of a task's, those that it was given."""
_NOBODY = "00000000-0000-0000-0000-000000000000"
"""The task under whose id LangGraph stores an answer that names no interrupt."""
_ID_DIGITS = 32


async def still_to_give(
    graph: Pregel[Any, Any, Any, Any], config: RunnableConfig, held: HeldRun, given: Command[Any]
) -> Command[Any] | None:
    """The command of a run that answers, without what an earlier attempt has stored of it; ``None`` when
    nothing is left."""
    saver, resume = graph.checkpointer, given.resume
    asked = held.messages[0].options.get(ANSWERS, ())
    name = asked[0] if len(asked) == 1 and is_by_name({asked[0]: None}) else None
    if name is not None and (resume is None or resume == {}):
        # LangGraph takes these for no answer, where they have no name.
        resume = {name: resume}
    if not isinstance(saver, BaseCheckpointSaver) or (held.run.is_fresh and not is_by_name(resume)):
        return given
    await _take_away_unnamed(saver, config, held)
    if held.run.is_fresh:
        return replace(given, resume=resume)
    state = await graph.aget_state(config, subgraphs=True)
    levels = [level async for level in _levels(saver, state)]
    answered = {name for level in levels for name in level.answered}
    if not is_by_name(resume):
        if name is None or not (name in answered or any(name in level.asked for level in levels)):
            # A pause that asked nothing, or a state that was edited since: nobody had an answer before.
            return None if answered else given
        resume = {name: resume}
    rest = {name: answer for name, answer in resume.items() if name not in answered}
    return replace(given, resume=rest) if rest else None


def is_by_name(resume: Any) -> TypeGuard[Mapping[str, Any]]:
    """Whether it says of each answer which interrupt it is for, by LangGraph's own rule."""
    return (
        isinstance(resume, Mapping)
        and len(resume) > 0
        and all(
            isinstance(name, str) and len(name) == _ID_DIGITS and set(name) <= set("0123456789abcdef")
            for name in resume
        )
    )


async def _take_away_unnamed(saver: BaseCheckpointSaver[Any], config: RunnableConfig, held: HeldRun) -> None:
    """Take away the answer that stands beside the head without a name: it was used, or is given by name."""
    found = await saver.aget_tuple(config)
    if found is None or not any(
        task_id == _NOBODY and channel == _RESUME and value is not None
        for task_id, channel, value in found.pending_writes or ()
    ):
        return
    configurable = holding(found.config.get("configurable", {}), held.epoch)
    # None counts as nothing: an answer of None cannot be given without a name.
    await saver.aput_writes({"configurable": configurable}, [(_RESUME, None)], _NOBODY)


class _Level:
    """The tasks of a graph, or of a subgraph: the ids of what they ask, and of what they asked before and
    was answered."""

    def __init__(self, state: StateSnapshot, writes: Sequence[PendingWrite]) -> None:
        within = state.config.get("configurable", {}).get("checkpoint_ns", "")
        self.asked = {interrupt.id for task in state.tasks for interrupt in task.interrupts}
        self.answered: set[str] = set()
        for task in state.tasks:
            place = f"{within}|{task.name}:{task.id}" if within else f"{task.name}:{task.id}"
            answers: Any = next((v for t, channel, v in writes if t == task.id and channel == _RESUME), [])
            # One that old releases of LangGraph stored is no list.
            for number in range(len(answers) if isinstance(answers, list) else 1):
                # LangGraph counts the answers before a question into its id.
                asked_at = f"{place}|{number}" if number else place
                self.answered.add(Interrupt.from_ns(None, asked_at).id)


async def _levels(saver: BaseCheckpointSaver[Any], state: StateSnapshot) -> AsyncIterator[_Level]:
    """A state, and those of the subgraphs that its tasks are."""
    found = await saver.aget_tuple(state.config)
    yield _Level(state, () if found is None else found.pending_writes or ())
    for task in state.tasks:
        if isinstance(task.state, StateSnapshot):
            async for level in _levels(saver, task.state):
                yield level
