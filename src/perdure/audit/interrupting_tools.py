"""Check of tools that ask questions in a ``ToolNode``, as answers are matched to a task's interrupts by
position.

A ``ToolNode`` that receives a message runs all of its calls at once, in one task. Which call asks first, and
so which answer each call gets, depends on their speed. With a ``Send`` for each call, each has its own task
and question. The check reads how calls reach a node from the edges, and from the source of the functions that
choose the next node; if it cannot be determined, nothing is reported.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from langgraph.prebuilt import ToolNode
from langgraph.types import Command, Send

from perdure.audit import checks
from perdure.audit.findings import AuditFinding, Spot
from perdure.audit.interrupts import asks
from perdure.audit.source import FunctionSource, find_function_spot, is_library, source_of
from perdure.langgraph.graph_facts import GraphFacts, NodeFacts, list_tool_functions, steps, unwrap

_DEPTH_MAX = 3
_CALLS = frozenset({"invoke", "ainvoke"})


def interrupting_tools(facts: GraphFacts) -> Iterator[AuditFinding]:
    """Yield a finding for each node that runs all tool calls of a message in one task although a tool
    asks."""
    for node in facts.nodes:
        asking = next(filter(None, map(_find_asking, _find_tool_nodes(node))), None)
        if asking is not None and (path := _find_message_path(facts, node.name)) is not None:
            who, spot = asking
            detail = f"{who} asks, and all calls of a message reach the node at once, {path}"
            place = "/".join((*facts.path, node.name))
            yield AuditFinding(checks.PARALLEL_QUESTIONS, "node", place, spot, detail)


def _find_tool_nodes(node: NodeFacts) -> Iterator[ToolNode]:
    """Yield the tool nodes among a node and its steps, and those that its functions call with messages."""
    yield from (step for step in steps(node.bound) if isinstance(step, ToolNode))
    for function in node.functions:
        source = source_of(function)
        if source is None:
            continue
        for call in source.walk():
            if (
                isinstance(call, ast.Call)
                and isinstance(call.func, ast.Attribute)
                and call.func.attr in _CALLS
                and isinstance(called := source.resolve(call.func.value), ToolNode)
                and call.args
                and not _is_one_call(source, call.args[0])
            ):
                yield called


def _is_one_call(source: FunctionSource, argument: ast.expr) -> bool:
    """Return True if an argument is a list of one tool call. An item that is the last of another list is the
    last message, not a call."""
    if not isinstance(argument, ast.List) or len(argument.elts) != 1:
        return False
    item = argument.elts[0]
    values = [item]
    if isinstance(item, ast.Name):
        values += _find_values(source, item.id)
    return not any(isinstance(each, ast.Subscript) and ast.unparse(each.slice) == "-1" for each in values)


def _find_asking(node: ToolNode) -> tuple[str, Spot] | None:
    """Return the name and the place of a tool node's first tool that asks, or of the function that wraps its
    tool calls if that asks."""
    for name, tool in node.tools_by_name.items():
        for function in list_tool_functions(tool):
            if asks(function):
                return f"the tool {name!r}", find_function_spot(function)
    for wrapper in (getattr(node, name, None) for name in ("_wrap_tool_call", "_awrap_tool_call")):
        if wrapper is not None and asks(function := unwrap(wrapper)):
            return "the function that wraps its tool calls", find_function_spot(function)
    return None


def _find_message_path(facts: GraphFacts, name: str) -> str | None:
    """Return a description of a path by which a node gets the state, ``None`` if none is found."""
    builder = getattr(facts.graph, "builder", None)
    if builder is None:
        return "as its function calls the tool node"
    joined = ((start, end) for starts, end in builder.waiting_edges for start in starts)
    for start, end in sorted({*builder.edges, *joined}):
        if end == name:
            return f"by the edge from {start!r}"
    for start, branches in builder.branches.items():
        for branch in branches.values():
            function = getattr(branch.path, "func", None) or getattr(branch.path, "afunc", None)
            if function and (route := _Route.of(function)) and route.leads_to(name, branch.ends):
                return f"by the conditional edge from {start!r}"
    for node in facts.nodes:
        declared = getattr(builder.nodes.get(node.name), "ends", None) or ()
        for function in (*node.functions, *node.tools):
            if is_library(function):
                continue
            route = _Route.of(function, of_commands=True)
            if route is not None and route.leads_to(name, {end: end for end in declared}):
                return f"by a Command of {node.name!r}"
    return None


class _Route:
    """The destinations of a function: the ``names`` of nodes that it returns, which get the state. ``sends``
    is True if it makes a ``Send``, and ``is_unread`` if it returns something that cannot be determined.

    Args:
        source: The function.
        of_commands: Read the ``goto`` of its commands instead of its results.
    """

    def __init__(self, source: FunctionSource, *, of_commands: bool = False, depth: int = 0) -> None:
        self.names: set[str] = set()
        self.is_unread = False
        self._source = source
        self._depth = depth
        nodes = list(_walk_reachable(source, *source.body))
        calls = [(source.resolve(node.func), node) for node in nodes if isinstance(node, ast.Call)]
        self.sends = any(made is Send for made, _ in calls)
        if of_commands:
            for made, call in calls:
                arguments = {each.arg: each.value for each in call.keywords}
                if made is Command and "graph" not in arguments and "goto" in arguments:
                    self._read_destination(arguments["goto"], frozenset())
        elif isinstance(source.tree, ast.Lambda):
            self._read_destination(source.tree.body, frozenset())
        else:
            for node in nodes:
                if isinstance(node, ast.Return) and node.value is not None:
                    self._read_destination(node.value, frozenset())

    @classmethod
    def of(cls, function: Any, *, of_commands: bool = False) -> _Route | None:
        """Return the route of a function, ``None`` if its source is not available."""
        source = source_of(unwrap(function))
        if source is None:
            return None
        return cls(source, of_commands=of_commands)

    def leads_to(self, name: str, ends: Any) -> bool:
        """Return True if this route gives a node the state. ``ends`` maps results to the nodes for which they
        stand, if that is declared."""
        if any((ends.get(each) if ends else each) == name for each in self.names):
            return True
        return self.is_unread and not self.sends and name in (ends or {}).values()

    def _read_destination(self, value: ast.AST, via: frozenset[str]) -> None:
        if isinstance(value, ast.Constant):
            self.names.update([value.value] if isinstance(value.value, str) else [])
        elif isinstance(value, ast.IfExp):
            self._read_destination(value.body, via)
            self._read_destination(value.orelse, via)
        elif isinstance(value, ast.BoolOp | ast.List | ast.Tuple):
            for part in value.values if isinstance(value, ast.BoolOp) else value.elts:
                self._read_destination(part, via)
        elif isinstance(value, ast.ListComp | ast.GeneratorExp):
            self._read_destination(value.elt, via)
        elif isinstance(value, ast.NamedExpr | ast.Await | ast.Starred):
            self._read_destination(value.value, via)
        elif isinstance(value, ast.Call):
            self._read_call(value, via)
        elif isinstance(constant := self._source.resolve(value), str):
            self.names.add(constant)
        elif isinstance(value, ast.Name) and value.id not in via:
            found = list(_find_values(self._source, value.id))
            self.is_unread |= not found
            for each in found:
                self._read_destination(each, via | {value.id})
        else:
            self.is_unread = True

    def _read_call(self, call: ast.Call, via: frozenset[str]) -> None:
        called = self._source.resolve(call.func)
        if called is Send:
            arguments = [*call.args, *(each.value for each in call.keywords)]
            if len(arguments) == 2:
                node, state = arguments
                if isinstance(state, ast.Name) and state.id in self._source.parameters:
                    self._read_destination(node, via)  # the whole state is sent
            return
        source = source_of(called) if self._depth < _DEPTH_MAX else None
        if source is None:
            self.sends = True  # It may make a Send.
        elif not self.sends:
            inner = _Route(source, depth=self._depth + 1)
            self.names |= inner.names
            self.sends |= inner.sends
            self.is_unread |= inner.is_unread


def _find_values(source: FunctionSource, name: str) -> Iterator[ast.expr]:
    """Yield the values that a function assigns to a variable."""
    for node in source.walk():
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        value = getattr(node, "value", None)
        if isinstance(value, ast.expr) and any(isinstance(t, ast.Name) and t.id == name for t in targets):
            yield value


def _walk_reachable(source: FunctionSource, *nodes: ast.AST) -> Iterator[ast.AST]:
    """Yield nodes and the nodes inside them, without inner functions and without branches that a value from
    outside the function excludes: the same source may be used for several kinds of graphs."""
    for node in nodes:
        yield node
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
            continue
        if isinstance(node, ast.If) and (is_taken := _evaluate_test(source, node.test)) is not None:
            yield from _walk_reachable(source, *(node.body if is_taken else node.orelse))
        else:
            yield from _walk_reachable(source, *ast.iter_child_nodes(node))


def _evaluate_test(source: FunctionSource, test: ast.expr) -> bool | None:
    """Return the result of a test that compares a string from outside the function, ``None`` for others."""
    if (
        isinstance(test, ast.Compare)
        and isinstance(test.left, ast.Name)
        and isinstance(test.ops[0], ast.Eq)
        and len(test.comparators) == 1
        and isinstance(right := test.comparators[0], ast.Constant)
        and isinstance(left := source.resolve(test.left), str)
    ):
        return left == right.value
    return None
