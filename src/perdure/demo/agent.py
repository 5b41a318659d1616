"""Agent of the demo: a short answer is one step; a long one is an outline, then a paragraph in each step.

Each step is stored when it ends, so a process that dies loses the step under way and nothing before it. The
state holds all messages; for each call they are cut to the model's context. The model, the storage and the
user are the caller's concern.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NotRequired

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    BaseMessage,
    HumanMessage,
    MessageLikeRepresentation,
    SystemMessage,
    convert_to_messages,
    merge_message_runs,
    trim_messages,
)
from langgraph.constants import TAG_NOSTREAM
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph

from perdure.memory import RECALL_ID

ANSWER = "answer"
"""Name of the node that writes a short answer."""

OUTLINE = "outline"
"""Name of the node that plans a long answer."""

PARTS_MAX = 4
"""Maximum number of paragraphs of a long answer, each written by a node of its own."""

INSTRUCTIONS = "You are a friendly assistant. Answer in plain words and keep to the question."
UNPLANNED = ("In short", "In more detail", "To finish")
"""Outline of an answer for which the model planned fewer than two parts."""

ASCII_CHARACTERS_PER_TOKEN = 3.5
TOKENS_PER_MESSAGE = 8
TITLE_CHARACTERS = 60

_OUTLINE_ID = "outline-"
_ASKS_FOR_MUCH = re.compile(
    r"\b(story|tale|essay|article|report|letter|speech|guide|explain|describe|write|compare|detail(s|ed)?|long|"
    r"paragraphs?)\b",
    re.IGNORECASE,
)
_LISTED = re.compile(r"^[ \t]*(?:\d+[.)]|[-*•])[ \t]*(\S.*)$", re.MULTILINE)
_EXPLAINED = re.compile(r"\s*[:(]|\s+[-–—]\s|(?<=[.?!])\s")


class DemoState(MessagesState):
    """State of a thread: its messages, each under an id, oldest first; and the titles of the paragraphs of
    the latest long answer."""

    outline: NotRequired[list[str]]


Agent = CompiledStateGraph[DemoState, None, DemoState, DemoState]
"""Compiled graph over :class:`DemoState`."""


def build_agent(model: BaseChatModel, *, context_tokens: int) -> Agent:
    """Return the compiled graph. ``context_tokens`` limits the prompt, instructions included."""
    # The outline in the state differs from the model's text, so do not stream the text.
    planner = model.with_config(tags=[TAG_NOSTREAM])

    async def answer(state: DemoState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(prompt(state["messages"], context_tokens))]}

    async def outline(state: DemoState) -> dict[str, Any]:
        question = _find_question(state["messages"])
        asked = HumanMessage(
            f"Make a list of {PARTS_MAX} things that belong into the answer to “{question}”. "
            f"One short line each, numbered 1 to {PARTS_MAX}."
        )
        planned = await planner.ainvoke(prompt([asked], context_tokens))
        titles = parse_titles(str(planned.text))
        text = "\n".join(f"{number}. {title}" for number, title in enumerate(titles, 1))
        return {"messages": [AIMessage(text, id=f"{_OUTLINE_ID}{uuid.uuid4().hex}")], "outline": titles}

    async def paragraph(state: DemoState, *, number: int) -> dict[str, Any]:
        title = state.get("outline", [])[number - 1]
        how = "Begin with" if number == 1 else "Go on with something new"
        asked = HumanMessage(f"{how}: {title}. Write one short paragraph.")
        return {"messages": [await model.ainvoke(prompt([*state["messages"], asked], context_tokens))]}

    builder = StateGraph(DemoState)
    builder.add_node(ANSWER, answer)
    builder.add_node(OUTLINE, outline)
    builder.add_conditional_edges(START, _route_first, [ANSWER, OUTLINE])
    builder.add_edge(ANSWER, END)
    before = OUTLINE
    for number in range(1, PARTS_MAX + 1):
        node = name_paragraph_node(number)
        builder.add_node(node, partial(paragraph, number=number))
        builder.add_conditional_edges(before, partial(_route_next, number=number), [node, END])
        before = node
    builder.add_edge(before, END)
    return builder.compile()


def name_paragraph_node(number: int) -> str:
    """Return the name of the node that writes a paragraph, counted from 1."""
    return f"paragraph {number}"


def asks_for_much(text: str) -> bool:
    """Return True for a message that is answered in several paragraphs: one with such a word as *story*,
    *explain* or *long*."""
    return _ASKS_FOR_MUCH.search(text) is not None


def parse_titles(text: str) -> list[str]:
    """Return the titles in a list that a model wrote, without their explanations; :data:`UNPLANNED` if
    there are fewer than two."""
    titles: list[str] = []
    for line in _LISTED.findall(text):
        title = _EXPLAINED.split(line.strip(" *"))[0].strip(" *\"'“”.,-")[:TITLE_CHARACTERS].rstrip()
        if title and title not in titles:
            titles.append(title)
    if len(titles) > 1:
        return titles[:PARTS_MAX]
    return list(UNPLANNED)


def _route_first(state: DemoState) -> str:
    if asks_for_much(_find_question(state["messages"])):
        return OUTLINE
    return ANSWER


def _route_next(state: DemoState, *, number: int) -> str:
    if number <= len(state.get("outline", [])):
        return name_paragraph_node(number)
    return END


def _find_question(messages: Sequence[AnyMessage]) -> str:
    return next((str(m.text) for m in reversed(messages) if isinstance(m, HumanMessage)), "")


def prompt(messages: Sequence[AnyMessage], context_tokens: int) -> list[BaseMessage]:
    """Return the instructions and the latest messages that fit, the first of them the user's. Recalled
    memories are a part of the instructions. The paragraphs of an answer are one message, without its outline.

    If the user's last message alone is too long, the prompt has its end, as a model without a question would
    invent one.
    """
    recalled = [str(message.text) for message in messages if message.id == RECALL_ID]
    conversation = [m for m in messages if m.id != RECALL_ID and not (m.id or "").startswith(_OUTLINE_ID)]
    instructions = SystemMessage("\n\n".join([INSTRUCTIONS, *recalled]))
    fitting = trim_messages(
        [instructions, *merge_message_runs(conversation, chunk_separator="\n\n")],
        max_tokens=context_tokens,
        token_counter=estimate_tokens,
        strategy="last",
        start_on="human",
        include_system=True,
    )
    if any(isinstance(message, HumanMessage) for message in fitting):
        return fitting
    question = next((m for m in reversed(conversation) if isinstance(m, HumanMessage)), None)
    if question is None:
        return fitting
    room = context_tokens - estimate_tokens([instructions]) - TOKENS_PER_MESSAGE
    return [instructions, HumanMessage(_take_end(str(question.text), room))]


def estimate_tokens(messages: Iterable[MessageLikeRepresentation]) -> int:
    """Return an upper estimate of the tokens that a small model's tokeniser makes of text in most languages.

    Small vocabularies fall back to single bytes outside of English, so other characters count as one token
    for each byte.
    """
    return sum(
        TOKENS_PER_MESSAGE + _estimate_text(str(message.text)) for message in convert_to_messages(messages)
    )


def _estimate_text(text: str) -> int:
    plain = sum(character.isascii() for character in text)
    return round(plain / ASCII_CHARACTERS_PER_TOKEN) + len(text.encode(errors="replace")) - plain


def _take_end(text: str, tokens: int) -> str:
    start, end = 0, len(text)
    while start < end:
        middle = (start + end) // 2
        if _estimate_text(text[middle:]) <= tokens:
            end = middle
        else:
            start = middle + 1
    return text[end:]
