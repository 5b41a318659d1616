"""Answers to interrupts across attempts: each reaches its own interrupt, exactly once.

An answer is given by the id of its interrupt. LangGraph keeps an answer without an id beside the checkpoint,
where the task's next interrupt would find it. That form is used only for a stop before or after a node, which
has no id, and for the only question of a thread if it is not that of a stored task: only such a task has the
same id again. Such an answer is removed when the run asks again. A later attempt leaves out what an earlier
one has stored: the answers that tasks have taken, and what a command writes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.pregel import Pregel
from langgraph.types import Command, Send

from perdure.database.handle import DatabaseHandle
from perdure.engine.queue import questions
from perdure.engine.queue.runs import HeldRun
from perdure.errors import NotAllowed
from perdure.langgraph.early_loads import keep_for_next_load
from perdure.langgraph.loop_state import with_lease
from perdure.langgraph.reading import asking_tasks
from perdure.langgraph.reading.asking_tasks import AskingTask
from perdure.langgraph.reading.open_interrupts import is_by_name
from perdure.langgraph.reading.shown_questions import aread_with_questions
from perdure.langgraph.saver import PerdureSaver
from perdure.model.runs.messages import ANSWERS, START
from perdure.model.write_records import NULL_TASK, RESUME
from perdure.runtime.agents.run_context import with_configurable

_SENT = "__pregel_push"
"""Beginning of the path of a task that a ``Send`` has made."""


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
        NotAllowed: The command goes to another node and would abandon an open question, or the tasks that a
            ``Send`` has made.
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
    gotos = (command.goto,) if isinstance(command.goto, Send) else command.goto
    if any(isinstance(each, Send) for each in gotos):
        await _refuse_replacing(graph, config, held)
    answers = _map_by_id(command.resume, message.options.get(ANSWERS, ()))
    if answers is None:
        return StillToGive(await _select_answer_to_pause(saver, config, held, command, database))
    # Asked before a deploy that renamed the node: the client knows the interrupt by its former id.
    moved = await saver.amoved_interrupts(config)
    answers = {moved.get(name, name): answer for name, answer in answers.items()}
    tasks = await _read_tasks(database, held, moved, answers)
    kept_by_none = frozenset(
        task.task_id for task in tasks.values() if not task.is_own and (task.is_sole or held.run.is_fresh)
    )
    if (only := _find_unnamed(answers, tasks)) is not None and (held.run.is_fresh or not moved):
        return StillToGive(replace(command, resume=only), kept_by_none)
    # Not to a task that has answered: LangGraph would give the answer to its next question.
    by_id = {name: answers[name] for name, task in tasks.items() if task.is_own is not False}
    await remove_unnamed(saver, config, held)
    return StillToGive(_without_empty(replace(command, resume=by_id or None)), kept_by_none)


async def _read_tasks(
    database: DatabaseHandle,
    held: HeldRun,
    moved: Mapping[str, str],
    names: Collection[str] | None = None,
) -> dict[str, AskingTask]:
    reading = asking_tasks.read(held.partition, database.digest, moved, held.run.id, names)
    return await database.arun(reading)


def _find_unnamed(answers: Mapping[str, Any], tasks: Mapping[str, AskingTask]) -> Any:
    """Return the answer that has to be given without its id, ``None`` if there is none: that to the only
    question of a thread, if a graph without checkpoints may have asked it."""
    if len(answers) != 1 or len(tasks) != 1:
        return None
    ((name, task),) = tasks.items()
    return answers[name] if not task.is_own and task.is_sole else None


async def refuse_to_ask_again(
    graph: Pregel[Any, Any, Any, Any],
    config: RunnableConfig,
    held: HeldRun,
    answered: Collection[str],
    database: DatabaseHandle,
) -> None:
    """Raise ``NotAllowed`` if tasks ask again after a run that answered a question of a graph without
    checkpoints in them. Nothing keeps the answer: the next one would start the graph anew, and reach its
    first question, so that a wait with a deadline would go on for ever."""
    saver = graph.checkpointer
    if not answered or not isinstance(saver, PerdureSaver):
        return
    moved = await saver.amoved_interrupts(config)
    tasks = await _read_tasks(database, held, moved)
    # A task that is not known by name, and has taken answers, asks itself.
    again = (task for task in tasks.values() if task.is_own is not None or not task.has_answers)
    if (found := next((task for task in again if task.task_id in answered), None)) is None:
        return
    raise NotAllowed(
        f"node {found.node!r} waits again, after the answer to a question, sleep or wait of a graph in it "
        "that keeps no checkpoints: such a graph begins again with each answer, and forgets the one before. "
        "Let it wait once, not side by side with others, and for something other than None; or let it keep "
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
    saver: PerdureSaver,
    config: RunnableConfig,
    held: HeldRun,
    command: Command[Any],
    database: DatabaseHandle,
) -> Command[Any] | None:
    """Return the answer to a stop before or after a node, or to a state that was edited since: LangGraph
    gives it to the interrupt that comes first."""
    if not held.run.is_fresh:
        await remove_unnamed(saver, config, held)
        if await database.arun(questions.may_have_taken(held.partition, held.run)):
            command = replace(command, resume=None)
    return _without_empty(command)


async def _refuse_leaving(graph: Pregel[Any, Any, Any, Any], config: RunnableConfig, held: HeldRun) -> None:
    with keep_for_next_load():
        state = await aread_with_questions(graph, _at_start(config, held))
    if state.interrupts:
        asked = [interrupt.id for interrupt in state.interrupts]
        raise NotAllowed(questions.describe_abandoning(held.partition.thread, asked))


async def _refuse_replacing(graph: Pregel[Any, Any, Any, Any], config: RunnableConfig, held: HeldRun) -> None:
    """Raise ``NotAllowed`` if the step has tasks that a ``Send`` has made: LangGraph would drop them, with
    the answers to their questions, for those of the command."""
    with keep_for_next_load():
        state = await aread_with_questions(graph, config)
    if any(task.path[:1] == (_SENT,) for task in state.tasks):
        raise NotAllowed(
            f"thread {held.partition.thread!r} has tasks that a Send has made, and a goto with an input "
            "would replace them and what they were answered; nothing of the command was stored. Answer "
            "without the goto, or go to the node without an input"
        )


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
