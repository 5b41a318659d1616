"""Configuration of a worker: its graphs, database, runtime settings, and the address of its metrics.

It reads the same sources as a server. Settings that only servers use are checked one by one, and then
ignored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from perdure.config.common import CommonConfig, load_common
from perdure.config.resolve import ResolvedConfig, make_runtime_settings, resolve_config
from perdure.config.retention import flag_name
from perdure.errors import BadSetting
from perdure.runtime.settings import Settings


class HostPort(NamedTuple):
    """Address to listen on; port 0 takes a free one."""

    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig(CommonConfig):
    """Checked configuration of a worker.

    Attributes:
        channels: Place of a mapping of names to ``Channel``.
        settings: Settings of the runtime.
        webhook_hosts: Hosts that webhooks may call although they are not public; ``None`` disables webhooks.
        webhook_secrets: Secrets that sign webhooks.
        metrics: Address at which metrics are served, if at all.
    """

    channels: str | None
    settings: Settings
    webhook_hosts: tuple[str, ...] | None
    webhook_secrets: tuple[str, ...] = field(repr=False)
    metrics: HostPort | None


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
        keys: The provider that wraps the keys of stored data.

    Raises:
        BadSetting: A source cannot be read, or has an invalid setting.
    """
    flags = {f"runtime.{name}": (value, flag_name(name)) for name, value in (runtime or {}).items()}
    configuration = resolve_config(
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
    return WorkerConfig(
        **load_common(configuration, "perdure worker app:graph"),
        channels=channels and configuration.resolve_place(channels, Path.cwd()),
        settings=make_runtime_settings(configuration.runtime()),
        webhook_hosts=None if configuration["http.disable_webhooks"] else configuration["http.webhook_hosts"],
        webhook_secrets=configuration["http.webhook_secrets"],
        metrics=_find_metrics_address(configuration),
    )


def _find_metrics_address(configuration: ResolvedConfig) -> HostPort | None:
    host, port = configuration["metrics.host"], configuration["metrics.port"]
    if port is None and "metrics.host" in configuration:
        raise BadSetting(
            f"{configuration.name('metrics.host')} is the host for metrics, but no port is set for them; "
            "set metrics.port, or pass --metrics-port"
        )
    if port is None:
        return None
    return HostPort(host, port)
