"""The agents that the interfaces talk to. Their model is a script: what it says depends on the message alone,
but for a number that counts its answers, by which two answers to one message can be told apart."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Sequence
from typing import Any

from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage, ToolCall
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import interrupt

_WORD_S = 0.02
_LONG_WORD_S = 0.15
_LONG_WORDS = 60

REVIEWED: Any = {"delete_file": {"allowed_decisions": ["approve", "edit", "reject"]}}
"""The tools that a person has to approve."""

_answers = itertools.count(1)


class ScriptedModel(BaseChatModel):
    """Answers "reply N to TEXT" word by word, at length when the text begins with "long", and calls a tool
    when it begins with "delete"."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **given: Any) -> Any:
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **given: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=_answer(messages))])

    async def _astream(
        self, messages: list[BaseMessage], *args: Any, **given: Any
    ) -> AsyncIterator[ChatGenerationChunk]:
        answer = _answer(messages)
        pause = _LONG_WORD_S if _find_question(messages).startswith("long") else _WORD_S
        if answer.tool_calls:
            yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_calls=answer.tool_calls))
            return
        for word in answer.text.split(" "):
            yield ChatGenerationChunk(message=AIMessageChunk(content=word + " "))
            await asyncio.sleep(pause)


def _find_question(messages: Sequence[BaseMessage]) -> str:
    return next((each.text for each in reversed(messages) if isinstance(each, HumanMessage)), "")


def _answer(messages: list[BaseMessage]) -> AIMessage:
    number, asked, last = next(_answers), _find_question(messages), messages[-1]
    if last.type == "tool":
        return AIMessage(f"reply {number} after: {last.text}")
    if asked.startswith("delete "):
        call = ToolCall(name="delete_file", args={"path": asked.removeprefix("delete ")}, id=f"call-{number}")
        return AIMessage("", tool_calls=[call])
    if asked.startswith("long"):
        return AIMessage(
            " ".join([f"reply {number} to {asked}:", *(f"w{n}" for n in range(_LONG_WORDS)), "end"])
        )
    return AIMessage(f"reply {number} to {asked}")


@tool
def delete_file(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


agent = create_agent(
    ScriptedModel(),
    tools=[delete_file],
    middleware=[HumanInTheLoopMiddleware(interrupt_on=REVIEWED)],
)


def _review(state: MessagesState) -> dict[str, Any]:
    """Asks in the form of agent-inbox, and says what came back."""
    request = {
        "action_request": {"action": "send_email", "args": {"subject": _find_question(state["messages"])}},
        "config": {"allow_accept": True, "allow_edit": True, "allow_respond": True, "allow_ignore": True},
        "description": f"An e-mail about {_find_question(state['messages'])}",
    }
    (answer,) = interrupt([request])
    told = answer["args"]
    if isinstance(told, dict):
        told = told["args"]["subject"]
    return {"messages": [AIMessage(f"{answer['type']}: {told}")]}


_reviewed = StateGraph(MessagesState)
_reviewed.add_node("review", _review)
_reviewed.add_edge(START, "review")
inbox = _reviewed.compile()
