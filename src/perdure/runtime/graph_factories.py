"""Graphs that are made anew for each use by a function of the user's: of a config, of LangGraph's
``ServerRuntime``, of both, or an asynchronous context manager.

A function of none of these makes one graph for all runs; ``perdure.runtime.loading`` calls it once.
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
from perdure.runtime.users import GraphUser

Access = Literal["threads.create_run", "threads.update", "threads.read", "assistants.read"]
"""The reason why a graph is made, in the words of LangGraph's ``ServerRuntime``."""

_CONFIG, _RUNTIME = "config", "runtime"


@dataclass(frozen=True)
class Use:
    """What a graph is made for: ``user`` is the verified one, ``context`` what a run was given as such."""

    access: Access
    config: Mapping[str, Any]
    store: BaseStore
    user: GraphUser | None = None
    context: Any = None


@dataclass(frozen=True)
class Factory:
    """A function that makes a graph for each use. ``parameters`` are the names of those of its parameters
    that get the config and the runtime."""

    place: str
    make: Callable[..., Any]
    parameters: Mapping[str, Literal["config", "runtime"]]

    @asynccontextmanager
    async def made(self, use: Use) -> AsyncIterator[Pregel[Any, Any, Any, Any]]:
        """The graph for one use, for as long as the block lasts. An error of the function is raised as it is;
        ``GraphLoadError`` when it makes no graph."""
        given = {_CONFIG: _config_of(use), _RUNTIME: None}
        if _RUNTIME in self.parameters.values():
            given[_RUNTIME] = _runtime_of(use)
        made = self.make(**{name: given[kind] for name, kind in self.parameters.items()})
        if inspect.isawaitable(made):
            made = await made
        if isinstance(made, AbstractAsyncContextManager):
            async with made as graph:
                yield self._compiled(graph)
        elif isinstance(made, AbstractContextManager) and not isinstance(made, Pregel):
            with made as graph:
                yield self._compiled(graph)
        else:
            yield self._compiled(made)

    def _compiled(self, made: Any) -> Pregel[Any, Any, Any, Any]:
        if isinstance(made, StateGraph):
            made = made.compile()
        if not isinstance(made, Pregel):
            raise GraphLoadError(f"{self.place} makes no graph but {type(made).__name__}; return a graph")
        return made


def factory_of(place: str, make: Callable[..., Any]) -> Factory | None:
    """The factory that a function is; ``None`` for one that takes neither a config nor a runtime.
    ``GraphLoadError`` for one that needs something else."""
    try:
        signature = inspect.signature(make)
    except ValueError:
        # Some that are written in C have none.
        return None
    hints = _hints(make)
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
        # As on LangGraph's server a parameter that is no runtime is the config, whatever it is called.
        parameters[unknown.pop()] = "config"
    if unknown or len(set(parameters.values())) != len(parameters):
        raise GraphLoadError(
            f"{place} is a function that needs other arguments than a run's config and a ServerRuntime; name "
            "one that takes these, or none"
        )
    return Factory(place, make, parameters) if parameters else None


def _hints(make: Callable[..., Any]) -> dict[str, Any]:
    known = {"ServerRuntime": _server_runtime(), "RunnableConfig": RunnableConfig}
    try:
        return get_type_hints(inspect.unwrap(make), localns=known)
    except (NameError, TypeError, AttributeError):
        # A name that only a type checker knows: then the parameters' own names decide.
        return {}


def _server_runtime() -> Any:
    from langgraph_sdk.runtime import ServerRuntime

    return ServerRuntime


def _is_runtime(hint: Any) -> bool:
    alias = _server_runtime()
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


def _config_of(use: Use) -> dict[str, Any]:
    """A use's config without the names that are this package's or LangGraph's own."""
    configurable = use.config.get("configurable") or {}
    own = {name: value for name, value in configurable.items() if not name.startswith("__")}
    return {**use.config, "configurable": own}


def _runtime_of(use: Use) -> Any:
    from langgraph_sdk import runtime

    parts: dict[str, Any] = {"access_context": use.access, "user": use.user, "store": use.store}
    # The two forms of ``ServerRuntime``, which is nothing but the name for both.
    running, reading = (get_origin(each) or each for each in get_args(runtime.ServerRuntime.__value__))
    if use.access == "threads.create_run":
        return running(**parts, context=use.context)
    return reading(**parts)
