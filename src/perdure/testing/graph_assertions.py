"""Checks of a graph in a test: that an audit finds nothing, and that no key is dropped when it runs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from langgraph.pregel import Pregel

from perdure.audit import Ignore, audit
from perdure.langgraph.values.undeclared import refuse, watch_undeclared
from perdure.runtime.agents.agent import Agent
from perdure.runtime.agents.graph_factories import Factory


def assert_sound(graph: Pregel[Any, Any, Any, Any] | Agent, *, ignore: Collection[str | Ignore] = ()) -> None:
    """Assert that ``perdure audit`` finds nothing in a compiled graph and its subgraphs.

    Args:
        graph: The graph, or an ``Agent`` with the types and codecs that it allows.
        ignore: Findings that are intended: ``check`` or ``check:place``, such as ``bare-collection:docs``.

    Raises:
        AssertionError: There are findings, with a line for each, or ``ignore`` has one that matches none.
        ValueError: ``ignore`` names no check, or the agent's graph is made for each run by a factory.
    """
    if isinstance(graph, Agent):
        if isinstance(graph.graph, Factory):
            raise ValueError(f"{graph.graph.place} makes a graph for each run; pass a graph that it made")
        report = audit(graph.graph, allow=graph.allow, codecs=graph.codecs, ignore=ignore)
    else:
        report = audit(graph, ignore=ignore)
    assert report.is_sound, str(report)
    unused = ", ".join(map(str, report.unused))
    assert not unused, f"nothing was found that ignore={unused} would leave out; remove it"


def strict(graph: Pregel[Any, Any, Any, Any]) -> Pregel[Any, Any, Any, Any]:
    """Return a copy of a compiled graph whose runs raise ``UndeclaredKey`` where LangGraph drops a key: one
    that a node returned, or that the input has, and that the state does not declare."""
    return watch_undeclared(graph, refuse)
