"""One attempt at a run: call the graph under the run's epoch, and turn its result into the run's ending."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, NamedTuple, cast

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.constants import END
from langgraph.errors import GraphDrained
from langgraph.pregel import Pregel
from langgraph.types import Command, Interrupt, StateSnapshot

from perdure.engine.queue.questions import with_closing_reply
from perdure.engine.queue.runs import Ending, HeldRun
from perdure.errors import MissingStart, NotAllowed
from perdure.langgraph.early_loads import keep_for_next_load
from perdure.langgraph.loop_state import ThreadId
from perdure.langgraph.reading.open_interrupts import is_by_name
from perdure.langgraph.reading.readable_states import (
    amake_graph_without_refused,
    aread_state,
    aupdate_state,
    select_outputs,
)
from perdure.langgraph.reading.shown_questions import aread_with_questions
from perdure.model.arguments import read_mapping
from perdure.model.model_calls import Prices
from perdure.model.runs.messages import DONE, LIMIT, WAITING
from perdure.model.runs.payloads import COMMAND, RESUME
from perdure.model.runs.waits import Waits
from perdure.model.write_records import INTERRUPT
from perdure.runtime.agent_memory.conversation_windows import Conversations
from perdure.runtime.agent_memory.run_memory import Memories
from perdure.runtime.agents.agent import Agent, describe_unknown_nodes
from perdure.runtime.agents.graph_factories import Factory
from perdure.runtime.agents.graphs import Graphs
from perdure.runtime.agents.run_context import context_of, mirror, with_configurable
from perdure.runtime.agents.run_user import USER, user_of, user_of_config
from perdure.runtime.events.protocol import BY_BLOCK
from perdure.runtime.events.publisher import EventBuffer, StreamPublisher
from perdure.runtime.limits.call_limits import CALLER, CallLimits
from perdure.runtime.nodes.callback_handlers import with_handlers
from perdure.runtime.nodes.effects import EffectJournal
from perdure.runtime.nodes.graphs_without_checkpoints import let_steps_end
from perdure.runtime.nodes.interrupt_answers import (
    refuse_to_ask_again,
    remove_unnamed,
    select_still_to_give,
)
from perdure.runtime.nodes.model_calls import Emit, ModelCalls
from perdure.runtime.nodes.question_rules import QuestionRules
from perdure.runtime.nodes.repeatable_task_names import with_places
from perdure.runtime.nodes.steering import STEERING, Steering, carry_untracked
from perdure.runtime.options import CLOSED, WEBHOOK, Options

TENANT: ContextVar[str] = ContextVar("tenant")
"""Tenant of the current run."""


let_steps_end()


class Views(NamedTuple):
    """Parts of the runtime that one attempt at a run uses.

    Attributes:
        conversations: Fit the thread's messages into their window.
        memories: Recall what is known of the user, and hand over the turn.
        called: Gets the fields of each call of a model.
        answers: Called with the first token that a model generates.
        steering: The messages that the run takes up while it is under way.
        prices: Prices of the calls of models.
        limits: Limits of the calls, if there are any.
    """

    conversations: Conversations
    memories: Memories
    called: Emit
    answers: Callable[[], object]
    steering: Steering
    prices: Prices
    limits: CallLimits | None


async def attempt(
    agent: Agent,
    graphs: Graphs,
    views: Views,
    held: HeldRun,
    journal: EffectJournal,
    buffer: EventBuffer | None,
) -> Ending:
    """Run the graph for the held run, or continue it.

    LangGraph applies an input once for each run id and skips finished steps. An answer or command that an
    earlier attempt consumed is not given again. When cancelled, this returns only after the last of its
    writes has ended.

    Args:
        agent: The agent of the run's graph.
        graphs: The graphs of this process.
        views: The parts of the runtime that the attempt uses.
        held: The run, with its lease.
        journal: The recorded effects of the run.
        buffer: The buffer for the run's events, or ``None`` if it publishes none.

    Returns:
        The ending: done, with replies for a channel, or waiting for answers to interrupts. The replies of a
        run that waits are its interrupts, with their values: the channel makes questions of them, if any.

    Raises:
        MissingStart: The checkpoint to start from is not stored.
    """
    options = Options.read(held.messages[0].options)
    if views.limits is not None:
        await views.limits.require_budget(held.run.note.get(LIMIT))
        if (cheaper := await views.limits.find_cheaper_model()) is not None:
            options = _with_model(options, cheaper)
    tenant = held.partition.tenant
    making = graphs.open(
        held.run.graph,
        tenant,
        "threads.create_run",
        config=config_of(agent, held, journal, options, views, options.context)
        if isinstance(agent.graph, Factory)
        else None,
        user=user_of((options.config.get("configurable") or {}).get(USER)),
        context=options.context,
    )
    # For this attempt alone, which has a task of its own.
    TENANT.set(tenant)
    STEERING.set(views.steering)
    CALLER.set("" if views.limits is None else views.limits.user)
    try:
        async with making as graph:
            return await _attempt(agent, graph, views, held, (journal, options), buffer)
    finally:
        if views.limits is not None:
            views.limits.close()


def _with_model(options: Options, model: str) -> Options:
    """Return a run's options with another model in its configurable values, and in its context if that has
    one."""
    configurable = {**(options.config.get("configurable") or {}), "model": model}
    context = options.context
    if isinstance(context, Mapping) and "model" in context:
        context = {**context, "model": model}
    return replace(options, config={**options.config, "configurable": configurable}, context=context)


async def _attempt(
    agent: Agent,
    graph: Pregel[Any, Any, Any, Any],
    views: Views,
    held: HeldRun,
    journal_and_options: tuple[EffectJournal, Options],
    buffer: EventBuffer | None,
) -> Ending:
    journal, options = journal_and_options
    context = context_of(graph, options.context, options.config.get("configurable") or {})
    places = QuestionRules(agent.questions)
    config = head_config = places.watch(config_of(agent, held, journal, options, views, context))
    begun_at = await _find_start(graph, head_config, held)
    has_begun = begun_at is not None
    is_given_once = RESUME in held.messages[0].payload or COMMAND in held.messages[0].payload
    given = None if is_given_once and has_begun else agent.to_input(held.messages)
    answered = frozenset[str]()
    if isinstance(given, Command):
        if (unknown := describe_unknown_nodes(graph, given)) is not None:
            raise NotAllowed(unknown)
        given, answered = await select_still_to_give(graph, head_config, held, given, views.steering.database)
        has_begun = given is None
    if options.checkpoint_id is not None and not has_begun:
        config = with_configurable(config, {"checkpoint_id": options.checkpoint_id})
        await _require_start(graph, config, held, options.checkpoint_id)
    earlier_messages: Sequence[Any] | None = ()
    # Read once for memory and conversation: each load before the first step is a request to the database.
    is_read = not has_begun and (agent.memory is not None or agent.conversation is not None)
    stored = await _read_values(graph, config) if is_read else None
    if agent.memory is not None:
        earlier_messages = await views.memories.load_earlier_messages(
            agent.memory, graph, config, held, stored
        )
    if agent.memory is not None and stored is not None:
        given = await views.memories.prepare_input(agent.memory, config, held, given, stored)
    if agent.conversation is not None and stored is not None:
        given = await views.conversations.prepare_input(agent.conversation, held, given, stored)
    if has_begun or given is None:
        graph = await amake_graph_without_refused(graph, config)
    publisher = _make_publisher(graph, held, buffer, begun_at, journal.waits)
    if isinstance(given, Command) and _only_ends(given):
        await _clear_next_tasks(graph, config, head_config, publisher)
        return Ending(DONE, {})
    is_unnamed = isinstance(given, Command) and given.resume is not None and not is_by_name(given.resume)
    call_options = {**_make_call_options(agent, options, context), "control": views.steering.control}
    values = await _steer(
        graph, given, (config, head_config), call_options, held, (views.steering, publisher)
    )
    held = views.steering.add_taken(held)
    interrupts = read_mapping(values).get(INTERRUPT, ())
    if interrupts:
        await refuse_to_ask_again(graph, head_config, held, answered, views.steering.database)
    snapshot: StateSnapshot | None = None
    has_channel = held.run.channel not in ("", WEBHOOK)
    if _may_pause(graph, options) or has_channel:
        snapshot = await aread_with_questions(graph, head_config)
    other_sends: Sequence[tuple[str, Any]] = ()
    if agent.memory is not None:
        # A run that waits hands over its turn, too: the run of the answer adds only its own messages.
        other_sends = await views.memories.end_turn(
            agent.memory, graph, head_config, held, (earlier_messages, values)
        )
    if interrupts and is_unnamed:
        await remove_unnamed(graph.checkpointer, head_config, held)
    if interrupts or (snapshot is not None and snapshot.next):
        # Only the ids are stored with the run: the values are in the checkpoint.
        note = {"interrupts": [{"id": interrupt.id} for interrupt in interrupts]}
        waits = journal.waits
        places.apply(interrupts, waits)
        asked = [
            {"id": i.id, "value": i.value}
            for i in interrupts
            if i.id not in waits or waits[i.id].kind == "question"
        ]
        return Ending(WAITING, note, asked if has_channel else (), other_sends)
    if agent.conversation is not None:
        await views.conversations.note_reply(agent.conversation, graph, head_config, held, values)
    replies = agent.to_replies(snapshot.values, held.messages) if snapshot is not None and has_channel else ()
    return Ending(DONE, {}, tuple(replies), other_sends)


async def _steer(
    graph: Pregel[Any, Any, Any, Any],
    given: Any,
    configs: tuple[RunnableConfig, RunnableConfig],
    call_options: dict[str, Any],
    held: HeldRun,
    by: tuple[Steering, StreamPublisher | None],
) -> Any:
    """Run a graph, write steering messages into its state between its steps, and return its values.
    ``configs`` are the one with which the graph begins, and the one of the thread's latest checkpoint."""
    (config, head_config), (steering, publisher) = configs, by
    if steering.first_look is not None:
        # The task reports its own failure. If this attempt is cancelled, the worker ends the task.
        await asyncio.wait([steering.first_look])
    running = carry_untracked(graph)
    while True:
        steering.control.begin()
        try:
            values = await _invoke(running, given, config, call_options, publisher)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, GraphDrained) and not steering.control.is_stopped:
                await steering.write_between_steps(graph, head_config, held)
                given, config = None, steering.make_next_config(graph, head_config)
                continue
            # The arguments of a cancellation contain the task in which LangGraph's last writes continue.
            for left in error.args:
                if isinstance(left, asyncio.Task):
                    await asyncio.wait([left])
            steering.name_limit(error, graph, head_config)
            if publisher is not None:
                await publisher.fail(error)
            raise
        if publisher is not None:
            await publisher.publish_end()
        return values


