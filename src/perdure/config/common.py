"""The configuration that a server and a worker share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from langgraph.store.base import TTLConfig

from perdure.config.agents import AgentSettings, resolve_agent_settings
from perdure.config.channels import find_chat_channels
from perdure.config.resolve import GraphPlace, ResolvedConfig
from perdure.config.retention import RetentionSettings, read_retention
from perdure.config.store_index import StoreIndex
from perdure.storage.key_providers import KeyProvider


@dataclass(frozen=True, slots=True, kw_only=True)
class CommonConfig:
    """Checked configuration of a process that runs graphs.

    Attributes:
        database_url: URL of the database.
        keys: Wraps the keys of stored data, if it is encrypted.
        graphs: Places of the graphs by name.
        agents: Schemas and policies of conversations by graph.
        assistants: Configs of the graphs' default assistants.
        chats: Settings of chat channels by provider.
        store: Argument for ``Runtime(store_ttl=…)``.
        store_index: Index of the store, if it has one.
        store_url: URL of the store's database, if it has one of its own.
        retention: Policies for stored threads.
        development: True in development mode.
        env: Variables to set before a graph is imported; none of them is set yet.
        import_folders: Folders that are made importable for graphs.
        root: Folder of the configuration file, the project's.
        sources: Files and names of the variables that were used, which may be logged.
        ignored: Settings without effect, which may be logged.
    """

    database_url: str = field(repr=False)
    keys: KeyProvider | None
    graphs: Mapping[str, GraphPlace]
    agents: AgentSettings
    assistants: Mapping[str, Mapping[str, Any]] = field(repr=False)
    chats: Mapping[str, Mapping[str, Any]] = field(repr=False)
    store: TTLConfig | None
    store_index: StoreIndex | None
    store_url: str | None = field(repr=False)
    retention: RetentionSettings
    development: bool
    env: Mapping[str, str] = field(repr=False)
    import_folders: tuple[Path, ...]
    root: Path
    sources: tuple[str, ...]
    ignored: tuple[str, ...]


def load_common(configuration: ResolvedConfig, command: str) -> dict[str, Any]:
    """Return the fields of ``CommonConfig``.

    Args:
        configuration: The resolved settings.
        command: An example of a command that names graphs, for error messages.

    Raises:
        BadSetting: A setting is missing or cannot work.
    """
    # In this order, the first setting that is missing is reported.
    graphs = configuration.graphs(command)
    url, keys = configuration.database_url(), configuration.key_provider()
    return {
        "database_url": url,
        "keys": keys,
        "graphs": graphs,
        "agents": resolve_agent_settings(configuration, graphs),
        "assistants": configuration.assistants(command),
        "chats": find_chat_channels(configuration),
        "store": configuration.store_ttl(),
        "store_index": configuration.store_index(),
        "store_url": configuration.store_url(),
        "retention": read_retention(configuration),
        "development": bool(configuration["development"]),
        "env": configuration.env,
        "import_folders": configuration.import_folders(),
        "root": configuration.root,
        "sources": configuration.sources,
        "ignored": configuration.ignored,
    }
