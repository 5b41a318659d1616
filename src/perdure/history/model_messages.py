"""Rebuilds what a model is given from a stored history: tagged messages are kept, left out or summarised."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from langchain_core.messages import BaseMessage

from perdure.history.neutral_messages import NeutralMessage, to_langchain, to_neutral

Summarise = Callable[[Sequence[NeutralMessage]], Mapping[str, Any] | None]
"""Function from successive messages to the message that replaces them, ``None`` to leave them out."""

Policy = Literal["keep", "drop"] | Summarise
"""Treatment of the messages with a tag."""


def rebuild(messages: Iterable[Mapping[str, Any]], policies: Mapping[str, Policy]) -> list[BaseMessage]:
    """Return the messages of a history for a model, as LangChain's.

    Args:
        messages: neutral messages, e.g. ``SessionHistory.messages``.
        policies: the treatment by tag: ``"keep"``, ``"drop"``, or a function that summarises successive
            messages with the tag. The first policy whose tag a message has applies to it; other messages are
            kept.

    Raises:
        ValueError: a policy has another value.
        Unserialisable: a message is not a neutral one.
    """
    for tag, policy in policies.items():
        if policy not in ("keep", "drop") and not callable(policy):
            raise ValueError(f"the policy for {tag!r} has to be 'keep', 'drop' or a function, not {policy!r}")
    out: list[NeutralMessage] = []
    waiting: list[NeutralMessage] = []
    untagged: Policy = "keep"
    treatment = untagged

    def summarise() -> None:
        if waiting and callable(treatment) and (summary := treatment(tuple(waiting))) is not None:
            out.extend(to_neutral([summary]))
        waiting.clear()

    for message in to_neutral(messages):
        tags = message.get("tags", ())
        policy = next((policies[tag] for tag in policies if tag in tags), untagged)
        if policy is not treatment:
            summarise()
            treatment = policy
        if callable(policy):
            waiting.append(message)
        elif policy == "keep":
            out.append(message)
    summarise()
    return to_langchain(out)


def tag_by_prefix(messages: Iterable[Mapping[str, Any]], prefixes: Mapping[str, str]) -> list[NeutralMessage]:
    """Return messages with tags that are derived from prefixes of their texts, which older programs used as
    tags.

    Args:
        messages: neutral messages, or ``{role, content}``.
        prefixes: tag by the beginning of the text. The text is left as it is.
    """
    out = to_neutral(messages)
    for message in out:
        content = message["content"]
        for prefix, tag in prefixes.items():
            if isinstance(content, str) and content.startswith(prefix):
                message["tags"] = list(dict.fromkeys((*message.get("tags", ()), tag)))
    return out
