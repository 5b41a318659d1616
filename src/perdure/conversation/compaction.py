"""Compaction of a thread's own messages, for graphs that send a model all that their state holds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from langchain_core.messages import BaseMessage

from perdure.conversation.policy import Conversation, find_uncovered
from perdure.conversation.summary import SUMMARY_ID, Summary
from perdure.conversation.window import Window, is_system


@dataclass(frozen=True, slots=True)
class Compacted:
    """Messages that take the place of a thread's, and what was changed.

    ``left_out`` counts the messages that a model is not sent any more, ``repairs`` the changes by kind, and
    ``has_new_summary`` is True if a summary that was made before took its place among the messages.
    """

    messages: list[BaseMessage]
    left_out: int
    repairs: dict[str, int]
    has_new_summary: bool


def compact(
    conversation: Conversation, messages: Sequence[BaseMessage], made: Summary | None = None
) -> Compacted | None:
    """Return what a thread's messages become, or ``None`` if they stay as they are.

    They become their window. What leaves it is kept in the summary's message, unsent, until a summary covers
    it: so no model has to be waited for, and nothing is lost if it fails. Without ``summarize`` it is only in
    earlier checkpoints.

    Args:
        conversation: The policy.
        messages: All messages of the thread, with those that are new.
        made: A summary made since, of messages that the thread still holds.

    Raises:
        NoWindow: No valid list of the messages fits; see ``window``.
    """
    held = Summary.of(messages)
    rest = [message for message in messages if message.id != SUMMARY_ID]
    summary = _extend(held, rest, made)
    chosen = conversation.window(rest, summary=summary)
    leaving = find_uncovered(chosen.left_out, summary)
    if leaving and conversation.summarize is not None:
        summary = replace(summary or Summary(""), pending=(*(summary.pending if summary else ()), *leaving))
    became = _with_summary(chosen, summary)
    if became == list(messages):
        return None
    repairs: Counter[str] = Counter(change.kind for change in chosen.changes)
    return Compacted(
        became,
        len(chosen.left_out),
        dict(repairs),
        summary is not None and summary.text != (held.text if held else ""),
    )


def _extend(held: Summary | None, rest: Sequence[BaseMessage], made: Summary | None) -> Summary | None:
    """Return a thread's summary, or the one made since if the thread has the messages that it covers."""
    if made is None or made.covers is None:
        return held
    pending = () if held is None else held.pending
    if made.covers in [message.id for message in pending]:
        return replace(made, pending=tuple(find_uncovered(pending, made)))
    if made.covers in [message.id for message in rest]:
        return replace(made, pending=())
    return held


def _with_summary(chosen: Window, summary: Summary | None) -> list[BaseMessage]:
    messages = [message for message in chosen.messages if message.id != SUMMARY_ID]
    if summary is None:
        return messages
    heads = next((place for place, each in enumerate(messages) if not is_system(each)), len(messages))
    return [*messages[:heads], summary.message(), *messages[heads:]]
