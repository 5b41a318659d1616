"""The graphs behind every server under load. Each server loads this file by itself: it knows of no other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langgraph.graph import END, START, MessagesState, StateGraph

TOKENS = 16
PAUSE_S = 0.02
CROWD_TOKENS = 50
CROWD_PAUSE_S = 0.01
WORD = "word"
"""What every token begins with."""


class Metronome(BaseChatModel):
    """The first token comes at once, each of the others after the same pause."""

    tokens: int = TOKENS
    pause_s: float = PAUSE_S

    @property
    def _llm_type(self) -> str:
        return "metronome"

    def _generate(self, *_: Any, **__: Any) -> ChatResult:
        said = "".join(f"{WORD}{number} " for number in range(self.tokens))
        return ChatResult(generations=[ChatGeneration(message=AIMessage(said))])

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        **_: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        for number in range(self.tokens):
            if number:
                await asyncio.sleep(self.pause_s)
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"{WORD}{number} "))


async def answer(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"You said: {state['messages'][-1].content}")]}


def _build_speaker(model: Metronome) -> Callable[[MessagesState], Awaitable[dict[str, Any]]]:
    async def speak(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await model.ainvoke(state["messages"])]}

    return speak


def _of_one(node: Callable[[MessagesState], Awaitable[dict[str, Any]]]) -> Any:
    builder: Any = StateGraph(MessagesState)
    builder.add_node("node", node)
    builder.add_edge(START, "node")
    builder.add_edge("node", END)
    return builder.compile()


chat = _of_one(answer)
tokens = _of_one(_build_speaker(Metronome()))
crowd = _of_one(_build_speaker(Metronome(tokens=CROWD_TOKENS, pause_s=CROWD_PAUSE_S)))
