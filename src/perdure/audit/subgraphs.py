"""Checks of graphs inside a graph: whether their steps are stored, where, and in how many copies."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.pregel import Pregel

from perdure.audit import checks
from perdure.audit.findings import AuditFinding
from perdure.audit.interrupts import asks
from perdure.audit.reducers import growth
from perdure.audit.source import FunctionSource, find_field_spot, find_function_spot, source_of
from perdure.langgraph.graph_facts import GraphFacts, NodeFacts, read, read_all
from perdure.runtime.nodes.isolated_subgraphs import isolated_subgraph

_CALLS = frozenset({"invoke", "ainvoke", "stream", "astream", "batch", "abatch"})
_LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_Graph = Pregel[Any, Any, Any, Any]


def subgraphs(facts: GraphFacts) -> Iterator[AuditFinding]:
    """Yield the findings about the graphs that a graph's nodes are, or call."""
    for node in facts.nodes:
        place = "/".join((*facts.path, node.name))
        for graph in node.graphs:
            yield from _find_doubled(facts, graph, place)
            yield from _find_stored_within(graph, place, _find_spot(graph))
            if isinstance(graph.checkpointer, BaseCheckpointSaver):
                yield AuditFinding(
                    checks.SUBGRAPH_SAVER, "node", place, _find_spot(graph), _describe_checkpointer(graph)
                )
        for graph, source, calls in _find_called(node):
            spot = source.locate(calls[0])
            yield from _find_stored_within(graph, place, spot)
            if isinstance(graph.checkpointer, BaseCheckpointSaver):
                yield AuditFinding(checks.SUBGRAPH_SAVER, "node", place, spot, _describe_checkpointer(graph))
            elif graph.checkpointer is True and (len(calls) > 1 or _is_in_loop(source, calls[0])):
                detail = (
                    f"{_format_name(graph)} is called "
                    f"{'in a loop' if len(calls) == 1 else f'{len(calls)} times'}"
                )
                yield AuditFinding(checks.SHARED_SUBGRAPH, "node", place, spot, detail)
            elif graph.checkpointer is None and not _can_pause(graph):
                detail = f"it calls {_format_name(graph)}, which is compiled without checkpointer="
                yield AuditFinding(checks.CHECKPOINTED_SUBGRAPH, "node", place, spot, detail)


def _find_doubled(facts: GraphFacts, graph: _Graph, place: str) -> Iterator[AuditFinding]:
    """Yield a finding for each channel that a node's subgraph is given, adds to, and returns as a whole, so
    that the reducer adds everything twice."""
    builder = getattr(graph, "builder", None)
    if builder is None:
        return
    outputs = graph.output_channels
    returned = {outputs} if isinstance(outputs, str) else set(outputs)
    shared = returned & builder.schemas[builder.input_schema].keys()
    accumulated = shared & {channel.name for channel in read(graph).channels if channel.reducer is not None}
    for channel in facts.channels:
        if channel.name in accumulated and (example := growth(channel)) is not None:
            name = "/".join((*facts.path, channel.name))
            detail = f"{_format_name(graph)}, the node {place!r}, is given it and returns it as a whole"
            spot = find_field_spot(channel.schema, channel.name)
            yield AuditFinding(checks.DOUBLED_BY_SUBGRAPH, "channel", name, spot, detail, example)


def _find_stored_within(graph: _Graph, place: str, spot: Any) -> Iterator[AuditFinding]:
    """Yield a finding for each graph whose steps are stored by the saver of the outermost graph, although it
    is inside a graph without checkpoints."""
    if graph.checkpointer is not False:
        return
    for facts in read_all(graph):
        found = [inner for node in facts.nodes for inner, _, _ in _find_called(node)]
        for inner in (facts.graph, *found):
            if inner.checkpointer is None:
                detail = f"{_format_name(graph)} stores no steps, but {_format_name(inner)} inside it does"
                yield AuditFinding(checks.CHECKPOINTED_SUBGRAPH, "node", place, spot, detail)


def _find_called(node: NodeFacts) -> Iterator[tuple[_Graph, FunctionSource, list[ast.Call]]]:
    """Yield the graphs that the functions of a node call, each with its calls in the source. Isolated
    subgraphs are left out, as nothing inside them is stored."""
    for function in (*node.functions, *node.tools):
        source = source_of(function)
        if source is None or function.__module__ == isolated_subgraph.__module__:
            continue
        found: dict[int, tuple[_Graph, list[ast.Call]]] = {}
        for call in source.walk():
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                continue
            if call.func.attr in _CALLS and isinstance(graph := source.resolve(call.func.value), Pregel):
                found.setdefault(id(graph), (graph, []))[1].append(call)
        yield from ((graph, source, calls) for graph, calls in found.values())


def _is_in_loop(source: FunctionSource, call: ast.Call) -> bool:
    return any(
        isinstance(node, _LOOPS) and any(inner is call for inner in ast.walk(node)) for node in source.walk()
    )


def _can_pause(graph: _Graph) -> bool:
    """Return True if a graph, or one inside it, can be interrupted."""
    return any(
        facts.graph.interrupt_before_nodes
        or facts.graph.interrupt_after_nodes
        or any(asks(function) for node in facts.nodes for function in (*node.functions, *node.tools))
        for facts in read_all(graph)
    )


def _describe_checkpointer(graph: _Graph) -> str:
    return f"{_format_name(graph)} is compiled with a {type(graph.checkpointer).__name__}"


def _format_name(graph: _Graph) -> str:
    return f"the graph {graph.get_name()!r}"


def _find_spot(graph: _Graph) -> Any:
    builder = getattr(graph, "builder", None)
    return find_function_spot(getattr(builder, "state_schema", None))
