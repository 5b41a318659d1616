"""Threads of contexts: several agents of a server may be called with one context, and each has its own state.

A context's thread has the context's id, as in LangGraph's server, and belongs to the agent that ran on it
first. Messages to another agent in that context go to a thread whose id is made of the ids of that
agent and the context.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from perdure.server.resources import Caller
from perdure.server.thread_graphs import OtherAgent, has_run, was_run_by_other_agent
from perdure.server.thread_ids import OF_AGENT, thread_id_of

R = TypeVar("R")


def own_thread_of(assistant_id: str, context_id: str) -> str:
    """Return the thread of an agent in a context whose own thread belongs to another agent. Each pair of ids
    has a thread of its own, because the id of an assistant is a UUID."""
    return f"a2a:{assistant_id}:{context_id}"


def context_of(thread_id: str) -> str:
    """Return the context of a thread."""
    found = OF_AGENT.fullmatch(thread_id)
    if found is None:
        return thread_id
    return found[2]


async def thread_of(caller: Caller, assistant_id: str, context_id: str) -> str:
    """Return the thread that an agent has in a context, or would begin."""
    if await _has_own(caller, assistant_id, context_id):
        return own_thread_of(assistant_id, context_id)
    row = await caller.threads.find(context_id)
    if row is not None and has_run(row) and was_run_by_other_agent(row, assistant_id):
        return own_thread_of(assistant_id, context_id)
    return context_id


async def submit_in(
    caller: Caller, assistant_id: str, context_id: str, submit: Callable[[str], Awaitable[R]]
) -> R:
    """Submit a run on the thread that an agent has in a context: the context's own, unless that is another
    agent's.

    Args:
        caller: the authenticated user of the request.
        assistant_id: the agent.
        context_id: the context.
        submit: submits a run on a thread; raises ``OtherAgent`` if it is another agent's and the user may
            run on it, and another error if the user may not.
    """
    if not await _has_own(caller, assistant_id, context_id):
        try:
            return await submit(thread_id_of(context_id))
        except OtherAgent:
            pass
    return await submit(thread_id_of(own_thread_of(assistant_id, context_id)))


async def _has_own(caller: Caller, assistant_id: str, context_id: str) -> bool:
    """Return True if an agent's thread in a context is one of its own, not the context's."""
    if OF_AGENT.fullmatch(context_id) is not None:
        return True
    row = await caller.threads.find(context_id)
    if row is not None and has_run(row) and not was_run_by_other_agent(row, assistant_id):
        return False
    return await caller.threads.find(own_thread_of(assistant_id, context_id)) is not None
