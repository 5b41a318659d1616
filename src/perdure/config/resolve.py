"""Resolution of a configuration: merges its sources and validates the result, for servers and workers alike.

For each setting, flags take precedence over the environment, the environment over ``perdure.toml``, and that
over ``langgraph.json``. Every setting that is given is checked, whether this process uses it or not;
combinations are checked by the caller that uses them. Invalid settings raise ``BadSetting``; nothing is
guessed, and no secret is shown.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langgraph.store.base import TTLConfig

from perdure.config import sources
from perdure.config.settings import RUNTIME_DEFAULTS, SETTINGS
from perdure.config.sources import LANGGRAPH, OWN, GivenValue, Layer
from perdure.config.store_index import OFFLINE, StoreIndex
from perdure.errors import BadSetting
from perdure.model.model_calls import Prices
from perdure.runtime.agents.loading import parse_places
from perdure.runtime.agents.module_files import names_file
from perdure.runtime.settings import Settings
from perdure.storage.key_providers import KeyProvider, open_provider
from perdure.storage.url import find_plain_url

DEVELOPMENT_FOLDER = ".perdure"
DEVELOPMENT_URL = f"sqlite:///{DEVELOPMENT_FOLDER}/dev.db"
"""Default database in development: a file, so that a restart loses nothing."""


_STORE_URLS = {"redis": "store.redis_url", "postgres": "store.postgres_dsn"}
"""Setting of the URL of a store's database, by the type of the database."""


@dataclass(frozen=True, slots=True)
class GraphPlace:
    """Place of a graph, ``package.module:graph`` or ``./folder/file.py:graph``; a relative path starts at the
    configuration's ``root``."""

    place: str
    description: str | None = None


