"""Small graphs, one for each shape of state or control flow that a checkpointer has to carry."""

from __future__ import annotations

import operator
import threading
import time
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.types import Send, interrupt
from typing_extensions import TypedDict

Graph = Any
Build = Callable[[BaseCheckpointSaver[Any]], Graph]


def appended(state: list[str], writes: Sequence[list[str]]) -> list[str]:
    """A DeltaChannel's reducer: everything that was written, in order."""
    return [*state, *(item for write in writes for item in write)]


class Plain(TypedDict):
    said: Annotated[list[str], operator.add]


class Delta(TypedDict):
    said: Annotated[list[str], DeltaChannel(appended)]


class DeltaOften(TypedDict):
    said: Annotated[list[str], DeltaChannel(appended, snapshot_frequency=3)]


STATES: dict[str, Any] = {"plain": Plain, "delta": Delta, "delta-often": DeltaOften}


def chain(saver: BaseCheckpointSaver[Any], state: Any = Plain, **options: Any) -> Graph:
    """Two nodes that answer, each with what it could see."""

    def first(state: Any) -> Any:
        return {"said": [f"first saw {len(state['said'])}"]}

    def second(state: Any) -> Any:
        return {"said": [f"second saw {len(state['said'])}"]}

    graph = StateGraph(state)
    graph.add_node("first", first)
    graph.add_node("second", second)
    graph.add_edge(START, "first")
    graph.add_edge("first", "second")
    graph.add_edge("second", END)
    return graph.compile(checkpointer=saver, **options)


class Messages(TypedDict):
    messages: Annotated[list[Any], add_messages]
    count: int


def chat(saver: BaseCheckpointSaver[Any]) -> Graph:
    """A conversation of real messages beside a counter that only counts."""

    def answer(state: Messages) -> Any:
        last = state["messages"][-1]
        count = state.get("count", 0) + 1
        return {"messages": [AIMessage(f"re: {last.content}", id=f"a{count}")], "count": count}

    graph = StateGraph(Messages)
    graph.add_node("answer", answer)
    graph.add_edge(START, "answer")
    graph.add_edge("answer", END)
    return graph.compile(checkpointer=saver)


def message(n: int) -> dict[str, Any]:
    return {"messages": [HumanMessage(f"question {n}", id=f"h{n}")]}


def asking(saver: BaseCheckpointSaver[Any], state: Any = Plain) -> Graph:
    """Two branches that ask, one that does not, and a node that sums up."""

    def ask(name: str) -> Any:
        def node(state: Any) -> Any:
            answer = interrupt(f"{name}?")
            return {"said": [f"{name}: {answer}"]}

        return node

    graph = StateGraph(state)
    graph.add_node("left", ask("left"))
    graph.add_node("right", ask("right"))
    graph.add_node("quiet", lambda state: {"said": ["quiet"]})
    graph.add_node("sum", lambda state: {"said": [f"sum of {len(state['said'])}"]})
    for name in ("left", "right", "quiet"):
        graph.add_edge(START, name)
        graph.add_edge(name, "sum")
    graph.add_edge("sum", END)
    return graph.compile(checkpointer=saver)


def asking_twice(saver: BaseCheckpointSaver[Any], state: Any = Plain) -> Graph:
    """One node that asks two questions, one after the other, between two that ask nothing."""

    def ask(state: Any) -> Any:
        name = interrupt("name?")
        age = interrupt(f"age of {name}?")
        return {"said": [f"{name} is {age}"]}

    graph = StateGraph(state)
    graph.add_node("before", lambda state: {"said": ["before"]})
    graph.add_node("ask", ask)
    graph.add_node("after", lambda state: {"said": ["after"]})
    graph.add_edge(START, "before")
    graph.add_edge("before", "ask")
    graph.add_edge("ask", "after")
    graph.add_edge("after", END)
    return graph.compile(checkpointer=saver)


def sending(saver: BaseCheckpointSaver[Any], state: Any = Plain) -> Graph:
    """A fan-out to as many workers as there is something said, joined again."""

    def fan_out(state: Any) -> list[Send]:
        return [Send("work", {"item": item}) for item in state["said"][-3:]]

    graph = StateGraph(state)
    graph.add_node("start", lambda state: {"said": ["start"]})
    graph.add_node("work", lambda given: {"said": [f"did {given['item']}"]})
    graph.add_node("join", lambda state: {"said": [f"joined {len(state['said'])}"]})
    graph.add_edge(START, "start")
    graph.add_conditional_edges("start", fan_out, ["work"])
    graph.add_edge("work", "join")
    graph.add_edge("join", END)
    return graph.compile(checkpointer=saver)