def _only_ends(given: Command[Any]) -> bool:
    """Return True if a command asks for nothing but the end."""
    return given.goto in (END, [END], (END,)) and given.resume is None and not given.update


async def _clear_next_tasks(
    graph: Pregel[Any, Any, Any, Any],
    config: RunnableConfig,
    head_config: RunnableConfig,
    publisher: StreamPublisher | None,
) -> None:
    """Clear the thread's next tasks and their interrupts. LangGraph ignores a command with ``goto=END`` when
    it is given as input."""
    await aupdate_state(graph, config, None, as_node=END)
    if publisher is not None:
        if "values" in publisher.stream_modes:
            values = select_outputs(graph, (await aread_state(graph, head_config)).values)
            await publisher.publish_part("values", values, ())
        await publisher.publish_end()


def _make_publisher(
    graph: Pregel[Any, Any, Any, Any],
    held: HeldRun,
    buffer: EventBuffer | None,
    begun_at: str | None,
    waits: Waits,
) -> StreamPublisher | None:
    """Return the publisher of a run whose events are wanted; its first event is that the attempt began."""
    if buffer is None or buffer.stream is None:
        return None
    publisher = StreamPublisher(buffer, buffer.stream, graph, waits)
    publisher.publish_start(held.run.attempts, held.run.graph, begun_at)
    return publisher


