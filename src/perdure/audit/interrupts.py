"""Checks of ``interrupt()`` in the source of nodes: answers belong to questions by their position.

A node that is resumed runs again from its start, and the stored answers are given to its interrupts in order.
So the order and number of the questions may depend only on the state and earlier answers.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from types import FunctionType
from typing import Any

from langgraph.errors import GraphInterrupt
from langgraph.func import _TaskFunction  # pyright: ignore[reportPrivateUsage]
from langgraph.types import interrupt

from perdure.audit import checks
from perdure.audit.findings import AuditFinding
from perdure.audit.source import FunctionSource, is_library, source_of, walk
from perdure.langgraph.graph_facts import GraphFacts

_DEPTH_MAX = 4
_PURE = frozenset(
    "abs all any bool dict enumerate filter float format frozenset getattr hasattr int isinstance len list "
    "map max min print range repr reversed round set sorted str sum tuple type zip".split()
)
"""Built-in functions whose result depends on their arguments alone."""

_PURE_METHODS = frozenset(
    "append casefold copy count difference endswith extend find format get index intersection isalpha "
    "isdigit items join keys lower lstrip pop removeprefix removesuffix replace result rstrip split "
    "splitlines "
    "startswith strip title union update upper values".split()
)
"""Methods whose result depends on their arguments and their object alone."""


@dataclass
class _Ask:
    """A call that asks, with the statements and expressions around it, the outermost first."""

    call: ast.Call
    around: tuple[ast.AST, ...]

    def pair_with_inner(self) -> Iterator[tuple[ast.AST, ast.AST]]:
        """Yield what is around the call, each with its part that is around the call, or is the call."""
        yield from pairwise((*self.around, self.call))


@dataclass
class _Scope:
    """A function that asks: its calls that ask, and its variables whose values can differ when it runs
    again."""

    source: FunctionSource
    asks: list[_Ask] = field(default_factory=list)
    unstable: set[str] = field(default_factory=set)


def interrupts(facts: GraphFacts) -> Iterator[AuditFinding]:
    """Yield the findings about the interrupts of a graph's nodes, in their functions, their tools, and the
    functions that these call."""
    for node in facts.nodes:
        place = "/".join((*facts.path, node.name))
        for function in (*node.functions, *node.tools):
            source = source_of(function)
            if source is not None:
                yield from _check_function(place, source, frozenset((source.function,)))


def asks(function: Any) -> bool:
    """Return True if a function calls ``interrupt()``, itself or by way of another function."""
    return isinstance(function, FunctionType) and _asks_inside(function, 0)


def _check_function(
    place: str, source: FunctionSource, seen: frozenset[FunctionType]
) -> Iterator[AuditFinding]:
    scope = _make_scope(source)
    for each in scope.asks:
        for check, where, detail in _find_faults(scope, each):
            yield AuditFinding(check, "node", place, source.locate(where), detail)
        called = source.resolve(each.call.func)
        if isinstance(called, FunctionType) and called is not interrupt and called not in seen:
            inner = source_of(called)
            if inner is not None:
                yield from _check_function(place, inner, seen | {called})


def _find_faults(scope: _Scope, ask: _Ask) -> Iterator[tuple[checks.AuditCheck, ast.AST, str]]:
    if (caught := _find_catcher(scope.source, ask)) is not None:
        yield checks.SWALLOWED_INTERRUPT, ask.call, f"an interrupt is caught in line {caught}"
    loops = [each for each in ask.around if isinstance(each, _LOOPS)]
    if loops and not _varies(ask.call, loops[-1]):
        line = getattr(loops[-1], "lineno", ask.call.lineno)
        detail = f"the question of the loop in line {line} is the same in every round"
        yield checks.INTERRUPT_IN_LOOP, ask.call, detail
    are_several = len(scope.asks) > 1 or bool(loops)
    for condition in _find_conditions(ask) if are_several else ():
        if (reason := _find_unstable(scope, condition)) is not None:
            yield checks.INTERRUPT_ORDER, ask.call, f"whether or in which order it asks depends on {reason}"
            return


_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)
_LOOPS = (ast.For, ast.AsyncFor, ast.While, *_COMPREHENSIONS)


def _make_scope(source: FunctionSource) -> _Scope:
    scope = _Scope(source)
    for part in source.body:
        _collect_asks(scope, part, ())
    for _ in range(2):  # a loop may use a variable before the line that assigns it
        for node in source.walk():
            for target, value in _find_assignments(node):
                if _find_unstable(scope, value) is not None:
                    scope.unstable.update(_find_changed_names(target))
    return scope


def _collect_asks(scope: _Scope, node: ast.AST, around: tuple[ast.AST, ...]) -> None:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef):
        return
    if isinstance(node, ast.Call) and _is_ask(scope.source, node, 0):
        scope.asks.append(_Ask(node, around))
    for child in ast.iter_child_nodes(node):
        _collect_asks(scope, child, (*around, node))


def _is_ask(source: FunctionSource, call: ast.Call, depth: int) -> bool:
    called = source.resolve(call.func)
    if called is interrupt:
        return True
    if depth >= _DEPTH_MAX or not isinstance(called, FunctionType) or is_library(called):
        return False
    return _asks_inside(called, depth + 1)


@cache
def _asks_inside(function: FunctionType, depth: int) -> bool:
    source = source_of(function)
    return source is not None and any(
        isinstance(node, ast.Call) and _is_ask(source, node, depth) for node in source.walk()
    )


def _find_catcher(source: FunctionSource, ask: _Ask) -> int | None:
    """Return the line of the clause that catches an interrupt's exception, ``None`` if none does."""
    for each, inner in ask.pair_with_inner():
        if isinstance(each, ast.Try) and inner in each.body:
            catching = next((handler for handler in each.handlers if _catches(source, handler.type)), None)
            if catching and not any(isinstance(part, ast.Raise) for part in walk(catching)):
                return catching.lineno
        if isinstance(each, ast.With | ast.AsyncWith) and inner in each.body:
            for item in each.items:
                call = item.context_expr
                if not isinstance(call, ast.Call) or _get_name(call.func) != "suppress":
                    continue
                if any(_catches(source, argument) for argument in call.args):
                    return each.lineno
    return None


