"""Names, descriptions and input schemas of assistants as tools.

A default assistant has the name of its graph. Any other one has its own name, if that is a valid name of a
tool and no other assistant has it, otherwise a name made of its name and its id. A call may use the latter
form, or the id, for every assistant, so that a name that a client has stored stays valid.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from perdure.runtime.agents.graph_factories import Factory
from perdure.runtime.threads.index import contains
from perdure.server.assistants import Assistant
from perdure.server.graph_schema import schemas
from perdure.server.resources import Caller

_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")
_PREFIX_MAX = 48
_ID_PART = 8

INPUT = "input"
"""Only argument of a tool whose graph takes something other than an object."""

Schema = dict[str, Any]

_CHAT_MESSAGE: Schema = {
    "type": "object",
    "description": "A chat message.",
    "properties": {
        "role": {"type": "string", "enum": ["user", "assistant", "system"]},
        "content": {"type": ["string", "array"], "description": "Text, or a list of content blocks."},
    },
    "required": ["role", "content"],
}
_MESSAGE_NAMES = frozenset({"AIMessage", "HumanMessage", "SystemMessage"})


@dataclass(frozen=True, slots=True)
class ToolInput:
    """Arguments of a tool: their JSON schema, and whether the graph's input is the only one of them."""

    schema: Schema
    is_wrapped: bool

    def of(self, arguments: Mapping[str, Any]) -> Any:
        """Return the graph's input."""
        if self.is_wrapped:
            return arguments.get(INPUT)
        return dict(arguments)


async def find_visible_assistants(caller: Caller) -> list[Assistant]:
    """Return the assistants that a user may see and whose graphs are served, default ones first."""
    value: dict[str, Any] = {"metadata": {}}
    conditions = await caller.may("assistants", "search", value)
    host = caller.host
    assistants = [
        assistant
        for assistant in await host.assistants.read_all(caller.user.tenant)
        if assistant.graph_id in host.runtime.graphs
        # Every user may run the default ones.
        and (
            host.assistants.is_default(assistant.assistant_id)
            or (
                contains(assistant.metadata, value["metadata"])
                and caller.sees(conditions, assistant.metadata)
            )
        )
    ]
    return sorted(
        assistants,
        key=lambda assistant: (
            not host.assistants.is_default(assistant.assistant_id),
            assistant.name,
            assistant.assistant_id,
        ),
    )


def name_tools(caller: Caller, assistants: Sequence[Assistant]) -> dict[str, Assistant]:
    """Return assistants by the names under which they are listed, in the same order."""
    graphs = caller.host.runtime.graphs
    counts = Counter(assistant.name for assistant in assistants)
    named: dict[str, Assistant] = {}
    for assistant in assistants:
        name = assistant.name
        is_free = name not in graphs and counts[name] == 1
        if caller.host.assistants.is_default(assistant.assistant_id):
            name, is_free = assistant.graph_id, True
        if not is_free or not _NAME.fullmatch(name):
            name = make_lasting_name(assistant)
        named[name] = assistant
    return named


def make_lasting_name(assistant: Assistant) -> str:
    """Return the name of a tool that does not depend on other assistants."""
    prefix = _NOT_IN_NAMES.sub("_", assistant.name)[:_PREFIX_MAX]
    return f"{prefix}_{assistant.assistant_id[:_ID_PART]}"


def assistant_of(caller: Caller, assistants: Sequence[Assistant], name: str) -> Assistant | None:
    """Return the assistant of a tool's name, or of an assistant's id; None if there is none."""
    if (found := name_tools(caller, assistants).get(name)) is not None:
        return found
    return next(
        (
            assistant
            for assistant in assistants
            if name in (assistant.assistant_id, make_lasting_name(assistant))
        ),
        None,
    )


async def input_of(caller: Caller, graph_id: str) -> ToolInput:
    """Return the arguments of a tool that runs a graph."""
    source = caller.host.runtime.graphs[graph_id].graph
    if isinstance(source, Factory):
        # The factory may make another graph for each user, so nothing is kept.
        return await _input_of(caller, graph_id)
    if source not in _known:
        _known[source] = await _input_of(caller, graph_id)
    return _known[source]


_known: WeakKeyDictionary[Any, ToolInput] = WeakKeyDictionary()
"""Arguments by graph: making a JSON schema takes a tenth of a second."""


async def _input_of(caller: Caller, graph_id: str) -> ToolInput:
    async with caller.open_graph(graph_id, "assistants.read") as graph:
        schema = schemas(graph_id, graph)["input_schema"]
    if schema is None:
        return ToolInput({"type": "object"}, is_wrapped=False)
    schema = _with_short_messages(schema)
    if schema.get("type") == "object":
        return ToolInput(schema, is_wrapped=False)
    wrapped: Schema = {"type": "object", "properties": {INPUT: schema}, "required": [INPUT]}
    if "$defs" in schema:
        wrapped["$defs"] = schema.pop("$defs")
    return ToolInput(wrapped, is_wrapped=True)


def _with_short_messages(schema: Schema) -> Schema:
    """Return a schema in which a chat message is a role and a content. LangChain's own schema of a message
    has 30,000 characters, which would be in the context of each model that has the tool."""
    definitions: Mapping[str, Any] = schema.get("$defs") or {}
    if not definitions.keys() >= _MESSAGE_NAMES:
        return dict(schema)
    shortened: Schema = _shorten(
        {name: each for name, each in schema.items() if name != "$defs"}, definitions
    )
    kept: dict[str, Any] = {}
    left = _find_references(shortened)
    while left:
        name = left.pop()
        if name in definitions and name not in kept:
            kept[name] = _shorten(definitions[name], definitions)
            left |= _find_references(kept[name])
    if kept:
        shortened["$defs"] = kept
    return shortened


_REFERENCE = "#/$defs/"


def _shorten(node: Any, definitions: Mapping[str, Any]) -> Any:
    if isinstance(node, list):
        return [_shorten(each, definitions) for each in node]
    if not isinstance(node, dict):
        return node
    choices = node.get("oneOf") or node.get("anyOf") or ()
    named = {str(each.get("$ref", "")).removeprefix(_REFERENCE) for each in choices if isinstance(each, dict)}
    if named >= _MESSAGE_NAMES:
        return _CHAT_MESSAGE
    return {name: _shorten(each, definitions) for name, each in node.items()}


def _find_references(node: Any) -> set[str]:
    if isinstance(node, list):
        return set().union(*map(_find_references, node))
    if not isinstance(node, dict):
        return set()
    found = set().union(*map(_find_references, node.values()))
    reference = node.get("$ref")
    if isinstance(reference, str) and reference.startswith(_REFERENCE):
        found.add(reference.removeprefix(_REFERENCE))
    return found
