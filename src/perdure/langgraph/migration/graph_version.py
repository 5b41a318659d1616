"""Name of the version of a graph's code, which shows which runs were made before a deploy.

Two processes that loaded the same code have the same name. It changes with the fingerprint, the edges, and
the code of nodes, of tools and of functions that choose the next node. What these call, and values such
as prompts, may change without a new name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from hashlib import blake2b
from types import CodeType
from typing import Any

from langgraph.pregel import Pregel

from perdure.langgraph.graph_facts import GraphFacts, read_all, unwrap
from perdure.langgraph.migration.fingerprint import fingerprint

_SIZE = 6


def name_graph(graph: Pregel[Any, Any, Any, Any]) -> str:
    """Return the name of a compiled graph's version: 12 hexadecimal digits."""
    parts = [json.dumps(fingerprint(graph))]
    for facts in read_all(graph):
        parts += [repr(facts.path), *_describe_edges(facts)]
        for node in facts.nodes:
            parts.append(node.name)
            parts += [
                text for function in (*node.functions, *node.tools) for text in _describe_function(function)
            ]
    return _digest(parts)


def name_function(function: Callable[..., Any]) -> str:
    """Return the name of the version of a function that makes a graph for each use."""
    return _digest(list(_describe_function(function)))


def _digest(parts: list[str]) -> str:
    return blake2b("\0".join(parts).encode("utf-8", "replace"), digest_size=_SIZE).hexdigest()


def _describe_edges(facts: GraphFacts) -> Iterator[str]:
    """Yield the edges of a ``StateGraph``, and the functions that choose among several."""
    builder = getattr(facts.graph, "builder", None)
    yield repr(sorted(getattr(builder, "edges", ())))
    yield repr(sorted((sorted(starts), end) for starts, end in getattr(builder, "waiting_edges", ())))
    for node, branches in sorted(getattr(builder, "branches", {}).items()):
        for name, branch in sorted(branches.items()):
            yield f"{node} {name} {sorted((branch.ends or {}).items(), key=repr)}"
            for which in ("func", "afunc"):
                if (function := getattr(branch.path, which, None)) is not None:
                    yield from _describe_function(function)


def _describe_function(function: Callable[..., Any]) -> Iterator[str]:
    function = unwrap(function)
    yield getattr(function, "__qualname__", type(function).__qualname__)
    if isinstance(code := getattr(function, "__code__", None), CodeType):
        yield from _describe_code(code)


def _describe_code(code: CodeType) -> Iterator[str]:
    """Yield what a function does, without the place of its file and its lines."""
    yield code.co_code.hex()
    yield repr((code.co_names, code.co_varnames, code.co_freevars))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _describe_code(constant)
        else:
            yield _describe_constant(constant)


def _describe_constant(value: Any) -> str:
    # The order of a set differs from process to process.
    if isinstance(value, frozenset):
        return f"{{{', '.join(sorted(map(repr, value)))}}}"
    return repr(value)
