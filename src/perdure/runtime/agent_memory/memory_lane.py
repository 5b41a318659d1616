"""Lane of a user: the thread on which the turns of the user's other threads are extracted, one run at a time.

A turn reaches the lane through the outbox of its thread, under a key of its run, so it is accepted once. Runs
of the lane are runs like others: they are debounced and retried, and their messages are given up after the
last attempt. Facts are stored by their content, so a step that is repeated stores nothing twice.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from itertools import groupby
from typing import Any, TypedDict

from langgraph.graph import END, START, StateGraph
from langgraph.pregel import Pregel
from langgraph.runtime import Runtime as NodeRuntime

from perdure.conversation.summary import Leaving, Summary, fold_summary, transcript
from perdure.errors import Forgotten, QueueFull
from perdure.memory.extraction import ExtractionRequest, extract_facts
from perdure.memory.facts import Fact, Remembered, normalise_text
from perdure.memory.memory import Memory
from perdure.memory.policy import MemoryPolicy
from perdure.model.records import Partition
from perdure.model.runs.messages import Message, Reply, replace_surrogates
from perdure.model.runs.payloads import INPUT
from perdure.model.runs.queue import Debounce
from perdure.model.times import to_datetime, to_micros
from perdure.runtime.accepting import AcceptanceTerms
from perdure.runtime.agent_memory.memory_turns import MEMORY, WaitingTurn, lane_of
from perdure.runtime.agents.agent import Agent
from perdure.runtime.observers import Observers
from perdure.runtime.options import Options
from perdure.runtime.tickets import Ticket, message_of
from perdure.runtime.worker.delivery import Channel, NotSent

_QUERY_MAX = 2_000
_STEPS_MAX = 10_000
_SUMMARY_TOKENS = 4_000
_FULL_S = 30.0
"""Seconds after which a turn that found its lane full is handed over again."""


_OPTIONS = Options(on_failure="rollback")
"""Options of the lanes' runs, whatever the worker's setting: one that is given up leaves no text."""
_NOTHING: Mapping[str, Any] = {"facts": [], "summary": None}


class LaneState(TypedDict):
    """State of a lane: the user, the remaining turns, and the facts found in the first ones, with the time at
    which the user was forgotten, 0 for never. At the end of a run only this time is left of ``found``."""

    user: str
    turns: list[dict[str, Any]]
    found: dict[str, Any]


def make_lane_agent(agents: Mapping[str, Agent], observers: Observers, *, has_index: bool) -> Agent:
    """Return the agent of the lanes.

    Args:
        agents: The agents whose turns are extracted, by name.
        observers: Receivers of events.
        has_index: True if the store can be searched by a query.
    """

    async def extract(state: LaneState, runtime: NodeRuntime[None]) -> dict[str, Any]:
        remaining, failed, errors = list(state["turns"]), list[dict[str, Any]](), list[Exception]()
        while remaining:
            group_size = len(_list_first(remaining))
            for count in dict.fromkeys((group_size, 1)):
                turns = [WaitingTurn.read(each) for each in remaining[:count]]
                try:
                    result = await find(state["user"], turns, runtime)
                except _NoFacts as partial_result:
                    # The turns' summary is finished, and is kept; their facts are extracted after the
                    # others'.
                    resubmitted = [replace(turn, is_summarised=True).dump() for turn in turns]
                    return {
                        "turns": [*remaining, *failed, *resubmitted],
                        "found": {**partial_result.found, "count": count},
                    }
                except Exception as error:
                    errors.append(error)
                else:
                    return {"turns": [*remaining, *failed], "found": {**result, "count": count}}
            # The first turn fails also by itself: those behind it do not wait for it.
            failed.append(remaining.pop(0))
        raise errors[0]

    async def find(user: str, turns: Sequence[WaitingTurn], runtime: NodeRuntime[None]) -> dict[str, Any]:
        policy = _find_policy(agents, turns[0])
        memory = _open_memory(runtime, user, policy)
        forgotten = await _read_forgotten_at(memory)
        turns = [turn for turn in turns if turn.at > forgotten]
        if not turns:
            return {**_NOTHING, "forgotten": forgotten}
        summary = await _summary(policy, memory, turns)
        found: dict[str, Any] = {"facts": [], "summary": summary, "forgotten": forgotten}
        try:
            return {**found, "facts": await _facts(policy, memory, turns, has_index=has_index)}
        except Exception as error:
            if summary is None:
                raise
            raise _NoFacts(found) from error

    async def keep(state: LaneState, runtime: NodeRuntime[None]) -> dict[str, Any]:
        found = state["found"]
        taken = [WaitingTurn.read(each) for each in state["turns"][: found["count"]]]
        memory = _open_memory(runtime, state["user"], _find_policy(agents, taken[0]))
        # As in ``find``: no facts were extracted from the others.
        turns = [turn for turn in taken if turn.at > found["forgotten"]] or taken
        last = turns[-1]
        if await _remove_forgotten(memory, last, found["forgotten"]):
            # The user was forgotten since: turns that are newer than that are extracted again.
            return {"found": {}}
        kept = await _store_facts(memory, turns, found)
        if await _remove_forgotten(memory, last, found["forgotten"]):
            return {"found": {}}
        observers.event("memory.kept", graph=last.agent, **kept)
        return {"turns": state["turns"][len(taken) :], "found": {"forgotten": found["forgotten"]}}

    builder = StateGraph(LaneState)
    builder.add_node("extract", extract)
    builder.add_node("keep", keep)
    builder.add_edge(START, "extract")
    builder.add_edge("extract", "keep")
    builder.add_conditional_edges("keep", lambda state: "extract" if state["turns"] else END)
    graph: Pregel[Any, Any, Any, Any] = builder.compile(name=MEMORY)
    return Agent(graph, config={"recursion_limit": _STEPS_MAX}, apology=None)


Accept = Callable[[Partition, Message, AcceptanceTerms], Awaitable[Ticket]]


def make_lane_channel(accept: Accept, agents: Mapping[str, Agent], timeout: float) -> Channel:
    """Return the channel that brings turns to the lanes.

    Args:
        accept: Accepts a message for a thread.
        agents: The agents by name.
        timeout: Seconds for the acceptance of a turn.
    """

    async def hand_over(partition: Partition, reply: Reply) -> str:
        user, turn = reply.payload["user"], reply.payload["turn"]
        agent = agents.get(turn["agent"])
        debounce = Debounce()
        if agent is not None and (policy := agent.memory) is not None:
            debounce = Debounce(round(policy.debounce * 1_000_000), round(policy.max_wait * 1_000_000))
        payload = {INPUT: {"user": user, "turns": [turn]}}
        message = message_of(MEMORY, payload, "coalesce", reply.id, "", _OPTIONS)
        lane = Partition(partition.tenant, lane_of(user))
        try:
            return (await accept(lane, message, AcceptanceTerms(debounce=debounce))).id
        except QueueFull as full:
            # The turn is accepted already, so it waits in its thread for as long as the lane is full.
            raise NotSent("the lane of the user is full", retry_after=_FULL_S) from full

    return Channel(send_in=hand_over, timeout=timeout)


class _NoFacts(Exception):
    """The facts of turns could not be extracted; ``found`` has their summary."""

    def __init__(self, found: dict[str, Any]) -> None:
        super().__init__()
        self.found = found


async def _facts(
    policy: MemoryPolicy, memory: Memory, turns: Sequence[WaitingTurn], *, has_index: bool
) -> list[dict[str, Any]]:
    """Return the facts of turns of one thread, as plain JSON data."""
    messages = [message for turn in turns for message in turn.to_messages()]
    facts: list[dict[str, Any]] = []
    if policy.extract is None or not messages:
        return facts
    text = transcript(messages)
    current = await memory.afacts()
    stored_texts = {normalise_text(fact.text) for fact in current}
    shown = await _choose_known(policy, memory, text, current, has_index=has_index)
    for fact in await extract_facts(policy.extract, ExtractionRequest(text, shown)):
        if normalise_text(fact.text) in stored_texts and not fact.supersedes:
            continue
        valid_from = None
        if fact.valid_from is not None:
            valid_from = fact.valid_from.isoformat()
        facts.append({"text": fact.text, "supersedes": list(fact.supersedes), "valid_from": valid_from})
    return facts


async def _summary(policy: MemoryPolicy, memory: Memory, turns: Sequence[WaitingTurn]) -> str | None:
    """Return the summary of a thread, extended by those of its turns that it lacks; ``None`` if it lacks
    none."""
    new = [turn for turn in turns if not turn.is_summarised]
    messages = [message for turn in new for message in turn.to_messages()]
    if policy.summarize is None or not messages:
        if new:
            return new[-1].summary
        return None
    thread = turns[-1].thread
    stored = [Summary(each.text) for each in await memory.asummaries() if each.thread == thread]
    made = fold_summary(
        next(iter(stored), None),
        Leaving(messages),
        policy.summarize,
        most=_SUMMARY_TOKENS,
        counter=policy.counter,
    )
    return (await made).text


async def _choose_known(
    policy: MemoryPolicy, memory: Memory, text: str, current: Sequence[Fact], *, has_index: bool
) -> list[Fact]:
    """Return the current facts that an extractor is shown: half of them near to the messages, the rest the
    newest."""
    if not policy.known:
        return []
    near: list[Remembered] = []
    if has_index:
        near = await memory.arecall(text[-_QUERY_MAX:], (policy.known + 1) // 2)
    chosen = {each.id: each for each in (*near, *reversed(current)) if isinstance(each, Fact)}
    return list(chosen.values())[: policy.known]


async def _store_facts(
    memory: Memory, turns: Sequence[WaitingTurn], found: Mapping[str, Any]
) -> dict[str, int]:
    """Store the facts found in turns, except those forgotten since the first turn; return the numbers of
    stored facts and summaries."""
    last = turns[-1]
    heard_at = to_datetime(turns[0].at)
    kept = {"facts": 0, "summaries": 0}
    stored_ids = set[str]()
    if found["facts"]:
        stored_ids = {fact.id for fact in await memory.afacts(history=True)}
    for fact in found["facts"]:
        valid_from = fact["valid_from"]
        with suppress(Forgotten):
            await memory.aremember(
                fact["text"],
                thread=last.thread,
                message=last.message,
                valid_from=None if valid_from is None else datetime.fromisoformat(valid_from),
                supersedes=[key for key in fact["supersedes"] if key in stored_ids],
                heard_at=heard_at,
            )
            kept["facts"] += 1
    if found["summary"]:
        with suppress(Forgotten):
            text = replace_surrogates(found["summary"])
            await memory.asummarise(last.thread, text, heard_at=heard_at)
            kept["summaries"] = 1
    return kept


async def _remove_forgotten(memory: Memory, turn: WaitingTurn, known: int) -> bool:
    """If the user was forgotten since ``known``, in microseconds, remove what is stored of a turn, and return
    True: this attempt, or an earlier one that ended, may have stored it after the user was forgotten."""
    if await _read_forgotten_at(memory) == known:
        return False
    if turn.message is not None:
        await memory.aforget_source(turn.thread, turn.message)
    return True


def _list_first(stored: Sequence[Mapping[str, Any]]) -> list[WaitingTurn]:
    """Return the turns at the front that are of one thread and agent."""
    turns = [WaitingTurn.read(each) for each in stored]
    _, first = next(groupby(turns, lambda turn: (turn.agent, turn.thread)))
    return list(first)


async def _read_forgotten_at(memory: Memory) -> int:
    """Return the time at which the user was last forgotten, in microseconds since 1970, or 0 for none."""
    at = await memory.aforgotten_at()
    if at is None:
        return 0
    return to_micros(at)


def _find_policy(agents: Mapping[str, Agent], turn: WaitingTurn) -> MemoryPolicy:
    agent = agents.get(turn.agent)
    if agent is None or agent.memory is None:
        raise LookupError(
            f"a turn of the agent {turn.agent!r} waits for its extraction, and this runtime has no such "
            "agent with a memory"
        )
    return agent.memory


def _open_memory(runtime: NodeRuntime[None], user: str, policy: MemoryPolicy) -> Memory:
    if runtime.store is None:
        raise LookupError("the graph of the lanes runs without a store")
    return Memory(runtime.store, user, root=policy.root)