async def _find_start(graph: Pregel[Any, Any, Any, Any], config: RunnableConfig, held: HeldRun) -> str | None:
    """Return the id of the checkpoint from which the run continues, if an earlier attempt stored one.
    As in LangGraph, that is so if the latest checkpoint has the run's id."""
    if held.run.is_fresh or not isinstance(graph.checkpointer, BaseCheckpointSaver):
        return None
    latest = await graph.checkpointer.aget_tuple(config)
    if latest is None or latest.metadata.get("run_id") != held.run.id:
        return None
    return str(latest.checkpoint["id"])


async def _read_values(graph: Pregel[Any, Any, Any, Any], config: RunnableConfig) -> Mapping[str, Any]:
    """Return the values of the state from which a run starts."""
    if not isinstance(graph.checkpointer, BaseCheckpointSaver):
        return {}
    with keep_for_next_load():
        return read_mapping((await aread_state(graph, config)).values)


async def _require_start(
    graph: Pregel[Any, Any, Any, Any], config: RunnableConfig, held: HeldRun, checkpoint_id: str
) -> None:
    """Raise ``MissingStart`` if the checkpoint to start from is not stored; LangGraph would treat the thread
    as new."""
    saver = graph.checkpointer
    if isinstance(saver, BaseCheckpointSaver) and await saver.aget_tuple(config) is None:
        raise MissingStart(
            f"thread {held.partition.thread!r}: checkpoint {checkpoint_id}, from which run {held.run.id!r} "
            "was to start, is not stored: it was pruned, or never existed; the thread is unchanged. "
            "Start from one that is listed, and tag what has to stay"
        )


