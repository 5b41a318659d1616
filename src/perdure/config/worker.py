"""What a worker is told: which graphs, on which database, how it runs them, and where metrics are.

It reads what a server reads. A setting that only servers use has to be one that can be used, and nothing
more: who may come in, and over which routes, is not a worker's matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from langgraph.store.base import TTLConfig

from perdure.config.resolve import GraphPlace, ResolvedConfig, settle
from perdure.errors import BadSetting
from perdure.runtime.settings import Settings


class HostPort(NamedTuple):
    """Where something listens; port 0 takes a free one."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """A worker's configuration, checked.

    ``channels`` is the place of a mapping of names to ``Channel``, ``store`` is for
    ``Runtime(store_ttl=…)``. ``webhook_hosts`` may be called at the end of runs although they are not public;
    ``None`` calls no webhook. ``metrics`` is where they are served, if anywhere. ``env``, ``root``,
    ``sources`` and ``ignored`` are those of ``perdure.config.resolve.Settled``.
    """

    database_url: str = field(repr=False)
    graphs: Mapping[str, GraphPlace]
    channels: str | None
    settings: Settings
    store: TTLConfig | None
    development: bool
    webhook_hosts: tuple[str, ...] | None
    metrics: HostPort | None
    env: Mapping[str, str] = field(repr=False)
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
    has_key: bool = False,
) -> WorkerConfig:
    """The configuration of a worker; ``file`` and ``graphs`` are as for ``settle``. ``runtime`` has flags by
    the names of ``perdure.runtime.Settings``; a flag that was not given is ``None``. ``has_key`` says that
    what is stored is sealed."""
    flags = {f"runtime.{name}": (value, _flag(name)) for name, value in (runtime or {}).items()}
    settled = settle(
        file=file,
        graphs=graphs,
        flags={
            "database_url": (db, "--db"),
            "metrics.host": (metrics_host, "--metrics-host"),
            "metrics.port": (metrics_port, "--metrics-port"),
            **flags,
        },
        environ=environ,
        has_key=has_key,
    )
    return WorkerConfig(
        database_url=settled.database_url(),
        graphs=settled.graphs("perdure worker app:graph"),
        channels=None if channels is None else settled.placed(channels, Path.cwd()),
        settings=Settings(**settled.runtime()),
        store=settled.store_ttl(),
        development=bool(settled["development"]),
        webhook_hosts=None if settled["http.disable_webhooks"] else settled["http.webhook_hosts"],
        metrics=_metrics(settled),
        env=settled.env,
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
            f"{settled.name('metrics.host')} says where metrics are served, and nothing says at which port; "
            "set metrics.port, or pass --metrics-port"
        )
    return None if port is None else HostPort(host, port)
