"""Memory in the runs of a runtime's threads: recall into a thread's first run, and the hand-over of each turn
to the user's lane, in the commit that ends the run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, convert_to_messages
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.pregel import Pregel
from langgraph.store.base import BaseStore

from perdure.conversation.summary import Summary
from perdure.engine.queue.runs import HeldRun
from perdure.engine.threads.steering import STEER
from perdure.errors import Forgotten, PerdureError
from perdure.langgraph.reading.readable_states import aread_state
from perdure.memory.facts import SUMMARY_MAX, Remembered
from perdure.memory.memory import Memory
from perdure.memory.policy import MemoryPolicy
from perdure.memory.recall import compose_recall, read_recalled_ids
from perdure.model.arguments import read_mapping
from perdure.model.runs.messages import replace_surrogates
from perdure.model.times import to_datetime
from perdure.runtime.agent_memory.conversation_windows import read_messages
from perdure.runtime.agent_memory.memory_turns import MEMORY, WaitingTurn
from perdure.runtime.agents.agent import list_given
from perdure.runtime.agents.run_context import with_configurable
from perdure.runtime.contained_exits import contain
from perdure.runtime.failures.failure_location import log_failure
from perdure.runtime.observers import Observers

_TURN_MAX = 20_000
"""Maximum number of characters of a turn that are handed over; of a longer turn only the beginning is."""
_QUERY_MAX = 2_000
_PATIENCE_S = 2.0
"""Seconds for which a reply waits for recalled memories, or for the storing of a summary."""


class Memories:
    """Applies the memory policies of agents to the runs of their threads.

    Args:
        observers: Receivers of events.
        store: Returns the store of a tenant.
        has_index: True if the stores can be searched by a query.
    """

    def __init__(self, observers: Observers, store: Callable[[str], BaseStore], *, has_index: bool) -> None:
        self._observers = observers
        self._store = store
        self._has_index = has_index

    async def prepare_input(
        self,
        policy: MemoryPolicy,
        config: RunnableConfig,
        held: HeldRun,
        given: Any,
        stored: Mapping[str, Any],
    ) -> Any:
        """Return a run's input: for a new thread with the message of its user's recalled memories.

        Args:
            policy: The policy.
            config: The config of the run, with the user.
            held: The run.
            given: The input; answers to interrupts and commands are returned unchanged.
            stored: The values of the state from which the run starts.
        """
        if not isinstance(given, Mapping) or not given.get(policy.key):
            return given
        user = self._find_user(policy, config, held)
        if user is None or stored.get(policy.key):
            return given
        new = list_given(given[policy.key])
        messages = convert_to_messages(new)
        memory = Memory(self._store(held.partition.tenant), user, root=policy.root)
        query = ""
        if self._has_index:
            query = _join_asked(messages)
        # Both searches at once, so that together they take no longer than one of them may.
        nearest, newest = await asyncio.gather(
            self._recall_in_time(held, memory, query, policy.nearest),
            self._recall_in_time(held, memory, None, policy.newest),
        )
        message = compose_recall(nearest, newest, tokens=policy.tokens, counter=policy.counter)
        if message is None:
            return given
        self._observers.run_event("memory.recalled", held, entries=len(read_recalled_ids(message)))
        place = next((n for n, each in enumerate(messages) if not isinstance(each, SystemMessage)), len(new))
        return {**given, policy.key: [*new[:place], message, *new[place:]]}

    async def load_earlier_messages(
        self,
        policy: MemoryPolicy,
        graph: Pregel[Any, Any, Any, Any],
        config: RunnableConfig,
        held: HeldRun,
        stored: Mapping[str, Any] | None,
    ) -> Sequence[Any] | None:
        """Return the messages that a thread had before a run, or ``None`` if they are not stored any more.

        Args:
            policy: The policy.
            graph: The graph of the run.
            config: The config of the run.
            held: The run.
            stored: The values of the state from which the run starts; ``None`` if an earlier attempt has
                stored checkpoints of the run.
        """
        if stored is not None:
            return _messages_of(stored, policy.key)
        if not isinstance(graph.checkpointer, BaseCheckpointSaver):
            return ()
        state = await aread_state(graph, config)
        while (state.metadata or {}).get("run_id") == held.run.id:
            if state.parent_config is None:
                return ()
            parent = (state.parent_config.get("configurable") or {}).get("checkpoint_id")
            state = await aread_state(graph, with_configurable(config, {"checkpoint_id": parent}))
            if state.metadata is None:
                return None
        return _messages_of(state.values, policy.key)

    async def end_turn(
        self,
        policy: MemoryPolicy,
        graph: Pregel[Any, Any, Any, Any],
        config: RunnableConfig,
        held: HeldRun,
        turn: tuple[Sequence[Any] | None, Any],
    ) -> Sequence[tuple[str, Any]]:
        """Return the turn that a run ended, for the outbox, as a channel and a payload. The running summary
        of the thread is stored at once.

        Only messages that the run itself has added belong to its turn. Earlier messages of the thread are of
        other turns, which may be another user's, or forgotten. A run that added no message of
        the user hands nothing over.

        Args:
            policy: The policy.
            graph: The graph of the run.
            config: The config of the run, with the user.
            held: The run.
            turn: The messages before the run, and the output of the run; the state is read if it lacks the
                messages.
        """
        before, values = turn
        user = self._find_user(policy, config)
        if user is None:
            return ()
        messages = await read_messages(graph, config, values, policy.key)
        if messages is None:
            return ()
        if before is None:
            self._observers.run_event("memory.not_handed_over", held)
            return ()
        is_steered = any(each.mode == STEER for each in held.messages[1:])
        turn_messages = find_last_turn(_find_added(before, messages), is_steered=is_steered)
        if not turn_messages:
            return ()
        message = turn_messages[0].id
        unstored_summary = None
        if not policy.summarize:
            unstored_summary = await self._keep_summary(policy, user, held, messages)
        if policy.extract is None and policy.summarize is None:
            if unstored_summary is None:
                return ()
            turn_messages = []
        waiting = WaitingTurn(
            agent=held.run.graph,
            thread=held.partition.thread,
            run=held.run.id,
            at=held.messages[0].accepted_at,
            message=message,
            messages=_cut(turn_messages),
            summary=unstored_summary,
        )
        return ((MEMORY, {"user": user, "turn": waiting.dump()}),)

    async def _keep_summary(
        self, policy: MemoryPolicy, user: str, held: HeldRun, messages: Sequence[Any]
    ) -> str | None:
        """Store the running summary of a thread for the user's other threads, if it has one. The summary is
        stored before the run ends, so that it exists once the turn is handed over; if the process ends in
        between, the next attempt stores it again. If it cannot be stored in time, return it, so that the
        user's lane stores it and the reply does not wait."""
        summary = Summary.of(messages)
        if summary is None or not summary.text:
            return None
        text = replace_surrogates(summary.text)[:SUMMARY_MAX]
        memory = Memory(self._store(held.partition.tenant), user, root=policy.root)
        heard_at = to_datetime(held.messages[0].accepted_at)
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await contain(memory.asummarise(held.partition.thread, text, heard_at=heard_at))
        except Forgotten:
            return None
        except Exception as error:
            self._observers.run_event("memory.summary_waits", held, error=type(error).__name__)
            log_failure(held.run.id, error)
            return text
        return None

    async def remove_lane_texts(self, graph: Pregel[Any, Any, Any, Any], held: HeldRun) -> bool:
        """Remove the texts that a finished run of a lane has left in its checkpoints. Return True if the user
        was forgotten at some time: then the lane has to go, too, as a turn of before may have come to it
        later, and its messages stay as long as no further turn comes."""
        thread, was_forgotten = held.partition.thread, False
        if isinstance(graph.checkpointer, BaseCheckpointSaver):
            try:
                state = await aread_state(graph, {"configurable": {"thread_id": thread}})
                was_forgotten = bool(state.values.get("found", {}).get("forgotten"))
                await graph.checkpointer.aprune([thread])
            except PerdureError as error:
                # The next run of the lane removes them.
                self._observers.run_event("memory.not_tidied", held, error=type(error).__name__)
        return was_forgotten

    def _find_user(
        self, policy: MemoryPolicy, config: RunnableConfig, held: HeldRun | None = None
    ) -> str | None:
        """Return the user of a run, ``None`` if it has none, or if no memory can have the user's id: that
        is reported if ``held`` is given."""
        try:
            return policy.user_of(config.get("configurable") or {})
        except (TypeError, ValueError) as error:
            if held is not None:
                self._observers.run_event("memory.user_refused", held, error=str(error))
            return None

    async def _recall_in_time(
        self, held: HeldRun, memory: Memory, query: str | None, most: int
    ) -> list[Remembered]:
        """Return the memories nearest to a query, or with ``None`` the newest; none for an empty query, or if
        recalling them fails or takes long, so that the reply need not wait."""
        if query == "" or not most:
            return []
        try:
            async with asyncio.timeout(_PATIENCE_S):
                return await contain(memory.arecall(query, most))
        except Exception as error:
            self._observers.run_event("memory.recall_failed", held, error=type(error).__name__)
            log_failure(held.run.id, error)
            return []


