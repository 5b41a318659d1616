"""Faulty graphs: each factory names the check and the place that an audit of its graph has to find."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import operator
import random
import threading
import time
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NotRequired

from langchain_core.messages import AnyMessage, BaseMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.channels import DeltaChannel
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from perdure import Replaces

Graph = CompiledStateGraph[Any, Any, Any, Any]
FAULTY: dict[str, tuple[str, str, Callable[[], Graph]]] = {}
"""Check, place and factory, by the factory's name."""


def finds(check: str, place: str) -> Callable[[Callable[[], Graph]], Callable[[], Graph]]:
    def kept(factory: Callable[[], Graph]) -> Callable[[], Graph]:
        FAULTY[factory.__name__] = check, place, factory
        return factory

    return kept


def graph(schema: Any, **nodes: Any) -> Graph:
    """A graph of nodes in a row."""
    builder: Any = StateGraph(schema)
    before = START
    for name, node in (nodes or {"work": idle}).items():
        builder.add_node(name, node)
        builder.add_edge(before, name)
        before = name
    return builder.compile()


def state(annotation: Any) -> Any:
    return TypedDict("State", {"value": annotation})  # type: ignore[operator]


def idle(state: Any) -> None:
    return None


class Topic(TypedDict):
    topic: str


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
    return builder.add_node("work", idle).add_edge(START, "work").compile()  # type: ignore[no-any-return]


# Reducers


def joined(left: list[Any], right: list[Any]) -> list[Any]:
    return left + right


@finds("duplicated-messages", "value")
def added_messages() -> Graph:
    return graph(state(Annotated[list[AnyMessage], operator.add]))


@finds("duplicated-messages", "value")
def joined_messages() -> Graph:
    return graph(state(Annotated[Sequence[BaseMessage], joined]))


@finds("duplicated-messages", "value")
def delta_messages_joined() -> Graph:
    def flat(state: list[HumanMessage], writes: list[list[HumanMessage]]) -> list[HumanMessage]:
        return [*state, *(each for write in writes for each in write)]

    return graph(state(Annotated[list[HumanMessage], DeltaChannel(flat)]))


@finds("unusable-reducer", "value")
def added_dicts() -> Graph:
    return graph(state(Annotated[dict[str, str], operator.add]))


@finds("unusable-reducer", "value")
def united_lists() -> Graph:
    return graph(state(Annotated[list[str], operator.or_]))


@finds("unusable-reducer", "value")
def messages_reducer_for_numbers() -> Graph:
    return graph(state(Annotated[dict[str, int], lambda left, right: left.extend(right)]))


@finds("unusable-reducer", "value")
def delta_of_an_optional() -> Graph:
    return graph(state(Annotated[list[str] | None, DeltaChannel(lambda state, writes: state)]))


@finds("not-associative", "value")
def difference() -> Graph:
    return graph(state(Annotated[int, operator.sub]))


@finds("not-associative", "value")
def average() -> Graph:
    return graph(state(Annotated[float, lambda left, right: (left + right) / 2]))


@finds("not-associative", "value")
def emptied_by_an_empty_list() -> Graph:
    def reset(left: list[str], right: list[str]) -> list[str]:
        return left + right if right else []

    return graph(state(Annotated[list[str], reset]))


@finds("not-associative", "value")
def first_of_the_update() -> Graph:
    return graph(state(Annotated[list[str], lambda left, right: left + right[:1]]))


@finds("not-associative", "value")
def nested() -> Graph:
    return graph(state(Annotated[list[Any], lambda left, right: [*left, right]]))


@finds("not-associative", "value")
def counted() -> Graph:
    return graph(
        state(Annotated[dict[str, int], lambda left, right: {**left, "updates": left.get("updates", 0) + 1}])
    )


@finds("not-associative", "value")
def reversed_each_time() -> Graph:
    return graph(state(Annotated[list[str], lambda left, right: [*left, *right][::-1]]))


