"""Plan of a deploy: what a graph and its steps would do to each stored thread. Nothing is written."""

from __future__ import annotations

import itertools
import typing
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.pregel import Pregel
from langgraph.types import Send, StateSnapshot
from pydantic import BaseModel, ValidationError

from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.engine.threads import checkpoint_loading, history, schema_pin
from perdure.errors import PerdureError
from perdure.langgraph.graph_facts import read, read_all
from perdure.langgraph.migration.schema_task_ids import SENDS
from perdure.langgraph.reading.readable_states import read_state
from perdure.langgraph.saver import PerdureSaver
from perdure.model.records import Partition
from perdure.model.write_records import INTERRUPT
from perdure.runtime.agents.agent import Agent
from perdure.runtime.agents.graphs import make_saver
from perdure.schema.changes import BRANCH
from perdure.schema.namespaces import NamespaceNames, is_by_name
from perdure.schema.schema import Schema

_OWN = ("__", "branch:", "join:")
_CHECKED = (str, bool, int, list, dict, set)
"""Types of channels against which a stored value is checked: other types accept or convert other values."""


@dataclass(frozen=True)
class ThreadPlan:
    """Effect of a deploy on a thread.

    Attributes:
        thread_id: The thread.
        version: The schema version that stored its latest checkpoint, ``None`` if that cannot be read.
        pinned: The version that it is pinned to, if any.
        waits_in: The nodes that it waits in or would go on with, by their present names.
        problems: Values that would be lost or refused, a line each; empty if the thread can continue.
    """

    thread_id: str
    version: int | None
    pinned: int | None
    waits_in: tuple[str, ...]
    problems: tuple[str, ...]


def plan(
    database: SyncDatabase,
    agent: Agent,
    schema: Schema,
    thread_ids: Iterable[str],
    *,
    has_history: bool = False,
) -> Iterator[ThreadPlan]:
    """Yield the plan of each thread.

    Args:
        database: The database of the threads.
        agent: The agent, with a compiled graph.
        schema: The schema of the deploy.
        thread_ids: The threads of the database's tenant.
        has_history: Also try the steps on every older checkpoint.
    """
    graph = agent.graph
    if not isinstance(graph, Pregel):
        raise TypeError("a plan is made for a compiled graph")
    saver = make_saver(database, [replace(agent, schema=schema)], [graph])
    bound: Pregel[Any, Any, Any, Any] = graph.copy(update={"checkpointer": saver})
    for thread_id in thread_ids:
        yield _plan(database, bound, saver, thread_id, has_history=has_history)


def _plan(
    database: SyncDatabase,
    graph: Pregel[Any, Any, Any, Any],
    saver: PerdureSaver,
    thread_id: str,
    *,
    has_history: bool,
) -> ThreadPlan:
    partition = Partition(database.tenant, thread_id)
    version: int | None = None
    pinned: int | None = None
    config: RunnableConfig = {"configurable": {"thread_id": thread_id}}
    try:
        loaded = handle_of(database).run(checkpoint_loading.load(partition, "", None))
        if loaded.checkpoint is not None:
            version = loaded.checkpoint.schema
        pinned = handle_of(database).run(schema_pin.read_pin(partition))
        if pinned is not None and pinned < saver.schema.version:
            return ThreadPlan(thread_id, version, pinned, (), ())
        state = read_state(graph, config, subgraphs=True)
        namespaces = handle_of(database).run(history.read_namespaces(partition))
        problems = [
            *_find_lost(graph, saver, state, config),
            *_find_hidden(graph, saver.schema, namespaces),
            *_find_unfit(graph, saver, config),
        ]
        if has_history:
            for _ in saver.list(config):
                pass
    except PerdureError as error:
        return ThreadPlan(thread_id, version, pinned, (), (str(error),))
    return ThreadPlan(thread_id, version, pinned, tuple(dict.fromkeys(state.next)), tuple(problems))


