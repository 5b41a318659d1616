"""A platform's agent as its author wrote it: sub-agents with a state of their own on one ``context_id``,
trimming, LangMem's extractors for facts and summaries, and memories for each user.

The models are scripted: what they say depends on what they are sent alone.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import RunnableLambda
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.graph import START, MessagesState, StateGraph

from perdure.conversation import Conversation, Limit
from perdure.memory import ExtractedFact, ExtractionRequest, MemoryPolicy
from perdure.runtime import Agent

with warnings.catch_warnings():
    # A dependency of LangMem's imports `Send` from where LangGraph had it before.
    warnings.filterwarnings("ignore", "Importing Send from langgraph.constants", DeprecationWarning)
    langmem: Any = import_module("langmem")

LIMIT = 700
STATED = re.compile(r"(?:User|human): (I [a-z ]+)", re.IGNORECASE)


class Extracting(BaseChatModel):
    """A model that calls the one tool that LangMem gives it."""

    @property
    def _llm_type(self) -> str:
        return "extracting"

    def _generate(self, messages: list[BaseMessage], *args: Any, **given: Any) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=AIMessage("nothing"))])

    def bind_tools(self, tools: Any, **given: Any) -> Any:
        names = [convert_to_openai_tool(tool)["function"]["name"] for tool in tools]
        return RunnableLambda(lambda messages: self._call(names, messages))

    def _call(self, names: list[str], messages: Any) -> AIMessage:
        text = "\n".join(str(m.content if isinstance(m, BaseMessage) else m) for m in list(messages))
        if "SummarizeThread" in names:
            before = ", ".join(re.findall(r"They spoke of ([\w, ]+)\.", text)).split(", ")
            places = dict.fromkeys(
                [*filter(None, before), *re.findall(r"(?:travel|weather) ([A-Z]\w+)", text)]
            )
            args: list[tuple[str, dict[str, Any]]] = [
                ("SummarizeThread", {"title": "places", "summary": f"They spoke of {', '.join(places)}."})
            ]
        else:
            args = [("Memory", {"content": fact.strip()}) for fact in dict.fromkeys(STATED.findall(text))]
        calls: Any = [{"name": name, "args": given, "id": f"call{n}"} for n, (name, given) in enumerate(args)]
        return AIMessage("", tool_calls=calls)


manager = langmem.create_memory_manager(Extracting(), enable_updates=False, enable_deletes=False)
summarizer = langmem.create_thread_extractor(Extracting())


async def extract(request: ExtractionRequest) -> list[ExtractedFact]:
    """Find facts with LangMem's manager."""
    found = await manager.ainvoke({"messages": [HumanMessage(request.messages)]})
    return [ExtractedFact(memory.content.content) for memory in found]


async def summarize(summary: str, messages: Sequence[BaseMessage]) -> str:
    """Carry a summary on with LangMem's extractor."""
    before = [HumanMessage(summary)] if summary else []
    found = await summarizer.ainvoke({"messages": [*before, *messages]})
    return str(found.summary)


def sub_agent(name: str) -> Any:
    """A sub-agent with a conversation of its own, which it goes on with in every turn of the context."""

    async def answer(state: MessagesState) -> dict[str, Any]:
        asked = [message.text for message in state["messages"] if message.type == "human"]
        return {"messages": [AIMessage(f"{name} heard {len(asked)}, lastly {asked[-1]!r}")]}

    return StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile(checkpointer=True)


travel_agent, weather_agent = sub_agent("travel"), sub_agent("weather")
prompts: list[list[BaseMessage]] = []
"""What the platform's model was sent."""


async def travel(state: MessagesState) -> dict[str, Any]:
    after = await travel_agent.ainvoke({"messages": state["messages"][-1:]})
    return {"messages": after["messages"][-1:]}


async def weather(state: MessagesState) -> dict[str, Any]:
    after = await weather_agent.ainvoke({"messages": state["messages"][-1:]})
    return {"messages": after["messages"][-1:]}


async def plan(state: MessagesState) -> dict[str, Any]:
    prompts.append(list(state["messages"]))
    return {}


def chosen(state: MessagesState) -> str:
    return "weather" if state["messages"][-1].text.startswith("weather") else "travel"


def build() -> Any:
    builder = StateGraph(MessagesState).add_node(plan).add_node(travel).add_node(weather)
    builder.add_edge(START, "plan").add_conditional_edges("plan", chosen, ["travel", "weather"])
    return builder.compile()


def platform() -> Agent:
    """The agent with its policies."""
    return Agent(
        build(),
        conversation=Conversation(limit=Limit(LIMIT, summary=200), summarize=summarize),
        memory=MemoryPolicy(extract=extract, debounce=0.0),
    )
