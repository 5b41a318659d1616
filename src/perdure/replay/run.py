"""Replay of a thread: each recorded step is run again from its recorded state, and compared.

As every step starts from the recording, a difference at one step does not spread to the next. Nothing is
written to the thread, and no model, tool or connection is called.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from langchain_core.runnables.config import merge_configs
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import CheckpointTuple, DeltaChannelHistory
from langgraph.checkpoint.serde.types import TASKS
from langgraph.errors import EmptyInputError
from langgraph.pregel import Pregel
from langgraph.types import Command
from langsmith.run_helpers import tracing_context

from perdure.database.asynchronous import Database
from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.database.handle import DatabaseHandle
from perdure.engine.queue import effect_journal
from perdure.errors import BadSetting, Corrupt
from perdure.langgraph.loop_state import ThreadId
from perdure.langgraph.saver import PerdureSaver
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.records import Key, Partition
from perdure.replay.answering import Answering, answer_calls
from perdure.replay.comparison import Comparison, Difference, leads_on
from perdure.replay.interception import RefusingStore, install, refuse_everywhere
from perdure.replay.plain_values import snapshot
from perdure.replay.recording import Recording, Step, TaskKey, TaskRecord, by_key, config_of, name_sent
from perdure.replay.step_saver import StepSaver
from perdure.runtime.agents.agent import Agent
from perdure.runtime.agents.graph_factories import Factory
from perdure.runtime.agents.graphs import make_saver
from perdure.runtime.agents.run_context import context_of
from perdure.runtime.nodes.effects import ReplayedEffects
from perdure.runtime.nodes.repeatable_task_names import with_places

_PASSES_MAX = 200
_LOOP = "loop"
_OWN_METADATA = frozenset({"source", "step", "parents", "run_id", "thread_id", "graph_id"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayOptions:
    """Options of a replay.

    Attributes:
        last: Number of checkpoints before the latest from which to replay; ``None`` for all.
        to_the_end: Go on after the first step that differs.
        ignore: Channels whose values are not compared, such as one with a clock's time.
        live_tools: Names of tools that are run, without connections, instead of being answered.
        config: Config of the runs; it overrides what the thread recorded.
        context: Context of the graph.
        whole_process: Refuse connections to the whole process, not only to the replay: for a process that
            does nothing else.
    """

    last: int | None = None
    to_the_end: bool = False
    ignore: Collection[str] = ()
    live_tools: Collection[str] = ()
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    context: Any = None
    whole_process: bool = False

    def __post_init__(self) -> None:
        if self.last is not None and self.last < 1:
            raise BadSetting(f"last is {self.last}; it has to be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayReport:
    """Result of a replay.

    Attributes:
        thread_id: The thread.
        replayed: Number of steps that were run again.
        skipped: Steps that could not be run again, each with the reason.
        differences: The differences of the first step that has any, or of all steps if requested.
        noise: Number of values that differ as they do in every run: ids of messages, UUIDs and times.
        derived: Number of steps in which answers were taken from messages of the state, as no calls are
            recorded: changed prompts are not noticed in them.
    """

    thread_id: str
    replayed: int
    skipped: tuple[tuple[int, str], ...]
    differences: tuple[Difference, ...]
    noise: int
    derived: int

    @property
    def is_same(self) -> bool:
        """True if nothing differs."""
        return not self.differences


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """Result of one step.

    Attributes:
        number: LangGraph's number of the step.
        checkpoint_id: The checkpoint from which it starts.
        nodes: The nodes that ran in it when it was recorded; empty where a run had ended.
        skipped: Reason why it was not replayed, if there is one.
        comparison: The differences; ``None`` if it was skipped.
        is_derived: True if answers were taken from messages, as no call is recorded.
    """

    number: int
    checkpoint_id: str
    nodes: tuple[str, ...] = ()
    skipped: str | None = None
    comparison: Comparison | None = None
    is_derived: bool = False

    @property
    def has_run(self) -> bool:
        """True if nodes ran."""
        return self.comparison is not None and bool(self.nodes)

    @property
    def differs(self) -> bool:
        """True if something differs."""
        return self.comparison is not None and bool(self.comparison.found)


async def replay(
    database: Database | SyncDatabase,
    graph: Pregel[Any, Any, Any, Any] | Agent,
    thread_id: str,
    *,
    options: ReplayOptions | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> ReplayReport:
    """Run the steps of a thread again by a graph, with the recorded answers of models and tools, and compare.

    Args:
        database: The database with the thread; it may be open for reading only.
        graph: The graph as it is now, or its ``Agent``.
        thread_id: The thread.
        options: The steps to replay, and how to compare.
        on_step: Called before each step with the number of finished steps and of all steps.

    Raises:
        NotFound: There is no such thread.
        BadSetting: The agent's graph is made for each run by a factory, or an option cannot be used.
        Unreadable: A stored value cannot be built.
    """
    given = options or ReplayOptions()
    replayer = await replayer_of(database, graph, thread_id, options=given)
    results: list[StepResult] = []
    for done, link in enumerate(replayer.chain):
        if on_step is not None:
            on_step(done, len(replayer.chain))
        results.append(await replayer.replay_step(link))
        if results[-1].differs and not given.to_the_end:
            break
    compared = [each.comparison for each in results if each.comparison is not None]
    return ReplayReport(
        thread_id=thread_id,
        replayed=sum(each.has_run for each in results),
        skipped=tuple((each.number, each.skipped) for each in results if each.skipped is not None),
        differences=tuple(found for each in compared for found in each.sort_differences()),
        noise=sum(each.noise for each in compared),
        derived=sum(each.is_derived for each in results),
    )


def replay_sync(
    database: Database | SyncDatabase,
    graph: Pregel[Any, Any, Any, Any] | Agent,
    thread_id: str,
    *,
    options: ReplayOptions | None = None,
) -> ReplayReport:
    """See ``replay``; for programs without an event loop."""
    return asyncio.run(replay(database, graph, thread_id, options=options))


async def replayer_of(
    database: Database | SyncDatabase,
    graph: Pregel[Any, Any, Any, Any] | Agent,
    thread_id: str,
    *,
    options: ReplayOptions,
    tenant: str | None = None,
) -> Replayer:
    """Return the replayer of a thread's steps.

    Args:
        database: The database with the thread; it may be open for reading only.
        graph: The graph as it is now, or its ``Agent``.
        thread_id: The thread.
        options: The steps to replay, and how to compare.
        tenant: The thread's tenant; the database's own by default.

    Raises:
        NotFound: There is no such thread.
        BadSetting: The agent's graph is made for each run by a factory.
    """
    agent = graph if isinstance(graph, Agent) else Agent(graph)
    if isinstance(agent.graph, Factory):
        raise BadSetting(f"{agent.graph.place} makes a graph for each run; replay a graph that it made")
    handle = handle_of(database)
    saver = make_saver(database, [agent], [agent.graph], tenant)
    partition = handle.partition(thread_id)
    if tenant is not None:
        partition = partition._replace(tenant=tenant)
    recording = Recording(partition, saver)
    chain = await handle.arun(recording.load_chain())
    if options.last is not None:
        chain = chain[-options.last - 1 :]
    install()
    return Replayer(
        chain=chain,
        handle=handle,
        agent=agent,
        graph=agent.graph,
        saver=saver,
        recording=recording,
        partition=partition,
        options=options,
        effects=await handle.arun(effect_journal.read_results(partition)),
    )


class _Loaded(NamedTuple):
    step: Step
    start: Mapping[str, CheckpointTuple]
    deltas: Mapping[str, DeltaChannelHistory]
    after: CheckpointTuple | None


Link = tuple[CheckpointRecord, CheckpointRecord | None]
"""A checkpoint with the next one, if there is one."""


@dataclass(slots=True, kw_only=True)
class Replayer:
    """Replay of one thread by one graph, step by step.

    Attributes:
        chain: The checkpoints from which the steps start, oldest first, each with the next.
    """

    chain: Sequence[Link]
    handle: DatabaseHandle
    agent: Agent
    graph: Pregel[Any, Any, Any, Any]
    saver: PerdureSaver
    recording: Recording
    partition: Partition
    options: ReplayOptions
    effects: Mapping[Key, bytes]

    async def replay_step(self, link: Link) -> StepResult:
        """Run the step from a checkpoint again and compare it."""
        record, child = link
        loaded = await self._load(record, child)
        step = loaded.step
        if step.skipped is not None:
            return StepResult(number=step.number, checkpoint_id=record.id, skipped=step.skipped)
        comparison = Comparison(
            step=step.number,
            checkpoint_id=record.id,
            is_whole=step.child is not None,
            ignored=self.options.ignore,
        )
        outside = refuse_everywhere() if self.options.whole_process else nullcontext()
        with tracing_context(enabled=False), outside:
            is_derived = await self._replay_and_compare(loaded, comparison)
        return StepResult(
            number=step.number,
            checkpoint_id=record.id,
            nodes=tuple(task.node for key, task in step.tasks.items() if len(key) == 1),
            comparison=comparison,
            is_derived=is_derived,
        )

    async def _load(self, record: CheckpointRecord, child: CheckpointRecord | None) -> _Loaded:
        """Return a step with all that it needs of the database, which is not read while it is replayed."""
        follows = child if child is not None and child.source == _LOOP else None
        step = await self.handle.arun(self.recording.load_step(record, follows))
        if step.skipped is not None:
            return _Loaded(step, {}, {}, None)
        start = {"": await self._read_tuple("", record.id)}
        for namespace, name in step.stateful.items():
            start[namespace] = await self._read_tuple(namespace, name)
        after = None
        if follows is not None:
            after = await self._read_tuple("", follows.id)
        deltas = [name for name, each in self.graph.channels.items() if isinstance(each, DeltaChannel)]
        config = config_of(self.partition.thread, "", record.id)
        histories = await self.saver.aget_delta_channel_history(config=config, channels=deltas)
        return _Loaded(step, start, histories, after)

    async def _read_tuple(self, namespace: str, checkpoint_id: str) -> CheckpointTuple:
        found = await self.saver.aget_tuple(config_of(self.partition.thread, namespace, checkpoint_id))
        if found is None:
            raise Corrupt(
                f"thread {self.partition.thread!r}: checkpoint {checkpoint_id} was removed during the replay"
            )
        return found

    async def _replay_and_compare(self, loaded: _Loaded, comparison: Comparison) -> bool:
        """Replay a step and add its differences; return True if answers were derived from messages."""
        step, start, after = loaded.step, loaded.start, loaded.after
        saver = StepSaver(self.partition.thread, start, loaded.deltas)
        answers = Answering(step.tasks, self.options.live_tools)
        update = {"checkpointer": saver, "store": RefusingStore(), "cache": None}
        graph = self.graph.copy(update=update)
        config = self._make_config(answers, start[""] if after is None else after)
        sends = start[""].checkpoint["channel_values"].get(TASKS) or []
        name_sent(dict(step.tasks), sends)
        if not step.tasks:
            checkpoint = start[""].checkpoint
            if not leads_on(checkpoint["channel_versions"], checkpoint["versions_seen"]):
                state = await graph.aget_state(config)
                comparison.compare_nodes([], state.next)
            return False
        with answer_calls(answers):
            error = await self._run_step(graph, config, step, saver, answers)
        found = by_key(saver.list_stored())
        name_sent(found, sends)
        for refused in answers.refused:
            comparison.add_refusal(refused)
        if error is not None and _was_refused(step.tasks, found, is_followed=after is not None):
            error = None
        if error is not None and not answers.refused and not any(task.error for task in found.values()):
            comparison.add_failure(error)
        if error is None:
            for key in found:
                if key in step.tasks and found[key].is_finished:
                    answers.expect(key)
            comparison.add_calls([*answers.differences, *answers.find_unused()])
        else:
            comparison.add_calls([each for each in answers.differences if each.recorded is not None])
        comparison.compare_tasks(step.tasks, found, answers.answered_tools, is_cut=error is not None)
        if after is not None and saver.reached is not None:
            values = {name: snapshot(value) for name, value in after.checkpoint["channel_values"].items()}
            comparison.compare_state(values, saver.reached, loaded.deltas)
        return answers.is_derived

    def _make_config(self, answers: Answering, recorded: CheckpointTuple) -> Any:
        kept = {name: value for name, value in recorded.metadata.items() if name not in _OWN_METADATA}
        run_id = str(recorded.metadata.get("run_id") or "")
        effects = ReplayedEffects(self.handle, self.partition, run_id, 0, self.effects)
        given: Any = {**self.agent.config, **self.options.config}
        configurable = {
            **kept,
            **self.agent.config.get("configurable", {}),
            **self.options.config.get("configurable", {}),
            "thread_id": ThreadId.of(self.partition.thread, journal=effects),
            **({"run_id": run_id} if run_id else {}),
        }
        base = {**given, "configurable": configurable, "metadata": {**kept, **given.get("metadata", {})}}
        base.pop("callbacks", None)
        return with_places(
            merge_configs(base, {"callbacks": [answers.recorder, answers.places]})  # type: ignore[arg-type]
        )

    async def _run_step(
        self,
        graph: Pregel[Any, Any, Any, Any],
        config: Any,
        step: Step,
        saver: StepSaver,
        answers: Answering,
    ) -> Exception | None:
        """Run a step until it ends or waits for an answer that is not recorded; return its error, if any."""
        context = context_of(graph, self.options.context, config["configurable"])
        is_commanded = False
        has_answers = any(task.answers for task in step.tasks.values())
        command: Command[Any] | None = None
        for _ in range(_PASSES_MAX):
            if step.commanded and not is_commanded and (command is not None or not has_answers):
                saver.store_command(step.commanded)
                is_commanded = True
            before = len(saver.list_stored())
            finished = {key for key, task in by_key(saver.list_stored()).items() if task.is_finished}
            answers.begin(finished)
            try:
                await graph.ainvoke(
                    command, config, context=context, interrupt_after=list(graph.nodes), durability="async"
                )
            except EmptyInputError:
                return None
            except Exception as error:
                return error
            if saver.reached is not None:
                return None
            resume: dict[str, Any] = {}
            for key, interrupts in saver.list_interrupts().items():
                recorded, given = step.tasks.get(key), answers.given.get(key, 0)
                if recorded is not None and given < len(recorded.answers):
                    resume[interrupts[0].id] = deepcopy(recorded.answers[given])
                    answers.given[key] = given + 1
            if not resume and (step.child is None or len(saver.list_stored()) == before):
                return None
            command = Command(resume=resume) if resume else None
        return None


def _was_refused(
    recorded: Mapping[TaskKey, TaskRecord], found: Mapping[TaskKey, TaskRecord], *, is_followed: bool
) -> bool:
    """Return True if a step also failed when it was recorded, and all of its tasks had ended: no checkpoint
    followed, as its graph refused what the tasks returned."""
    own = {key: task for key, task in recorded.items() if len(key) == 1}
    ended = {key for key, task in found.items() if len(key) == 1 and task.is_finished}
    return not is_followed and bool(own) and all(t.is_finished for t in own.values()) and own.keys() <= ended
