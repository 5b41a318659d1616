"""The graphs of the server's acceptance tests: small ones, each of which does one thing that clients see."""

from __future__ import annotations

import asyncio
import operator
from collections.abc import AsyncIterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Annotated, Any

from langchain_core.language_models.fake_chat_models import FakeListChatModel, GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.runnables import RunnableConfig
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.pregel import Pregel
from langgraph.runtime import Runtime
from langgraph.types import interrupt
from typing_extensions import TypedDict

from tests.server.gates import opened

AnyGraph = Pregel[Any, Any, Any, Any]


def _only(name: str, node: Any) -> AnyGraph:
    builder = StateGraph(MessagesState)
    builder.add_node(name, node)
    builder.add_edge(START, name)
    builder.add_edge(name, END)
    return builder.compile()


async def _talk(state: MessagesState) -> dict[str, Any]:
    """Answers to what was said since it spoke last, token by token."""
    heard: list[str] = []
    for message in state["messages"]:
        heard = [] if message.type == "ai" else [*heard, message.text]
    model = GenericFakeChatModel(messages=iter([AIMessage(f"echo {' + '.join(heard)}")]))
    return {"messages": [await model.ainvoke(state["messages"])]}


DRIPPED = "This answer comes letter by letter, and takes its time."
_DRIPPED_AT_ONCE = 20


class _Dripping(FakeListChatModel):
    """Writes letter by letter; what follows the first ones waits for the gate "drip"."""

    async def _astream(self, *given: Any, **how: Any) -> AsyncIterator[ChatGenerationChunk]:
        written = 0
        async for chunk in super()._astream(*given, **how):
            if written == _DRIPPED_AT_ONCE:
                await opened("drip")
            written += 1
            yield chunk


async def _drip(state: MessagesState) -> dict[str, Any]:
    """Answers letter by letter, with a wait for a gate among them."""
    model = _Dripping(responses=[DRIPPED], sleep=0.01)
    return {"messages": [await model.ainvoke(state["messages"])]}


async def _boom(state: MessagesState) -> dict[str, Any]:
    raise ValueError("it broke")


def _ask(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"you said {interrupt({'question': 'really?'})}")]}


class Walked(TypedDict, total=False):
    """A way of ``steps``, ``pause`` seconds each; ``trail`` is where it has been. The step with the number
    ``gated`` waits for the gate "walk"."""

    steps: int
    pause: float
    gated: int
    trail: Annotated[list[int], operator.add]


def walk() -> AnyGraph:
    """A node that goes step by step; it writes each step to those who follow."""

    async def step(state: Walked) -> dict[str, Any]:
        number = len(state.get("trail", []))
        await asyncio.sleep(state.get("pause", 0.0))
        if number == state.get("gated"):
            await opened("walk")
        get_stream_writer()({"step": number})
        return {"trail": [number]}

    def onward(state: Walked) -> str:
        return "step" if len(state["trail"]) < state["steps"] else END

    builder = StateGraph(Walked)
    builder.add_node("step", step)
    builder.add_edge(START, "step")
    builder.add_conditional_edges("step", onward, ["step", END])
    return builder.compile()


def patient() -> AnyGraph:
    """One node that runs again and again until it hears "enough"."""

    async def wait(state: MessagesState) -> dict[str, Any]:
        await asyncio.sleep(0.02)
        is_over = any(message.text == "enough" for message in state["messages"])
        return {"messages": [AIMessage("at last")]} if is_over else {}

    builder = StateGraph(MessagesState).add_node(wait).add_edge(START, "wait")
    builder.add_conditional_edges(
        "wait", lambda state: END if state["messages"][-1].type == "ai" else "wait", ["wait", END]
    )
    return builder.compile()


def slow() -> AnyGraph:
    """Two nodes; the second takes as many seconds as what was said last says, or until the gate "slow" opens
    if that is "gate"."""

    def note(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("noted")]}

    async def rest(state: MessagesState) -> dict[str, Any]:
        said = state["messages"][-2].text
        await (opened("slow") if said == "gate" else asyncio.sleep(float(said)))
        return {"messages": [AIMessage("rested")]}

    builder = StateGraph(MessagesState)
    builder.add_sequence([("note", note), ("rest", rest)])
    builder.add_edge(START, "note")
    return builder.compile()


def deaf() -> AnyGraph:
    """Notes, and then goes on for two seconds when it is cancelled."""

    def note(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("noted")]}

    async def rest(state: MessagesState) -> dict[str, Any]:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            await asyncio.sleep(2)
            raise
        return {}

    builder = StateGraph(MessagesState)
    builder.add_sequence([("note", note), ("rest", rest)])
    builder.add_edge(START, "note")
    return builder.compile()


def both() -> AnyGraph:
    """Two nodes side by side, each of which asks."""

    class Asked(TypedDict, total=False):
        answers: Annotated[list[str], operator.add]

    def left(state: Asked) -> dict[str, Any]:
        return {"answers": [f"left {interrupt('left?')}"]}

    def right(state: Asked) -> dict[str, Any]:
        return {"answers": [f"right {interrupt('right?')}"]}

    builder = StateGraph(Asked)
    for node in (left, right):
        builder.add_node(node.__name__, node)
        builder.add_edge(START, node.__name__)
    return builder.compile()


def nested() -> AnyGraph:
    """A subgraph that speaks and then asks, within a graph that says what came of it."""

    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"within: {interrupt('deep?')}")]}

    inner = StateGraph(MessagesState)
    inner.add_sequence([("talk", _talk), ("ask", ask)])
    inner.add_edge(START, "talk")

    def outside(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("outside")]}

    builder = StateGraph(MessagesState)
    builder.add_node("inner", inner.compile())
    builder.add_node("outside", outside)
    builder.add_edge(START, "inner")
    builder.add_edge("inner", "outside")
    return builder.compile()


def deep() -> AnyGraph:
    """A subgraph that answers, without a question."""
    builder = StateGraph(MessagesState)
    builder.add_node("inner", _only("talk", _talk))
    builder.add_edge(START, "inner")
    return builder.compile()


def stopped() -> AnyGraph:
    """Two nodes with a static breakpoint between them."""

    def first(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("first")]}

    def second(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage("second")]}

    builder = StateGraph(MessagesState)
    builder.add_sequence([("first", first), ("second", second)])
    builder.add_edge(START, "first")
    return builder.compile(interrupt_before=["second"])


def aware() -> AnyGraph:
    """Says what it was given beside its input: its context, and what can be configured."""

    class Given(TypedDict, total=False):
        heard: list[str]

    class Context(TypedDict, total=False):
        mood: str

    def tell(state: Given, runtime: Runtime[Any], config: RunnableConfig) -> dict[str, Any]:
        context: Any = runtime.context or {}
        heard = [f"mood={context.get('mood')}", f"tone={config['configurable'].get('tone')}"]
        return {"heard": heard}

    builder = StateGraph(Given, context_schema=Context)
    node: Any = tell
    builder.add_node("tell", node)
    builder.add_edge(START, "tell")
    return builder.compile()


@cache
def graphs() -> Mapping[str, AnyGraph]:
    """All of them, by the names under which they are served. Compiled once: a server binds copies of them."""
    return MappingProxyType(
        {
            "chat": _only("talk", _talk),
            "drip": _only("drip", _drip),
            "boom": _only("boom", _boom),
            "ask": _only("ask", _ask),
            "walk": walk(),
            "slow": slow(),
            "patient": patient(),
            "deaf": deaf(),
            "both": both(),
            "nested": nested(),
            "deep": deep(),
            "stopped": stopped(),
            "aware": aware(),
        }
    )
