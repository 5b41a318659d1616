"""Compaction of a thread's own messages, for graphs that send all messages of their state to a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from langchain_core.messages import BaseMessage

from perdure.conversation.policy import Conversation, find_uncovered
from perdure.conversation.summary import SUMMARY_ID, Summary
from perdure.conversation.window import Window, is_system


@dataclass(frozen=True, slots=True)
class CompactionResult:
    """Messages that replace those of a thread, and what was changed.

    ``left_out`` counts the messages that are no longer sent to a model, ``repairs`` the changes by kind, and
    ``has_new_summary`` is True if the messages contain a summary that the thread did not have yet.
    """

    messages: list[BaseMessage]
    left_out: int
    repairs: dict[str, int]
    has_new_summary: bool


def compact(
    conversation: Conversation, messages: Sequence[BaseMessage], newer: Summary | None = None
) -> CompactionResult | None:
    """Return the messages that replace a thread's messages, or ``None`` if these stay unchanged.

    The thread keeps the messages in the window. Messages that leave it are stored with the summary's message,
    without being sent, until a summary covers them: so the caller does not wait for a model, and nothing is
    lost if the model fails. Without ``summarize`` they are only in earlier checkpoints.

    Args:
        conversation: The policy.
        messages: All messages of the thread, including the new ones.
        newer: A summary that was made after the thread's own, of messages that the thread still has.

    Raises:
        NoWindow: No valid list of the messages fits; see ``window``.
    """
    current = Summary.of(messages)
    rest = [message for message in messages if message.id != SUMMARY_ID]
    summary = _choose_summary(current, rest, newer)
    chosen = conversation.window(rest, summary=summary)
    leaving = find_uncovered(chosen.left_out, summary)
    if leaving and conversation.summarize is not None:
        summary = summary or Summary("")
        summary = replace(summary, pending=(*summary.pending, *leaving))
    result = _insert_summary(chosen, summary)
    if result == list(messages):
        return None
    repairs: Counter[str] = Counter(change.kind for change in chosen.changes)
    has_new_summary = summary is not None and summary.text != (current or Summary("")).text
    return CompactionResult(result, len(chosen.left_out), dict(repairs), has_new_summary)


def _choose_summary(
    current: Summary | None, rest: Sequence[BaseMessage], newer: Summary | None
) -> Summary | None:
    """Return the newer summary if the thread has the last message that it covers, otherwise the current
    one."""
    if newer is None or newer.covers is None:
        return current
    pending = (current or Summary("")).pending
    if newer.covers in [message.id for message in pending]:
        return replace(newer, pending=tuple(find_uncovered(pending, newer)))
    if newer.covers in [message.id for message in rest]:
        return replace(newer, pending=())
    return current


def _insert_summary(chosen: Window, summary: Summary | None) -> list[BaseMessage]:
    messages = [message for message in chosen.messages if message.id != SUMMARY_ID]
    if summary is None:
        return messages
    first = next((place for place, each in enumerate(messages) if not is_system(each)), len(messages))
    return [*messages[:first], summary.message(), *messages[first:]]
