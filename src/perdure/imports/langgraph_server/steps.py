"""Computes with a graph what a server does not show: types, Sends, joins, and where a finished task leads.

A step that has run is applied again by ``update_state`` to a copy in memory. Nodes are not run, but the
functions of conditional edges are, as they are whenever a state is updated as a node.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from langgraph._internal._typing import MISSING
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.pregel import Pregel
from langgraph.types import StateUpdate

from perdure.errors import Unserialisable
from perdure.imports.langgraph_server.json_values import coerce

_START, _SENDS, _JOIN = "__start__", "__pregel_tasks", "join:"


class RebuiltStep(NamedTuple):
    """A step that was applied: the channels after it that hold no state, and the writes of each task."""

    channels: dict[str, Any]
    writes: dict[str, list[tuple[str, Any]]]


class GraphSteps:
    """The steps of a compiled graph."""

    def __init__(self, graph: Pregel[Any, Any, Any, Any]) -> None:
        self._saver = InMemorySaver()
        self._graph = graph.copy(update={"checkpointer": self._saver, "store": None, "cache": None})
        shown = graph.stream_channels_asis
        self.output = "__root__"
        if isinstance(shown, str):
            self.output, shown = shown, [shown]
        self._state_channels = set(shown)

    def coerce(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of a state in the types of the graph's channels."""
        channels = self._graph.channels
        return {
            name: coerce(name, value, getattr(channels.get(name), "ValueType", Any))
            for name, value in values.items()
        }

    def subgraph(self, namespace: str) -> Pregel[Any, Any, Any, Any] | None:
        """Return the graph of a namespace such as ``node:task|node:task``; None if there is none."""
        path = "|".join(part.split(":")[0] for part in namespace.split("|") if not part.isdigit())
        for name, graph in self._graph.get_subgraphs(recurse=True):
            if name == path and isinstance(graph, Pregel):
                return graph
        return None

    def start_value(self, channel: str) -> Any:
        """Return the value with which a channel starts its node."""
        if channel not in self._graph.channels:
            return None
        channel_spec: Any = self._graph.channels[channel]
        made = channel_spec.from_checkpoint(MISSING)
        made.update([None])
        made.finish()
        return made.checkpoint()

    def apply_results(
        self, checkpoint: Mapping[str, Any], ran: Sequence[tuple[str, str, Any]]
    ) -> RebuiltStep | None:
        """Apply the results of a step's tasks, each with its id and node.

        Returns:
            The rebuilt step; None for the step that takes an input, which has nothing to apply.

        Raises:
            Unserialisable: The graph does not have such a node, or fails.
        """
        if not ran or any(node == _START for _, node, _ in ran):
            return None
        base = {"thread_id": str(checkpoint["id"]), "checkpoint_ns": ""}
        consumed = {
            name
            for _, node, _ in ran
            if node in self._graph.nodes
            for name in self._graph.nodes[node].triggers
        }
        values = {
            name: value
            for name, value in checkpoint["channel_values"].items()
            if name not in consumed or not name.startswith(_JOIN)
        }
        # Versions in the form of ``InMemorySaver``.
        versions: Any = {name: f"{checkpoint['channel_versions'][name]:032}.0" for name in values}
        copied: Any = {
            **checkpoint,
            "channel_values": values,
            "channel_versions": versions,
            "updated_channels": None,
        }
        try:
            before = self._saver.put({"configurable": base}, copied, {"source": "loop", "step": 0}, versions)
            updates = [StateUpdate(self._convert_result(result), node, task) for task, node, result in ran]
            after = self._graph.bulk_update_state(before, [updates])
            base_tuple, next_tuple = self._saver.get_tuple(before), self._saver.get_tuple(after)
        except Exception as error:
            nodes = ", ".join(sorted({node for _, node, _ in ran}))
            # Whatever a function of the user's graph raises concerns this thread alone.
            raise Unserialisable(
                f"the graph of --graph cannot apply what {nodes} wrote at "
                f"checkpoint {checkpoint['id']} ({type(error).__name__}); is it the graph of this thread?"
            ) from error
        finally:
            self._saver.delete_thread(base["thread_id"])
        if base_tuple is None or next_tuple is None:
            raise Unserialisable(f"the graph of --graph leaves nothing after checkpoint {checkpoint['id']}")
        writes: dict[str, list[tuple[str, Any]]] = {}
        for task, channel, value in base_tuple.pending_writes or ():
            writes.setdefault(task, []).append((channel, value))
        for task, channel, value in next_tuple.pending_writes or ():
            if channel == _SENDS:
                writes.setdefault(task, []).append((channel, value))
        channels = next_tuple.checkpoint["channel_values"]
        return RebuiltStep(
            {name: value for name, value in channels.items() if name not in self._state_channels}, writes
        )

    def _convert_result(self, result: Any) -> Any:
        if isinstance(result, dict) and len(self._state_channels) > 1:
            return self.coerce(result)
        return result
