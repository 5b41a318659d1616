"""The agents that are killed: every shape of step whose writes a crash can cut in two.

Each node says that it runs, through ``ran``, before it does anything; a node's result depends on its input
alone, so that a disturbed run has to end in the state of an undisturbed one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Annotated, Any, TypedDict

from langgraph.config import get_config
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send, interrupt

Ran = Callable[[str, str], None]
"""Called with a node's label and its task id when the node starts."""


class Inner(TypedDict):
    topic: str
    notes: Annotated[list[str], operator.add]


class Outer(TypedDict):
    topic: str
    notes: Annotated[list[str], operator.add]
    memory: list[str]
    verdict: str


def _task_id() -> str:
    return str(get_config()["configurable"]["__pregel_task_id"])


def graph(ran: Ran) -> StateGraph[Any, Any, Any, Any]:
    """Parallel branches, a fan-out by Send, a subgraph for each task, one that keeps its state, an interrupt
    in a branch that runs beside another, and steps after the answer."""

    def node(name: str) -> Any:
        def act(state: Any) -> dict[str, Any]:
            ran(f"{name} {state['topic']}", _task_id())
            return {"notes": [f"{name}:{state['topic']}:{len(state.get('notes', ()))}"]}

        return act

    def inner(name: str) -> StateGraph[Any, Any, Any, Any]:
        sub = StateGraph(Inner)
        sub.add_node(f"{name}_in", node(f"{name}_in"))
        sub.add_node(f"{name}_out", node(f"{name}_out"))
        sub.add_edge(START, f"{name}_in")
        sub.add_edge(f"{name}_in", f"{name}_out")
        return sub

    draft = inner("draft").compile()
    recall = inner("recall").compile(checkpointer=True)

    def remember(state: Any) -> dict[str, Any]:
        ran(f"remember {state['topic']}", _task_id())
        found = recall.invoke({"topic": state["topic"], "notes": []})
        return {"memory": found["notes"]}

    def spread(state: Any) -> list[Send]:
        return [Send("fan", {"topic": f"{state['topic']}{i}"}) for i in range(3)]

    def ask(state: Any) -> dict[str, Any]:
        ran(f"ask {state['topic']}", _task_id())
        return {"verdict": interrupt("go on?")}

    builder = StateGraph(Outer)
    for name in ("left", "right", "fan", "beside", "last"):
        builder.add_node(name, node(name))
    builder.add_node("draft", draft)
    builder.add_node("remember", remember)
    builder.add_node("ask", ask)
    builder.add_edge(START, "left")
    builder.add_edge(START, "right")
    builder.add_conditional_edges("left", spread, ["fan"])
    builder.add_edge("right", "draft")
    builder.add_edge(["draft", "fan"], "remember")
    builder.add_edge("remember", "ask")
    builder.add_edge("remember", "beside")
    builder.add_edge(["ask", "beside"], "last")
    builder.add_edge("last", END)
    return builder


def flow(ran: Ran, checkpointer: Any) -> Any:
    """An entrypoint whose tasks run one after another, side by side, and after an interrupt."""

    @task
    def fetch(item: str) -> str:
        ran(f"fetch {item}", _task_id())
        return f"fetched {item}"

    @task
    def join(parts: list[str]) -> str:
        ran(f"join {parts[0]}", _task_id())
        return " + ".join(parts)

    @task
    def sign(text: str, answer: str) -> str:
        ran(f"sign {text}", _task_id())
        return f"{text} ({answer})"

    @entrypoint(checkpointer=checkpointer)
    def report(topic: str, *, previous: Any = None) -> entrypoint.final[Any, Any]:
        first = fetch(topic).result()
        parts = [fetch(f"{topic}{i}") for i in range(3)]
        text = join([first, *(p.result() for p in parts)]).result()
        answer = interrupt("sign?")
        signed = sign(text, answer).result()
        return entrypoint.final(value=signed, save=[*(previous or []), signed])

    return report
