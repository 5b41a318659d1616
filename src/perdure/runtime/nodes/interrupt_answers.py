"""Answers to interrupts across attempts: each reaches its own interrupt, exactly once.

An answer is given by the id of its interrupt. LangGraph keeps an answer without an id beside the checkpoint,
where the task's next interrupt would find it. That form is used only for a stop before or after a node, which
has no id, and for a task that is not stored and has another id each time; such an answer is removed when the
run asks again. A later attempt leaves out what an earlier one has stored: the answers that tasks have taken,
and what a command writes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import WRITES_IDX_MAP, BaseCheckpointSaver, PendingWrite
from langgraph.pregel import Pregel
from langgraph.types import Command, StateSnapshot

from perdure.database.handle import DatabaseHandle
from perdure.engine.queue import questions
from perdure.engine.queue.runs import HeldRun
from perdure.errors import NotAllowed
from perdure.langgraph.early_loads import keep_for_next_load
from perdure.langgraph.loop_state import with_lease
from perdure.langgraph.reading.open_interrupts import interrupt_id, is_by_name
from perdure.langgraph.reading.readable_states import aread_state
from perdure.langgraph.saver import PerdureSaver
from perdure.model.runs.messages import ANSWERS, START
from perdure.model.write_records import INTERRUPT, NULL_TASK, RESUME
from perdure.runtime.agents.run_context import with_configurable


class StillToGive(NamedTuple):
    """Input that a run gives its graph: the rest of its command, or ``None`` if nothing of it is left, so
    that the graph goes on without input. ``kept_by_none`` are the tasks of which it answers questions that
    graphs without checkpoints ask: nothing keeps these answers."""

    command: Command[Any] | None
    kept_by_none: frozenset[str] = frozenset()


async def select_still_to_give(
    graph: Pregel[Any, Any, Any, Any],
    config: RunnableConfig,
    held: HeldRun,
    command: Command[Any],
    database: DatabaseHandle,
) -> StillToGive:
    """Return a run's command without the parts that an earlier attempt has stored.

    Args:
        graph: The graph of the run.
        config: The run's config.
        held: The run, with its lease.
        command: The command as it was accepted.
        database: The handle of the database.

    Raises:
        NotAllowed: The command goes to another node and would abandon an open question.
    """
    saver, message = graph.checkpointer, held.messages[0]
    if not isinstance(saver, PerdureSaver):
        return StillToGive(command)
    if not held.run.is_fresh and await database.arun(questions.has_written(held.partition, held.run)):
        command = replace(command, update=None, goto=())
    if message.mode != "answer":
        # Once an earlier attempt has stored the goto, ``command`` has none: an open question may then come
        # from the node that it led to, and stays.
        if command.goto and questions.would_abandon_question(message.payload):
            await _refuse_leaving(graph, config, held)
        if (asked := message.options.get(ANSWERS)) is not None:
            # To a question of an older checkpoint, where an answer without an id would stay for the next one.
            moved = await saver.amoved_interrupts(_at_start(config, held))
            past = _map_by_id(command.resume, asked) or {}
            by_id = {moved.get(name, name): answer for name, answer in past.items()}
            command = replace(command, resume=by_id or command.resume)
        return StillToGive(_without_empty(command))
    answers = _map_by_id(command.resume, message.options.get(ANSWERS, ()))
    if answers is None:
        return StillToGive(await _select_answer_to_pause(graph, saver, config, held, command))
    # Asked before a deploy that renamed the node: the client knows the interrupt by its former id.
    moved = await saver.amoved_interrupts(config)
    answers = {moved.get(name, name): answer for name, answer in answers.items()}
    levels = await _load_levels(graph, saver, config)
    asked = {name for level in levels for name in level.asked}
    answered = {name for level in levels for name in level.answered}
    asking = _find_asking_tasks(levels)
    of_unstored = answers.keys() - asked - answered
    kept_by_none = frozenset(task for name, task in asking.items() if name in of_unstored)
    # A graph with checkpoints that is elsewhere may have gone on with the answer, or was begun anew.
    has_moved = any(
        task in level.states and (level.states[task].next or not held.run.is_fresh)
        for task in kept_by_none
        for level in levels
    )
    # An attempt that failed within a graph without checkpoints has kept nothing of the answer: the next one
    # gives it again.
    is_needed = not has_moved and (held.run.is_fresh or asking.keys() == of_unstored)
    if len(answers) == 1 and of_unstored and is_needed:
        (only_answer,) = answers.values()
        if only_answer is not None:
            return StillToGive(replace(command, resume=only_answer), kept_by_none)
    if not held.run.is_fresh:
        answers = {name: answer for name, answer in answers.items() if name not in answered}
    await remove_unnamed(saver, config, held)
    return StillToGive(_without_empty(replace(command, resume=answers or None)), kept_by_none)


async def refuse_to_ask_again(
    graph: Pregel[Any, Any, Any, Any], config: RunnableConfig, answered: Collection[str]
) -> None:
    """Raise ``NotAllowed`` if tasks ask again after a run that answered a question of a graph without
    checkpoints below them. Nothing keeps the answer: the next one would start the graph anew, and reach its
    first question, so that a wait with a deadline would go on for ever."""
    saver = graph.checkpointer
    if not answered or not isinstance(saver, PerdureSaver):
        return
    levels = await _load_levels(graph, saver, config)
    kept = {task for level in levels for task in level.kept}
    again = set(_find_asking_tasks(levels).values()).intersection(answered) - kept
    if not again:
        return
    name = next(level.names[task] for level in levels for task in again if task in level.names)
    raise NotAllowed(
        f"node {name!r} waits again, after the answer to a question, sleep or wait of a graph in it that "
        "keeps no checkpoints: such a graph begins again with each answer, and forgets the one before. Let "
        "it wait once, not side by side with others, and for something other than None; or let it keep "
        "checkpoints (compile it without checkpointer=False, and add it as a node in place of "
        "isolated_subgraph); or wait in a node of its own"
    )


def _map_by_id(resume: Any, asked: Sequence[str]) -> Mapping[str, Any] | None:
    """Return answers by the id of their interrupts; ``None`` if nothing with an id was asked."""
    if is_by_name(resume) and set(resume) <= set(asked):
        return resume
    if len(asked) == 1 and is_by_name({asked[0]: None}):
        return {asked[0]: resume}
    return None


def _without_empty(command: Command[Any]) -> Command[Any] | None:
    """Return a command, ``None`` if it asks for nothing."""
    if command.resume is not None or command.update or command.goto:
        return command
    return None


async def _select_answer_to_pause(
    graph: Pregel[Any, Any, Any, Any],
    saver: PerdureSaver,
    config: RunnableConfig,
    held: HeldRun,
    command: Command[Any],
) -> Command[Any] | None:
    """Return the answer to a stop before or after a node, or to a state that was edited since: LangGraph
    gives it to the interrupt that comes first."""
    if not held.run.is_fresh:
        await remove_unnamed(saver, config, held)
        if any(level.answered for level in await _load_levels(graph, saver, config)):
            command = replace(command, resume=None)
    return _without_empty(command)


async def _refuse_leaving(graph: Pregel[Any, Any, Any, Any], config: RunnableConfig, held: HeldRun) -> None:
    with keep_for_next_load():
        state = await aread_state(graph, _at_start(config, held))
    if state.interrupts:
        asked = [interrupt.id for interrupt in state.interrupts]
        raise NotAllowed(questions.describe_abandoning(held.partition.thread, asked))


def _at_start(config: RunnableConfig, held: HeldRun) -> RunnableConfig:
    """Return the config that names the checkpoint from which a run starts, if not the latest."""
    if (start := held.messages[0].options.get(START)) is None:
        return config
    return with_configurable(config, {"checkpoint_id": start})


async def remove_unnamed(
    saver: BaseCheckpointSaver[Any] | bool | None, config: RunnableConfig, held: HeldRun
) -> None:
    """Remove an answer without an id that is stored at the newest checkpoint: it was consumed, or is given
    by id now."""
    if not isinstance(saver, PerdureSaver):
        return
    with keep_for_next_load():
        head = await saver.aget_tuple(config)
    if head is None or not any(
        task_id == NULL_TASK and channel == RESUME and value is not None
        for task_id, channel, value in head.pending_writes or ()
    ):
        return
    configurable = with_lease(head.config.get("configurable", {}), held.epoch)
    # A stored None counts as no answer; an answer that is None therefore has to be given by id.
    await saver.aput_writes({"configurable": configurable}, [(RESUME, None)], NULL_TASK)


class _Level:
    """Interrupts of the tasks of one graph or subgraph, by id: ``answered``, and ``asked``, those that come
    next. ``tasks`` are the tasks by the ids of the interrupts that they and the graphs in them have left,
    ``names`` their nodes. ``kept`` are the calls of functional tasks whose answers are stored: only their
    caller is among the tasks of a state. ``ended`` are the tasks that have a result, ``states`` what
    the graphs with checkpoints in them have stored."""

    def __init__(self, state: StateSnapshot, writes: Sequence[PendingWrite]) -> None:
        self.tasks = {asked.id: task.id for task in state.tasks for asked in task.interrupts}
        self.names = {task.id: task.name for task in state.tasks}
        self.states = {task.id: task.state for task in state.tasks if isinstance(task.state, StateSnapshot)}
        calls = [write for write in writes if write[0] not in {*self.names, NULL_TASK}]
        self.ended = {task_id for task_id, channel, _ in writes if channel not in WRITES_IDX_MAP}
        self.kept = {call for call, channel, _ in calls if channel == RESUME}
        for call, channel, left in calls:
            for asked in left if channel == INTERRUPT else ():
                self.names[call] = self.names.get(self.tasks.get(asked.id, ""), "")
                self.tasks[asked.id] = call
        within = state.config.get("configurable", {}).get("checkpoint_ns", "")
        self.asked: set[str] = set()
        self.answered: set[str] = set()
        for task in state.tasks:
            place = "|".join(filter(None, (within, f"{task.name}:{task.id}")))
            answers: Any = next((v for t, channel, v in writes if t == task.id and channel == RESUME), [])
            # Old releases of LangGraph stored a single answer, not a list.
            count = len(answers) if isinstance(answers, list) else 1
            self.answered.update(interrupt_id(place, number) for number in range(count))
            self.asked.add(interrupt_id(place, count))


async def _load_levels(
    graph: Pregel[Any, Any, Any, Any], saver: PerdureSaver, config: RunnableConfig
) -> list[_Level]:
    """Return the levels of a thread's state: that of the graph, and those of its subgraphs."""
    return [level async for level in _walk_levels(saver, await aread_state(graph, config, subgraphs=True))]


def _find_asking_tasks(levels: Sequence[_Level]) -> dict[str, str]:
    """Return the innermost stored task that has left an interrupt and has not ended, by the interrupt's
    id."""
    return {name: task for level in levels for name, task in level.tasks.items() if task not in level.ended}


async def _walk_levels(saver: BaseCheckpointSaver[Any], state: StateSnapshot) -> AsyncIterator[_Level]:
    """Yield a state, and the states of the subgraphs that its tasks run."""
    stored = await saver.aget_tuple(state.config)
    found = _Level(state, () if stored is None else stored.pending_writes or ())
    yield found
    for below in found.states.values():
        async for level in _walk_levels(saver, below):
            yield level
