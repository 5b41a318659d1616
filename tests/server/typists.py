"""Graphs for the chat page: a model that writes at the speed it is told to, and agents that ask."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

from langchain_core.callbacks import AsyncCallbackManagerForLLMRun, CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.outputs import ChatGenerationChunk, ChatResult
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.pregel import Pregel
from langgraph.types import interrupt

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
    """Answers with what it heard. "count N" is answered with N numbers, ``pace`` seconds each; "markdown"
    with some; "break" breaks."""

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
        counted = re.fullmatch(r"count (\d+)", said)
        whole = " ".join(map(str, range(1, int(counted[1]) + 1))) if counted else f"You said: {said}"
        for piece in re.findall(r"\s*\S+|\s+$", MARKDOWN if said == "markdown" else whole):
            if counted:
                await asyncio.sleep(self.pace)
            chunk = ChatGenerationChunk(message=AIMessageChunk(content=piece))
            if run_manager is not None:
                await run_manager.on_llm_new_token(piece, chunk=chunk)
            yield chunk


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


def _only(name: str, node: Any) -> AnyGraph:
    builder = StateGraph(MessagesState)
    builder.add_node(name, node)
    builder.add_edge(START, name)
    builder.add_edge(name, END)
    return builder.compile()


def graphs() -> dict[str, AnyGraph]:
    return {"asking": asking(), "chat": chat()}