class ResolvedConfig:
    """Settings from all sources, each checked on construction, with defaults for the others.

    Attributes:
        entries: The settings that were given, by key.
        root: The folder of the configuration file, which is the project's.
        env: The variables to set before a graph is imported; they are not set yet.
        sources: The files and the names of the variables that were used; may be logged.
        ignored: The entries without effect; may be logged.
        files: The files, including the file of environment variables, which need not exist.
        empty_tables: The tables in files that have no entries.
    """

    def __init__(
        self,
        entries: Mapping[str, GivenValue],
        root: Path,
        *,
        env: Mapping[str, str],
        files: Sequence[Path],
        ignored: Sequence[str],
        empty_tables: Sequence[str] = (),
        env_file: Path | None = None,
    ) -> None:
        self.entries = entries
        self.root = root
        self.env = env
        self.files = (*files, *([] if env_file is None else [env_file]))
        self.ignored = tuple(ignored)
        self.empty_tables = frozenset(empty_tables)
        variables = dict.fromkeys(each.source for each in entries.values() if each.is_text)
        self.sources = (*map(str, files), *variables)
        self._values = {key: sources.value_of(SETTINGS[key], each) for key, each in entries.items()}
        for key, each in entries.items():
            if SETTINGS[key].is_place:
                self._values[key] = self.resolve_place(self._values[key], each.base)

    def __getitem__(self, key: str) -> Any:
        return self._values.get(key, SETTINGS[key].default)

    def __contains__(self, key: str) -> bool:
        return key in self._values

    def name(self, key: str) -> str:
        """Return the name under which a setting was given; its key if it was not given."""
        if key in self.entries:
            return self.entries[key].name
        return key

    def select_given(self, prefix: str) -> dict[str, Any]:
        """Return the given settings of a table, without defaults."""
        return {
            key.removeprefix(prefix): value for key, value in self._values.items() if key.startswith(prefix)
        }

    def table(self, prefix: str) -> dict[str, Any]:
        """Return all settings directly in a table, with defaults."""
        names = [key.removeprefix(prefix) for key in SETTINGS if key.startswith(prefix)]
        return {name: self[prefix + name] for name in names if "." not in name}

    def resolve_place(self, place: str, base: Path) -> str:
        """Return a place relative to ``root``; a file's path with another base becomes absolute."""
        if not names_file(place) or base == self.root:
            return place
        path, _, attribute = place.rpartition(":")
        return f"{base / path}:{attribute}"

    # For servers and workers

    def database_url(self) -> str:
        """Return the URL of the database; in development it has a default.

        Raises:
            BadSetting: No URL is set, and this is not development.
        """
        url = self["database_url"]
        if url is None and not self["development"]:
            raise BadSetting(
                "which database? Pass --db postgresql://user@host/database, set PERDURE_DB or DATABASE_URL, "
                f"or write database_url in perdure.toml; in development it is {DEVELOPMENT_URL}"
            )
        if url is None:
            return DEVELOPMENT_URL
        return find_plain_url(str(url))

    def key_provider(self) -> KeyProvider | None:
        """Return the provider that wraps the keys of the databases, or ``None`` if they are not encrypted.

        Raises:
            BadSetting: There is no provider of this name.
            DecryptionError: A key file contains no key.
        """
        if "keys" not in self:
            return None
        return open_provider(str(self["keys"]), self.entries["keys"].base)

    def graphs(self, command: str) -> dict[str, GraphPlace]:
        """Return the graphs by name.

        Args:
            command: An example of a command that names graphs, for the error message.

        Raises:
            BadSetting: No graphs are set.
        """
        if "graphs" not in self:
            raise BadSetting(
                f"which graph? Pass a place, e.g. {command}, or list graphs in perdure.toml or langgraph.json"
            )
        base = self.entries["graphs"].base
        return {
            name: GraphPlace(self.resolve_place(place, base), description)
            for name, (place, description) in self["graphs"].items()
        }

    def import_folders(self) -> tuple[Path, ...]:
        """Return the folders among the ``dependencies``. The others name packages, which are installed before
        a process starts."""
        if "dependencies" not in self:
            return ()
        base = self.entries["dependencies"].base
        folders = (base / each for each in self["dependencies"])
        return tuple(folder.resolve() for folder in folders if folder.is_dir())

    def runtime(self) -> dict[str, Any]:
        """Return the argument of ``make_runtime_settings``: the settings that were given.

        Raises:
            BadSetting: A value is out of range.
        """
        given = self.select_given("runtime.")
        if self["prices.models"]:
            given["prices"] = Prices(self["prices.models"], self["prices.currency"])
        try:
            make_runtime_settings(given)
        except ValueError as error:
            name = self.name(f"runtime.{str(error).partition(' ')[0]}")
            raise BadSetting(f"{name}: {error}") from error
        return given

    def assistants(self, command: str) -> dict[str, Any]:
        """Return the configs of the graphs' default assistants, by the name of the graph.

        Args:
            command: An example of a command that names graphs, for the error message.

        Raises:
            BadSetting: A config names a graph that does not exist.
        """
        configs: dict[str, Any] = self["assistants"] or {}
        known = self.graphs(command)
        if unknown := set(configs) - set(known):
            raise BadSetting(
                f"{self.name('assistants')} has a config for {min(unknown)!r}, which is not a graph; the "
                f"graphs are {', '.join(sorted(known))}"
            )
        return configs

    def store_index(self) -> StoreIndex | None:
        """Return the settings of the store's index, ``None`` if it has no index.

        Raises:
            BadSetting: One of the settings that it needs is missing.
        """
        given = self.select_given("store.index.")
        if not given:
            return None
        required = [] if given.get("text") else ["embed"]
        if given.get("embed", OFFLINE) != OFFLINE:
            required = ["dims"]
        if missing := [name for name in required if name not in given]:
            raise BadSetting(
                f"the store's index needs store.index.{missing[0]}: dims is the length of a vector, embed a "
                "provider and model, e.g. openai:text-embedding-3-small, or a place, e.g. ./embed.py:embed, "
                f"or {OFFLINE}; or set store.index.text = true, to compare words without a model"
            )
        return StoreIndex(**self.table("store.index."))

    def store_url(self) -> str | None:
        """Return the URL of the store's database, or ``None`` for that of the threads.

        Raises:
            BadSetting: The settings name two databases, or a type of database without its URL.
        """
        kind: str | None = self["store.type"]
        if kind is None:
            for wanted, key in _STORE_URLS.items():
                # REDIS_URL and POSTGRES_DSN are set for other purposes as well.
                if key in self and self.entries[key].name not in ("REDIS_URL", "POSTGRES_DSN"):
                    raise BadSetting(
                        f"{self.entries[key].name} is set, but the store's type is not; set "
                        f"LANGGRAPH_STORE_TYPE={wanted}, or leave the URL out"
                    )
            own: str | None = self["store.database_url"]
            if own is None:
                return None
            return find_plain_url(own)
        if "store.database_url" in self:
            raise BadSetting(
                f"{self.name('store.type')} and {self.name('store.database_url')} both name the store's "
                "database; leave one out"
            )
        if kind == "memory":
            if not self["development"]:
                raise BadSetting(
                    f"{self.name('store.type')} is memory, which is lost at a restart and not shared with "
                    "other processes; name redis or postgres, or leave it out to keep the store with the "
                    "threads. Memory is allowed in development"
                )
            return "memory://"
        key = _STORE_URLS[kind]
        if key not in self:
            variables = " or ".join(SETTINGS[key].variables)
            raise BadSetting(f"{self.name('store.type')} is {kind}, but its URL is not set; set {variables}")
        return find_plain_url(str(self[key]))

    def store_ttl(self) -> TTLConfig | None:
        """Return the argument for ``Database.store(ttl=…)``, ``None`` if nothing is set."""
        given = self.select_given("store.ttl.")
        return TTLConfig(**given) if given else None  # type: ignore[typeddict-item]


