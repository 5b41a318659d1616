"""Agents: conversion of messages to a graph's input, and of its final state to replies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from langchain_core.messages import (
    AIMessage,
    BaseMessage,
    HumanMessage,
    RemoveMessage,
    convert_to_messages,
)
from langgraph.channels.base import BaseChannel
from langgraph.constants import END, START
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.graph.state import CompiledStateGraph
from langgraph.pregel import Pregel
from langgraph.types import Command, Send

from perdure.conversation.policy import Conversation
from perdure.langgraph.codecs import Codec
from perdure.langgraph.values.datatypes import Allow
from perdure.memory.policy import MemoryPolicy
from perdure.model.arguments import read_mapping
from perdure.model.limits import SharedLimit
from perdure.model.model_calls import Price
from perdure.model.runs.messages import Message
from perdure.model.runs.payloads import COMMAND, INPUT, MESSAGE, RESUME, is_pairs
from perdure.runtime.agents.graph_factories import Factory
from perdure.runtime.nodes.waiting import Question
from perdure.runtime.options import OF_CHECKPOINTS
from perdure.schema.schema import Schema

ToInput = Callable[[Sequence[Message]], Any]
ToReplies = Callable[[Mapping[str, Any], Sequence[Message]], Sequence[Any]]


def make_message_payload(message: object, agent: Agent) -> dict[str, Any]:
    """Return the payload of a message to an agent: text, or a mapping with ``role`` and ``content``; for an
    agent with its own ``to_input``, any mapping.

    Raises:
        TypeError: The message is neither.
        ValueError: The mapping has no content, so that no graph could take it.
    """
    if isinstance(message, str):
        return {MESSAGE: {"role": "user", "content": message}}
    if not isinstance(message, Mapping | BaseMessage):
        raise TypeError(
            f"a message is text, or a mapping with role and content, not {type(message).__name__}; "
            "nothing was stored"
        )
    fields = dict(message)
    if agent.to_input is to_input and "content" not in fields and "lc" not in fields:
        raise ValueError(
            f"a message is text, or a mapping with role and content; this one has the keys {sorted(fields)}. "
            "Nothing was stored; to pass a graph's whole input, use submit"
        )
    return {MESSAGE: fields}


def to_input(messages: Sequence[Message]) -> Any:
    """Return the input of a run: messages under their ids, so that a graph that receives one twice keeps it
    once; a graph's whole input is returned unchanged."""
    first = messages[0].payload
    if COMMAND in first:
        return parse_command(first[COMMAND])
    if RESUME in first:
        return Command(resume=first[RESUME])
    if INPUT in first:
        return _merge([message.payload[INPUT] for message in messages])
    return {"messages": [{**message.payload[MESSAGE], "id": message.id} for message in messages]}


def _merge(inputs: Sequence[Any]) -> Any:
    """Merge the inputs of several messages: lists are concatenated. Inputs are only joined if the other
    values that two of them have are equal."""
    merged = inputs[0]
    for other in inputs[1:]:
        if isinstance(merged, Mapping) and isinstance(other, Mapping):
            merged = {**merged, **{key: _combine(merged.get(key), value) for key, value in other.items()}}
        else:
            merged = _combine(merged, other)
    return merged


def _combine(before: Any, after: Any) -> Any:
    if isinstance(before, list) and isinstance(after, list):
        return [*before, *after]
    return after


def parse_command(command: Mapping[str, Any]) -> Command[Any]:
    """Return LangGraph's command for a command as JSON data, in which pairs are lists and a ``Send`` is a
    mapping."""
    update, asked = command.get("update"), command.get("goto") or ()
    if is_pairs(update):
        # LangGraph takes a list of lists for the value of a state that has no names.
        update = [tuple(pair) for pair in update]
    goto = [
        Send(to["node"], to.get("input")) if isinstance(to, Mapping) else to
        for to in ([asked] if isinstance(asked, str | Mapping) else asked)
    ]
    return Command(update=update, resume=command.get("resume"), goto=goto)


