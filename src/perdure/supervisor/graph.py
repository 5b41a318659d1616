"""The supervisor's graph: a route for every message, a worker if the route names one, and the writer.

The state is thin: the conversation, a summary of earlier messages, the route of the last message, and the
result of a worker while the writer needs it. A worker's own state is not part of it, so that a rewritten
worker leaves stored threads as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypedDict

from langchain_core.messages import AIMessage, AnyMessage, RemoveMessage, SystemMessage
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langgraph.graph import END, START, StateGraph
from langgraph.graph.message import add_messages
from langgraph.pregel import Pregel

from perdure.langgraph.replaces import Replaces
from perdure.runtime.nodes.isolated_subgraphs import isolated_subgraph
from perdure.supervisor.routing import Policy, Route

ROUTE, WRITE, SUMMARISE = "route", "write", "summarise"
_PROMPT = "Answer the last message of the user."
_CORRECTED = "The user objects to your last answer, or changes the question: correct the answer."

_SUMMARISE = (
    "Summarise the conversation below in a few sentences. Keep names, numbers, decisions, open questions."
)
_SUMMARY = "The conversation before it, in short:\n"


class SupervisorState(TypedDict):
    """State of a supervisor. ``route`` is the ``Route`` of the last message as a dict, ``result`` what a
    worker found out for it."""

    messages: Annotated[list[AnyMessage], add_messages]
    route: Annotated[dict[str, Any], Replaces]
    result: Annotated[str, Replaces]


class SummarisedState(SupervisorState):
    """State of a supervisor with a summary: ``summary`` covers the messages that were removed."""

    summary: Annotated[str, Replaces]


@dataclass(frozen=True)
class RollingSummary:
    """Updater of a supervisor's ``summary``.

    Args:
        model: Writes the summary; a cheap model will do.
        keep: The minimum number of messages that stay. Once there are more than twice as many, those before
            the last ``keep`` become part of the summary, in the step that removes them.
        prompt: The model's system prompt; the summary so far follows it.
    """

    model: Runnable[Any, Any]
    keep: int = 10
    prompt: str = _SUMMARISE

    def __post_init__(self) -> None:
        if self.keep < 1:
            raise ValueError(f"keep is {self.keep}; at least 1 message has to stay")

    def find_outdated(self, messages: Sequence[AnyMessage]) -> Sequence[AnyMessage]:
        """Return the messages that are due to become part of the summary. The first message that stays is a
        user's, so that no answer is separated from its question."""
        if len(messages) <= 2 * self.keep:
            return ()
        user_positions = (n for n in range(len(messages) - self.keep, 0, -1) if messages[n].type == "human")
        return messages[: next(user_positions, 0)]

    async def node(self, state: SummarisedState) -> dict[str, Any]:
        """Return the next summary, and the removal of the messages that it covers."""
        old = self.find_outdated(state["messages"])
        prompt = "\n\n".join(filter(None, (self.prompt, _describe_summary(state))))
        answer = await self.model.ainvoke([SystemMessage(prompt), *old])
        gone = [RemoveMessage(message.id) for message in old if message.id is not None]
        return {"summary": str(answer.text), "messages": gone}


def _describe_summary(state: Mapping[str, Any]) -> str:
    if state.get("summary"):
        return f"{_SUMMARY}{state['summary']}"
    return ""


def open_questions(state: SupervisorState) -> dict[str, Any]:
    """Return a worker's input: the messages of the user since the last answer, in order."""
    messages = state["messages"]
    answered = max((n for n, message in enumerate(messages) if message.type == "ai"), default=-1)
    return {"messages": [message for message in messages[answered + 1 :] if message.type == "human"]}


def find_last_text(after: Mapping[str, Any]) -> str:
    """Return a worker's result: the text of its last message."""
    return str(after["messages"][-1].text)


