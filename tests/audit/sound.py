"""Sound graphs, some in the shapes of LangGraph's own documentation: an audit finds nothing in them."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired
from uuid import UUID

from langchain_core.documents import Document
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AnyMessage, BaseMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.channels import DeltaChannel, EphemeralValue, UntrackedValue
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.graph.message import add_messages
from langgraph.managed import IsLastStep, RemainingSteps
from langgraph.prebuilt import ToolNode, create_react_agent, tools_condition
from langgraph.pregel import Pregel
from langgraph.types import Command, Overwrite, Send, interrupt
from pydantic import BaseModel
from typing_extensions import TypedDict

from perdure import Replaces
from perdure.runtime import isolated_subgraph

Graph = Pregel[Any, Any, Any, Any]
SOUND: dict[str, Callable[[], Graph]] = {}


def sound(factory: Callable[[], Graph]) -> Callable[[], Graph]:
    SOUND[factory.__name__] = factory
    return factory


def in_a_row(schema: Any, **nodes: Any) -> Graph:
    builder: Any = StateGraph(schema)
    before = START
    for name, node in nodes.items():
        builder.add_node(name, node)
        builder.add_edge(before, name)
        before = name
    return builder.compile()


class Model(GenericFakeChatModel):
    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self


@tool
def weather(city: str) -> str:
    """Tell the weather."""
    return f"sunny in {city}"


@tool
def ask_a_person(question: str) -> str:
    """Ask a person."""
    answer: str = interrupt({"question": question})
    return answer


def model() -> Model:
    return Model(messages=iter([AIMessage("hello")]))


class Topic(TypedDict):
    topic: str


class Log(TypedDict):
    log: Annotated[list[str], operator.add]


class TopicAndLog(Topic, Log):
    pass


class Tags(TypedDict):
    tags: Annotated[set[str], operator.or_]


# The article's state, corrected


class AgentState(TypedDict):
    messages: Annotated[list[AnyMessage], add_messages]
    context: Annotated[dict[str, Any], Replaces]
    tool_results: Annotated[list[dict[str, Any]], operator.add]
    current_agent: str


@sound
def article_agent_state() -> Graph:
    return in_a_row(AgentState, work=lambda state: {"current_agent": "support", "messages": []})


# Shapes of LangGraph's documentation


@sound
def chatbot() -> Graph:
    def chat(state: MessagesState) -> Any:
        return {"messages": [model().invoke(state["messages"])]}

    return in_a_row(MessagesState, chat=chat)


class Untyped(TypedDict):
    messages: Annotated[list, add_messages]  # type: ignore[type-arg]


@sound
def chatbot_without_a_type_of_messages() -> Graph:
    return in_a_row(Untyped, chat=lambda state: {"messages": [("ai", "hello")]})


@sound
def react_agent() -> Graph:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return create_react_agent(model(), [weather, ask_a_person])


@sound
def react_agent_with_an_answer_of_a_form() -> Graph:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return create_react_agent(
            model(),
            [weather],
            response_format=Answer,
            pre_model_hook=lambda state: {"llm_input_messages": []},
        )


class Answer(BaseModel):
    text: str


@sound
def tools_in_a_loop() -> Graph:
    builder: Any = StateGraph(MessagesState)
    builder.add_node("chat", lambda state: {"messages": [AIMessage("hello")]})
    builder.add_node("tools", ToolNode([weather]))
    builder.add_edge(START, "chat")
    builder.add_conditional_edges("chat", tools_condition)
    builder.add_edge("tools", "chat")
    return builder.compile()


class Overall(TypedDict):
    subjects: Annotated[list[str], Replaces]
    jokes: Annotated[list[str], operator.add]
    best: str


class Joke(TypedDict):
    subject: str


@sound
def map_and_reduce() -> Graph:
    def fan_out(state: Overall) -> Any:
        return [Send("joke", {"subject": subject}) for subject in state["subjects"]]

    def joke(state: Joke) -> Any:
        return {"jokes": [f"a joke about {state['subject']}"]}

    builder: Any = StateGraph(Overall)
    builder.add_node("subjects", lambda state: {"subjects": ["cats", "dogs"]})
    builder.add_node("joke", joke)
    builder.add_node("best", lambda state: {"best": state["jokes"][0]})
    builder.add_edge(START, "subjects")
    builder.add_conditional_edges("subjects", fan_out, ["joke"])
    builder.add_edge("joke", "best")
    return builder.compile()


@sound
def routed_by_a_literal() -> Graph:
    def route(state: Topic) -> Literal["poem", "story"]:
        return "poem" if state["topic"] else "story"

    builder: Any = StateGraph(Topic)
    builder.add_node("poem", lambda state: {"topic": "poem"})
    builder.add_node("story", lambda state: {"topic": "story"})
    builder.add_conditional_edges(START, route)
    return builder.compile()


@sound
def routed_by_a_mapping() -> Graph:
    def route(state: Topic) -> str:
        return "yes" if state["topic"] else "no"

    builder: Any = StateGraph(Topic).add_node("write", lambda state: {"topic": "poem"})
    builder.add_conditional_edges(START, route, {"yes": "write", "no": END})
    return builder.compile()


@sound
def handed_over_by_commands() -> Graph:
    def first(state: Topic) -> Command[Literal["second", "__end__"]]:
        if state["topic"]:
            return Command(goto="second", update={"topic": "handed over"})
        return Command(goto="__end__")

    builder: Any = StateGraph(Topic).add_node("first", first)
    return builder.add_node("second", lambda state: {}).add_edge(START, "first").compile()


@sound
def command_to_the_parent() -> Graph:
    def leave(state: Topic) -> Any:
        return Command(graph=Command.PARENT, goto="other", update={"messages": []})

    inner = in_a_row(Topic, leave=leave)
    builder: Any = StateGraph(AgentState).add_node("inner", inner).add_node("other", lambda state: {})
    return builder.add_edge(START, "inner").compile()


@sound
def subgraph_as_a_node() -> Graph:
    inner = in_a_row(MessagesState, chat=lambda state: {"messages": []})
    return in_a_row(MessagesState, inner=inner)


@sound
def subgraph_that_returns_only_what_it_adds() -> Graph:
    builder: Any = StateGraph(TopicAndLog, input_schema=Topic, output_schema=Log)
    inner = builder.add_node("work", lambda state: {"log": ["worked"]}).add_edge(START, "work").compile()
    return in_a_row(TopicAndLog, inner=inner)


@sound
def subgraph_that_adds_to_a_set() -> Graph:
    inner = in_a_row(Tags, tag=lambda state: {"tags": {"new"}})
    return in_a_row(Tags, inner=inner)


@sound
def subgraph_with_a_memory_of_its_own() -> Graph:
    builder: Any = StateGraph(MessagesState).add_node("chat", lambda state: {"messages": []})
    return in_a_row(MessagesState, inner=builder.add_edge(START, "chat").compile(checkpointer=True))


@sound
def called_subgraph_that_asks() -> Graph:
    inner = in_a_row(Topic, ask=lambda state: {"topic": interrupt("which topic?")})

    def call(state: MessagesState) -> Any:
        return {"messages": [inner.invoke({"topic": ""})["topic"]]}

    return in_a_row(MessagesState, call=call)


@sound
def called_subgraph_without_checkpoints() -> Graph:
    builder: Any = StateGraph(Topic).add_node("work", lambda state: {"topic": "done"})
    inner = builder.add_edge(START, "work").compile(checkpointer=False)

    def call(state: MessagesState) -> Any:
        return {"messages": [inner.invoke({"topic": ""})["topic"]]}

    return in_a_row(MessagesState, call=call)


@sound
def isolated() -> Graph:
    inner = in_a_row(Topic, work=lambda state: {"topic": "done"})
    node: RunnableLambda[Topic, Mapping[str, Any]] = isolated_subgraph(
        inner, lambda state: {"topic": ""}, lambda result: {"messages": [result["topic"]]}
    )
    return in_a_row(MessagesState, work=node)


@sound
def isolated_with_a_subgraph() -> Graph:
    inner = in_a_row(Topic, work=in_a_row(Topic, work=lambda state: {"topic": "done"}))
    node: RunnableLambda[Topic, Mapping[str, Any]] = isolated_subgraph(
        inner, lambda state: {"topic": ""}, lambda result: {"messages": [result["topic"]]}
    )
    return in_a_row(MessagesState, work=node)


@sound
def subgraphs_without_checkpoints_in_one_another() -> Graph:
    def unsaved(work: Any) -> Any:
        return StateGraph(Topic).add_node("work", work).add_edge(START, "work").compile(checkpointer=False)

    return in_a_row(Topic, work=unsaved(unsaved(lambda state: {"topic": "done"})))


class Input(TypedDict):
    question: str
    messages: list[AnyMessage]


class Private(TypedDict):
    found: str


class Output(TypedDict):
    answer: str


class Whole(Input, Output):
    messages: Annotated[list[AnyMessage], add_messages]


@sound
def several_schemas() -> Graph:
    def search(state: Input) -> Any:
        return Private(found="something")

    def answer(state: Private) -> Any:
        return {"answer": state["found"]}

    builder: Any = StateGraph(Whole, input_schema=Input, output_schema=Output)
    builder.add_sequence([search, answer])
    return builder.add_edge(START, "search").compile()


@sound
def functional() -> Graph:
    @task
    def draft(topic: str) -> str:
        return f"about {topic}"

    @task
    def score(text: str) -> float:
        return float(len(text))

    @entrypoint()
    def write(topic: str, *, previous: Any = None) -> Any:
        text = draft(topic).result()
        if score(text).result() > 3:
            text = interrupt({"text": text, "action": "edit"})
        approved = interrupt({"text": text, "action": "approve"})
        return entrypoint.final(value={"text": text, "approved": approved}, save=text)

    return write


# Questions


@sound
def asked_until_it_is_valid() -> Graph:
    def age(state: Topic) -> Any:
        question = "how old are you?"
        while True:
            answer = interrupt(question)
            if isinstance(answer, int) and answer >= 0:
                return {"topic": str(answer)}
            question = f"{answer!r} is not an age. How old are you?"

    return in_a_row(Topic, age=age)


@sound
def asked_for_each_item() -> Graph:
    def approve(state: AgentState) -> Any:
        approved = []
        for call in sorted(state["tool_results"], key=str):
            answer = interrupt({"call": call})
            approved.append((call, answer))
        return {"context": {"approved": approved}}

    return in_a_row(AgentState, approve=approve)


def needs_approval(state: Any) -> bool:
    return len(state["topic"].split()) > 3


@sound
def asked_if_the_state_says_so() -> Graph:
    def work(state: Topic) -> Any:
        if needs_approval(state):
            interrupt("it is long; go on?")
        if interrupt("publish?") == "no":
            return {"topic": interrupt("what else?")}
        return {}

    return in_a_row(Topic, work=work)


@sound
def caught_beside_the_question() -> Graph:
    def work(state: Topic) -> Any:
        answer = interrupt("which number?")
        try:
            return {"topic": str(int(answer))}
        except Exception:
            return {"topic": "none"}

    return in_a_row(Topic, work=work)


@sound
def caught_and_raised_again() -> Graph:
    def work(state: Topic) -> Any:
        try:
            return {"topic": interrupt("which topic?")}
        except ValueError:
            return {"topic": "none"}
        except Exception:
            raise

    return in_a_row(Topic, work=work)


# Reducers


def merged(left: dict[str, int], right: dict[str, int]) -> dict[str, int]:
    return {**left, **right}


def added_one(left: list[str], right: str) -> list[str]:
    return [*left, right]


def kept_last(left: list[str], right: list[str]) -> list[str]:
    return [*left, *right][-10:]


def by_key(left: list[Document] | None, right: list[Document] | None) -> list[Document]:
    return list({each.id: each for each in [*(left or []), *(right or [])]}.values())


@sound
def reducers_of_all_sorts() -> Graph:
    class State(TypedDict):
        total: Annotated[int, operator.add]
        cost: Annotated[float, operator.add]
        text: Annotated[str, operator.add]
        highest: Annotated[int, lambda left, right: max(left, right)]
        names: Annotated[set[str], operator.or_]
        done: Annotated[bool, operator.or_]
        by_name: Annotated[dict[str, int], merged]
        parts: Annotated[dict[str, int], operator.or_]
        log: Annotated[list[str], added_one]
        window: Annotated[list[str], kept_last]
        docs: Annotated[list[Document], by_key]
        latest: Annotated[str | None, lambda left, right: right if right is not None else left]
        messages: Annotated[Sequence[BaseMessage], add_messages]

    return in_a_row(State, work=lambda state: {"total": 1, "log": "done", "docs": Overwrite([])})


def flat(state: list[str], writes: Sequence[list[str]]) -> list[str]:
    return [*state, *(item for write in writes for item in write)]


def last_of_each(state: dict[str, int], writes: Sequence[dict[str, int]]) -> dict[str, int]:
    return {key: value for each in (state, *writes) for key, value in each.items()}


def by_id(state: list[AnyMessage], writes: Sequence[list[AnyMessage]]) -> list[AnyMessage]:
    return list({message.id: message for message in (*state, *(m for w in writes for m in w))}.values())


@sound
def delta_channels() -> Graph:
    class State(TypedDict):
        log: Annotated[list[str], DeltaChannel(flat)]
        files: NotRequired[Annotated[dict[str, int], DeltaChannel(last_of_each, snapshot_frequency=10)]]
        messages: Annotated[list[AnyMessage], DeltaChannel(by_id)]

    return in_a_row(State, work=lambda state: {"log": ["done"], "files": {"a": 1}})


# Types


class Colour(Enum):
    RED = "red"


@dataclass
class Place:
    name: str
    at: datetime
    near: list[str] = field(default_factory=list)


class Order(BaseModel):
    id: UUID
    colour: Colour
    place: Place | None = None
    tags: frozenset[str] = frozenset()


@sound
def stored_types() -> Graph:
    class State(TypedDict):
        order: Order
        place: Place | None
        colour: Colour
        orders: Annotated[dict[str, Order], Replaces]
        pair: tuple[str, int]
        left: RemainingSteps
        is_last: IsLastStep
        anything: Any
        kind: Literal["a", "b"]

    return in_a_row(State, work=lambda state: {"colour": Colour.RED, "pair": ("a", 1)})


class Connection:
    """No data."""


@sound
def object_that_is_not_stored() -> Graph:
    class State(TypedDict):
        topic: str
        connection: Annotated[Connection, UntrackedValue]
        flash: Annotated[str, EphemeralValue]

    return in_a_row(State, work=lambda state: {"connection": Connection()})


@sound
def pydantic_state() -> Graph:
    class State(BaseModel):
        topic: str = ""
        docs: Annotated[list[str], operator.add] = []
        chosen: Annotated[list[str], Replaces] = []

    def work(state: State) -> Any:
        return State(docs=["a"], chosen=["a"])

    return in_a_row(State, work=work)


@sound
def dataclass_state() -> Graph:
    @dataclass
    class State:
        topic: str = ""
        docs: Annotated[list[str], operator.add] = field(default_factory=list)

    def work(state: State) -> Any:
        update = {"topic": state.topic}
        update["docs"] = "all"
        return update

    return in_a_row(State, work=work)


@sound
def computed_updates() -> Graph:
    def build(state: Any) -> dict[str, Any]:
        return {name.lower(): value for name, value in state.items()}

    def work(state: Topic) -> Any:
        result = {"answer": "not returned"}
        update = build(state)
        return {**update, "topic": result["answer"]}

    return in_a_row(Topic, work=work, then=RunnableLambda(build))


@sound
def sequence_of_runnables() -> Graph:
    ask: RunnableLambda[Topic, dict[str, str]] = RunnableLambda(lambda state: {"prompt": state["topic"]})
    return in_a_row(Topic, chain=ask | (lambda made: {"topic": made["prompt"]}))


@sound
def tool_that_returns_a_dict() -> Graph:
    @tool
    def look_up(city: str) -> Any:
        """Look a city up."""
        return {"city": city, "inhabitants": 3}

    @tool
    def remember(city: str) -> Any:
        """Remember a city."""
        return Command(update={"messages": [], "context": {"city": city}})

    return in_a_row(AgentState, tools=ToolNode([look_up, remember]))


@sound
def root_state() -> Graph:
    schema: Any = Annotated[list[str], operator.add]
    builder: Any = StateGraph(schema)
    return builder.add_node("work", lambda state: ["done"]).add_edge(START, "work").compile()
