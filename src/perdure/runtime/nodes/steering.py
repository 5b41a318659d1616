"""Steering of an open run: messages that it takes up between two steps of its graph, or when a node asks.

A message accepted with ``strategy="steer"`` is taken by the thread's open run, in order, or else becomes the
next run. Either the worker writes it into the thread's state between two steps, so that the graph's next
nodes find it there, or a node takes it with ``take_messages``:

    async def work(state):
        new = (await take_messages()).get("messages", [])
        reply = await model.ainvoke([*state["messages"], *new])
        return {"messages": [*new, reply]}

The message is bound to the run in the commit that stores it in the state. A step that is repeated after a
crash therefore finds the same messages, and no message is seen twice.
"""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Mapping, Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, Self

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig
from langgraph._internal._config import DEFAULT_RECURSION_LIMIT
from langgraph.channels import DeltaChannel, UntrackedValue
from langgraph.channels.base import BaseChannel
from langgraph.checkpoint.base import WRITES_IDX_MAP, BaseCheckpointSaver, CheckpointTuple
from langgraph.config import get_config
from langgraph.constants import START
from langgraph.errors import GraphRecursionError
from langgraph.graph.message import add_messages
from langgraph.pregel import Pregel
from langgraph.pregel._messages import ensure_message_ids
from langgraph.runtime import RunControl
from langgraph.types import StateSnapshot

from perdure.conversation.compaction import compact
from perdure.conversation.hook import run_off_loop
from perdure.conversation.tool_calls import calls_of
from perdure.database.handle import DatabaseHandle
from perdure.engine.queue.runs import HeldRun
from perdure.engine.threads.steering import TakenBack, Taking
from perdure.errors import NotAllowed, NoWindow
from perdure.langgraph.loop_state import with_lease
from perdure.langgraph.reading.readable_states import aread_state
from perdure.model.arguments import read_mapping
from perdure.model.runs.messages import Message
from perdure.model.runs.payloads import INPUT, MESSAGE
from perdure.model.write_records import NULL_TASK
from perdure.runtime.agents.agent import Agent, convert_plain_messages, list_input_names
from perdure.runtime.agents.run_user import USER

_TASK_ID = "__pregel_task_id"
_RUNTIME = "__pregel_runtime"
_VERIFIED_ID = "langgraph_auth_user_id"

STEERING: ContextVar[Steering | None] = ContextVar("steering", default=None)
"""Steering of the current run."""


class StepControl(RunControl):
    """Control that ends a run's loop before its next step while ``is_wanted``, unless ``is_closed``: then the
    recursion limit leaves no step after this one. It never ends the loop within a subgraph, nor before the
    first step of a call, because until that step LangGraph keeps an answer to an interrupt only in memory.
    Once ``is_stopped``, no step begins anywhere: the attempt was cancelled, which a node may have ignored."""

    __slots__ = ("_steps_in_call", "is_closed", "is_stopped", "is_wanted", "steps")

    def __init__(self) -> None:
        super().__init__()
        self.is_wanted = False
        self.is_closed = False
        self.is_stopped = False
        self.steps = 0
        self._steps_in_call = 0

    def begin(self) -> None:
        """Note that a call of the graph begins."""
        self._steps_in_call = 0

    @property
    def drain_requested(self) -> bool:
        """Return True if the graph has to stop before its next step."""
        if self.is_stopped:
            return True
        # LangGraph asks once before each step of a graph, and of each of its subgraphs.
        if _find_task_config() is not None:
            return False
        if self.is_wanted and self._steps_in_call and not self.is_closed:
            return True
        self._steps_in_call += 1
        self.steps += 1
        return False


