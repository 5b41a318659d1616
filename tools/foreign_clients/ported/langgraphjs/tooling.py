"""Two agents of langgraphjs' suites that call a tool once, one of which counts what it streams."""

from __future__ import annotations

from typing import Any

from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.stream import ProtocolEvent, StreamChannel, StreamTransformer


@tool
def weather(query: str) -> str:
    """Get the current weather for a location."""
    is_foggy = any(name in query.lower() for name in ("sf", "san francisco"))
    return "It's 60 degrees and foggy." if is_foggy else "It's 90 degrees and sunny."


def _build(call_id: str) -> StateGraph[Any]:
    def ask(state: MessagesState) -> dict[str, Any]:
        if isinstance(state["messages"][-1], ToolMessage):
            return {"messages": [AIMessage("Done.")]}
        call = {"id": call_id, "name": "weather", "args": {"query": "SF"}, "type": "tool_call"}
        return {"messages": [AIMessage("", tool_calls=[call])]}

    def choose(state: MessagesState) -> str:
        return "tools" if getattr(state["messages"][-1], "tool_calls", None) else END

    builder = StateGraph(MessagesState)
    builder.add_node("agent", ask)
    builder.add_node("tools", ToolNode([weather]))
    builder.add_edge(START, "agent")
    builder.add_conditional_edges("agent", choose, ["tools", END])
    builder.add_edge("tools", "agent")
    return builder


class _Counts(StreamTransformer):
    """Tells at the end how many tools were called, and how many tokens were used."""

    required_stream_modes = ("messages", "tools")

    def init(self) -> dict[str, Any]:
        self._tools = self._tokens = 0
        self._told: dict[str, StreamChannel[int]] = {
            name: StreamChannel(name) for name in ("toolCallCount", "totalTokens")
        }
        return dict(self._told)

    def process(self, event: ProtocolEvent) -> bool:
        data: Any = event["params"]["data"]
        if event["method"] == "tools" and data.get("event") == "tool-started":
            self._tools += 1
        if event["method"] == "messages" and isinstance(data, dict) and data.get("event") == "message-finish":
            usage = data.get("usage") or {}
            self._tokens += usage.get("input_tokens", 0) + usage.get("output_tokens", 0)
        return True

    def finalize(self) -> None:
        self._told["toolCallCount"].push(self._tools)
        self._told["totalTokens"].push(self._tokens)


agent_with_tools = _build("call_embed_1").compile()
agent_with_stats = _build("call_stats_1").compile(transformers=[_Counts])
