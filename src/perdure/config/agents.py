"""Settings of single graphs: the schema of each, and the policy under which its conversations are kept.

They configure graphs without a change of their code. Arguments of an ``Agent`` in code are never replaced.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from perdure.config.memory import MemorySettings, make_memory_settings
from perdure.config.models import load_callable, load_model_or_function
from perdure.config.resolve import ResolvedConfig
from perdure.conversation.policy import Conversation
from perdure.conversation.window import Limit
from perdure.errors import BadSetting, GraphLoadError
from perdure.runtime.agents.agent import Agent
from perdure.runtime.agents.loading import find
from perdure.runtime.agents.module_files import names_file
from perdure.runtime.nodes.waiting import Question
from perdure.schema.schema import Schema

_FIELDS = ("limit", "summary", "keep", "summarize", "counter", "system", "key")


class ConversationSettings(NamedTuple):
    """Settings of a conversation's policy, as for ``perdure.conversation.Conversation``.

    ``summarize`` is a provider and its model, such as ``openai:gpt-4o-mini``, or the place of a chat model or
    a function; ``counter`` is a function's place. ``name`` is the setting for error messages.
    """

    limit: int
    summary: int = 0
    keep: float = 0.5
    summarize: str | None = None
    counter: str | None = None
    system: str | None = None
    key: str = "messages"
    name: str = "conversation"

    def load(self, root: Path) -> Conversation:
        """Return the policy.

        Args:
            root: The project's folder, at which a file's path starts.

        Raises:
            BadSetting: The policy cannot be used.
            GraphLoadError: There is no object at a place.
        """
        made = Conversation(limit=self.bounds(), system=self.system, key=self.key)
        if self.counter is not None:
            made = replace(made, counter=load_callable(f"{self.name}.counter", self.counter, root))
        if self.summarize is not None:
            summarize = load_model_or_function(f"{self.name}.summarize", self.summarize, root)
            made = replace(made, summarize=summarize)
        return made

    def bounds(self) -> Limit:
        """Return the limit. ``BadSetting`` if its numbers do not fit together."""
        try:
            return Limit(self.limit, keep=self.keep, summary=self.summary)
        except ValueError as error:
            raise BadSetting(f"{self.name}: {error}") from error


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """Settings by graph: places of schemas, and policies of conversations. ``own`` are the graphs that have a
    table of their own under ``conversation.graphs``. ``memory`` is the policy of all graphs without one in
    their code. ``questions`` are rules, each with its graph or ``None`` for all graphs; rules in a graph's
    code come first."""

    schemas: Mapping[str, str] = field(default_factory=dict[str, str])
    conversations: Mapping[str, ConversationSettings] = field(default_factory=dict[str, ConversationSettings])
    own: frozenset[str] = frozenset()
    memory: MemorySettings | None = None
    questions: Sequence[tuple[str | None, Question]] = ()

    def apply(self, agents: Mapping[str, Agent], root: Path) -> dict[str, Agent]:
        """Return the agents with their schemas and policies.

        Args:
            agents: The agents, as they were loaded.
            root: The project's folder.

        Raises:
            BadSetting: A setting does not fit an agent, or the agent has its own in the code.
            GraphLoadError: There is no object at a place.
        """
        configured: dict[str, Agent] = {}
        memory = None if self.memory is None else self.memory.load(root)
        for name, agent in agents.items():
            if (place := self.schemas.get(name)) is not None:
                agent = _add_schema(name, agent, place, root)
            if (policy := self.conversations.get(name)) is not None:
                agent = self._add_conversation(name, agent, policy, root)
            if memory is not None and agent.memory is None:
                agent = replace(agent, memory=memory)
            if rules := [rule for graph, rule in self.questions if graph in (None, name)]:
                agent = replace(agent, questions=(*agent.questions, *rules))
            configured[name] = agent
        return configured

    def _add_conversation(self, name: str, agent: Agent, policy: ConversationSettings, root: Path) -> Agent:
        if agent.conversation is not None:
            if name not in self.own:
                return agent
            raise BadSetting(
                f"{policy.name} is set, and the Agent of {name!r} has a conversation=… of its own; remove one"
            )
        try:
            return replace(agent, conversation=policy.load(root))
        except ValueError as error:
            raise BadSetting(
                f"{policy.name} cannot be followed for the graph {name!r}: {error}; or leave the graph out, "
                f"with conversation.graphs.{name} = false"
            ) from error


def resolve_agent_settings(configuration: ResolvedConfig, graphs: Collection[str]) -> AgentSettings:
    """Return the settings by graph.

    Args:
        configuration: The configuration.
        graphs: The names of its graphs.

    Raises:
        BadSetting: A setting names an unknown graph, has no limit, or its numbers do not fit together.
    """
    tables: Mapping[str, Any] = configuration["conversation.graphs"] or {}
    _require_known(configuration.name("conversation.graphs"), tables, graphs)
    rules = configuration["questions"] or ()
    named = {graph for graph, _ in rules if graph is not None}
    _require_known(configuration.name("questions"), named, graphs)
    return AgentSettings(
        find_schema_places(configuration, graphs),
        {
            name: made
            for name in graphs
            if (made := _make_policy(configuration, name, tables.get(name))) is not None
        },
        frozenset(name for name, table in tables.items() if table),
        make_memory_settings(configuration),
        rules,
    )


def find_schema_places(configuration: ResolvedConfig, graphs: Collection[str]) -> dict[str, str]:
    """Return the places of the schemas that the settings give to graphs, by the name of the graph.

    Args:
        configuration: The configuration.
        graphs: The names of all graphs.

    Raises:
        BadSetting: The setting names an unknown graph.
    """
    if "schema" not in configuration:
        return {}
    schemas, base = configuration["schema"], configuration.entries["schema"].base
    if isinstance(schemas, str):
        schemas = dict.fromkeys(graphs, schemas)
    _require_known(configuration.name("schema"), schemas, graphs)
    return {name: configuration.resolve_place(place, base) for name, place in schemas.items()}


def _make_policy(configuration: ResolvedConfig, graph: str, table: Any) -> ConversationSettings | None:
    general = {
        name: configuration[f"conversation.{name}"]
        for name in _FIELDS
        if f"conversation.{name}" in configuration
    }
    if table is False or not (general or table):
        return None
    own = dict(table or {})
    for name in ("summarize", "counter"):
        if name in own and names_file(own[name]):
            own[name] = configuration.resolve_place(
                own[name], configuration.entries["conversation.graphs"].base
            )
        elif name in general and names_file(general[name]):
            general[name] = configuration.resolve_place(
                general[name], configuration.entries[f"conversation.{name}"].base
            )
    name = f"conversation.graphs.{graph}" if own else "conversation"
    given = {**general, **own}
    if "limit" not in given:
        raise BadSetting(
            f"{name} has no limit; set the maximum number of tokens for the model, e.g. limit = 8000"
        )
    made = ConversationSettings(**given, name=name)
    made.bounds()
    return made


def _require_known(setting: str, given: Collection[str], graphs: Collection[str]) -> None:
    if unknown := sorted(set(given) - set(graphs)):
        raise BadSetting(
            f"{setting} names {unknown[0]!r}, which is not a graph; the graphs are "
            f"{', '.join(sorted(graphs))}"
        )


def _add_schema(name: str, agent: Agent, place: str, root: Path) -> Agent:
    found = find(place, root=root).found
    if not isinstance(found, Schema):
        raise GraphLoadError(
            f"{place} is not a Schema of perdure.schema, but {type(found).__name__}; name one, e.g. "
            "./agent.py:schema"
        )
    if agent.schema is not None and agent.schema != found:
        raise BadSetting(
            f"the setting schema names {place} for the graph {name!r}, whose Agent has another schema=… of "
            "its own; remove one"
        )
    return replace(agent, schema=found)
