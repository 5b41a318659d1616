"""Import of graphs, channels and other objects that a command line or configuration names.

A place is ``module:attribute`` or ``./file.py:attribute``. A module of the project can be named like an
installed one. An unusable object raises ``GraphLoadError`` with advice; the error of the user's own code
stays as its cause. Nothing here opens a database. How a file becomes a module is decided in
``perdure.runtime.agents.module_files``.
"""

from __future__ import annotations

import inspect
import logging
import os
import traceback
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

from langgraph.graph.state import StateGraph
from langgraph.pregel import Pregel

from perdure.errors import GraphLoadError
from perdure.runtime.agents.agent import Agent
from perdure.runtime.agents.graph_factories import Factory, factory_of
from perdure.runtime.agents.module_files import (
    Unplaced,
    make_importable,
    module_of,
    names_file,
    suggest_similar,
)
from perdure.runtime.failures.own_code import is_own
from perdure.runtime.worker.delivery import Channel

DEFAULT_NAME = "agent"
"""Name of a graph that was given none, as in ``Runtime``."""

_GRAPHS = (Agent, Pregel, StateGraph)
_SUGGESTED = 5
_log = logging.getLogger("perdure.runtime")


class LoadedGraph(NamedTuple):
    """Object at a place, e.g. ``app:graph``: a graph or a factory."""

    place: str
    found: Any


def parse_places(words: Iterable[str]) -> dict[str, str]:
    """Return places by name, from ``place`` or ``name=place`` each.

    Raises:
        GraphLoadError: A name is empty or used twice, or a place names no graph.
    """
    places: dict[str, str] = {}
    for word in words:
        name, is_named, place = word.partition("=")
        if not is_named:
            name, place = DEFAULT_NAME, word
        if not name:
            raise GraphLoadError(f"{word!r} names no graph; write name=module:graph")
        if not all(place.rpartition(":")):
            raise GraphLoadError(f"{word!r} names no graph; write {place.strip(':') or './agent.py'}:graph")
        if name in places:
            raise GraphLoadError(
                f"two graphs are called {name!r}: {places[name]} and {place}; name each, e.g. support={place}"
            )
        places[name] = place
    return places


def find(place: str, *, root: Path | None = None) -> LoadedGraph:
    """Import the object that a place names.

    A file is a module of its package if it lies in one. Otherwise it is named as it would be imported from
    ``root``, ``folder.file``, and its own folder is importable as for a script.

    Args:
        place: ``module:attribute`` or ``file:attribute``.
        root: The project's folder, by default the current one: paths start there, and its modules are
            importable.

    Raises:
        GraphLoadError: There is no such object, or its module cannot be imported.
    """
    root = Path.cwd() if root is None else root.absolute()
    if names_file(place):
        file, _, path = place.rpartition(":")
        if file:
            found: Any = _import_file(root, file, place)
        else:
            found = _refuse_place(place)
    else:
        file, _, path = place.partition(":")
        if not all(part.isidentifier() for part in (*file.split("."), *path.split("."))):
            _refuse_place(place)
        found = _import_named(file, place, root)
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            members = getattr(found, "__dict__", {}).items()
            there = [name for name, value in members if isinstance(value, _GRAPHS)]
            has = ""
            if there:
                has = f"; it has {', '.join(there[:_SUGGESTED])}"
            raise GraphLoadError(f"{place}: {_describe(found)} has no {part!r}{has}") from None
        except Exception as error:
            raise _make_load_error(place, error) from error
    return LoadedGraph(place, found)


async def load_agent(loaded: LoadedGraph) -> Agent:
    """Return the agent at a place, from an ``Agent``, a graph, compiled or not, or a factory of these.

    Raises:
        GraphLoadError: The object is of another type, or cannot be run.
    """
    made = loaded.found
    if not isinstance(made, _GRAPHS):
        made = await _make_graph_or_factory(loaded)
    if isinstance(made, Factory):
        return Agent(made)
    if isinstance(made, StateGraph):
        try:
            made = made.compile()
        except Exception as error:
            raise _make_load_error(loaded.place, error) from error
    if isinstance(made, Pregel):
        try:
            made = Agent(made)
        except ValueError as error:
            raise GraphLoadError(f"{loaded.place} cannot be run: {error}") from error
    if not isinstance(made, Agent):
        raise GraphLoadError(
            f"{loaded.place} is not a graph but {_kind(made)}; name a graph, compiled or not, an Agent, or a "
            "function that returns one"
        )
    if isinstance(made.graph, Factory):
        return made
    _check_saver(loaded.place, made.graph.checkpointer)
    return made


