"""Factories that make a graph for each use.

They take a config, LangGraph's ``ServerRuntime``, or both, and may be asynchronous context managers. A
function without such parameters makes one graph for all runs, and is called once, when it is loaded.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints

from langchain_core.runnables import RunnableConfig
from langgraph.graph.state import StateGraph
from langgraph.pregel import Pregel
from langgraph.store.base import BaseStore

from perdure.errors import GraphLoadError
from perdure.runtime.agents.run_user import GraphUser

Access = Literal["threads.create_run", "threads.update", "threads.read", "assistants.read"]
"""Purpose for which a graph is made, in the terms of LangGraph's ``ServerRuntime``."""

_CONFIG, _RUNTIME = "config", "runtime"


@dataclass(frozen=True)
class Use:
    """The use for which a graph is made: ``user`` is the verified user, ``context`` the context of a run."""

    access: Access
    config: Mapping[str, Any]
    store: BaseStore
    user: GraphUser | None = None
    context: Any = None


@dataclass(frozen=True)
class Factory:
    """Function that makes a graph for each use. ``parameters`` maps the names of its parameters to what they
    receive, the config or the runtime."""

    place: str
    make: Callable[..., Any]
    parameters: Mapping[str, Literal["config", "runtime"]]

    @asynccontextmanager
    async def open_graph(self, use: Use) -> AsyncIterator[Pregel[Any, Any, Any, Any]]:
        """Make the graph for one use and yield it. Errors of the function are raised unchanged.

        Raises:
            GraphLoadError: The function returns no graph.
        """
        # Without the internal names of this package and LangGraph.
        configurable = use.config.get("configurable") or {}
        own = {name: value for name, value in configurable.items() if not name.startswith("__")}
        arguments = {_CONFIG: {**use.config, "configurable": own}, _RUNTIME: None}
        if _RUNTIME in self.parameters.values():
            arguments[_RUNTIME] = _make_runtime(use)
        made = self.make(**{name: arguments[kind] for name, kind in self.parameters.items()})
        if inspect.isawaitable(made):
            made = await made
        if isinstance(made, AbstractAsyncContextManager):
            async with made as graph:
                yield self._compile(graph)
        elif isinstance(made, AbstractContextManager) and not isinstance(made, Pregel):
            with made as graph:
                yield self._compile(graph)
        else:
            yield self._compile(made)

    def _compile(self, made: Any) -> Pregel[Any, Any, Any, Any]:
        if isinstance(made, StateGraph):
            made = made.compile()
        if not isinstance(made, Pregel):
            raise GraphLoadError(
                f"{self.place} returns {type(made).__name__}, which is not a graph; return a graph"
            )
        return made


def factory_of(place: str, make: Callable[..., Any]) -> Factory | None:
    """Return a factory for a function, or ``None`` if it takes neither a config nor a runtime.

    Raises:
        GraphLoadError: The function requires other arguments.
    """
    try:
        signature = inspect.signature(make)
    except ValueError:
        # Some functions written in C have no signature.
        return None
    hints = _read_hints(make)
    parameters: dict[str, Literal["config", "runtime"]] = {}
    unknown: list[str] = []
    for name, parameter in signature.parameters.items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        hint = hints.get(name, parameter.annotation)
        if _is_runtime(hint) or (name == _RUNTIME and hint is parameter.empty):
            parameters[name] = "runtime"
        elif name == _CONFIG or _is_config(hint):
            parameters[name] = "config"
        elif parameter.default is parameter.empty:
            unknown.append(name)
    if len(unknown) == 1 and "config" not in parameters.values():
        # As on LangGraph's server, a parameter that is not a runtime is the config, under any name.
        parameters[unknown.pop()] = "config"
    if unknown or len(set(parameters.values())) != len(parameters):
        raise GraphLoadError(
            f"{place} requires arguments other than a run's config and a ServerRuntime; name a function that "
            "takes only these, or none"
        )
    if parameters:
        return Factory(place, make, parameters)
    return None


def _read_hints(make: Callable[..., Any]) -> dict[str, Any]:
    known = {"ServerRuntime": _find_server_runtime(), "RunnableConfig": RunnableConfig}
    try:
        return get_type_hints(inspect.unwrap(make), localns=known)
    except (NameError, TypeError, AttributeError):
        # A hint has a name that exists for type checkers only: the parameters' names decide instead.
        return {}


def _find_server_runtime() -> Any:
    from langgraph_sdk.runtime import ServerRuntime

    return ServerRuntime


def _is_runtime(hint: Any) -> bool:
    alias = _find_server_runtime()
    if hint is alias or get_origin(hint) is alias:
        return True
    if isinstance(hint, str):
        return hint.partition("[")[0].rpartition(".")[2] == "ServerRuntime"
    classes = tuple(get_origin(each) or each for each in get_args(alias.__value__))
    if isinstance(hint, type):
        return issubclass(hint, classes)
    return get_origin(hint) in classes or any(_is_runtime(each) for each in get_args(hint)[:1])


def _is_config(hint: Any) -> bool:
    return hint is RunnableConfig or hint == "RunnableConfig" or RunnableConfig in get_args(hint)


def _make_runtime(use: Use) -> Any:
    from langgraph_sdk import runtime

    parts: dict[str, Any] = {"access_context": use.access, "user": use.user, "store": use.store}
    # ``ServerRuntime`` is an alias for a union of two classes.
    running, reading = (get_origin(each) or each for each in get_args(runtime.ServerRuntime.__value__))
    if use.access == "threads.create_run":
        return running(**parts, context=use.context)
    return reading(**parts)
