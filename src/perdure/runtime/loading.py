"""Finding what a command line names: ``module:attribute`` to the graphs that a process runs and its channels.

A module of the current directory can be named like an installed one. What cannot be used raises ``NotLoaded``
with the mend; what the user's own code raised stays as its cause. Nothing here opens a database.
"""

from __future__ import annotations

import inspect
import logging
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any, NamedTuple

from langgraph.graph.state import StateGraph
from langgraph.pregel import Pregel

from perdure.errors import NotLoaded
from perdure.runtime.agents import Agent
from perdure.runtime.relay import Channel

DEFAULT_NAME = "agent"
"""What a graph is called that was given no name, as ``Runtime`` calls a single one."""

_GRAPHS = (Agent, Pregel, StateGraph)
_SUGGESTED = 5
_log = logging.getLogger("perdure.runtime")


class Loaded(NamedTuple):
    """What stands at a place, e.g. ``app:graph``: the thing itself, or a factory of it."""

    place: str
    found: Any


def named(words: Iterable[str]) -> dict[str, str]:
    """Places by name, from ``place`` or ``name=place`` each."""
    places: dict[str, str] = {}
    for word in words:
        before, is_named, after = word.partition("=")
        name, place = (before, after) if is_named else (DEFAULT_NAME, before)
        if not name:
            raise NotLoaded(f"{word!r} names no graph; write name=module:graph")
        if name in places:
            raise NotLoaded(
                f"two graphs are called {name!r}: {places[name]} and {place}; name each, e.g. support={place}"
            )
        places[name] = place
    return places


def find(place: str) -> Loaded:
    """Import what a place names."""
    module_name, _, path = place.partition(":")
    if module_name.endswith(".py") or "/" in module_name or "\\" in module_name:
        raise NotLoaded(f"{place!r} names a file; name the module, e.g. app:graph for a graph in ./app.py")
    if not all(part.isidentifier() for part in (*module_name.split("."), *path.split("."))):
        raise NotLoaded(f"{place!r} is no place to look; write module:attribute, e.g. app:graph")
    found: Any = _imported(module_name, place)
    for part in path.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            has = _suggested(found)
            raise NotLoaded(f"{place}: {_called(found)} has no {part!r}{has}") from None
        except Exception as error:
            raise _broken(place, error) from error
    return Loaded(place, found)


async def load_agent(loaded: Loaded) -> Agent:
    """The agent at a place: itself, a graph, compiled or not, or what a factory makes of these."""
    made = loaded.found if isinstance(loaded.found, _GRAPHS) else await _made(loaded)
    if isinstance(made, StateGraph):
        try:
            made = made.compile()
        except Exception as error:
            raise _broken(loaded.place, error) from error
    if isinstance(made, Pregel):
        made = Agent(made)
    if not isinstance(made, Agent):
        raise NotLoaded(
            f"{loaded.place} is not a graph but {_kind(made)}; name a graph, compiled or not, an Agent, or a "
            "function without arguments that returns one"
        )
    return made


async def load_channels(loaded: Loaded) -> dict[str, Channel]:
    """The channels by name at a place, or from a factory."""
    made = loaded.found if isinstance(loaded.found, Mapping) else await _made(loaded)
    if not isinstance(made, Mapping):
        raise NotLoaded(
            f'{loaded.place} is {_kind(made)}; name a mapping, e.g. {{"telegram": Channel(send)}}'
        )
    for name, channel in made.items():
        if not isinstance(name, str) or not isinstance(channel, Channel):
            raise NotLoaded(
                f"{loaded.place} has {_kind(channel)} as {name!r}; it has to map names to Channel(send)"
            )
    return dict(made)


def _imported(name: str, place: str) -> ModuleType:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if name != missing and not name.startswith(f"{missing}."):
            raise _broken(place, error) from error
        raise NotLoaded(
            f"{place}: there is no module {missing!r}, neither installed nor in {here}; check the name, or "
            "start in the folder that has it"
        ) from error
    except (Exception, SystemExit) as error:
        raise _broken(place, error) from error


async def _made(loaded: Loaded) -> Any:
    """What a factory makes; anything else as it is."""
    factory = loaded.found
    if not callable(factory):
        return factory
    try:
        inspect.signature(factory).bind()
    except TypeError:
        raise NotLoaded(
            f"{loaded.place} is a function that needs arguments; name one without, or what it makes"
        ) from None
    except ValueError:
        _log.debug("%s has no signature to look at", loaded.place)
    try:
        made = factory()
        return await made if inspect.isawaitable(made) else made
    except Exception as error:
        raise _broken(loaded.place, error) from error


def _broken(place: str, error: BaseException) -> NotLoaded:
    """The user's code failed: what it said, and the last of its own lines that was reached."""
    _log.debug("%s cannot be loaded", place, exc_info=error)
    libraries = tuple(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(("<", __file__, *libraries))
    ]
    where = f"{os.path.relpath(own[-1].filename)}, line {own[-1].lineno}: " if own else ""
    said = " ".join(str(error).split())
    return NotLoaded(f"{place} cannot be loaded: {where}{type(error).__name__}{said and ': '}{said}")


def _suggested(found: object) -> str:
    """The graphs that are there, if any."""
    there = [name for name, value in getattr(found, "__dict__", {}).items() if isinstance(value, _GRAPHS)]
    return f"; it has {', '.join(there[:_SUGGESTED])}" if there else ""


def _called(found: object) -> str:
    return f"module {found.__name__!r}" if isinstance(found, ModuleType) else _kind(found)


def _kind(value: object) -> str:
    if value is None:
        return "None"
    name = value.__name__ if isinstance(value, type) else type(value).__name__
    return f"the class {name}" if isinstance(value, type) else f"of type {name}"