def _catches(source: FunctionSource, expression: ast.expr | None) -> bool:
    if expression is None:
        return True
    options = expression.elts if isinstance(expression, ast.Tuple) else [expression]
    found = [source.resolve(option) for option in options]
    return any(isinstance(cls, type) and issubclass(GraphInterrupt, cls) for cls in found)


def _varies(call: ast.Call, loop: ast.AST) -> bool:
    """Return True if a question contains a variable that the loop changes, or a call."""
    if isinstance(loop, ast.For | ast.AsyncFor):
        changed = {*_find_changed_names(loop.target)}
    elif isinstance(loop, _COMPREHENSIONS):
        changed = {name for each in loop.generators for name in _find_changed_names(each.target)}
    else:
        changed = set()
    for node in walk(loop):
        for target, _ in _find_assignments(node):
            changed.update(_find_changed_names(target))
    question = [*call.args, *(each.value for each in call.keywords)]
    used = [node for part in question for node in ast.walk(part)]
    return any(
        isinstance(node, ast.Call) or (isinstance(node, ast.Name) and node.id in changed) for node in used
    )


def _find_conditions(ask: _Ask) -> Iterator[ast.AST]:
    """Yield the expressions that decide whether and how often a call is reached."""
    for each, inner in ask.pair_with_inner():
        if isinstance(each, ast.If | ast.While | ast.IfExp) and inner is not each.test:
            yield each.test
        elif isinstance(each, ast.For | ast.AsyncFor) and inner is not each.iter:
            yield _Iterated(each.iter)
        elif isinstance(each, _COMPREHENSIONS):
            for generator in each.generators:
                yield _Iterated(generator.iter)
                yield from generator.ifs
        elif isinstance(each, ast.BoolOp):
            for value in each.values:
                if value is inner:
                    break
                yield value


class _Iterated(ast.expr):
    """An expression that is iterated over, so that the order of its items counts."""

    def __init__(self, value: ast.expr) -> None:
        super().__init__()
        self.value = value


def _find_unstable(scope: _Scope, expression: ast.AST) -> str | None:
    """Return the part of an expression that can differ when a node runs again, ``None`` if none can."""
    if isinstance(expression, _Iterated):
        value = expression.value
        if isinstance(value, ast.Set | ast.SetComp):
            return "the order of a set"
        if isinstance(value, ast.Call) and _get_name(value.func) in ("set", "frozenset"):
            return "the order of a set"
        return _find_unstable(scope, value)
    for node in walk(expression):
        if isinstance(node, ast.Name) and node.id in scope.unstable:
            return f"{node.id!r}, which can differ when the node runs again"
        if isinstance(node, ast.Call) and not _is_stable_call(scope, node):
            return f"the result of {ast.unparse(node.func)}(…), which can differ when the node runs again"
    return None


def _is_stable_call(scope: _Scope, call: ast.Call, depth: int = 0) -> bool:
    called = scope.source.resolve(call.func)
    if (
        called is interrupt
        or isinstance(called, _TaskFunction)
        or any(call is each.call for each in scope.asks)
    ):
        return True  # answers and results of tasks are stored
    if isinstance(called, type):
        return called.__module__ != "random"
    if isinstance(called, FunctionType):
        return called.__module__ == "perdure.runtime.nodes.effects" or _is_pure(called, depth)
    name = _get_name(call.func)
    if isinstance(call.func, ast.Name):
        return name in _PURE and called is not None
    return name in _PURE_METHODS


def _is_pure(function: FunctionType, depth: int) -> bool:
    """Return True if a function only calls functions that have the same result each time."""
    source = source_of(function)
    if source is None or depth >= _DEPTH_MAX:
        return False
    scope = _Scope(source)
    calls = [node for node in source.walk() if isinstance(node, ast.Call)]
    return all(_is_stable_call(scope, call, depth + 1) for call in calls)


def _find_assignments(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    if isinstance(node, ast.Assign):
        yield from ((target, node.value) for target in node.targets)
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
        yield node.target, node.value
    elif isinstance(node, ast.For | ast.AsyncFor):
        yield node.target, _Iterated(node.iter)
    elif isinstance(node, ast.With | ast.AsyncWith):
        for item in node.items:
            if item.optional_vars is not None:
                yield item.optional_vars, item.context_expr


def _find_changed_names(target: ast.AST) -> set[str]:
    """Return the variables that an assignment changes: ``x`` for ``x``, ``x[i]`` and ``x.y``."""
    if isinstance(target, ast.Tuple | ast.List):
        return {name for part in target.elts for name in _find_changed_names(part)}
    while isinstance(target, ast.Subscript | ast.Attribute | ast.Starred):
        target = target.value
    if isinstance(target, ast.Name):
        return {target.id}
    return set()


def _get_name(function: ast.AST) -> str:
    if isinstance(function, ast.Attribute):
        return function.attr
    return getattr(function, "id", "")
