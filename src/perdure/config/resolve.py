"""What is settled once everything was said: which source wins, and what servers and workers make of it alike.

Flags come before the environment, that before ``perdure.toml``, that before ``langgraph.json``, setting by
setting. Each setting that was said is checked, whether this process uses it or not; what several of them come
to together is asked for by who uses it. What cannot work raises ``BadSetting``; nothing is guessed, and no
secret is shown.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langgraph.store.base import TTLConfig

from perdure.config import sources
from perdure.config.settings import SETTINGS
from perdure.config.sources import LANGGRAPH, OWN, GivenValue, Layer
from perdure.errors import BadSetting
from perdure.runtime.loading import named
from perdure.runtime.module_files import names_file
from perdure.runtime.settings import Settings

DEVELOPMENT_FOLDER = ".perdure"
DEVELOPMENT_URL = f"sqlite:///{DEVELOPMENT_FOLDER}/dev.db"
"""Where threads are in development when nobody said so: kept, so that a restart loses nothing."""


@dataclass(frozen=True, slots=True)
class GraphPlace:
    """Where a graph is, ``package.module:graph`` or ``./folder/file.py:graph``; a file's path starts at the
    configuration's ``root``, unless it is absolute."""

    place: str
    description: str | None = None


class ResolvedConfig:
    """What was said, each of it checked before anything is asked for, and the defaults.

    ``root`` is the folder of the configuration file, the project's. ``env`` are variables to set before a
    graph is imported; none of them is set yet. ``sources`` are the files and the names of the variables that
    were used, ``ignored`` what was said in vain: both may be logged.
    """

    def __init__(
        self,
        said: Mapping[str, GivenValue],
        root: Path,
        *,
        env: Mapping[str, str],
        files: Sequence[Path],
        ignored: Sequence[str],
    ) -> None:
        self.said = said
        self.root = root
        self.env = env
        self.ignored = tuple(ignored)
        variables = dict.fromkeys(each.source for each in said.values() if each.is_text)
        self.sources = (*map(str, files), *variables)
        self._values = {key: sources.value_of(SETTINGS[key], each) for key, each in said.items()}
        for key, each in said.items():
            if SETTINGS[key].is_place:
                self._values[key] = self.placed(self._values[key], each.base)

    def __getitem__(self, key: str) -> Any:
        return self._values.get(key, SETTINGS[key].default)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def name(self, key: str) -> str:
        """What the author of a setting calls it, and the key where nobody said anything."""
        return self.said[key].name if key in self.said else key

    def given(self, prefix: str) -> dict[str, Any]:
        """Of a table, what was said."""
        return {
            key.removeprefix(prefix): value for key, value in self._values.items() if key.startswith(prefix)
        }

    def table(self, prefix: str) -> dict[str, Any]:
        """Of a table, everything that stands directly in it."""
        names = [key.removeprefix(prefix) for key in SETTINGS if key.startswith(prefix)]
        return {name: self[prefix + name] for name in names if "." not in name}

    def placed(self, place: str, base: Path) -> str:
        """A place that holds from ``root``: a file's path that starts elsewhere becomes absolute."""
        if not names_file(place) or base == self.root:
            return place
        path, _, attribute = place.rpartition(":")
        return f"{base / path}:{attribute}"

    # What servers and workers make of it alike

    def database_url(self) -> str:
        url = self["database_url"]
        if url is None and not self["development"]:
            raise BadSetting(
                "which database? Pass --db postgresql://user@host/database, set PERDURE_DB or DATABASE_URL, "
                f"or write database_url in perdure.toml; in development it is {DEVELOPMENT_URL}"
            )
        return DEVELOPMENT_URL if url is None else str(url)

    def graphs(self, command: str) -> dict[str, GraphPlace]:
        """The graphs by name; ``command`` is an example of one that names them."""
        if "graphs" not in self:
            raise BadSetting(
                f"which graph? Pass a place, e.g. {command}, or list graphs in perdure.toml or langgraph.json"
            )
        base = self.said["graphs"].base
        return {
            name: GraphPlace(self.placed(place, base), description)
            for name, (place, description) in self["graphs"].items()
        }

    def runtime(self) -> dict[str, Any]:
        """What was said of ``perdure.runtime.Settings``."""
        given = self.given("runtime.")
        try:
            Settings(**given)
        except ValueError as error:
            name = self.name(f"runtime.{str(error).partition(' ')[0]}")
            raise BadSetting(f"{name}: {error}") from error
        return given

    def store_ttl(self) -> TTLConfig | None:
        """For ``Database.store(ttl=…)``."""
        given = self.given("store.ttl.")
        return TTLConfig(**given) if given else None  # type: ignore[typeddict-item]


def settle(
    *,
    file: Path | None,
    graphs: Sequence[str] = (),
    flags: Mapping[str, tuple[Any, str]],
    environ: Mapping[str, str],
    has_key: bool,
) -> ResolvedConfig:
    """Read everything once. Without ``file`` the current folder's ``perdure.toml`` and ``langgraph.json`` are
    read, each if it is there; with it, that one alone. ``graphs`` are ``[NAME=]PLACE`` and replace those of
    files. ``flags`` are the others by key, each with its name, ``None`` where one was not given.
    ``has_key`` says that what is stored is sealed."""
    here = Path.cwd()
    paths = [path for path in (Path(LANGGRAPH), Path(OWN)) if path.exists()] if file is None else [file]
    files = [sources.of_file(path) for path in paths]
    root = paths[-1].absolute().parent if paths else here
    said = _merged(files)
    env, env_file = sources.of_env_file(said["env"], environ) if "env" in said else ({}, Layer({}))
    environment = sources.of_environment(environ, env, here)
    every = {"graphs": (named(graphs) or None, "the command line"), **flags}
    given = {
        key: GivenValue(value, name, "", here) for key, (value, name) in every.items() if value is not None
    }
    ignored = [each for layer in (*files, env_file, environment) for each in layer.ignored]
    settled = ResolvedConfig(
        _merged([*files, environment, Layer(given)]), root, env=env, files=paths[::-1], ignored=ignored
    )
    if not has_key:
        _refuse_unsealed(ignored)
    return settled


def set_variables(env: Mapping[str, str]) -> None:
    """Set the variables that a configuration has for graphs; those that are set stay as they are."""
    for name, value in env.items():
        os.environ.setdefault(name, value)


def make_folder_of(url: str) -> None:
    """Make the folder of development's own database, which git is told to leave alone, if that is what the
    URL names."""
    if url == DEVELOPMENT_URL:
        folder = Path(DEVELOPMENT_FOLDER)
        folder.mkdir(exist_ok=True)
        (folder / ".gitignore").write_text("*\n", encoding="utf-8")


def _merged(layers: Sequence[Layer]) -> dict[str, GivenValue]:
    return {key: said for layer in layers for key, said in layer.said.items()}


def _refuse_unsealed(ignored: Sequence[str]) -> None:
    """``encryption`` of ``langgraph.json`` names code of its own. Passing over it would store in the clear
    what somebody wanted sealed."""
    asked = next((each for each in ignored if each.startswith("encryption in ")), None)
    if asked:
        raise BadSetting(
            f"{asked} is not supported, and without it everything would be stored in the clear; pass "
            "--key-file with the file of an encryption key, set PERDURE_KEY_FILE to it, or take it out"
        )