def make_runtime_settings(given: Mapping[str, Any]) -> Settings:
    """Return the settings of the runtime of a server or a worker, with the documented defaults.

    Args:
        given: The settings that were given, by the names of ``perdure.runtime.Settings``.

    Raises:
        ValueError: A value is out of range.
    """
    settings: dict[str, Any] = {**RUNTIME_DEFAULTS, **given}
    return Settings(**settings)


def resolve_config(
    *,
    file: Path | None,
    graphs: Sequence[str] = (),
    flags: Mapping[str, tuple[Any, str]],
    environ: Mapping[str, str],
    has_key: bool = False,
) -> ResolvedConfig:
    """Read and merge all sources once.

    Args:
        file: The only file to read; ``None`` reads ``perdure.toml`` and ``langgraph.json`` of the current
            folder, each if it exists.
        graphs: Graphs as ``[NAME=]PLACE``, which replace those of files.
        flags: Values of other flags by key, each with the flag's name; ``None`` for those that were not
            given.
        environ: The environment.
        has_key: True if the caller passes encryption keys by other means.

    Raises:
        BadSetting: A source cannot be read, or has an invalid setting.
    """
    folder = Path.cwd()
    paths = [path for path in (Path(LANGGRAPH), Path(OWN)) if path.exists()]
    if file is not None:
        paths = [file]
    files = [sources.read_file(path) for path in paths]
    entries = _merge(files)
    env: dict[str, str] = {}
    env_file, env_path = Layer({}), None
    if "env" in entries:
        env, env_file = sources.read_env_file(entries["env"], environ)
        env_path = sources.env_file_of(entries["env"])
    environment = sources.read_environment(environ, env, folder)
    all_flags = {"graphs": (parse_places(graphs) or None, "the command line"), **flags}
    given = {
        key: GivenValue(value, name, "", folder)
        for key, (value, name) in all_flags.items()
        if value is not None
    }
    ignored = [each for layer in (*files, env_file, environment) for each in layer.ignored]
    configuration = ResolvedConfig(
        _merge([*files, environment, Layer(given)]),
        next((path.absolute().parent for path in reversed(paths)), folder),
        env=env,
        files=paths[::-1],
        ignored=ignored,
        empty_tables=[name for layer in files for name in layer.empty_tables],
        env_file=env_path,
    )
    if not has_key and "keys" not in configuration:
        _refuse_unencrypted(ignored)
    return configuration


def set_variables(env: Mapping[str, str]) -> None:
    """Set the configuration's variables for graphs, except those that are set already."""
    for name, value in env.items():
        os.environ.setdefault(name, value)


def add_import_folders(folders: Sequence[Path]) -> None:
    """Make modules of these folders importable, after installed ones of the same name."""
    sys.path.extend(str(folder) for folder in folders if str(folder) not in sys.path)


def make_folder_of(url: str) -> None:
    """Create the folder of the development database, ignored by git, if the URL is that database's.

    Raises:
        BadSetting: The folder cannot be created or written.
    """
    if url == DEVELOPMENT_URL:
        folder = Path(DEVELOPMENT_FOLDER)
        try:
            folder.mkdir(exist_ok=True)
            (folder / ".gitignore").write_text("*\n", encoding="utf-8")
        except OSError as error:
            raise BadSetting(
                f"the folder {folder.absolute()} of the development database cannot be written: "
                f"{error.strerror}; make it writable, or name another database, e.g. --db sqlite:////tmp/dev.db"
            ) from error


def _merge(layers: Sequence[Layer]) -> dict[str, GivenValue]:
    return {key: entry for layer in layers for key, entry in layer.entries.items()}


def _refuse_unencrypted(ignored: Sequence[str]) -> None:
    """Raise ``BadSetting`` if ``langgraph.json`` has an entry ``encryption``, which names code that encrypts.
    Ignoring it would store data unencrypted against the project's intention."""
    entry = next((each for each in ignored if each.startswith("encryption in ")), None)
    if entry:
        raise BadSetting(
            f"{entry} is not supported, and ignoring it would store everything unencrypted; pass "
            "--keys with a key file or aws-kms:KEY, set PERDURE_KEYS, or remove the entry"
        )
