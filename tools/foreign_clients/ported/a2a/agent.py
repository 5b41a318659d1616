"""The agent that the kit's tests talk to: the beginning of a message's id names what it does."""

from __future__ import annotations

import asyncio
import base64
from typing import Any, Literal

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.types import Command, interrupt

_FILE = {"type": "file", "mime_type": "text/plain", "filename": "output.txt"}
_HELD = {**_FILE, "base64": base64.b64encode(b"tck").decode()}
_REPLIES: dict[str, Any] = {
    "tck-artifact-text": "Generated text content",
    "tck-artifact-file-url": [{**_FILE, "url": "https://example.com/output.txt"}],
    "tck-artifact-file": [_HELD],
    "tck-artifact-data": [{"type": "non_standard", "value": {"key": "value", "count": 42}}],
    "tck-stream-artifact-text": "Streamed text content",
    "tck-stream-artifact-file": [_HELD],
    "tck-stream-artifact-chunked": "chunk-1 chunk-2",
    "tck-stream-ordering-001": "Ordered output",
    "tck-stream-001": "Stream hello from TCK",
    "tck-stream-003": "Stream task lifecycle",
    "tck-message-response": "Direct message response",
}
"""By the beginning of an id; the longer of two comes first."""
_LENGTHY_S = 4
_To = Literal["ask", "reply"]


def _id(config: RunnableConfig) -> str:
    """The id of the message that the run was made for, as ``web`` passes it on."""
    return str(config.get("metadata", {}).get("tck_message_id", ""))


def _next(config: RunnableConfig) -> _To:
    return "ask" if _id(config).startswith("tck-input-required") else "reply"


def receive(state: MessagesState, config: RunnableConfig) -> Command[_To]:
    return Command(goto=_next(config))


def ask(state: MessagesState, config: RunnableConfig) -> Command[_To]:
    interrupt("What next?")
    # By now it is the run of the answer, whose own id names what comes next.
    return Command(goto=_next(config))


async def reply(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
    message_id = _id(config)
    if message_id.startswith("tck-reject-task"):
        raise ValueError("rejected")
    if message_id.startswith("test-resubscribe-message-id"):
        await asyncio.sleep(_LENGTHY_S)
    found = (held for name, held in _REPLIES.items() if message_id.startswith(name))
    return {"messages": [AIMessage(next(found, "Hello from TCK"))]}


graph = (
    StateGraph(MessagesState)
    .add_node(receive)
    .add_node(ask)
    .add_node(reply)
    .add_edge(START, "receive")
    .compile()
)
