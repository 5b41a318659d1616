"""The graph and the assistant of a thread: those of its latest checkpoint.

A thread's document has them in its metadata as well, under ``graph_id`` and ``assistant_id``: those for which
it was created, or with which its first run was accepted. Those of later runs are listed beside the metadata,
under ``agents``, in the commit that accepts the first run of each. A run that was accepted may never begin,
or be rolled back, so the list only says which of them the latest checkpoint may name.

What a client has written into the metadata itself counts as long as the checkpoint is the latest that was the
latest then (``chosen_at``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

NAMES = ("graph_id", "assistant_id")
"""Names in the metadata of a thread, and of a checkpoint."""

_AGENTS, _CHOSEN_AT = "agents", "chosen_at"

Agent = Mapping[str, str]
"""Values by ``NAMES``."""


def agent_of(metadata: Mapping[str, Any]) -> dict[str, str]:
    """Return the graph and the assistant that metadata name, without those that they do not."""
    return {name: value for name in NAMES if isinstance(value := metadata.get(name), str)}


def name_editor(metadata: Mapping[str, Any], graph_id: str | None) -> dict[str, str]:
    """Return the metadata of a checkpoint that a client makes of a thread's state with a graph: the thread
    keeps its assistant, unless that is another graph's. The saver adds the graph."""
    agent = agent_of(metadata)
    if agent.pop("graph_id", graph_id) != graph_id:
        return {}
    return agent


def list_agents(body: Mapping[str, Any]) -> tuple[Agent, ...]:
    """Return all graphs and assistants that a thread's document names."""
    first = agent_of(body.get("metadata", {}))
    return (*([first] if first else []), *body.get(_AGENTS, ()))


def add_agents(body: Mapping[str, Any], agents: Iterable[Agent]) -> dict[str, Any]:
    """Return a thread's document with the graphs and assistants of further runs."""
    known, added = [*list_agents(body)], list[dict[str, str]]()
    for agent in agents:
        if not any(agent.items() <= each.items() for each in known):
            known.append(agent)
            added.append(dict(agent))
    return {**body, _AGENTS: [*body.get(_AGENTS, ()), *added]} if added else dict(body)


def change_metadata(
    body: Mapping[str, Any], metadata: Mapping[str, Any], chosen_at: str | None
) -> dict[str, Any]:
    """Return a thread's document with changed metadata.

    Args:
        body: the document.
        metadata: the entries to add or replace.
        chosen_at: the id of the latest checkpoint, if there is one.
    """
    out = {**body, "metadata": {**body["metadata"], **metadata}}
    if not any(name in metadata for name in NAMES):
        return out
    return {**add_agents(out, list_agents(body)), _CHOSEN_AT: chosen_at}


def depends_on_checkpoint(body: Mapping[str, Any], graphs: Iterable[str]) -> bool:
    """Return True if only the latest checkpoint shows to which graph and assistant a thread belongs.

    Args:
        body: the thread's document.
        graphs: the graphs of its newest runs.
    """
    named = agent_of(body.get("metadata", {})).get("graph_id")
    return _AGENTS in body or (named is not None and any(graph != named for graph in graphs))


def choose_metadata(
    body: Mapping[str, Any], head: str | None, stored: Mapping[str, Any], graph: str | None = None
) -> dict[str, Any]:
    """Return the metadata of a thread with the graph and the assistant to which it belongs.

    Args:
        body: the thread's document.
        head: the id of its latest checkpoint, ``None`` if it has none.
        stored: the metadata of that checkpoint.
        graph: the graph of its newest run, for a checkpoint that names none.
    """
    metadata: dict[str, Any] = body.get("metadata", {})
    if _CHOSEN_AT in body and body[_CHOSEN_AT] == head:
        return metadata
    found = agent_of(stored)
    if "graph_id" not in found and graph is not None:
        found["graph_id"] = graph
    if "graph_id" not in found:
        return metadata
    if found["graph_id"] == metadata.get("graph_id"):
        return {**metadata, **found}
    # The assistant of another graph is not the thread's.
    return {**{name: value for name, value in metadata.items() if name not in NAMES}, **found}


def list_variants(copy: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the metadata that a thread may have, from the copy of its document in the index."""
    metadata, agents = copy["metadata"], list_agents(copy)
    yield metadata
    if _AGENTS not in copy:
        return
    assistants = {agent["assistant_id"] for agent in agents if "assistant_id" in agent}
    for graph in {agent["graph_id"] for agent in agents if "graph_id" in agent}:
        yield {**metadata, "graph_id": graph}
        for assistant in assistants:
            yield {**metadata, "graph_id": graph, "assistant_id": assistant}


def copy_agents(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a thread's document that its copy in the index needs besides the metadata."""
    return {_AGENTS: body[_AGENTS]} if _AGENTS in body else {}
