"""Audit of a compiled graph and its subgraphs: all families of checks, in order."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from langgraph.pregel import Pregel

from perdure.audit.declarations import check_declarations
from perdure.audit.findings import AuditFinding, AuditReport, Ignore, leave_out_ignored
from perdure.audit.interrupting_tools import interrupting_tools
from perdure.audit.interrupts import interrupts
from perdure.audit.node_updates import updates
from perdure.audit.stored_types import storage
from perdure.audit.subgraphs import subgraphs
from perdure.langgraph.codecs import Codec
from perdure.langgraph.graph_facts import GraphFacts, read_all
from perdure.langgraph.values.datatypes import Allow, Types, find_graph_types, get_default_allow
from perdure.langgraph.values.serde import Serde


def audit(
    graph: Pregel[Any, Any, Any, Any],
    *,
    allow: Allow | None = None,
    codecs: Collection[Codec] = (),
    ignore: Collection[Ignore | str] = (),
) -> AuditReport:
    """Examine a compiled graph and its subgraphs. Nodes are not run; reducers are, with generated values.

    Args:
        graph: The graph.
        allow: The types that its checkpointer allows, as for ``Database.checkpointer``.
        codecs: The checkpointer's codecs.
        ignore: Findings to leave out, ``check`` or ``check:place``.

    Raises:
        ValueError: ``ignore`` names no check.
    """
    types = Types(get_default_allow() if allow is None else allow)
    if allow is not None and not isinstance(allow, str) and not types.is_open:
        # A runtime's checkpointer allows the types that its graphs declare, in addition to a list.
        types = types.with_types(find_graph_types(graph))
    serde = Serde(types, codecs=codecs)
    findings: dict[tuple[str, str, str, str], AuditFinding] = {}
    unchecked: dict[str, None] = {}
    for facts in read_all(graph):
        for each in _check_graph(facts, serde):
            if isinstance(each, str):
                unchecked[each] = None
            else:
                # A function that several nodes share is a finding for each of them; equal findings are kept
                # once.
                findings.setdefault((each.check.id, each.place, str(each.spot), each.detail), each)
    return leave_out_ignored(findings.values(), unchecked, ignore)


def _check_graph(facts: GraphFacts, serde: Serde) -> Iterator[AuditFinding | str]:
    yield from check_declarations(facts)
    yield from storage(facts, serde)
    yield from updates(facts)
    yield from interrupts(facts)
    yield from interrupting_tools(facts)
    yield from subgraphs(facts)