@dataclass(frozen=True)
class SupervisedWorker:
    """A graph that prepares answers.

    Args:
        graph: The graph.
        description: The subjects on which it can find out something, for the policy.
        give: Returns its input from the supervisor's state; by default the user's messages since the
            last answer.
        take: Returns the result from its final state; by default the text of its last message.
        checkpoints: True for a worker whose steps take long: they are stored, and a repeated attempt goes on
            after the last of them. By default only the result is stored, and an attempt repeats the worker;
            its effects happen once in both cases.
    """

    graph: Pregel[Any, Any, Any, Any]
    description: str = ""
    give: Callable[[SupervisorState], Any] = open_questions
    take: Callable[[Any], str] = find_last_text
    checkpoints: bool = False

    def node(self, name: str) -> Runnable[SupervisorState, Any]:
        """Return the worker as a node of the supervisor."""

        def result(after: Any) -> dict[str, Any]:
            return {"result": self.take(after)}

        if not self.checkpoints:
            return isolated_subgraph(self.graph, self.give, result, name=name)

        async def step(state: SupervisorState, config: RunnableConfig) -> dict[str, Any]:
            return result(await self.graph.ainvoke(self.give(state), config))

        def step_sync(state: SupervisorState, config: RunnableConfig) -> dict[str, Any]:
            return result(self.graph.invoke(self.give(state), config))

        return RunnableLambda(step_sync, afunc=step, name=name)


def supervisor(
    policy: Policy,
    writer: Runnable[Any, Any],
    workers: Mapping[str, SupervisedWorker] | None = None,
    *,
    prompt: str = _PROMPT,
    summary: RollingSummary | None = None,
) -> StateGraph[Any, Any, Any, Any]:
    """Return the builder of a supervisor's graph; compile it, or give it to an ``Agent`` compiled.

    Args:
        policy: Returns the route of each message: the one place where it is decided which model answers.
        writer: The model that writes answers to questions and corrections.
        workers: Workers by name.
        prompt: The writer's system prompt; a worker's result follows it.
        summary: Keeps the conversation short: the writer receives the state's ``summary`` of the messages
            that were removed. By default all messages stay.

    Raises:
        ValueError: A worker has the name of a node of the supervisor.
    """
    known = dict(workers or {})
    if taken := sorted({ROUTE, WRITE, SUMMARISE} & set(known)):
        raise ValueError(f"the supervisor has a node {taken[0]!r} itself; give the worker another name")

    async def route(state: SupervisorState) -> dict[str, Any]:
        found = await policy(state["messages"])
        if found.worker is not None and found.worker not in known:
            raise ValueError(
                f"the policy named the worker {found.worker!r}; there is {', '.join(sorted(known)) or 'none'}"
            )
        update: dict[str, Any] = {"route": found.model_dump(exclude={"reply"}), "result": ""}
        if found.kind != "chitchat" or not found.reply:
            return update
        return {**update, "messages": [AIMessage(found.reply)]}

    async def write(state: SupervisorState) -> dict[str, Any]:
        answer = await writer.ainvoke([SystemMessage(_write_instructions(prompt, state)), *state["messages"]])
        return {"messages": [answer], "result": ""}

    def route_next(state: SupervisorState) -> str:
        found = Route.model_validate(state["route"])
        if found.kind == "chitchat":
            # A model may name the kind and leave the reply out.
            if state["messages"][-1].type == "ai":
                return route_end(state)
            return WRITE
        return found.worker or WRITE

    def route_end(state: SupervisorState) -> str:
        if summary is not None and summary.find_outdated(state["messages"]):
            return SUMMARISE
        return END

    builder: StateGraph[Any, Any, Any, Any]
    schema: type[SupervisorState] = SupervisorState
    last = [END]
    if summary is not None:
        schema, last = SummarisedState, [SUMMARISE, END]
    builder = StateGraph(schema)
    builder.add_node(ROUTE, route)
    # By its annotation ``write`` would receive the state without the summary.
    builder.add_node(WRITE, write, input_schema=schema)
    for name, worker in known.items():
        builder.add_node(name, worker.node(name))
        builder.add_edge(name, WRITE)
    builder.add_edge(START, ROUTE)
    if summary is not None:
        builder.add_node(SUMMARISE, summary.node)
        builder.add_edge(SUMMARISE, END)
    builder.add_conditional_edges(ROUTE, route_next, [*known, WRITE, *last])
    builder.add_conditional_edges(WRITE, route_end, last)
    return builder


def _write_instructions(prompt: str, state: SupervisorState) -> str:
    parts = [prompt, _describe_summary(state)]
    if state["route"]["kind"] == "correction":
        parts.append(_CORRECTED)
    if state["result"]:
        parts.append(f"What is known:\n{state['result']}")
    return "\n\n".join(filter(None, parts))
