"""The graphs of states, questions and subgraphs that @langchain/react's suite has in JavaScript."""

from __future__ import annotations

import asyncio
import operator
import uuid
from collections import defaultdict
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import push_message
from langgraph.types import Send, interrupt
from models import Letters  # type: ignore[import-not-found]

WORKERS = 6


def _one(schema: Any, name: str, node: Any) -> Any:
    builder = StateGraph(schema)
    builder.add_node(name, node)
    builder.add_edge(START, name)
    return builder.compile()


_models: defaultdict[str, Letters] = defaultdict(lambda: Letters(texts=["Plan accepted."]))


async def _accept(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
    model = _models[config["configurable"]["thread_id"]]
    return {"messages": [await model.ainvoke(state["messages"])]}


stategraph_text = _one(MessagesState, "agent", _accept)


async def _fail(state: MessagesState) -> dict[str, Any]:
    raise RuntimeError("Intentional error for testing")


error_graph = _one(MessagesState, "agent", _fail)


async def _linger(state: MessagesState) -> dict[str, Any]:
    await asyncio.sleep(0.4)
    return {"messages": [AIMessage("Done.")]}


slow_graph = _one(MessagesState, "agent", _linger)


async def _tell(state: MessagesState) -> dict[str, Any]:
    write = get_stream_writer()
    write({"stage": "thinking"})
    write({"name": "status", "payload": {"label": "answering"}})
    write({"stage": "done"})
    return {"messages": [AIMessage("Custom channel reply")]}


custom_channel_graph = _one(MessagesState, "agent", _tell)


class _Stateful(MessagesState):
    status: str


async def _finish(state: _Stateful) -> dict[str, Any]:
    await asyncio.sleep(0.4)
    return {"messages": [AIMessage("Done.")], "status": "final"}


stateful_values_graph = _one(_Stateful, "agent", _finish)


def _replace(state: MessagesState) -> dict[str, Any]:
    removed = [RemoveMessage(str(m.id)) for m in state["messages"] if isinstance(m, AIMessage)]
    messages: list[Any] = [*removed, AIMessage("Step 2: To Keep", id=str(uuid.uuid4()))]
    push_message(messages[-1], state_key=None)
    return {"messages": messages}


def _remove_message() -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("step1", lambda state: {"messages": [AIMessage("Step 1: To Remove")]})
    builder.add_node("step2", _replace)
    builder.add_node("step3", lambda state: {"messages": [AIMessage("Step 3: To Keep")]})
    builder.add_edge(START, "step1")
    builder.add_edge("step1", "step2")
    builder.add_edge("step2", "step3")
    return builder.compile()


remove_message_graph = _remove_message()


# Questions


class _Review(TypedDict, total=False):
    request: str
    decision: dict[str, Any] | None
    completed: bool
    completedTurns: int


def _decide(prompt: str, state: _Review) -> dict[str, Any]:
    decision = interrupt({"prompt": prompt, "request": state.get("request")})
    return decision if isinstance(decision, dict) else {"value": decision}


def _review(state: _Review) -> dict[str, Any]:
    return {"decision": _decide("Approve the outbound action?", state), "completed": True}


interrupt_graph = _one(_Review, "review", _review)


def _review_once(state: _Review) -> dict[str, Any]:
    done = {"completedTurns": (state.get("completedTurns") or 0) + 1}
    if state.get("decision") is not None:
        return done
    return {"decision": _decide("Approve the outbound action?", state), **done}


interrupt_once_graph = _one(_Review, "review", _review_once)


def _review_within(state: _Review) -> dict[str, Any]:
    return {"decision": _decide("Approve nested subgraph action?", state), "completed": True}


nested_interrupt_graph = _one(
    _Review, "child", _one(_Review, "inner", _one(_Review, "review", _review_within))
)


class _Several(TypedDict, total=False):
    prompts: list[str]
    decisions: Annotated[dict[str, Any], operator.or_]
    completed: bool


class _Prompt(TypedDict):
    prompt: str


def _review_each(state: _Prompt) -> dict[str, Any]:
    prompt = state["prompt"]
    return {"decisions": {prompt: interrupt({"prompt": f"Approve action {prompt}?", "action": prompt})}}


def _multi_interrupt() -> Any:
    def fan_out(state: _Several) -> list[Send]:
        return [Send("review", {"prompt": prompt}) for prompt in state["prompts"]]

    def aggregate(state: _Several) -> dict[str, Any]:
        return {"completed": all(prompt in state["decisions"] for prompt in state["prompts"])}

    builder = StateGraph(_Several)
    builder.add_node("review", _review_each)
    builder.add_node("aggregate", aggregate)
    builder.add_conditional_edges(START, fan_out, ["review"])
    builder.add_edge("review", "aggregate")
    builder.add_edge("aggregate", END)
    return builder.compile()


multi_interrupt_graph = _multi_interrupt()


# Subgraphs


def _child(model: Letters, begun: str, ended: str | None) -> Any:
    async def inner(state: MessagesState) -> dict[str, Any]:
        write = get_stream_writer()
        write({"type": "progress", "label": begun})
        answer = await model.ainvoke(state["messages"])
        if ended is not None:
            write({"type": "progress", "label": ended})
        return {"messages": [answer]}

    return _one(MessagesState, "inner", inner)


subgraph_graph = _one(
    MessagesState, "child", _child(Letters(texts=["Reply from child"]), "child-started", "child-finished")
)

_researcher = _child(Letters(texts=["Subgraph reply"]), "research-started", "research-finished")


async def _research(state: MessagesState) -> dict[str, Any]:
    result = await _researcher.ainvoke({"messages": state["messages"]})
    return {"messages": [AIMessage(result["messages"][-1].text)]}


def _embedded_subgraph() -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("research", _research)
    builder.add_node("summarize", lambda state: {"messages": [AIMessage("Summary line")]})
    builder.add_edge(START, "research")
    builder.add_edge("research", "summarize")
    return builder.compile()


embedded_subgraph_graph = _embedded_subgraph()


def _parallel_subgraph() -> Any:
    def fan_out(state: MessagesState) -> list[Send]:
        asked = [[HumanMessage(f"Subtask {number + 1}")] for number in range(WORKERS)]
        return [Send("worker", {"messages": messages}) for messages in asked]

    builder = StateGraph(MessagesState)
    builder.add_node("worker", _child(Letters(texts=["Subgraph reply"]), "worker-started", None))
    builder.add_conditional_edges(START, fan_out, ["worker"])
    return builder.compile()


parallel_subgraph = _parallel_subgraph()
