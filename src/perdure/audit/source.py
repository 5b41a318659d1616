"""Finds the source of functions and fields: their syntax trees, and what names in them refer to.

Sources are read from the files of imported modules; nothing is imported or run.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from types import CodeType, FunctionType
from typing import Any, TypeAlias

from perdure.audit.findings import Spot

Function: TypeAlias = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_LIBRARIES = ("langchain", "langchain_core", "langgraph", "perdure")


@dataclass(frozen=True)
class FunctionSource:
    """Source of a function: the function, its syntax tree and its file."""

    function: Any  # a FunctionType, which type checkers take for a method here
    tree: Function
    file: str

    @property
    def body(self) -> list[ast.AST]:
        """The statements of the function, or the expression of a lambda."""
        if isinstance(self.tree, ast.Lambda):
            return [self.tree.body]
        return list(self.tree.body)

    @property
    def parameters(self) -> list[str]:
        """The names of the positional parameters, without ``self`` of a method."""
        names = [each.arg for each in (*self.tree.args.posonlyargs, *self.tree.args.args)]
        if names[:1] == ["self"]:
            return names[1:]
        return names

    def walk(self) -> Iterator[ast.AST]:
        """Yield the nodes of the function itself, in the order of the source, without those of functions and
        classes inside it."""
        for part in self.body:
            yield from walk(part)

    def locate(self, node: ast.AST | None = None) -> Spot:
        """Return the place of a node, by default of the function."""
        return Spot(self.file, getattr(node or self.tree, "lineno", 0))

    def resolve(self, expression: ast.AST) -> Any:
        """Return the object that a name, or a path of attributes, refers to outside the function; ``None`` if
        it is not known."""
        if isinstance(expression, ast.Attribute):
            owner = self.resolve(expression.value)
            # Attributes of modules and classes only: reading those of other objects may run code.
            if inspect.ismodule(owner) or isinstance(owner, type):
                return vars(owner).get(expression.attr)
            return None
        if not isinstance(expression, ast.Name):
            return None
        return self._look_up_outside(expression.id)

    def _look_up_outside(self, name: str) -> Any:
        code = self.function.__code__
        for free, cell in zip(code.co_freevars, self.function.__closure__ or (), strict=True):
            if free == name:
                try:
                    return cell.cell_contents
                except ValueError:
                    return None
        if name in code.co_varnames or name in code.co_cellvars:
            return self._find_import(name)
        return self.function.__globals__.get(name, vars(builtins).get(name))

    def _find_import(self, name: str) -> Any:
        """Return the object of an import statement inside the function, if its module is imported already."""
        for node in self.walk():
            if isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return vars(sys.modules.get(node.module, builtins)).get(alias.name)
            if isinstance(node, ast.Import):
                for alias in node.names:
                    if alias.asname == name or (alias.asname is None and alias.name == name):
                        return sys.modules.get(alias.name)
        return None


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and those inside it, in the order of the source, without those of inner functions."""
    yield node
    if isinstance(node, _SCOPES):
        return
    for child in ast.iter_child_nodes(node):
        yield from walk(child)


def source_of(function: Callable[..., Any]) -> FunctionSource | None:
    """Return the source of a Python function, ``None`` if it has none."""
    if type(function) is not FunctionType:
        return None
    file = inspect.getsourcefile(function)
    if file is None or (tree := _parse(file)) is None:
        return None
    code = function.__code__
    found = [each for each in _find_functions(tree) if _matches_code(each, code)]
    if len(found) > 1:
        # Several lambdas are on one line: take the one that contains the code's columns.
        found = [each for each in found if _contains(each, code)]
    if len(found) == 1:
        return FunctionSource(function, found[0], file)
    return None


def is_library(function: Any) -> bool:
    """Return True for a function of LangGraph, LangChain or this package."""
    return str(getattr(function, "__module__", "")).partition(".")[0] in _LIBRARIES


def find_field_source(schema: type | None, name: str) -> tuple[type | None, Spot]:
    """Return the class that declares a field, which is a schema or one of its bases, and the place; the
    schema itself if no such class is found."""
    first: Spot | None = None
    waiting: list[Any] = [schema]
    while waiting:
        each = waiting.pop(0)
        waiting += getattr(each, "__orig_bases__", getattr(each, "__bases__", ()))
        if not isinstance(each, type):
            continue
        try:
            file = inspect.getsourcefile(each)
            lines, start = inspect.getsourcelines(each)
        except (OSError, TypeError):
            continue
        first = first or Spot(file or "", start)
        for line in _find_field_lines(lines, name):
            return each, Spot(file or "", start + line)
    return schema, first or Spot()


def find_field_spot(schema: type | None, name: str) -> Spot:
    """Return the place where a class, or a base of it, declares a field."""
    return find_field_source(schema, name)[1]


def find_function_spot(function: Any) -> Spot:
    """Return the place of a function."""
    code = getattr(function, "__code__", None)
    if isinstance(code, CodeType):
        return Spot(code.co_filename, code.co_firstlineno)
    return Spot()


def _find_field_lines(lines: list[str], name: str) -> Iterator[int]:
    try:
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except SyntaxError:
        return
    for cls in tree.body[:1]:
        for node in getattr(cls, "body", ()):
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and node.target.id == name
            ):
                yield node.lineno - 1


@cache
def _parse(file: str) -> ast.Module | None:
    lines = linecache.getlines(file)
    try:
        return ast.parse("".join(lines)) if lines else None
    except SyntaxError:
        return None


@cache
def _find_functions(tree: ast.Module) -> tuple[Function, ...]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
    return tuple(node for node in ast.walk(tree) if isinstance(node, kinds))


def _matches_code(node: Function, code: CodeType) -> bool:
    if isinstance(node, ast.Lambda):
        return code.co_name == "<lambda>" and node.lineno == code.co_firstlineno
    first = min((each.lineno for each in node.decorator_list), default=node.lineno)
    return code.co_name == node.name and first == code.co_firstlineno


def _contains(node: Function, code: CodeType) -> bool:
    body = node.body
    if not isinstance(body, ast.AST):
        return True
    places = [(line, column) for line, _, column, _ in code.co_positions() if line and column]
    end = (body.end_lineno or body.lineno, body.end_col_offset or 0)
    return all((body.lineno, body.col_offset) <= place <= end for place in places)
