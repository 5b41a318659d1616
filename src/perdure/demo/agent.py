"""Agent of the demo: a graph of one node that asks a chat model for the next message.

The state holds all messages and nothing else; for each call they are cut to the model's context. The model,
the storage and the user are the caller's concern.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AnyMessage,
    BaseMessage,
    HumanMessage,
    MessageLikeRepresentation,
    SystemMessage,
    convert_to_messages,
    trim_messages,
)
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph

from perdure.memory import RECALL_ID

ANSWER = "answer"
"""Name of the node that writes an answer."""

INSTRUCTIONS = "You are a friendly assistant. Answer in plain words and keep to the question."

ASCII_CHARACTERS_PER_TOKEN = 3.5
TOKENS_PER_MESSAGE = 8


class DemoState(MessagesState):
    """State of a thread: its messages, each under an id, oldest first."""


Agent = CompiledStateGraph[DemoState, None, DemoState, DemoState]
"""Compiled graph over :class:`DemoState`."""


def build_agent(model: BaseChatModel, *, context_tokens: int) -> Agent:
    """Return the compiled graph. ``context_tokens`` limits the prompt, instructions included."""

    async def answer(state: DemoState) -> dict[str, list[BaseMessage]]:
        reply = await model.ainvoke(prompt(state["messages"], context_tokens))
        return {"messages": [reply]}

    builder = StateGraph(DemoState)
    builder.add_node(ANSWER, answer)
    builder.add_edge(START, ANSWER)
    builder.add_edge(ANSWER, END)
    return builder.compile()


def prompt(messages: Sequence[AnyMessage], context_tokens: int) -> list[BaseMessage]:
    """Return the instructions and the latest messages that fit, the first of them the user's. What is
    recalled of the user is a part of the instructions.

    If the user's last message is too long by itself, the prompt has its end: without a question a model would
    invent one.
    """
    recalled = [str(message.text) for message in messages if message.id == RECALL_ID]
    messages = [message for message in messages if message.id != RECALL_ID]
    instructions = SystemMessage("\n\n".join([INSTRUCTIONS, *recalled]))
    fitting = trim_messages(
        [instructions, *messages],
        max_tokens=context_tokens,
        token_counter=estimate_tokens,
        strategy="last",
        start_on="human",
        include_system=True,
    )
    if any(isinstance(message, HumanMessage) for message in fitting):
        return fitting
    question = next((m for m in reversed(messages) if isinstance(m, HumanMessage)), None)
    if question is None:
        return fitting
    room = context_tokens - estimate_tokens([instructions]) - TOKENS_PER_MESSAGE
    return [instructions, HumanMessage(_ending(str(question.text), room))]


def estimate_tokens(messages: Iterable[MessageLikeRepresentation]) -> int:
    """Return an upper estimate of the tokens that a small model's tokeniser makes of text in most languages.

    Small vocabularies fall back to single bytes outside of English, so other characters count one token for
    each byte.
    """
    return sum(TOKENS_PER_MESSAGE + _estimate(str(message.text)) for message in convert_to_messages(messages))


def _estimate(text: str) -> int:
    plain = sum(character.isascii() for character in text)
    return round(plain / ASCII_CHARACTERS_PER_TOKEN) + len(text.encode(errors="replace")) - plain


def _ending(text: str, tokens: int) -> str:
    start, end = 0, len(text)
    while start < end:
        middle = (start + end) // 2
        if _estimate(text[middle:]) <= tokens:
            end = middle
        else:
            start = middle + 1
    return text[end:]