class Steering:
    """Messages that one attempt at a run takes up while it runs.

    Args:
        database: The handle of the database.
        agent: The agent of the run's graph.
        held: The run, with its lease.
        most: Maximum number of messages that are taken up at once.
        is_sync: True if each step begins only when the one before is stored.

    Attributes:
        first_look: The task that looks for messages that waited when the run began; the run's first step
            waits for it.
    """

    def __init__(
        self, database: DatabaseHandle, agent: Agent, held: HeldRun, most: int, *, is_sync: bool = True
    ) -> None:
        self.database = database
        self._agent = agent
        self._count_at_start = len(held.messages)
        self._try_by_task: dict[str, int] = {}
        self.is_sync = is_sync
        self.first_look: asyncio.Task[None] | None = None
        self.control = StepControl()
        self.taking = Taking(held.partition, held.run, partial(may_join, held.messages[0]), most)

    def add_taken(self, held: HeldRun) -> HeldRun:
        """Return the held run with the messages that it has taken."""
        messages = (*held.messages[: self._count_at_start], *self.taking.taken)
        if self.taking.taken:
            return held._replace(run=self.taking.run, messages=messages)
        return held

    async def check_for_messages(self) -> None:
        """Read whether a message waits that the run may take, and end the loop before its next step if so."""
        if self._agent.steer_before is not None and not self._agent.steer_before:
            return
        if await self.database.arun(self.taking.load_waiting()):
            self.control.is_wanted = True

    def make_next_config(self, graph: Pregel[Any, Any, Any, Any], config: RunnableConfig) -> RunnableConfig:
        """Return the config with which a graph continues after a step: its recursion limit is what is left
        of it."""
        left = _find_recursion_limit(graph, config) - self.control.steps
        # A call allows one step even if none is left, and LangGraph raises its error only before another one.
        self.control.is_closed = left <= 1
        return {**config, "recursion_limit": max(1, left)}

    def name_limit(
        self, error: BaseException, graph: Pregel[Any, Any, Any, Any], config: RunnableConfig
    ) -> None:
        """Let the error of a run that has reached its recursion limit name the whole limit, and not what was
        left of it for the latest call."""
        if isinstance(error, GraphRecursionError) and error.args:
            whole = f"Recursion limit of {_find_recursion_limit(graph, config)} reached"
            text = re.sub(r"^Recursion limit of \d+ reached", whole, str(error.args[0]))
            error.args = (text, *error.args[1:])

    async def write_between_steps(
        self, graph: Pregel[Any, Any, Any, Any], config: RunnableConfig, held: HeldRun
    ) -> int:
        """Write the messages that wait into the state of a graph between two of its steps, if they fit there.

        Returns:
            The number of messages that the run has taken. Other messages are tried before its next step, or
            become the next run.
        """
        control, taking = self.control, self.taking
        control.is_wanted = False
        waiting = await self.database.arun(taking.load_waiting())
        if not waiting:
            return 0
        state = await aread_state(graph, config)
        if not state.next:
            return 0
        if not is_open(state, self._agent):
            control.is_wanted = True
            return 0
        saver = graph.checkpointer
        latest = None
        if isinstance(saver, BaseCheckpointSaver):
            latest = await saver.aget_tuple(config)
        if latest is None or not isinstance(saver, BaseCheckpointSaver):
            return 0
        if any(
            task == NULL_TASK and name not in WRITES_IDX_MAP for task, name, _ in latest.pending_writes or ()
        ):
            # An earlier attempt stored messages here, under the same task id; new ones wait a step.
            control.is_wanted = True
            return 0
        update = plan_writes(graph, self._make_input(waiting), latest)
        if update is None or await self._exceeds(state, dict(update)):
            return 0
        taking.offer(NULL_TASK, waiting)
        configurable = with_lease(latest.config.get("configurable", {}), held.epoch, taking=taking)
        try:
            await saver.aput_writes({"configurable": configurable}, update, NULL_TASK)
        except TakenBack:
            taking.offer(NULL_TASK, ())
            control.is_wanted = True
            return 0
        control.is_wanted = taking.has_more
        return len(waiting)

    async def _exceeds(self, state: StateSnapshot, update: Mapping[str, Any]) -> bool:
        """Return True if the messages of a state and of an update together exceed the conversation's limit.
        The new messages then become a run of their own, whose input is cut to the limit."""
        conversation = self._agent.conversation
        if conversation is None or conversation.key not in update:
            return False
        present: Any = state.values.get(conversation.key) or []
        combined: Any = add_messages(present, update[conversation.key])
        try:
            compacted = await run_off_loop(conversation, compact, conversation, combined)
        except NoWindow:
            return True
        return compacted is not None and compacted.left_out > 0

    def find_task(self, config: RunnableConfig) -> str:
        """Return the id of the current task, which may take messages.

        Raises:
            NotAllowed: The node belongs to a subgraph, or steps begin before the previous one is stored.
        """
        configurable = config.get("configurable", {})
        if "|" in (configurable.get("checkpoint_ns") or ""):
            raise NotAllowed(
                "take_messages() was called in a subgraph, whose result is not the run's own; call it in "
                "a node of the run's graph, and pass on what came"
            )
        if not self.is_sync:
            raise NotAllowed(
                "take_messages() needs steps that are stored before the next one begins; run the graph with "
                "durability='sync'"
            )
        task_id: str = configurable[_TASK_ID]
        this_try: int = configurable[_RUNTIME].execution_info.node_attempt
        if self._try_by_task.get(task_id) != this_try:
            # A retry policy repeats the node: it gets the same messages again.
            self._try_by_task[task_id] = this_try
            if self.taking.task_id == task_id:
                self.taking.offer(task_id, ())
        return task_id

    def take_new(self, task_id: str, waiting: Sequence[Message]) -> Mapping[str, Any]:
        """Reserve for a task the messages that came since its last call, and return them as input; ``{}`` if
        none came, or another task has reserved some."""
        taking = self.taking
        reserved = taking.held if taking.task_id == task_id else ()
        new = [message for message in waiting if not reserved or message.seq > reserved[-1].seq]
        if not new or taking.is_held_by_another(task_id):
            return {}
        update = self._make_input(new)
        if not isinstance(update, Mapping):
            return {}
        taking.offer(task_id, (*reserved, *new))
        return update

    def _make_input(self, messages: Sequence[Message]) -> Any:
        """Return the input that messages make; ``None`` if making it fails. The messages then become a run
        of their own, which fails with the error instead of the open run."""
        try:
            return self._agent.to_input(messages)
        except Exception:
            # The function is the application's, and may raise anything.
            return None


