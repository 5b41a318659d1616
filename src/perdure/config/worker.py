"""Configuration of a worker: its graphs, database, runtime settings, and the address of its metrics.

It reads the same sources as a server. Settings that only servers use are checked on their own, and then
ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from langgraph.store.base import TTLConfig

from perdure.config.agents import AgentSettings, agent_settings
from perdure.config.channels import chat_channels
from perdure.config.resolve import GraphPlace, ResolvedConfig, resolve_config, runtime_settings
from perdure.config.retention import RetentionSettings, read_retention
from perdure.config.store_index import StoreIndex
from perdure.errors import BadSetting
from perdure.runtime.settings import Settings
from perdure.storage.key_providers import KeyProvider


class HostPort(NamedTuple):
    """Address to listen on; port 0 takes a free one."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Checked configuration of a worker.

    ``agents`` are schemas and policies of conversations by graph. ``channels`` is the place of a mapping of
    names to ``Channel``, ``chats`` are the settings of chat channels by provider, ``store`` is the argument
    for ``Runtime(store_ttl=…)``. ``webhook_hosts`` are hosts that webhooks may call although they are not
    public; ``None`` disables webhooks; ``webhook_secrets`` sign them. ``metrics`` is the address at which
    they are served, if at all. ``env``, ``root``, ``sources`` and ``ignored`` are those of
    ``perdure.config.resolve.ResolvedConfig``.
    """

    database_url: str = field(repr=False)
    keys: KeyProvider | None
    graphs: Mapping[str, GraphPlace]
    agents: AgentSettings
    assistants: Mapping[str, Mapping[str, Any]] = field(repr=False)
    channels: str | None
    chats: Mapping[str, Mapping[str, Any]] = field(repr=False)
    settings: Settings
    store: TTLConfig | None
    store_index: StoreIndex | None
    store_url: str | None = field(repr=False)
    retention: RetentionSettings
    development: bool
    webhook_hosts: tuple[str, ...] | None
    webhook_secrets: tuple[str, ...] = field(repr=False)
    metrics: HostPort | None
    env: Mapping[str, str] = field(repr=False)
    import_folders: tuple[Path, ...]
    root: Path
    sources: tuple[str, ...]
    ignored: tuple[str, ...]


def load(
    *,
    file: Path | None,
    graphs: Sequence[str] = (),
    db: str | None = None,
    channels: str | None = None,
    runtime: Mapping[str, Any] | None = None,
    metrics_host: str | None = None,
    metrics_port: int | None = None,
    environ: Mapping[str, str],
    keys: str | None = None,
) -> WorkerConfig:
    """Return the configuration of a worker. A flag that was not given is ``None``.

    Args:
        file: The only file to read, as for ``resolve_config``.
        graphs: Graphs as ``[NAME=]PLACE``, as for ``resolve_config``.
        db: The URL of the database.
        channels: The place of the channels.
        runtime: Flags by the names of ``perdure.runtime.Settings``.
        metrics_host: The host at which metrics are served.
        metrics_port: The port at which metrics are served.
        environ: The environment.
        keys: What wraps the keys of stored data.

    Raises:
        BadSetting: A source cannot be read, or has an invalid setting.
    """
    flags = {f"runtime.{name}": (value, _flag(name)) for name, value in (runtime or {}).items()}
    settled = resolve_config(
        file=file,
        graphs=graphs,
        flags={
            "database_url": (db, "--db"),
            "keys": (keys, "--keys"),
            "metrics.host": (metrics_host, "--metrics-host"),
            "metrics.port": (metrics_port, "--metrics-port"),
            **flags,
        },
        environ=environ,
    )
    named = settled.graphs("perdure worker app:graph")
    return WorkerConfig(
        database_url=settled.database_url(),
        keys=settled.key_provider(),
        graphs=named,
        agents=agent_settings(settled, named),
        assistants=settled.assistants("perdure worker app:graph"),
        channels=None if channels is None else settled.resolve_place(channels, Path.cwd()),
        chats=chat_channels(settled),
        settings=runtime_settings(settled.runtime()),
        store=settled.store_ttl(),
        store_index=settled.store_index(),
        store_url=settled.store_url(),
        retention=read_retention(settled),
        development=bool(settled["development"]),
        webhook_hosts=None if settled["http.disable_webhooks"] else settled["http.webhook_hosts"],
        webhook_secrets=settled["http.webhook_secrets"],
        metrics=_metrics(settled),
        env=settled.env,
        import_folders=settled.import_folders(),
        root=settled.root,
        sources=settled.sources,
        ignored=settled.ignored,
    )


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _metrics(settled: ResolvedConfig) -> HostPort | None:
    host, port = settled["metrics.host"], settled["metrics.port"]
    if port is None and "metrics.host" in settled:
        raise BadSetting(
            f"{settled.name('metrics.host')} is the host for metrics, but no port is set for them; "
            "set metrics.port, or pass --metrics-port"
        )
    return None if port is None else HostPort(host, port)