def describe_unknown_nodes(graph: Pregel[Any, Any, Any, Any], command: Command[Any]) -> str | None:
    """Return the text of the error of a command that goes to nodes which the graph does not have; None if it
    has them. LangGraph would drop the command's ``goto`` and end the run as a success."""
    goto = [command.goto] if isinstance(command.goto, str | Send) else command.goto
    asked = {to.node if isinstance(to, Send) else str(to) for to in goto}
    unknown = sorted(asked - (graph.nodes.keys() - {START}) - {END})
    if not unknown:
        return None
    known = sorted(graph.nodes.keys() - {START})
    return f"the command goes to {', '.join(map(repr, unknown))}; the graph has the nodes {', '.join(known)}"


def to_replies(values: Mapping[str, Any], messages: Sequence[Message]) -> Sequence[Any]:
    """Return the replies of a run: the agent's last message after the run's own messages, if any."""
    stored = read_mapping(values).get("messages")  # a functional graph may return any value
    if not isinstance(stored, Sequence) or isinstance(stored, str):
        return ()
    own = {message.id for message in messages}
    answers: list[AIMessage] = []
    for message in convert_plain_messages(stored):
        if message.id in own:
            answers = []
        elif isinstance(message, AIMessage) and message.text:
            answers = [message]
    return [{"role": "assistant", "content": message.text, "id": message.id} for message in answers]


def list_given(messages: Any) -> list[Any]:
    """Return the messages of an input or update as a list, also if it is a single one."""
    if isinstance(messages, list | tuple):
        return list(messages)
    return [messages]


def convert_plain_messages(values: Sequence[Any]) -> list[BaseMessage]:
    """Return a state's messages, converted if the graph keeps them as plain data, such as dicts with a role.
    Values that are no messages are left out."""
    converted: list[BaseMessage] = []
    for value in values:
        if isinstance(value, BaseMessage):
            converted.append(value)
            continue
        try:
            converted += convert_to_messages([value])
        except (ValueError, TypeError, KeyError, AttributeError, NotImplementedError):
            continue
    return converted


@dataclass(frozen=True)
class Agent:
    """Compiled graph, or a factory of it, with its settings.

    Args:
        graph: The graph; only its checkpointer and store are replaced by the runtime's.
        to_input: Converts the messages of a run to the graph's input.
        to_replies: Converts the final state to replies, given the messages of the run.
        config: Passed to every run.
        allow: Types that the state may hold beside messages and the standard library's, as for
            ``Database.checkpointer``; a list includes the types of the graph's schemas and of its tools'
            arguments.
        codecs: Codecs of such types, as for ``Database.checkpointer``.
        schema: The version of the graph and the steps that lead to it, as for ``Database.checkpointer``.
        durability: With ``"sync"`` a step begins only when the one before is stored; ``"async"`` lets it
            begin sooner, so that after a crash more than one step may be repeated.
        strict: Fail a run in which a node returns, or the input has, a key that the state does not declare.
            By default such a key is dropped, as LangGraph does, and reported once by the event
            ``state.undeclared``.
        apology: Reply on a channel to messages that were given up; ``None`` for none.
        prices: Prices of models by their names or patterns, in place of those of the same names in
            ``Settings(prices=…)``, and in its currency.
        conversation: Policy under which the messages of the graph's state are repaired, kept within a limit
            and summarised as part of a run's input, for graphs that send all their messages to the model.
        questions: Rules by which questions of nodes and tools have deadlines, defaults and reminders; the
            first that fits counts.
        record: Record the calls of models and tools with their steps, for ``perdure.replay``.
        steer_before: Names of the nodes before which messages that steer an open run are taken up; by default
            any, unless the last message of the state is an answer; none with ``()``, for a graph whose nodes
            ask for them with ``take_messages``.
        transactions: True if its nodes use ``transaction``: a runtime on a database that cannot execute their
            statements does not start.
        limits: Limits over all processes on its runs and their calls, by their names.
        memory: Policy under which a new thread begins with what is known of its user, and each turn adds to
            it.

    Raises:
        ValueError: A setting is invalid, or the graph cannot be run with it.
        TypeError: The graph is not compiled, or is not a graph.
    """

    graph: Pregel[Any, Any, Any, Any] | Factory
    to_input: ToInput = to_input
    to_replies: ToReplies = to_replies
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    allow: Allow | None = None
    codecs: Collection[Codec] = ()
    schema: Schema | None = None
    durability: Literal["sync", "async"] = "sync"
    strict: bool = False
    apology: str | None = "Sorry, something went wrong and I could not answer that. Please try again."
    conversation: Conversation | None = None
    steer_before: Collection[str] | None = None
    memory: MemoryPolicy | None = None
    prices: Mapping[str, Price] = field(default_factory=dict[str, Price])
    record: bool = False
    questions: Sequence[Question] = ()
    transactions: bool = False
    limits: Mapping[str, SharedLimit] = field(default_factory=dict[str, SharedLimit])

    def __post_init__(self) -> None:
        _refuse_reserved(self.config)
        if self.durability not in ("sync", "async"):
            raise ValueError(f"durability is 'sync' or 'async', not {self.durability!r}")
        if named := [name for name, limit in self.limits.items() if limit.graphs]:
            raise ValueError(f"the limit {named[0]!r} is of this agent; leave its graphs=… out")
        if isinstance(self.steer_before, str):
            raise ValueError(f"steer_before is a collection of names of nodes: [{self.steer_before!r}]")
        if isinstance(self.graph, Pregel):
            self.check(self.graph)
        elif not isinstance(self.graph, Factory):
            raise TypeError(
                f"an agent needs a compiled graph, not {type(self.graph).__name__}; pass builder.compile()"
            )

    def check(self, graph: Pregel[Any, Any, Any, Any]) -> None:
        """Raise ``ValueError`` if a graph cannot be run with this agent's settings."""
        _refuse_reserved(graph.config or {})
        if unknown := sorted(set(self.steer_before or ()) - graph.nodes.keys()):
            raise ValueError(
                f"steer_before names {unknown}, which are not nodes of the graph; it has "
                f"{sorted(graph.nodes)}"
            )
        if self.conversation is not None:
            check_reducer(graph, self.conversation.key)


