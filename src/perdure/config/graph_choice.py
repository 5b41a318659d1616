"""Graphs that a command names, each with the schema that a server with the same settings would give it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from perdure.config.agents import AgentSettings, find_schema_places
from perdure.config.resolve import ResolvedConfig, add_import_folders, resolve_config, set_variables
from perdure.runtime.agents.agent import Agent
from perdure.runtime.agents.loading import find, load_agent, parse_places
from perdure.runtime.agents.module_files import names_file


@dataclass(frozen=True, slots=True)
class ChosenGraph:
    """A graph that a command was asked for.

    Attributes:
        word: the name or place that the command was given; without one, the name in the settings.
        place: where it is, a relative file starting at ``root``.
        other: the graph's name in the settings if ``word`` is its place; its place if ``word`` is its name.
        schema: the place of the schema that the settings give it, if any.
        root: the project's folder.
    """

    word: str
    place: str
    other: str | None
    schema: str | None
    root: Path

    async def load(self, *, with_settings: bool = True) -> Agent:
        """Return the agent, with the schema of the settings unless ``with_settings`` is false.

        Raises:
            BadSetting: the agent has another schema of its own.
            GraphLoadError: there is no graph at ``place``, or no schema at ``schema``.
        """
        agent = await load_agent(find(self.place, root=self.root))
        if self.schema is None or not with_settings:
            return agent
        return AgentSettings({self.word: self.schema}).apply({self.word: agent}, self.root)[self.word]


def choose_graphs(
    words: Sequence[str], *, file: Path | None, environ: Mapping[str, str]
) -> list[ChosenGraph]:
    """Return graphs by their names in the settings, or by their places; without words, all graphs of the
    settings.

    The variables of the settings are set, and their folders made importable, as in a server.

    Args:
        words: names of graphs in the settings, or ``[NAME=]PLACE``.
        file: the only settings file to read, as for ``resolve_config``.
        environ: the environment.

    Raises:
        BadSetting: a source cannot be read or has an invalid setting, or there is no graph.
        GraphLoadError: a word names no graph.
    """
    # Graphs are only loaded, and no stored data is read, so no encryption key is needed.
    configuration = resolve_config(file=file, flags={}, environ=environ, has_key=True)
    set_variables(configuration.env)
    add_import_folders(configuration.import_folders())
    places: dict[str, str] = {}
    if "graphs" in configuration or not words:
        places = {name: graph.place for name, graph in configuration.graphs("app:graph").items()}
    return [_choose_graph(configuration, word, places) for word in words or places]


def _choose_graph(configuration: ResolvedConfig, word: str, places: Mapping[str, str]) -> ChosenGraph:
    root = configuration.root
    other: str | None
    if word in places:
        name, place, other = word, places[word], places[word]
    else:
        ((name, given),) = parse_places([word]).items()
        place = configuration.resolve_place(given, Path.cwd())
        absolute = _make_absolute(place, root)
        other = next((each for each in places if _make_absolute(places[each], root) == absolute), None)
        name = other or name
    known = {*places, name}
    return ChosenGraph(word, place, other, find_schema_places(configuration, known).get(name), root)


def _make_absolute(place: str, root: Path) -> str:
    """Return a place in one form, so that two names of one file are equal."""
    if not names_file(place):
        return place
    path, _, attribute = place.rpartition(":")
    return f"{(root / path).resolve()}:{attribute}"
