"""Answers to interrupts across attempts: each is given to its own interrupt, and once.

The first attempt passes the answer as it was sent. LangGraph stores it with the task that consumed it; an
answer without an interrupt id also stays beside the checkpoint, where the task's next interrupt would find
it. So a later attempt determines which interrupts are answered, removes the leftover, and gives the rest by
id.
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
from perdure.langgraph.readable_states import aread_state
from perdure.langgraph.saver import PerdureSaver
from perdure.model.messages import ANSWERS

_RESUME = "__resume__"
"""Channel of the writes that hold the answers given to a task."""
_NULL_TASK = "00000000-0000-0000-0000-000000000000"
"""Task id under which LangGraph stores an answer without an interrupt id."""
_ID_DIGITS = 32


async def still_to_give(
    graph: Pregel[Any, Any, Any, Any], config: RunnableConfig, held: HeldRun, given: Command[Any]
) -> Command[Any] | None:
    """Return a run's answering command without the answers that an earlier attempt stored.

    Args:
        graph: The graph of the run.
        config: The run's config.
        held: The run, with its lease.
        given: The command as it was accepted.

    Returns:
        The command, or ``None`` if no answer is left.
    """
    saver, resume = graph.checkpointer, given.resume
    asked = held.messages[0].options.get(ANSWERS, ())
    name = asked[0] if len(asked) == 1 and is_by_name({asked[0]: None}) else None
    if name is not None and (resume is None or resume == {}):
        # LangGraph ignores these values unless they are given by id.
        resume = {name: resume}
    if isinstance(saver, PerdureSaver) and is_by_name(resume):
        # Asked before a deploy that renamed the node: the client knows the interrupt by its former id.
        moved = await saver.amoved_interrupts(config)
        resume = {moved.get(asked_as, asked_as): answer for asked_as, answer in resume.items()}
        name = moved.get(name, name) if name is not None else None
        given = replace(given, resume=resume)
    if not isinstance(saver, BaseCheckpointSaver) or (held.run.is_fresh and not is_by_name(resume)):
        return given
    await _take_away_unnamed(saver, config, held)
    if held.run.is_fresh:
        return replace(given, resume=resume)
    state = await aread_state(graph, config, subgraphs=True)
    levels = [level async for level in _levels(saver, state)]
    answered = {name for level in levels for name in level.answered}
    if not is_by_name(resume):
        if name is None or not (name in answered or any(name in level.asked for level in levels)):
            # A pause without an interrupt, or a state that was edited since: no answer was given before.
            return None if answered else given
        resume = {name: resume}
    rest = {name: answer for name, answer in resume.items() if name not in answered}
    return replace(given, resume=rest) if rest else None


def is_by_name(resume: Any) -> TypeGuard[Mapping[str, Any]]:
    """Return True if each answer has the id of its interrupt, by LangGraph's own rule."""
    return (
        isinstance(resume, Mapping)
        and len(resume) > 0
        and all(
            isinstance(name, str) and len(name) == _ID_DIGITS and set(name) <= set("0123456789abcdef")
            for name in resume
        )
    )


async def _take_away_unnamed(saver: BaseCheckpointSaver[Any], config: RunnableConfig, held: HeldRun) -> None:
    """Remove the answer beside the head that has no id: it was consumed, or is given by id."""
    found = await saver.aget_tuple(config)
    if found is None or not any(
        task_id == _NULL_TASK and channel == _RESUME and value is not None
        for task_id, channel, value in found.pending_writes or ()
    ):
        return
    configurable = holding(found.config.get("configurable", {}), held.epoch)
    # None counts as no answer: an answer of None has to be given by id.
    await saver.aput_writes({"configurable": configurable}, [(_RESUME, None)], _NULL_TASK)


class _Level:
    """Tasks of a graph or subgraph: ids of their open interrupts, and of those that were answered."""

    def __init__(self, state: StateSnapshot, writes: Sequence[PendingWrite]) -> None:
        within = state.config.get("configurable", {}).get("checkpoint_ns", "")
        self.asked = {interrupt.id for task in state.tasks for interrupt in task.interrupts}
        self.answered: set[str] = set()
        for task in state.tasks:
            place = f"{within}|{task.name}:{task.id}" if within else f"{task.name}:{task.id}"
            answers: Any = next((v for t, channel, v in writes if t == task.id and channel == _RESUME), [])
            # Old releases of LangGraph stored a single answer, not a list.
            for number in range(len(answers) if isinstance(answers, list) else 1):
                # LangGraph's id of an interrupt includes the number of answers before it.
                asked_at = f"{place}|{number}" if number else place
                self.answered.add(Interrupt.from_ns(None, asked_at).id)


async def _levels(saver: BaseCheckpointSaver[Any], state: StateSnapshot) -> AsyncIterator[_Level]:
    """Yield a state, and the states of the subgraphs that its tasks run."""
    found = await saver.aget_tuple(state.config)
    yield _Level(state, () if found is None else found.pending_writes or ())
    for task in state.tasks:
        if isinstance(task.state, StateSnapshot):
            async for level in _levels(saver, task.state):
                yield level