def add_notice(held: HeldRun, ending: Ending) -> Ending:
    """Return the ending of a run with its notice for the webhook, if it has one, as its only reply, in any
    final state."""
    if held.run.channel != WEBHOOK:
        return ending
    # An answer without a webhook of its own inherits the channel of the interrupted run, but no URL.
    options = Options.read_if_readable(held.messages[0].options)
    url = options.webhook
    notice = {"url": url, "run_id": held.run.id, "state": ending.state}
    note = ending.note
    if ending.state == WAITING and options.notice_if_closed:
        inherited = {"webhook": url, "notice_if_closed": True}
        note = with_closing_reply(note, {**notice, "state": CLOSED}, inherited)
    return replace(ending, note=note, replies=() if url is None else (notice,))


def _make_call_options(agent: Agent, options: Options, context: Any) -> dict[str, Any]:
    call_options: dict[str, Any] = {"durability": options.durability or agent.durability, "context": context}
    for name in ("interrupt_before", "interrupt_after"):
        if (asked := getattr(options, name)) is not None:
            call_options[name] = asked
    return call_options


def _may_pause(graph: Pregel[Any, Any, Any, Any], options: Options) -> bool:
    """Return True if the graph may stop before or after a node without an interrupt in its result."""
    return bool(
        graph.interrupt_before_nodes
        or graph.interrupt_after_nodes
        or options.interrupt_before
        or options.interrupt_after
    )


