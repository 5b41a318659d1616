"""A graph with tools, a question, parallel branches, sent tasks and a subgraph, whose models are scripted."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import BaseTool, tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Send, interrupt
from pydantic import PrivateAttr

Graph = CompiledStateGraph[Any, Any, Any, Any]


class Counted(BaseChatModel):
    """A model that answers with the number of its call, and counts its calls."""

    _calls: list[str] = PrivateAttr(default_factory=list)

    @property
    def _llm_type(self) -> str:
        return "counted"

    @property
    def calls(self) -> list[str]:
        """The last messages that it was sent."""
        return self._calls

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        asked = str(messages[-1].content)
        self._calls.append(asked)
        number = len(self._calls)
        answer = AIMessage(f"answer {number} to {asked}")
        if asked.startswith("look up"):
            words = asked.removeprefix("look up ").split(" and ")
            answer = AIMessage(
                "",
                tool_calls=[
                    {"name": "look_up", "args": {"word": word}, "id": f"{number}-{n}", "type": "tool_call"}
                    for n, word in enumerate(words)
                ],
            )
        return ChatResult(generations=[ChatGeneration(message=answer)])

    def bind_tools(self, tools: Sequence[Any], **kwargs: Any) -> Any:
        return self.bind(tools=[each.name for each in tools], **kwargs)


class State(MessagesState):
    topics: Annotated[list[str], operator.add]
    verdict: str
    left: str
    right: str


class Parts(NamedTuple):
    """What a graph calls: its model, the words that its tool looked up, and the tool."""

    model: Counted
    looked_up: list[str]
    tool: BaseTool


def parts(meaning: str = "means") -> Parts:
    looked_up: list[str] = []

    @tool
    def look_up(word: str) -> str:
        """Look a word up."""
        looked_up.append(word)
        return f"{word} {meaning} {len(looked_up)}"

    return Parts(Counted(), looked_up, look_up)


def build(
    used: Parts, *, prompt: str = "Be kind.", question: str = "Go on?", worker: str = "Research"
) -> Any:
    """Return the graph's builder, compiled without a checkpointer.

    Args:
        used: What it calls.
        prompt: The system message of its first node.
        question: What it asks a person.
        worker: The first word of what its subgraph sends to the model.
    """
    inner = StateGraph(MessagesState)
    inner.add_node(
        "think",
        lambda state: {"messages": [used.model.invoke([("user", f"{worker} {len(state['messages'])}")])]},
    )
    inner.add_node("check", lambda state: {"messages": [("user", f"checked: {interrupt('Right?')}")]})
    inner.add_edge(START, "think")
    inner.add_edge("think", "check")

    def agent(state: State) -> dict[str, Any]:
        model = used.model.bind_tools([used.tool])
        return {"messages": [model.invoke([("system", prompt), *state["messages"]])]}

    def route(state: State) -> Any:
        last = state["messages"][-1]
        return "tools" if isinstance(last, AIMessage) and last.tool_calls else ["left", "right"]

    def ask(state: State) -> dict[str, Any]:
        draft = used.model.invoke([("user", "draft a question")])
        return {"verdict": f"{interrupt({'question': question, 'draft': draft.content})}!"}

    def fan_out(state: State) -> list[Send]:
        return [Send("topic", {"topic": name}) for name in ("a", "b", "c")]

    builder = StateGraph(State)
    builder.add_node("agent", agent)
    builder.add_node("tools", ToolNode([used.tool]))
    builder.add_node("left", lambda state: {"left": used.model.invoke("left").content})
    builder.add_node("right", lambda state: {"right": used.model.invoke("right").content})
    builder.add_node("ask", ask)
    builder.add_node("topic", lambda given: {"topics": [str(used.model.invoke(given["topic"]).content)]})
    builder.add_node("worker", inner.compile())
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", route, ["tools", "left", "right"])
    builder.add_edge("tools", "agent")
    builder.add_edge(["left", "right"], "ask")
    builder.add_conditional_edges("ask", fan_out, ["topic"])
    builder.add_edge("topic", "worker")
    builder.add_edge("worker", END)
    return builder


def unchanged() -> Any:
    return build(parts()).compile()


def changed() -> Any:
    return build(parts(), prompt="Be rude.").compile()