def _find_lost(
    graph: Pregel[Any, Any, Any, Any], saver: PerdureSaver, state: StateSnapshot, config: RunnableConfig
) -> Iterator[str]:
    """Yield the waiting nodes and interrupts of a thread that the graph would not find: nodes that are gone,
    and interrupts of tasks that it does not make any more."""
    latest = saver.get_tuple(config)
    if latest is None:
        return
    values: Mapping[str, Any] = latest.checkpoint["channel_values"]
    for name in values:
        node = name.removeprefix(BRANCH)
        if name.startswith(BRANCH) and node not in graph.nodes:
            yield f"it would go on with the node {node!r}, which the graph does not have; rename_node it"
    for send in values.get(SENDS) or ():
        if isinstance(send, Send) and send.node not in graph.nodes:
            yield f"a Send waits for the node {send.node!r}, which the graph does not have; rename_node it"
    made = {task.id for task in state.tasks}
    asked = {task for task, channel, _ in latest.pending_writes or () if channel == INTERRUPT}
    if asked - made:
        yield (
            f"{len(asked - made)} of its interrupts could not be answered any more: the graph does not make "
            "the task that asked"
        )
    for task in state.tasks:
        if isinstance(task.state, StateSnapshot) and task.interrupts and not task.state.next:
            yield f"an interrupt in the subgraph of {task.name!r} could not be answered: its node is gone"


def _find_hidden(graph: Pregel[Any, Any, Any, Any], schema: Schema, stored: Iterable[str]) -> Iterator[str]:
    """Yield the problems of subgraphs with a memory of their own: a step gives the memory to a node that the
    graph does not have, while a node of an old name, which it has, would begin without a memory."""
    names = NamespaceNames(schema.steps)
    if names.are_plain:
        return
    nodes = {facts.path: facts.graph.nodes for facts in read_all(graph)}

    def has(namespace: str) -> bool:
        *path, node = namespace.split("|")
        return node in nodes.get(tuple(path), ())

    for name in filter(is_by_name, stored):
        present = names.rename(name)
        levels = zip(name.split("|"), present.split("|"), strict=True)
        others = map("|".join, itertools.product(*levels))
        if present != name and not has(present) and (found := next(filter(has, others), None)):
            yield (
                f"what the subgraph {name!r} remembers goes to {present!r}, which the graph does not have, "
                f"and {found!r} would begin without it; rename the nodes of one name at all levels alike, or "
                "leave the step out"
            )


def _find_unfit(
    graph: Pregel[Any, Any, Any, Any], saver: PerdureSaver, config: RunnableConfig
) -> Iterator[str]:
    """Yield the problems of channels that the graph does not have, or whose stored value it does not
    accept."""
    latest = saver.get_tuple(config)
    values: Mapping[str, Any] = {}
    if latest is not None:
        values = latest.checkpoint["channel_values"]
    facts = read(graph)
    for name in values:
        if name not in graph.channels and not name.startswith(_OWN):
            yield f"the channel {name!r} has a value, and the graph has no such channel; rename or drop it"
    for channel in facts.channels:
        if channel.name not in values:
            continue
        value, expected = values[channel.name], typing.get_origin(channel.type) or channel.type
        if expected in _CHECKED and not isinstance(value, expected) and value is not None:
            yield (
                f"the channel {channel.name!r} holds {type(value).__name__}, the graph takes "
                f"{expected.__name__}; convert it"
            )
    state = getattr(getattr(graph, "builder", None), "state_schema", None)
    if isinstance(state, type) and issubclass(state, BaseModel):
        names = {channel.name for channel in facts.channels}
        try:
            state.model_validate({name: values[name] for name in values if name in names})
        except ValidationError as error:
            fields = sorted({".".join(map(str, each["loc"])) for each in error.errors()})
            yield f"the state's model refuses its values at {', '.join(fields)}; convert them"