@finds("not-associative", "value")
def messages_that_lose_their_ids() -> Graph:
    return graph(state(Annotated[list[AnyMessage], add_messages(format="langchain-openai")]))


@finds("mutating-reducer", "value")
def extended() -> Graph:
    def extend(left: list[str], right: list[str]) -> list[str]:
        left.extend(right)
        return left

    return graph(state(Annotated[list[str], extend]))


@finds("mutating-reducer", "value")
def updated() -> Graph:
    def update(left: dict[str, str], right: dict[str, str]) -> dict[str, str]:
        left.update(right)
        return left

    return graph(state(Annotated[dict[str, str], update]))


@finds("mutating-reducer", "value")
def emptied_update() -> Graph:
    def take(left: list[str], right: list[str]) -> list[str]:
        taken = [*left]
        while right:
            taken.append(right.pop(0))
        return taken

    return graph(state(Annotated[list[str], take]))


@finds("mutating-reducer", "value")
def items_changed_in_place() -> Graph:
    def merge(left: dict[str, list[str]], right: dict[str, list[str]]) -> dict[str, list[str]]:
        merged = dict(left)
        for key, items in right.items():
            merged.setdefault(key, []).extend(items)
        return merged

    return graph(state(Annotated[dict[str, list[str]], merge]))


@finds("mutating-reducer", "value")
def appended_one() -> Graph:
    def append(left: list[str], right: str) -> list[str]:
        left.append(right)
        return left

    return graph(state(Annotated[list[str], append]))


@finds("unstable-reducer", "value")
def shuffled() -> Graph:
    return graph(state(Annotated[list[str], lambda left, right: [*left, *right, random.random()]]))


@finds("unstable-reducer", "value")
def stamped() -> Graph:
    return graph(
        state(Annotated[dict[str, Any], lambda left, right: {**left, **right, "at": time.perf_counter()}])
    )


@finds("unstable-reducer", "value")
def named_anew() -> Graph:
    return graph(state(Annotated[list[str], lambda left, right: [*left, *right, uuid.uuid4().hex]]))


@finds("not-batching-invariant", "value")
def delta_of_the_last_write() -> Graph:
    return graph(state(Annotated[list[str], DeltaChannel(lambda state, writes: [*state, *writes[-1]])]))


@finds("not-batching-invariant", "value")
def delta_that_counts_batches() -> Graph:
    def count(state: list[str], writes: list[list[str]]) -> list[str]:
        return [*state, f"{len(writes)} writes"]

    return graph(state(Annotated[list[str], DeltaChannel(count)]))


@finds("not-batching-invariant", "value")
def delta_deduplicated_within_a_batch() -> Graph:
    def distinct(state: list[str], writes: list[list[str]]) -> list[str]:
        return [*state, *dict.fromkeys(item for write in writes for item in write)]

    return graph(state(Annotated[list[str], DeltaChannel(distinct)]))


@finds("not-batching-invariant", "value")
def delta_sorted_by_batch() -> Graph:
    def ordered(state: list[int], writes: list[list[int]]) -> list[int]:
        return state + sorted(item for write in writes for item in write)

    return graph(state(Annotated[list[int], DeltaChannel(ordered)]))


@finds("not-batching-invariant", "value")
def delta_of_dicts_by_first_writer_of_a_batch() -> Graph:
    def merge(state: dict[str, int], writes: list[dict[str, int]]) -> dict[str, int]:
        merged: dict[str, int] = {}
        for write in reversed(writes):
            merged.update(write)
        return {**state, **merged}

    return graph(state(Annotated[dict[str, int], DeltaChannel(merge)]))


@finds("mutating-reducer", "value")
def delta_that_extends_its_state() -> Graph:
    def extend(state: list[str], writes: list[list[str]]) -> list[str]:
        for write in writes:
            state.extend(write)
        return state

    return graph(state(Annotated[list[str], DeltaChannel(extend)]))


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
    return builder.add_conditional_edges("work", fan_out).compile()  # type: ignore[no-any-return]


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