async def take_messages() -> Mapping[str, Any]:
    """Take the messages that came for the current run, and return the input that they make; ``{}`` if none
    came since the last call.

    The messages belong to the run once the node's result is stored, so the result has to contain what shall
    be kept of them. Until then they wait, and a repeated node gets them again. Only one node of a step at a
    time gets messages. Outside of a run of a ``Runtime`` the result is always ``{}``.

    Raises:
        NotAllowed: Called outside of a node, in a subgraph, or in a run whose durability is not ``"sync"``.
    """
    config, steering = _find_caller()
    if steering is None:
        return {}
    task_id = steering.find_task(config)
    return steering.take_new(task_id, await steering.database.arun(steering.taking.load_waiting()))


def take_messages_sync() -> Mapping[str, Any]:
    """Return the same as ``take_messages``, for nodes that are plain functions."""
    config, steering = _find_caller()
    if steering is None:
        return {}
    task_id = steering.find_task(config)
    return steering.take_new(task_id, steering.database.run(steering.taking.load_waiting()))


def _find_recursion_limit(graph: Pregel[Any, Any, Any, Any], config: RunnableConfig) -> int:
    limit = config.get("recursion_limit", (graph.config or {}).get("recursion_limit"))
    return DEFAULT_RECURSION_LIMIT if limit is None else limit


class _CarriedValue(UntrackedValue[Any]):
    """Untracked value that a call of a graph takes over from the call before. LangGraph keeps such a value
    for one call, and steering divides a run into several."""

    __slots__ = ("_of_call",)

    _of_call: UntrackedValue[Any] | None

    def __init__(self, typ: type[Any], guard: bool = True) -> None:
        super().__init__(typ, guard)
        self._of_call = None

    def from_checkpoint(self, checkpoint: Any) -> Self:
        """Return the channel with which a call begins; LangGraph writes the call's values into it."""
        channel = super().from_checkpoint(checkpoint)
        if self._of_call is not None:
            channel.value = self._of_call.value
        self._of_call = channel
        return channel


def carry_untracked(graph: Pregel[Any, Any, Any, Any]) -> Pregel[Any, Any, Any, Any]:
    """Return a copy of a graph whose untracked values last over its calls; the graph itself if it has none.
    A subclass of the channel is left alone, as its values may be of another kind."""
    carried: dict[str, Any] = {}
    for name, channel in graph.channels.items():
        if isinstance(channel, UntrackedValue) and type(channel) is UntrackedValue:
            carried[name] = _CarriedValue(channel.typ, channel.guard)
            carried[name].key = channel.key
    if not carried:
        return graph
    return graph.copy(update={"channels": {**graph.channels, **carried}})


