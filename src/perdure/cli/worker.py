"""Command ``perdure worker``: its options, and the checks before a worker process starts.

The first SIGTERM or SIGINT stops it: nothing more is claimed, current runs may continue for a while, and the
rest is handed over.
"""

from __future__ import annotations

import os
from enum import StrEnum
from typing import Annotated, Any

import typer

from perdure.cli.app import ConfigFile, Keys, ServedDb, Tenant
from perdure.cli.logs import LogLevel
from perdure.errors import BadUrl, NotAllowed
from perdure.storage.url import backend_of, redact


class OnFailure(StrEnum):
    """Treatment of the checkpoints of a failed run."""

    ROLLBACK = "rollback"
    KEEP = "keep"


def worker(
    graphs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[NAME=]MODULE:GRAPH",
            help="A graph, compiled or not, an Agent, or a function that returns one; without a name it is "
            "called agent. Without any, those of perdure.toml or langgraph.json",
        ),
    ] = None,
    *,
    config: ConfigFile = None,
    channels: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:CHANNELS", help="The channels for replies: a mapping of names to Channel"
        ),
    ] = None,
    concurrency: Annotated[
        int | None, typer.Option(help="The number of runs at once", show_default="32")
    ] = None,
    lease: Annotated[
        float | None,
        typer.Option(help="Seconds after a crash until a run continues elsewhere", show_default="30"),
    ] = None,
    poll: Annotated[
        float | None, typer.Option(help="Seconds between polls for due messages", show_default="1")
    ] = None,
    attempts: Annotated[
        int | None, typer.Option(help="The number of attempts before a run has failed", show_default="5")
    ] = None,
    on_failure: Annotated[
        OnFailure | None,
        typer.Option(
            help="Restore the thread after a failed run, or keep what the run stored",
            show_default="rollback",
        ),
    ] = None,
    per_tenant: Annotated[
        int | None, typer.Option(help="The number of runs of one tenant at once", show_default="no limit")
    ] = None,
    keep: Annotated[
        float | None,
        typer.Option(help="Seconds for which the outcome of a message is remembered", show_default="a week"),
    ] = None,
    deadline: Annotated[
        float | None, typer.Option(help="Seconds that a run may take in all", show_default="no limit")
    ] = None,
    drain: Annotated[
        float | None,
        typer.Option(help="Seconds for which runs may continue after a signal to stop", show_default="25"),
    ] = None,
    all_tenants: Annotated[
        bool, typer.Option("--all-tenants", help="Work for every tenant, in turn")
    ] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            help="Serve /metrics for Prometheus there; 0 takes a free port", show_default="not served"
        ),
    ] = None,
    metrics_host: Annotated[
        str | None, typer.Option(help="The address to serve them at", show_default="127.0.0.1")
    ] = None,
    log_level: Annotated[
        LogLevel, typer.Option(help="Log from this level on; debug has a line for each run")
    ] = LogLevel.INFO,
    db: ServedDb = None,
    tenant: Tenant = "",
    keys: Keys = None,
) -> None:
    """Run graphs for accepted messages, in a process of its own.

    With a graph in ./app.py, and messages that other processes accept:

      perdure worker app:graph --db postgresql://me@host/threads

    Several graphs have names, which callers use to accept messages for them:

      perdure worker sales=app:sales support=desk.agents:support

    With the configuration of a server it needs no arguments: it runs the graphs
    of ./perdure.toml or ./langgraph.json, on the database that is named there or
    in DATABASE_URL, with the same settings. A flag takes precedence over a
    variable, that over a file:

      perdure worker --all-tenants --metrics-port 9464

    Start as many workers as you need. SIGTERM or Ctrl-C stops one: it claims
    nothing more, lets its runs continue for --drain seconds, hands over the
    rest, and ends with exit code 0; give it that time before you kill it. A
    second signal ends it at once, with 143 or 130. Nothing is lost then
    either: its runs continue elsewhere after --lease seconds.
    """
    if all_tenants and tenant:
        raise NotAllowed(
            f"--all-tenants and the tenant {tenant!r} exclude each other; leave one out (PERDURE_TENANT sets "
            "the tenant, too)"
        )
    from perdure.runtime.log_output import configure_logging

    configure_logging(log_level)

    from perdure.cli.worker_process import TenantScope, work
    from perdure.config.worker import load

    runtime: dict[str, Any] = {
        "concurrency": concurrency,
        "lease": lease,
        "poll": poll,
        "attempts": attempts,
        "on_failure": None if on_failure is None else on_failure.value,
        "per_tenant": per_tenant,
        "keep": keep,
        "deadline": deadline,
        "drain": drain,
    }
    loaded = load(
        file=config,
        graphs=graphs or (),
        db=db,
        channels=channels,
        runtime=runtime,
        metrics_host=metrics_host,
        metrics_port=metrics_port,
        environ=os.environ,
        keys=keys,
    )
    if not backend_of(loaded.database_url).SCHEMA_VERSION:
        raise BadUrl(
            f"{redact(loaded.database_url)} is this process's alone: no message would ever get here. Name a "
            "database that others can reach"
        )
    work(loaded, TenantScope(tenant, all_tenants))
