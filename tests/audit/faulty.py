"""Faulty graphs: each factory names the check and the place that an audit of its graph has to find."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import operator
import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired

from langchain_core.messages import AnyMessage, BaseMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from perdure import Replaces
from tests.audit.building import Graph, Topic, finds, graph, idle, state

# Fields that do not say whether they replace


class AgentState(TypedDict):
    messages: list[AnyMessage]
    context: dict[str, Any]
    tool_results: list[dict[str, Any]]
    current_agent: str


@finds("bare-collection", "messages")
def article_agent_state() -> Graph:
    return graph(AgentState)


@finds("bare-collection", "tool_results")
def article_tool_results() -> Graph:
    return graph(AgentState)


@finds("bare-collection", "value")
def bare_list() -> Graph:
    return graph(state(list))


@finds("bare-collection", "value")
def bare_dict() -> Graph:
    return graph(state(dict[str, int]))


@finds("bare-collection", "value")
def bare_set() -> Graph:
    return graph(state(set[str]))


@finds("bare-collection", "value")
def bare_sequence() -> Graph:
    return graph(state(Sequence[BaseMessage]))


@finds("bare-collection", "value")
def bare_optional_list() -> Graph:
    return graph(state(list[str] | None))


@finds("bare-collection", "value")
def bare_not_required_list() -> Graph:
    return graph(state(NotRequired[list[str]]))


@finds("bare-collection", "value")
def bare_annotated_list() -> Graph:
    return graph(state(Annotated[list[str], "documents that were found"]))


@finds("bare-collection", "docs")
def bare_list_of_a_model() -> Graph:
    class Model(BaseModel):
        docs: list[str] = []

    return graph(Model)


@finds("bare-collection", "docs")
def bare_list_of_a_dataclass() -> Graph:
    @dataclass
    class Data:
        docs: list[str] = field(default_factory=list)

    return graph(Data)


class Private(TypedDict):
    found: list[str]


@finds("bare-collection", "found")
def bare_list_of_a_nodes_own_input() -> Graph:
    def work(state: Private) -> None:
        return None

    return graph(Topic, work=work)


@finds("bare-collection", "inner/value")
def bare_list_of_a_subgraph() -> Graph:
    return graph(Topic, inner=graph(state(list[str])))


@finds("ignored-reducer", "value")
def reducer_before_a_comment() -> Graph:
    return graph(state(Annotated[list[str], operator.add, "all notes"]))


@finds("ignored-reducer", "value")
def reducer_before_the_mark() -> Graph:
    return graph(state(Annotated[list[str], operator.add, Replaces]))


@finds("contradicted-mark", "value")
def mark_and_reducer() -> Graph:
    return graph(state(Annotated[list[str], Replaces, operator.add]))


@finds("contradicted-mark", "messages")
def marked_in_the_input_alone() -> Graph:
    class Input(TypedDict):
        messages: Annotated[list[AnyMessage], Replaces]

    builder: Any = StateGraph(MessagesState, input_schema=Input)
    return builder.add_node("work", idle).add_edge(START, "work").compile()


# What nodes and edges return


@finds("undeclared-key", "work")
def misspelt_key() -> Graph:
    def work(state: Topic) -> dict[str, str]:
        return {"topci": "weather"}

    return graph(Topic, work=work)


@finds("undeclared-key", "work")
def key_of_a_command() -> Graph:
    async def work(state: Topic) -> Any:
        await asyncio.sleep(0)
        return Command(update={"topic": "", "answer": ""})

    return graph(Topic, work=work)


@finds("undeclared-key", "work")
def key_of_a_variable() -> Graph:
    def work(state: Topic) -> Any:
        result: dict[str, str] = {"topic": ""}
        if state["topic"]:
            result["answer"] = "yes"
        return result

    return graph(Topic, work=work)


@finds("undeclared-key", "work")
def key_set_in_the_state() -> Graph:
    def work(state: Any) -> Any:
        state["seen"] = True
        return state

    return graph(Topic, work=work)


@finds("undeclared-key", "work")
def key_of_a_lambda() -> Graph:
    return graph(Topic, work=lambda state: {"answer": 1} if state["topic"] else {"topic": ""})


@finds("undeclared-key", "work")
def key_of_another_schema() -> Graph:
    class Other(TypedDict):
        answer: str

    def work(state: Topic) -> Any:
        return Other(answer="yes")

    return graph(Topic, work=work)


@finds("undeclared-key", "work")
def key_of_a_method() -> Graph:
    class Worker:
        def __call__(self, state: Topic) -> Any:
            return {"topic": "", **dict(answer="")}  # noqa: C408

    return graph(Topic, work=Worker())


@finds("undeclared-key", "tools")
def key_of_a_tools_command() -> Graph:
    @tool
    def look_up(city: str) -> Any:
        """Look a city up."""
        return Command(update={"messages": [], "city": city})

    return graph(MessagesState, tools=ToolNode([look_up]))


@finds("undeclared-key", "inner/work")
def key_in_a_subgraph() -> Graph:
    return graph(Topic, inner=graph(Topic, work=lambda state: {"answer": 1}))


@finds("unknown-node", "work")
def goto_nowhere() -> Graph:
    def work(state: Topic) -> Any:
        return Command(goto="anwser", update={"topic": ""})

    return graph(Topic, work=work)


@finds("unknown-node", "work")
def send_to_nowhere() -> Graph:
    def fan_out(state: Topic) -> Any:
        return [Send("worker", {"topic": topic}) for topic in state["topic"]]

    builder: Any = StateGraph(Topic).add_node("work", idle).add_edge(START, "work")
    return builder.add_conditional_edges("work", fan_out).compile()


# Interrupts


@finds("swallowed-interrupt", "work")
def caught_interrupt() -> Graph:
    def work(state: Topic) -> Any:
        try:
            return {"topic": interrupt("which topic?")}
        except Exception:
            return {"topic": "unknown"}

    return graph(Topic, work=work)


@finds("swallowed-interrupt", "work")
def suppressed_interrupt() -> Graph:
    def work(state: Topic) -> Any:
        with contextlib.suppress(ValueError, Exception):
            return {"topic": interrupt("which topic?")}
        return {}

    return graph(Topic, work=work)


@finds("interrupt-in-loop", "work")
def same_question_in_a_loop() -> Graph:
    def work(state: Topic) -> Any:
        while True:
            age = interrupt("how old are you?")
            if isinstance(age, int):
                return {"topic": str(age)}

    return graph(Topic, work=work)


def confirmed() -> Any:
    return interrupt("go on?")


@finds("interrupt-in-loop", "work")
def question_of_a_helper_in_a_loop() -> Graph:
    def work(state: Topic) -> Any:
        for part in state["topic"].split():
            if not confirmed():
                return {"topic": part}
        return {}

    return graph(Topic, work=work)


@finds("interrupt-order", "work")
def questions_of_a_set() -> Graph:
    def work(state: Topic) -> Any:
        return {"topic": str([interrupt(f"{word}?") for word in set(state["topic"].split())])}

    return graph(Topic, work=work)


@finds("interrupt-order", "work")
def question_at_random() -> Graph:
    def work(state: Topic) -> Any:
        if random.random() < 0.5:
            interrupt("are you sure?")
        return {"topic": interrupt("which topic?")}

    return graph(Topic, work=work)


@finds("interrupt-order", "work")
def question_of_a_models_answer() -> Graph:
    class Model:
        def invoke(self, text: str) -> float:
            return float(len(text))

    model = Model()

    def work(state: Topic) -> Any:
        score = model.invoke(state["topic"])
        if score > 3:
            interrupt("is that right?")
        return {"topic": interrupt("which topic?")}

    return graph(Topic, work=work)


# Types


class Session:
    """A connection: no data."""


@finds("unserialisable", "value")
def plain_object() -> Graph:
    return graph(state(Session))


@finds("unserialisable", "value")
def lock() -> Graph:
    return graph(state(Annotated[dict[str, threading.Event], Replaces]))


@finds("unserialisable", "value")
def model_made_in_a_function() -> Graph:
    class Local(BaseModel):
        name: str

    return graph(state(Local))


@dataclass
class Derived:
    name: str
    length: int = field(init=False, default=0)


@finds("unserialisable", "value")
def dataclass_that_cannot_be_built_again() -> Graph:
    return graph(state(Derived))


@finds("changed-by-storage", "value")
def counter() -> Graph:
    return graph(state(Annotated[collections.Counter[str], operator.add]))


@finds("changed-by-storage", "value")
def default_dict() -> Graph:
    return graph(state(Annotated[collections.defaultdict[str, list[str]], Replaces]))


@finds("changed-by-storage", "value")
def added_tuples() -> Graph:
    return graph(state(Annotated[tuple[str, ...], operator.add]))


# Graphs inside graphs


@finds("checkpointed-subgraph", "work")
def called_subgraph() -> Graph:
    worker = graph(Topic)

    def work(state: Topic) -> Any:
        return {"topic": worker.invoke({"topic": state["topic"]})["topic"]}

    return graph(Topic, work=work)


def without_checkpoints(work: Any) -> Any:
    return StateGraph(Topic).add_node("inner", work).add_edge(START, "inner").compile(checkpointer=False)


@finds("checkpointed-subgraph", "work")
def subgraph_in_one_without_checkpoints() -> Graph:
    return graph(Topic, work=without_checkpoints(graph(Topic)))


@finds("checkpointed-subgraph", "work")
def subgraph_in_a_called_one_without_checkpoints() -> Graph:
    worker = without_checkpoints(graph(Topic))

    def work(state: Topic) -> Any:
        return {"topic": worker.invoke({"topic": state["topic"]})["topic"]}

    return graph(Topic, work=work)


@finds("checkpointed-subgraph", "work")
def called_subgraph_in_a_called_one_without_checkpoints() -> Graph:
    inner = graph(Topic)

    def call(state: Topic) -> Any:
        return inner.invoke({"topic": state["topic"]})

    worker = without_checkpoints(call)

    def work(state: Topic) -> Any:
        return {"topic": worker.invoke({"topic": state["topic"]})["topic"]}

    return graph(Topic, work=work)


@finds("subgraph-saver", "work")
def subgraph_with_a_saver() -> Graph:
    builder: Any = StateGraph(Topic).add_node("work", idle).add_edge(START, "work")
    return graph(Topic, work=builder.compile(checkpointer=InMemorySaver()))


@finds("shared-subgraph", "work")
def subgraph_called_in_a_loop() -> Graph:
    builder: Any = StateGraph(MessagesState).add_node("work", idle).add_edge(START, "work")
    worker = builder.compile(checkpointer=True)

    def work(state: Topic) -> Any:
        for word in state["topic"].split():
            worker.invoke({"messages": [word]})
        return {}

    return graph(Topic, work=work)


@finds("doubled-by-subgraph", "value")
def subgraph_that_returns_what_it_was_given() -> Graph:
    log = state(Annotated[list[str], operator.add])
    return graph(log, work=graph(log, work=lambda state: {"value": ["worked"]}))


@finds("doubled-by-subgraph", "value")
def subgraph_that_adds_to_a_sum() -> Graph:
    total = state(Annotated[int, operator.add])
    return graph(total, work=graph(total, work=lambda state: {"value": 1}))
