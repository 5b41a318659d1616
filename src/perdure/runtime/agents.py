"""How messages become a graph's input, and its final state becomes replies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from langchain_core.messages import AIMessage, BaseMessage
from langgraph.pregel import Pregel
from langgraph.types import Command, Send

from perdure.langgraph.codecs import Codec
from perdure.langgraph.datatypes import Allow
from perdure.model.messages import Message
from perdure.runtime.graph_factories import Factory

ToInput = Callable[[Sequence[Message]], Any]
ToReplies = Callable[[Mapping[str, Any], Sequence[Message]], Sequence[Any]]

MESSAGE, INPUT, RESUME, COMMAND = "message", "input", "resume", "command"
"""What a payload holds: something said, a graph's whole input, an answer to an interrupt, or a LangGraph
command: its ``update``, ``goto`` and ``resume``."""


def said(message: str | Mapping[str, Any]) -> dict[str, Any]:
    """The payload of something said: text, or a message as a mapping with ``role`` and ``content``."""
    return {MESSAGE: {"role": "user", "content": message} if isinstance(message, str) else dict(message)}


def to_input(messages: Sequence[Message]) -> Any:
    """The input of a run: what was said becomes ``messages``, each under its message's id, so that a graph
    that is given one twice holds it once; a whole input is passed as it is."""
    first = messages[0].payload
    if COMMAND in first:
        return _command(first[COMMAND])
    if RESUME in first:
        return Command(resume=first[RESUME])
    if INPUT in first:
        return _joined([message.payload[INPUT] for message in messages])
    return {"messages": [{**message.payload[MESSAGE], "id": message.id} for message in messages]}


def _joined(inputs: Sequence[Any]) -> Any:
    """One input of several that go together: lists follow each other, of other things the last one counts."""
    whole = inputs[0]
    for more in inputs[1:]:
        if isinstance(whole, Mapping) and isinstance(more, Mapping):
            whole = {**whole, **{key: _followed(whole.get(key), held) for key, held in more.items()}}
        else:
            whole = _followed(whole, more)
    return whole


def _followed(before: Any, after: Any) -> Any:
    return [*before, *after] if isinstance(before, list) and isinstance(after, list) else after


def _command(said: Mapping[str, Any]) -> Command[Any]:
    asked = said.get("goto") or ()
    goto = [
        Send(to["node"], to.get("input")) if isinstance(to, Mapping) else str(to)
        for to in ([asked] if isinstance(asked, str | Mapping) else asked)
    ]
    return Command(update=said.get("update"), resume=said.get("resume"), goto=goto)


def to_replies(values: Mapping[str, Any], messages: Sequence[Message]) -> Sequence[Any]:
    """The replies of a run: the last thing that the agent said after the run's own messages, if anything."""
    stored = values.get("messages")
    if not isinstance(stored, Sequence):
        return ()
    own = {message.id for message in messages}
    answers: list[AIMessage] = []
    for message in stored:
        if isinstance(message, BaseMessage) and message.id in own:
            answers = []
        elif isinstance(message, AIMessage) and message.text:
            answers = [message]
    return [{"role": "assistant", "content": message.text, "id": message.id} for message in answers]


@dataclass(frozen=True)
class Agent:
    """A compiled graph, or a factory of it, and how it is spoken with. ``graph`` is used as it is, but for
    its checkpointer and store, which are the runtime's; ``allow`` and ``codecs`` say which types its state
    may hold beside messages and the standard library's, as for ``Database.checkpointer``; the types of the
    graph's schemas and of its tools' arguments are among those of a list. ``config`` is given to every run.
    With
    ``durability="sync"`` a step begins when the one before is stored; ``"async"`` lets it begin sooner, so
    that after a crash more than one step may have to be repeated. ``apology`` is what a channel is told
    when a message was given up; ``None`` tells it nothing."""

    graph: Pregel[Any, Any, Any, Any] | Factory
    to_input: ToInput = to_input
    to_replies: ToReplies = to_replies
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    allow: Allow | None = None
    codecs: Collection[Codec] = ()
    durability: Literal["sync", "async"] = "sync"
    apology: str | None = "Sorry, something went wrong and I could not answer that. Please try again."

    def __post_init__(self) -> None:
        reserved = [key for key in self.config.get("configurable", {}) if key.startswith("__")]
        if reserved:
            raise ValueError(f"the configurable keys {reserved} are LangGraph's own; leave them out")
        if self.durability not in ("sync", "async"):
            raise ValueError(f"durability is 'sync' or 'async', not {self.durability!r}")
        if isinstance(self.graph, Pregel):
            self.check(self.graph)

    def check(self, graph: Pregel[Any, Any, Any, Any]) -> None:
        """``ValueError`` when a graph cannot be run as this agent says."""
        unsaved = [name for name, node in graph.nodes.items() if _is_unsaved(node.bound)]
        if unsaved and self.durability == "sync":
            raise ValueError(
                f"the subgraphs {unsaved} are compiled with checkpointer=False, with which LangGraph cannot "
                "run durability='sync'; add them with perdure.runtime.isolated_subgraph(…), or use "
                "Agent(graph, durability='async')"
            )


def _is_unsaved(bound: Any) -> bool:
    steps = (bound, *getattr(bound, "steps", ()))
    return any(isinstance(step, Pregel) and step.checkpointer is False for step in steps)


def agents(
    graphs: Mapping[str, Agent | Pregel[Any, Any, Any, Any]] | Agent | Pregel[Any, Any, Any, Any],
) -> dict[str, Agent]:
    """Graphs by name; a single one is called ``agent``."""
    named = graphs if isinstance(graphs, Mapping) else {"agent": graphs}
    if not named:
        raise ValueError("a runtime needs at least one graph to run")
    return {name: g if isinstance(g, Agent) else Agent(g) for name, g in named.items()}
