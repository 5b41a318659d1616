"""A compiled graph as nodes and edges to draw."""

from __future__ import annotations

from typing import Any

from langchain_core.runnables.graph import Edge
from langgraph.pregel import Pregel

from perdure.errors import BadSetting

_NODES_MAX = 400


async def draw(graph: Pregel[Any, Any, Any, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the nodes of a graph, with those of its subgraphs, and the edges between them as JSON data.

    A node of a subgraph has the id ``outer:inner``.

    Raises:
        BadSetting: The graph cannot be drawn: a node does not declare where it leads, or there are too many.
    """
    try:
        drawn = await graph.aget_graph(xray=True)
    except NotImplementedError as error:
        raise BadSetting(
            "this graph cannot be drawn: one of its nodes does not declare where it leads"
        ) from error
    if len(drawn.nodes) > _NODES_MAX:
        raise BadSetting(f"this graph has {len(drawn.nodes)} nodes, and at most {_NODES_MAX} are drawn")
    return {
        "nodes": [{"id": node.id, "name": node.name} for node in drawn.nodes.values()],
        "edges": list(map(_describe_edge, drawn.edges)),
    }


def _describe_edge(edge: Edge) -> dict[str, Any]:
    label = None
    if isinstance(edge.data, str) and edge.data != edge.target:
        label = edge.data
    return {"source": edge.source, "target": edge.target, "label": label, "conditional": edge.conditional}