def failing(saver: BaseCheckpointSaver[Any], state: Any = Plain) -> Graph:
    """Two branches, of which one fails the first time that each turn comes by."""
    failed: set[int] = set()
    done: list[str] = []
    steady_ran = threading.Event()

    def flaky(state: Any) -> Any:
        turn = sum(item.startswith("turn") for item in state["said"])
        if turn not in failed:
            failed.add(turn)
            # The other branch has run, and a moment later LangGraph has what came of it.
            steady_ran.wait(10)
            steady_ran.clear()
            time.sleep(0.1)
            raise RuntimeError(f"turn {turn} failed")
        return {"said": ["flaky after all"]}

    def steady(state: Any) -> Any:
        done.append("steady")
        steady_ran.set()
        return {"said": [f"steady ran {len(done)}"]}

    graph = StateGraph(state)
    graph.add_node("flaky", flaky)
    graph.add_node("steady", steady)
    graph.add_node("join", lambda state: {"said": [f"joined {len(state['said'])}"]})
    graph.add_edge(START, "flaky")
    graph.add_edge(START, "steady")
    graph.add_edge(["flaky", "steady"], "join")
    graph.add_edge("join", END)
    return graph.compile(checkpointer=saver)


def nested(
    saver: BaseCheckpointSaver[Any], state: Any = Plain, *, stateful: bool, ask: bool = False
) -> Graph:
    """Graphs two levels deep. Stateful ones remember what they counted in earlier turns."""

    class Inner(TypedDict):
        said: Annotated[list[str], operator.add]
        memory: Annotated[list[str], operator.add]

    class InnerDelta(TypedDict):
        said: Annotated[list[str], operator.add]
        memory: Annotated[list[str], DeltaChannel(appended)]

    inside = Inner if state is Plain else InnerDelta

    def deep(state: Any) -> Any:
        seen = len(state.get("memory") or [])
        answer = f" {interrupt('deep?')}" if ask else ""
        return {"memory": ["deep"], "said": [f"deep remembers {seen}{answer}"]}

    def middle(state: Any) -> Any:
        return {"memory": ["middle"], "said": [f"middle remembers {len(state.get('memory') or [])}"]}

    inner = StateGraph(inside)
    inner.add_node("deep", deep)
    inner.add_edge(START, "deep")
    lowest = inner.compile(checkpointer=True if stateful else None)

    def call_lowest(state: Any) -> Any:
        out = lowest.invoke({"said": ["called"], "memory": []})
        return {"said": out["said"][-1:]}

    outer = StateGraph(inside)
    outer.add_node("middle", middle)
    outer.add_node("lowest", call_lowest)
    outer.add_edge(START, "middle")
    outer.add_edge("middle", "lowest")
    compiled = outer.compile(checkpointer=True if stateful else None)

    def call_middle(state: Any) -> Any:
        out = compiled.invoke({"said": ["called"], "memory": []})
        return {"said": out["said"][-2:]}

    graph = StateGraph(state)
    graph.add_node("enter", lambda state: {"said": ["enter"]})
    graph.add_node("middle", call_middle)
    graph.add_node("leave", lambda state: {"said": ["leave"]})
    graph.add_edge(START, "enter")
    graph.add_edge("enter", "middle")
    graph.add_edge("middle", "leave")
    graph.add_edge("leave", END)
    return graph.compile(checkpointer=saver)


def embedded(
    saver: BaseCheckpointSaver[Any], state: Any = Plain, *, stateful: bool, ask: bool = False
) -> Graph:
    """A subgraph that is a node by itself, with a subgraph inside it."""

    def deep(state: Any) -> Any:
        answer = f" {interrupt('deep?')}" if ask else ""
        return {"said": [f"deep{answer}"]}

    checkpointer = True if stateful else None
    inner = StateGraph(Plain)
    inner.add_node("deep", deep)
    inner.add_edge(START, "deep")
    outer = StateGraph(Plain)
    outer.add_node("lowest", inner.compile(checkpointer=checkpointer))
    outer.add_edge(START, "lowest")
    graph = StateGraph(state)
    graph.add_node("enter", lambda state: {"said": ["enter"]})
    graph.add_node("middle", outer.compile(checkpointer=checkpointer))
    graph.add_node("leave", lambda state: {"said": ["leave"]})
    graph.add_edge(START, "enter")
    graph.add_edge("enter", "middle")
    graph.add_edge("middle", "leave")
    graph.add_edge("leave", END)
    return graph.compile(checkpointer=saver)


def functional(saver: BaseCheckpointSaver[Any]) -> Graph:
    """An entrypoint with tasks, a question, and a memory of its last result."""

    @task
    def double(n: int) -> int:
        return 2 * n

    @entrypoint(checkpointer=saver)
    def flow(n: int, *, previous: Any = None) -> Any:
        first, second = double(n), double(n + 1)
        total = first.result() + second.result()
        more = interrupt({"so far": total})
        return entrypoint.final(value=[total, more, previous], save=(previous or 0) + total + more)

    return flow


def remembering(saver: BaseCheckpointSaver[Any], state: Any = Plain) -> Graph:
    """A node that says how many messages a subgraph remembers, which keeps its state from run to run."""
    inner = StateGraph(state).add_node("hear", lambda state: {}).add_edge(START, "hear")
    memory = inner.compile(checkpointer=True)

    def ask(state: Any) -> Any:
        heard = memory.invoke({"said": state["said"][-1:]})["said"]
        return {"said": [f"remembers {len(heard)}"]}

    outer = StateGraph(state).add_node("ask", ask).add_edge(START, "ask")
    return outer.compile(checkpointer=saver)