def may_join(first: Message, message: Message) -> bool:
    """Return True if ``message`` may join the run that ``first`` began: it has the same graph, channel,
    webhook, context and user, and the same kind of input."""
    kinds = {MESSAGE, INPUT}
    first_kinds, message_kinds = kinds & first.payload.keys(), kinds & message.payload.keys()
    return (
        (message.graph, message.channel) == (first.graph, first.channel)
        and bool(message_kinds)
        and (not first_kinds or first_kinds == message_kinds)
        and _read_terms(message) == _read_terms(first)
    )


def _read_terms(message: Message) -> tuple[Any, ...]:
    options = message.options
    configurable = dict((options.get("config") or {}).get("configurable") or {})
    if _VERIFIED_ID in configurable:
        # The id identifies the user; the rest may differ, as the token does.
        configurable.pop(USER, None)
    return configurable, options.get("context"), options.get("webhook")


def is_open(state: StateSnapshot, agent: Agent) -> bool:
    """Return True if messages may be written into a state before its next step.

    Messages may not stand between a tool call and its result, nor before the first step. Without
    ``steer_before`` they may not follow a model's answer either, because the graph might end without
    answering them.
    """
    if START in state.next:
        return False
    key = "messages"
    if agent.conversation is not None:
        key = agent.conversation.key
    value = read_mapping(state.values).get(key)
    messages = convert_plain_messages(value) if isinstance(value, list) else []
    if _has_open_calls(messages):
        return False
    if agent.steer_before is not None:
        return not set(state.next).isdisjoint(agent.steer_before)
    return not messages or not isinstance(messages[-1], AIMessage)


def _has_open_calls(messages: Sequence[BaseMessage]) -> bool:
    answered: set[str] = set()
    for message in reversed(messages):
        if isinstance(message, ToolMessage):
            answered.add(message.tool_call_id)
        elif isinstance(message, AIMessage):
            return any(call_id not in answered for call_id, _ in calls_of(message))
        else:
            return False
    return False


def plan_writes(
    graph: Pregel[Any, Any, Any, Any], update: Any, checkpoint: CheckpointTuple
) -> list[tuple[str, Any]] | None:
    """Return an input as writes to the channels of a graph; ``None`` if the graph would not take it. The
    input then becomes a run of its own, which shows the error."""
    if not isinstance(update, Mapping) or not update:
        return None
    if not update.keys() <= list_input_names(graph) & graph.channels.keys():
        return None
    values = checkpoint.checkpoint["channel_values"]
    writes: list[tuple[str, Any]] = list(update.items())
    try:
        ensure_message_ids(graph.channels, writes)
        for place, (name, value) in enumerate(writes):
            channel = graph.channels[name]
            if isinstance(channel, DeltaChannel) or not isinstance(channel, BaseChannel):
                continue
            if name in values:
                copy = channel.from_checkpoint(values[name])
            else:
                copy = channel.copy()
            copy.update([value])
            updated = copy.get() if copy.is_available() else None
            if isinstance(updated, list) and updated and all(isinstance(one, BaseMessage) for one in updated):
                writes[place] = name, _with_ids(value)
    except Exception:
        # The reducer is the application's, and may raise anything; the message's own run shows the error.
        return None
    return writes


def _with_ids(value: Any) -> Any:
    """Return messages, each with an id: the stored writes are applied again at each load until the next step,
    and a message without an id would get another one each time."""
    messages = convert_to_messages(value if isinstance(value, list) else [value])
    return [one if one.id else one.model_copy(update={"id": str(uuid.uuid4())}) for one in messages]


def _find_caller() -> tuple[RunnableConfig, Steering | None]:
    config = _find_task_config()
    if config is None:
        raise NotAllowed("messages are taken by the node that is running; call take_messages() inside a node")
    return config, STEERING.get()


def _find_task_config() -> RunnableConfig | None:
    """Return the config of the node that is running, ``None`` outside of nodes."""
    try:
        config = get_config()
    except RuntimeError:
        return None
    if config.get("configurable", {}).get(_TASK_ID):
        return config
    return None