async def load_channels(loaded: LoadedGraph) -> dict[str, Channel]:
    """Return the channels by name at a place, or from a factory.

    Raises:
        GraphLoadError: The object is not a mapping of names to channels.
    """
    made = loaded.found
    if not isinstance(made, Mapping):
        made = await _make_object(loaded)
    if not isinstance(made, Mapping):
        raise GraphLoadError(
            f'{loaded.place} is {_kind(made)}; name a mapping, e.g. {{"telegram": Channel(send)}}'
        )
    for name, channel in made.items():
        if not isinstance(name, str) or not isinstance(channel, Channel):
            raise GraphLoadError(
                f"{loaded.place} has {_kind(channel)} as {name!r}; it has to map names to Channel(send)"
            )
    return dict(made)


def _check_saver(place: str, saver: object) -> None:
    """Warn about a checkpointer, which the database's replaces; raise ``GraphLoadError`` if it is
    disabled."""
    if saver is False:
        raise GraphLoadError(
            f"{place} is compiled with checkpointer=False, but its threads are to be kept; compile it "
            "without that argument"
        )
    if saver is not None and saver is not True:
        _log.warning(
            "%s is compiled with a %s, which is not used: its threads are kept in the database",
            place,
            type(saver).__name__,
        )


def _refuse_place(place: str) -> NoReturn:
    why = (
        f"{place!r} is not a place to look; write module:attribute, e.g. app:graph, or file:attribute, e.g. "
        "./app.py:graph"
    )
    raise GraphLoadError(why) from Unplaced(why)


def _import_file(root: Path, file: str, place: str) -> ModuleType:
    make_importable(root)
    try:
        return module_of(root / file, root)
    except Unplaced as error:
        raise GraphLoadError(f"{place}: {error}") from error
    except (Exception, SystemExit) as error:
        raise _make_load_error(place, error) from error


def _import_named(name: str, place: str, root: Path) -> ModuleType:
    make_importable(root)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise _make_load_error(place, error) from error
        advice = (
            suggest_similar(root / f"{missing}.py") or "check the name, or start in the folder that has it"
        )
        why = f"there is no module {missing!r}, neither installed nor in {root}; {advice}"
        raise GraphLoadError(f"{place}: {why}") from Unplaced(why)
    except (Exception, SystemExit) as error:
        raise _make_load_error(place, error) from error


async def _make_graph_or_factory(loaded: LoadedGraph) -> Any:
    """Return a factory for a function of a run's config or runtime, or else the result of
    ``_make_object``."""
    if callable(loaded.found) and (factory := factory_of(loaded.place, loaded.found)) is not None:
        return factory
    made = await _make_object(loaded)
    if isinstance(made, AbstractContextManager | AbstractAsyncContextManager):
        # A context manager's resources are for one use, so the function is called again for the next.
        return Factory(loaded.place, loaded.found, {})
    return made


async def _make_object(loaded: LoadedGraph) -> Any:
    """Return the result of a function without arguments, or the object itself if it is not callable."""
    factory = loaded.found
    if not callable(factory):
        return factory
    try:
        inspect.signature(factory).bind()
    except TypeError:
        raise GraphLoadError(f"{loaded.place} is a function that needs arguments; name one without") from None
    except ValueError:
        _log.debug("%s has no signature to look at", loaded.place)
    try:
        made = factory()
        if inspect.isawaitable(made):
            return await made
        return made
    except Exception as error:
        raise _make_load_error(loaded.place, error) from error


def _make_load_error(place: str, error: BaseException) -> GraphLoadError:
    """Return the error for a failure of the user's code: its message, and the last line of that code that was
    reached."""
    _log.debug("%s cannot be loaded", place, exc_info=error)
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if is_own(frame.filename)]
    where = ""
    if own:
        where = f"{os.path.relpath(own[-1].filename)}, line {own[-1].lineno}: "
    message = " ".join(str(error).split())
    return GraphLoadError(
        f"{place} cannot be loaded: {where}{type(error).__name__}{message and ': '}{message}"
    )


def _describe(found: object) -> str:
    if isinstance(found, ModuleType):
        return f"module {found.__name__!r}"
    return _kind(found)


def _kind(value: object) -> str:
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__}"
    return f"of type {type(value).__name__}"