def _refuse_reserved(config: Mapping[str, Any]) -> None:
    """Raise ``ValueError`` if the config of an agent, or of its graph, has a name that each run sets. A
    checkpoint in it would be the start of each attempt at each run."""
    reserved = [
        key for key in config.get("configurable") or {} if key.startswith("__") or key in OF_CHECKPOINTS
    ]
    if reserved:
        raise ValueError(f"the configurable keys {reserved} are LangGraph's own; leave them out")


def agents(
    graphs: Mapping[str, Agent | Pregel[Any, Any, Any, Any]] | Agent | Pregel[Any, Any, Any, Any],
) -> dict[str, Agent]:
    """Return agents by name; a single graph is named ``agent``."""
    if not isinstance(graphs, Mapping):
        graphs = {"agent": graphs}
    if not graphs:
        raise ValueError("a runtime needs at least one graph to run")
    return {name: g if isinstance(g, Agent) else Agent(g) for name, g in graphs.items()}


def check_reducer(graph: Pregel[Any, Any, Any, Any], key: str) -> None:
    """Raise ``ValueError`` if a graph's messages cannot be replaced by its input."""
    channel = graph.channels.get(key)
    names = list_input_names(graph)
    if not isinstance(channel, BaseChannel) or key not in names:
        raise ValueError(
            f"conversation=… needs {key!r} in the graph's input, which has {sorted(names)}; name the "
            "messages by Conversation(key=…)"
        )
    first, second = HumanMessage("a", id="a"), HumanMessage("b", id="b")
    try:
        channel = channel.copy()
        channel.update([[first]])
        channel.update([[RemoveMessage(id=REMOVE_ALL_MESSAGES), second]])
        replaced = channel.get()
    except Exception as error:
        raise ValueError(_describe_unreplaced(key)) from error
    if replaced != [second]:
        raise ValueError(_describe_unreplaced(key))


def list_input_names(graph: Pregel[Any, Any, Any, Any]) -> set[str]:
    """Return the names of the values that a graph takes as input."""
    if isinstance(graph, CompiledStateGraph):
        return set(graph.builder.schemas[graph.builder.input_schema])
    if isinstance(graph.input_channels, str):
        return {graph.input_channels}
    return set(graph.input_channels)


def _describe_unreplaced(key: str) -> str:
    return (
        f"conversation=… needs a reducer for {key!r} that clears it on RemoveMessage(REMOVE_ALL_MESSAGES), "
        "as langgraph.graph.add_messages does; use perdure.conversation.fit_model(model, …) in the "
        "graph instead"
    )