async def _invoke(
    graph: Pregel[Any, Any, Any, Any],
    given: Any,
    config: RunnableConfig,
    call_options: dict[str, Any],
    publisher: StreamPublisher | None,
) -> Any:
    """Invoke a graph like ``ainvoke`` and publish the run's events meanwhile, if it has a publisher."""
    if publisher is None:
        return await graph.ainvoke(given, config, **call_options)
    call_options = {
        **call_options,
        "output_keys": graph.output_channels,
        "stream_mode": publisher.stream_modes,
        "subgraphs": publisher.stream.subgraphs,
    }
    if publisher.speaks_protocol:
        call_options["version"] = "v2"
        config = with_configurable(config, {BY_BLOCK: True})
    by_event = publisher if "events" in publisher.stream.modes else None
    values: Any = None
    interrupts: list[Interrupt] = []
    async with aclosing(_stream_parts(graph, given, config, call_options, by_event)) as parts:
        async for part in parts:
            if isinstance(part, dict):
                part = part["ns"], part["type"], part["data"]
            namespace, mode, payload = part if len(part) == 3 else ((), *part)
            if not namespace and mode == "values":
                values = payload
            elif not namespace and mode == "updates" and isinstance(payload, dict) and INTERRUPT in payload:
                interrupts += payload[INTERRUPT]
            await publisher.publish_part(mode, payload, namespace)
            await publisher.wait_for_room()
    result = read_mapping(values)
    if interrupts:
        return {**result, INTERRUPT: tuple(interrupts)}
    return result


async def _stream_parts(
    graph: Pregel[Any, Any, Any, Any],
    given: Any,
    config: RunnableConfig,
    call_options: dict[str, Any],
    publisher: StreamPublisher | None,
) -> AsyncGenerator[Any, None]:
    """Yield the parts of a graph's stream. With a ``publisher``, LangChain's other events are published as
    well."""
    if publisher is None:
        # Closed at once when a part cannot be published: the graph's tasks end with the stream.
        async with aclosing(
            cast(AsyncGenerator[Any, None], graph.astream(given, config, **call_options))
        ) as parts:
            async for part in parts:
                yield part
        return
    run_id = publisher.get_root_id()
    stream = graph.astream_events(given, {**config, "run_id": run_id}, version="v2", **call_options)
    async with aclosing(cast(AsyncGenerator[Any, None], stream)) as events:
        async for event in events:
            if event["event"] == "on_chain_stream" and event["run_id"] == str(run_id):
                yield event["data"]["chunk"]
            else:
                publisher.publish_event(event)


def config_of(
    agent: Agent,
    held: HeldRun,
    journal: EffectJournal,
    options: Options,
    views: Views,
    context: Any = None,
) -> RunnableConfig:
    """Return the config for a run's invocation.

    It is the agent's own, overridden by the message's, then by the run's identity.

    Args:
        agent: The agent of the run's graph.
        held: The run, with its lease.
        journal: The recorded effects of the run.
        options: The options of the run's first message.
        views: The observer of the calls of models, and what steers the run.
        context: The graph's context, whose fields are mirrored into the configurable part.
    """
    given_configurable = options.config.get("configurable") or {}
    configurable = {
        **agent.config.get("configurable", {}),
        **mirror(context, given_configurable),
        **({USER: user_of(given_configurable[USER])} if USER in given_configurable else {}),
        "thread_id": ThreadId.of(
            held.partition.thread,
            epoch=held.epoch,
            journal=journal,
            taking=views.steering.taking,
            stored=journal.stored,
            confirm=None if journal.lease is None else journal.lease.aconfirm,
        ),
        "run_id": held.run.id,
    }
    metadata = {
        **agent.config.get("metadata", {}),
        **(options.config.get("metadata") or {}),
        "run_id": held.run.id,
        "graph_id": held.run.graph,
    }
    rest = {**agent.config, **options.config}
    config = cast(RunnableConfig, {**rest, "configurable": configurable, "metadata": metadata})
    calls = ModelCalls(views.called, views.prices, user_of_config(config) or "", views.answers)
    handlers: list[BaseCallbackHandler] = [calls]
    if views.limits is not None:
        # Time that a call waited for its turn does not count for its model.
        calls.waited = views.limits.measure_wait
        handlers += views.limits.handlers
    return with_places({**config, "callbacks": with_handlers(config.get("callbacks"), *handlers)})
