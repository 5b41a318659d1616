"""Hooks and nodes for graphs of your own: a window before the model is called, a summary after the reply."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any, ParamSpec, TypeVar

from langchain_core.runnables import Runnable, RunnableLambda

from perdure.conversation.policy import Conversation
from perdure.conversation.summary import Summary
from perdure.errors import NoWindow

P = ParamSpec("P")
T = TypeVar("T")

_LOG = logging.getLogger("perdure.conversation")

SUMMARY_KEY = "conversation_summary"
"""Key of the state under which a node or the middleware stores the summary, as plain data."""


def pre_model_hook(conversation: Conversation) -> Runnable[Any, dict[str, Any]]:
    """Return a hook for ``create_react_agent(pre_model_hook=…)``, or a node: it puts the window under
    ``llm_input_messages`` and leaves the messages as they are.

    Args:
        conversation: The policy; give it the tools and the prompt of the agent, which count.
    """

    def window_of_messages(state: Mapping[str, Any]) -> dict[str, Any]:
        messages = state[conversation.key]
        return {"llm_input_messages": conversation.window(messages, summary=summary_of(state)).messages}

    async def window_off_loop(state: Mapping[str, Any]) -> dict[str, Any]:
        return await run_off_loop(conversation, window_of_messages, state)

    return RunnableLambda(window_of_messages, window_off_loop, name="window")


def summary_node(conversation: Conversation) -> Runnable[Any, dict[str, Any]]:
    """Return a node that folds the messages that left the window, or soon will, into the summary of the
    state.

    Put it behind the node that replies. The summary is stored in the commit of its step, so a crash leaves
    either the old or the new summary. If summarising fails, the state stays as it was, the failure is logged,
    and the next run tries again. The state needs the key ``conversation_summary: dict``.

    Args:
        conversation: The policy, with ``summarize``.

    Raises:
        ValueError: The policy makes no summaries.
    """
    if conversation.summarize is None:
        raise ValueError("a node for summaries needs Conversation(…, summarize=…)")

    async def summarise(state: Mapping[str, Any]) -> dict[str, Any]:
        return await make_next_summary(conversation, state) or {}

    def summarise_sync(state: Mapping[str, Any]) -> dict[str, Any]:
        return make_next_summary_sync(conversation, state) or {}

    return RunnableLambda(summarise_sync, summarise, name="summary")


async def make_next_summary(conversation: Conversation, state: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the update of a state with a summary that covers more messages, ``None`` if there is nothing to
    do, or if it failed, which is logged."""
    summary = summary_of(state)
    try:
        leaving = await run_off_loop(conversation, conversation.to_fold, state[conversation.key], summary)
        if leaving is None:
            return None
        return _make_update(await conversation.fold(summary, leaving))
    except NoWindow:
        return None
    except Exception as error:
        _log_failure(error)
        return None


def make_next_summary_sync(conversation: Conversation, state: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the same as ``make_next_summary``, for a synchronous caller."""
    summary = summary_of(state)
    try:
        leaving = conversation.to_fold(state[conversation.key], summary)
        if leaving is None:
            return None
        return _make_update(conversation.fold_sync(summary, leaving))
    except NoWindow:
        return None
    except Exception as error:
        _log_failure(error)
        return None


async def run_off_loop(
    conversation: Conversation, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Run a function that counts tokens and return its result. It runs in another OS thread if the policy's
    counter may take long: a counter that makes requests would stop the event loop for everyone."""
    if conversation.counts_quickly:
        return function(*args, **kwargs)
    return await asyncio.to_thread(function, *args, **kwargs)


def _make_update(made: Summary) -> dict[str, Any]:
    if made.shortened:
        _LOG.warning("a summary was too long and was shortened (%s)", made.shortened)
    return {SUMMARY_KEY: {"text": made.text, "covers": made.covers, "keeps": list(made.keeps)}}


def _log_failure(error: Exception) -> None:
    # A summary must never cost the reply that it follows.
    _LOG.warning("a summary failed and is tried again after the next reply: %s", type(error).__name__)


def summary_of(state: Mapping[str, Any]) -> Summary | None:
    """Return the summary that a state holds, or ``None``."""
    stored = state.get(SUMMARY_KEY)
    if stored:
        return Summary(stored["text"], stored["covers"], keeps=tuple(stored["keeps"]))
    return None