def _messages_of(values: Any, key: str) -> Sequence[Any]:
    found = read_mapping(values).get(key)
    if isinstance(found, list):
        return found
    return ()


def _find_added(before: Sequence[Any], messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the messages that are not among the earlier ones: by their ids, and without an id by their
    place."""
    earlier_ids = {each.id for each in before if isinstance(each, BaseMessage) and each.id is not None}
    return [
        each
        for place, each in enumerate(messages)
        if each.id not in earlier_ids and (each.id is not None or place >= len(before))
    ]


def find_last_turn(messages: Sequence[BaseMessage], *, is_steered: bool = False) -> list[BaseMessage]:
    """Return the user's last messages and the texts that follow them, without tools and system messages. In a
    run that was steered the turn begins with the user's first message."""
    places = [n for n, message in enumerate(messages) if isinstance(message, HumanMessage)]
    if not places:
        return []
    start = places[0]
    if not is_steered:
        start = places[-1]
        while start and isinstance(messages[start - 1], HumanMessage):
            start -= 1
    kinds = (HumanMessage, AIMessage)
    return [each for each in messages[start:] if isinstance(each, kinds) and each.text.strip()]


def _join_asked(messages: Sequence[BaseMessage]) -> str:
    """Return the text of the user's messages, to search by."""
    texts = [message.text.strip() for message in messages if isinstance(message, HumanMessage)]
    return "\n".join(text for text in texts if text)[:_QUERY_MAX]


def _cut(messages: Sequence[BaseMessage]) -> list[list[str]]:
    """Return the types and texts of messages, cut to ``_TURN_MAX`` characters in all."""
    out: list[list[str]] = []
    left = _TURN_MAX
    for message in messages:
        text = message.text.strip().encode("utf-8", "replace").decode()[:left]
        if not text:
            break
        out.append([message.type, text])
        left -= len(text)
    return out
