"""Checks of what nodes and edges return: keys that no schema declares, and nodes that do not exist.

The literals of ``return`` statements are read from the source: dicts, ``Command``, ``Send`` and constructors,
also by way of a local variable. Computed keys are left to the strict mode at run time.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from langgraph.constants import END
from langgraph.pregel import Pregel
from langgraph.types import Command, Send

from perdure.audit import checks
from perdure.audit.findings import AuditFinding
from perdure.audit.source import FunctionSource, is_library, source_of
from perdure.langgraph.graph_facts import GraphFacts, NodeFacts, steps, unwrap

Key = tuple[str, ast.AST]


def updates(facts: GraphFacts) -> Iterator[AuditFinding | str]:
    """Yield the findings about what a graph's nodes and edges return, and the nodes without a source."""
    if not facts.has_schema:
        return
    for node in facts.nodes:
        place = "/".join((*facts.path, node.name))
        for function, is_tool in _find_returning(node):
            if is_library(function):
                continue  # a library's function is made for many graphs: this one may lack some of its keys
            source = source_of(function)
            if source is None:
                name = getattr(function, "__name__", function)
                yield f"node {place}: the source of {name} is not available"
                continue
            returned = Returned(source, commands_only=is_tool)
            if "__root__" not in facts.keys:
                yield from _find_undeclared(facts, place, returned)
            yield from _find_unknown(facts, place, returned)
    yield from _check_edges(facts)


def _find_returning(node: NodeFacts) -> Iterator[tuple[Callable[..., Any], bool]]:
    """Yield the functions whose result is the node's update, and whether each is a tool."""
    last = list(steps(node.bound))[-1]
    if not isinstance(last, Pregel):
        own = {unwrap(f) for name in ("func", "afunc") if (f := getattr(last, name, None)) is not None}
        yield from ((function, False) for function in node.functions if function in own)
    yield from ((function, True) for function in node.tools)


def _find_undeclared(facts: GraphFacts, place: str, returned: Returned) -> Iterator[AuditFinding]:
    seen: set[str] = set()
    for key, where in returned.find_updated():
        if key not in facts.keys and key not in seen:
            seen.add(key)
            detail = f"it returns {key!r}; the declared keys are {', '.join(sorted(facts.keys)) or 'none'}"
            yield AuditFinding(checks.UNDECLARED_KEY, "node", place, returned.source.locate(where), detail)


def _find_unknown(facts: GraphFacts, place: str, returned: Returned) -> Iterator[AuditFinding]:
    known = {*facts.graph.nodes, END}
    seen: set[str] = set()
    for target, where in returned.targets():
        if target not in known and target not in seen:
            seen.add(target)
            names = ", ".join(node.name for node in facts.nodes)
            detail = f"it leads to {target!r}; the nodes are {names}"
            yield AuditFinding(checks.UNKNOWN_NODE, "node", place, returned.source.locate(where), detail)


def _check_edges(facts: GraphFacts) -> Iterator[AuditFinding]:
    """Check the functions of conditional edges without a mapping of their results."""
    for start, branches in getattr(getattr(facts.graph, "builder", None), "branches", {}).items():
        for branch in branches.values():
            path = getattr(branch, "path", None)
            given = getattr(path, "func", None) or getattr(path, "afunc", None)
            if given is None or is_library(function := unwrap(given)):
                continue
            if (source := source_of(function)) is not None:
                returned = Returned(source, is_edge=True, mapped=frozenset(branch.ends or ()))
                yield from _find_unknown(facts, "/".join((*facts.path, start)), returned)


