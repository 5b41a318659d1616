"""The graph that a fleet serves. It notes each execution of a node in a file beside it, so that one which is
executed again after it was stored can be told; its model takes its time for each token."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph

NOTES = Path(__file__).with_name("notes")
NODES = ("hear", "talk", "close")
TOKENS = 20
PAUSE_S = 0.03
BRIEF = "brief "
LENGTHY = "lengthy "
"""How what is to be answered at once begins, and what is to be answered at leisure."""


def reply_to(text: str) -> str:
    """What is answered, which is another answer to each text."""
    words = " ".join(f"word{n}" for n in range(TOKENS - 1))
    return f"{text}: {words}"


class Slow(BaseChatModel):
    """Answers what was said last, token by token."""

    @property
    def _llm_type(self) -> str:
        return "slow"

    def _generate(self, messages: list[BaseMessage], *args: Any, **given: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage(reply_to(messages[-1].text)))])

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **given: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        text = messages[-1].text
        pause = 0.0 if text.startswith(BRIEF) else 3 * PAUSE_S if text.startswith(LENGTHY) else PAUSE_S
        head, *words = reply_to(text).rsplit(" ", TOKENS - 1)
        for token in (head, *(f" {word}" for word in words)):
            yield ChatGenerationChunk(message=AIMessageChunk(content=token))
            await asyncio.sleep(pause)


def _note(node: str, config: RunnableConfig) -> None:
    with NOTES.open("a") as file:
        file.write(f"{config.get('metadata', {})['run_id']} {node}\n")


async def hear(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
    _note("hear", config)
    return {}


async def talk(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
    _note("talk", config)
    return {"messages": [await Slow().ainvoke(state["messages"], config)]}


async def close(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
    _note("close", config)
    return {}


def repeated(notes: str) -> list[str]:
    """The executions of nodes that were stored already: a later node of the same run had begun."""
    furthest: dict[str, int] = {}
    wrong: list[str] = []
    for line in notes.splitlines():
        run_id, node = line.split()
        at = NODES.index(node)
        if at < furthest.get(run_id, 0):
            wrong.append(f"{node} of run {run_id} after {NODES[furthest[run_id]]}")
        furthest[run_id] = max(at, furthest.get(run_id, 0))
    return wrong


builder = StateGraph(MessagesState)
builder.add_sequence([("hear", hear), ("talk", talk), ("close", close)])
builder.add_edge(START, "hear")
graph = builder.compile()
