"""Graphs for the chat page: a model that writes at the speed it is told to, and agents that ask."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.pregel import Pregel
from langgraph.types import interrupt

from tests.server.gates import opened

AnyGraph = Pregel[Any, Any, Any, Any]

MARKDOWN = """### A list, and some code

Use **two** spaces and `print`, as in [the manual](https://example.com/manual):

```python
def greet(name: str) -> str:
    return f"Hello, {name}! " * 12
```

| what | how many |
|---|---:|
| threads | 12 |
| runs | 345 |

1. first
2. second with <b>no markup</b> and [no script](javascript:alert(1))

> That is all.
"""


class Typist(BaseChatModel):
    """Answers with what it heard. "count N" is answered with N numbers, ``pace`` seconds each; "count N at M"
    with as many, of which those after M wait for the gate "count"; "markdown" with some; "say X" with X;
    "think X" with X after a thought; "hold X" with X, and no end until its gate opens; "fail X" breaks after
    X; "break" breaks."""

    pace: float = 0.03

    @property
    def _llm_type(self) -> str:
        return "typist"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        raise NotImplementedError("it types")

    async def _astream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: AsyncCallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> AsyncIterator[ChatGenerationChunk]:
        said = str(messages[-1].text)
        if said == "break":
            raise ConnectionError("no line")
        verb, _, words = said.partition(" ")
        if verb == "think":
            contents: list[dict[str, Any]] = [
                {"type": "thinking", "thinking": text, "index": 0} for text in ("Let me see. ", "Yes!")
            ]
            contents.append({"type": "text", "text": words, "index": 1})
            for part in contents:
                chunk = ChatGenerationChunk(message=AIMessageChunk(content=[part]))
                if run_manager is not None:
                    await run_manager.on_llm_new_token("", chunk=chunk)
                yield chunk
            return
        counted = re.fullmatch(r"count (\d+)(?: at (\d+))?", said)
        whole = " ".join(map(str, range(1, int(counted[1]) + 1))) if counted else f"You said: {said}"
        if verb in ("say", "hold", "fail"):
            whole = words
        pieces = re.findall(r"\s*\S+|\s+$", MARKDOWN if said == "markdown" else whole)
        for number, piece in enumerate(pieces):
            if counted and counted[2] is None:
                await asyncio.sleep(self.pace)
            elif counted and number == int(counted[2]):
                await opened("count")
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=piece))
            if run_manager is not None:
                await run_manager.on_llm_new_token(piece, chunk=chunk)
            yield chunk
        if verb == "hold":
            await opened(words)
        if verb == "fail":
            raise ConnectionError("no line")


def chat(model: BaseChatModel | None = None) -> AnyGraph:
    """A model that answers."""
    typist = model or Typist()

    async def answer(state: MessagesState) -> dict[str, Any]:
        return {"messages": [await typist.ainvoke(state["messages"])]}

    return _only("answer", answer)


def asking() -> AnyGraph:
    """Asks in the form that is named: "text", "json", "action" or "review"; answers with what it was told."""
    forms: dict[str, Any] = {
        "text": "Which city?",
        "json": {"question": "How many?", "most": 3},
        "options": {"question": "Which class?", "options": ["economy", "first"]},
        "action": {"action_request": {"action": "send_mail", "args": {"to": "ada"}}, "config": {}},
        "review": {
            "action_requests": [{"name": "send_mail", "args": {"to": "ada"}, "description": "A *mail*."}],
            "review_configs": [
                {"action_name": "send_mail", "allowed_decisions": ["approve", "edit", "reject"]}
            ],
        },
    }

    def ask(state: MessagesState) -> dict[str, Any]:
        told = interrupt(forms[str(state["messages"][-1].text)])
        return {"messages": [AIMessage(f"I was told `{told!r}`")]}

    return _only("ask", ask)


def working() -> AnyGraph:
    """Plans until the gate "plan" opens, calls a tool that answers when the gate "tool" opens, and answers
    with what the user wrote."""

    async def plan(state: MessagesState) -> dict[str, Any]:
        get_stream_writer()({"message": "Reading the plan"})
        await opened("plan")
        call = {"name": "look_up", "args": {"what": "tides"}, "id": "call-1"}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    async def look_up(state: MessagesState) -> dict[str, Any]:
        await opened("tool")
        return {"messages": [ToolMessage("high at noon", tool_call_id="call-1", name="look_up")]}

    def answer(state: MessagesState) -> dict[str, Any]:
        heard = [str(message.text) for message in state["messages"] if message.type == "human"]
        return {"messages": [AIMessage(f"Heard: {', '.join(heard)}")]}

    builder = StateGraph(MessagesState)
    builder.add_sequence([("plan", plan), ("look_up", look_up), ("answer", answer)])
    builder.add_edge(START, "plan")
    return builder.compile()


def _only(name: str, node: Any) -> AnyGraph:
    builder = StateGraph(MessagesState)
    builder.add_node(name, node)
    builder.add_edge(START, name)
    builder.add_edge(name, END)
    return builder.compile()


def graphs() -> dict[str, AnyGraph]:
    return {"asking": asking(), "chat": chat(), "working": working()}