class Returned:
    """Contents of a function's ``return`` statements: keys of updates, and names of nodes.

    Args:
        source: The function.
        commands_only: Read only the updates of a ``Command``, as for a tool, whose other results are text.
        is_edge: Read returned strings as names of nodes.
        mapped: Results that an edge maps to nodes.
    """

    def __init__(
        self,
        source: FunctionSource,
        *,
        commands_only: bool = False,
        is_edge: bool = False,
        mapped: frozenset[Any] = frozenset(),
    ) -> None:
        self.source = source
        self._commands_only = commands_only
        self._is_edge = is_edge
        self._mapped = mapped
        tree = source.tree
        nodes = list(source.walk())
        self._nodes = nodes
        if isinstance(tree, ast.Lambda):
            self._values: list[ast.AST] = [tree.body]
        else:
            self._values = [
                node.value for node in nodes if isinstance(node, ast.Return) and node.value is not None
            ]

    def find_updated(self) -> Iterator[Key]:
        """Yield the keys of returned updates, each with its place."""
        for value in self._values:
            yield from self._find_keys(value, is_update=not self._commands_only)

    def targets(self) -> Iterator[Key]:
        """Yield the nodes that are named by ``goto`` and ``Send``, and by the strings of an edge."""
        for value in self._values:
            yield from self._find_targets(value, is_name=self._is_edge)

    def _find_keys(
        self, value: ast.AST, *, is_update: bool, via: frozenset[str] = frozenset()
    ) -> Iterator[Key]:
        if isinstance(value, ast.Dict):
            if is_update:
                yield from self._find_dict_keys(value, via)
        elif isinstance(value, ast.Call):
            yield from self._find_call_keys(value, is_update=is_update, via=via)
        elif isinstance(value, ast.Name) and value.id not in via:
            yield from self._find_variable_keys(value.id, is_update=is_update, via=via | {value.id})
        else:
            for part in _list_results(value):
                yield from self._find_keys(part, is_update=is_update, via=via)

    def _find_dict_keys(self, value: ast.Dict, via: frozenset[str]) -> Iterator[Key]:
        for key, unpacked in zip(value.keys, value.values, strict=True):
            if key is None:
                yield from self._find_keys(unpacked, is_update=True, via=via)
            elif (name := self._read_constant(key)) is not None:
                yield name, key

    def _find_call_keys(self, call: ast.Call, *, is_update: bool, via: frozenset[str]) -> Iterator[Key]:
        made = self.source.resolve(call.func)
        arguments = {each.arg: each.value for each in call.keywords if each.arg is not None}
        if made is Command:
            # An update of the parent graph has that graph's keys, which are not checked here.
            update = arguments.get("update")
            if "graph" not in arguments and update is not None:
                yield from self._find_pair_keys(update)
                yield from self._find_keys(update, is_update=True, via=via)
        elif is_update and (made is dict or _has_fields(made)):
            yield from ((name, value) for name, value in arguments.items())

    def _find_pair_keys(self, update: ast.AST) -> Iterator[Key]:
        """Yield the keys of an update in the form of pairs."""
        for pair in update.elts if isinstance(update, ast.List | ast.Tuple) else ():
            if (
                isinstance(pair, ast.Tuple)
                and pair.elts
                and (name := self._read_constant(pair.elts[0])) is not None
            ):
                yield name, pair

    def _find_variable_keys(self, name: str, *, is_update: bool, via: frozenset[str]) -> Iterator[Key]:
        """Yield the keys in a local variable, if everything that is assigned to it can be read."""
        assigned = [value for target, value in self._find_assignments() if target == name]
        is_parameter = name in self.source.parameters
        if not assigned and not is_parameter:
            return
        if not all(self._can_read(value, via) for value in assigned):
            return
        for value in assigned:
            yield from self._find_keys(value, is_update=is_update, via=via)
        if not is_update:
            return
        for node in self._nodes:
            targets = node.targets if isinstance(node, ast.Assign) else ()
            for target in targets:
                if (
                    isinstance(target, ast.Subscript)
                    and isinstance(target.value, ast.Name)
                    and target.value.id == name
                    and (key := self._read_constant(target.slice)) is not None
                ):
                    yield key, target

    def _can_read(self, value: ast.AST, via: frozenset[str]) -> bool:
        if isinstance(value, ast.Dict):
            return True
        if isinstance(value, ast.IfExp):
            return self._can_read(value.body, via) and self._can_read(value.orelse, via)
        if isinstance(value, ast.Call):
            made = self.source.resolve(value.func)
            return made is dict or made is Command or _has_fields(made)
        return False

    def _find_assignments(self) -> Iterator[tuple[str, ast.AST]]:
        for node in self._nodes:
            if isinstance(node, ast.Assign):
                for target in node.targets:
                    if isinstance(target, ast.Name):
                        yield target.id, node.value
                    elif isinstance(target, ast.Tuple | ast.List):
                        yield from ((each.id, target) for each in target.elts if isinstance(each, ast.Name))
            elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value:
                yield node.target.id, node.value
            elif isinstance(node, ast.AugAssign | ast.For | ast.AsyncFor) and isinstance(
                node.target, ast.Name
            ):
                yield node.target.id, node.value if isinstance(node, ast.AugAssign) else node.iter

    def _find_targets(self, value: ast.AST, *, is_name: bool) -> Iterator[Key]:
        if isinstance(value, ast.Call):
            made = self.source.resolve(value.func)
            arguments = {each.arg: each.value for each in value.keywords if each.arg is not None}
            if made is Command and "graph" not in arguments and (goto := arguments.get("goto")) is not None:
                yield from self._find_targets(goto, is_name=True)
            elif (
                made is Send and (node := value.args[0] if value.args else arguments.get("node")) is not None
            ):
                yield from self._find_targets(node, is_name=True)
        elif isinstance(value, ast.List | ast.Tuple):
            for part in value.elts:
                yield from self._find_targets(part, is_name=is_name)
        elif isinstance(value, ast.IfExp):
            yield from self._find_targets(value.body, is_name=is_name)
            yield from self._find_targets(value.orelse, is_name=is_name)
        elif isinstance(value, ast.ListComp):
            yield from self._find_targets(value.elt, is_name=is_name)
        elif is_name and (name := self._read_constant(value)) is not None and name not in self._mapped:
            yield name, value

    def _read_constant(self, value: ast.AST) -> str | None:
        """Return the string of a literal, or of a constant outside the function; ``None`` for anything
        else."""
        constant = value.value if isinstance(value, ast.Constant) else self.source.resolve(value)
        return constant if isinstance(constant, str) else None


def _list_results(value: ast.AST) -> Sequence[ast.AST]:
    """Return the parts of an expression that are its result, or of which its result consists."""
    match value:
        case ast.IfExp():
            return value.body, value.orelse
        case ast.BoolOp():
            return value.values
        case ast.BinOp(op=ast.BitOr()):
            return value.left, value.right
        case ast.List() | ast.Tuple():
            return value.elts
        case ast.NamedExpr():
            return (value.value,)
        case _:
            return ()


def _has_fields(made: Any) -> bool:
    """Return True for a class with declared fields, which LangGraph reads an update from."""
    return isinstance(made, type) and bool(getattr(made, "__annotations__", None))
