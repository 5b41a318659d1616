"""Who is loaded: the servers by name, what of each is installed, how it is started, and what it keeps.

Nothing of the others is imported here or needed by Perdure: each is a program in an environment of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

PERDURE, PERDURE_PG, LANGGRAPH, AEGRA, AEGRA_REDIS = (
    "perdure-sqlite",
    "perdure-postgres",
    "langgraph-dev",
    "aegra",
    "aegra-redis",
)
CONCURRENCY = 256
"""Runs at once, where there is such a setting: its default, 10 to 32, would be all that a ramp finds."""
_AEGRA_WORKERS = 3


class Start(NamedTuple):
    """A program, and what its environment has besides."""

    command: list[str]
    environment: dict[str, str]


class Site(NamedTuple):
    """Where a server is started: the folder of `bin` of its environment, a folder for its files, its port,
    and the URLs of its databases by the name of what keeps them."""

    programs: Path
    folder: Path
    port: int
    urls: Mapping[str, str]


@dataclass(frozen=True)
class Host:
    """`keeps` is what is safe when a request is answered. `packages` are installed in an environment of the
    host's own; without any it runs in this one. `health` is answered once it is ready. One that
    does not sleep is left to idle while others are measured: reads of its queue would end while it is
    stopped, after which it waits for seconds."""

    label: str
    keeps: str
    start: Callable[[Site], Start]
    packages: tuple[str, ...] = ()
    shown: tuple[str, ...] = ("perdure",)
    needs: tuple[str, ...] = ()
    least_python: tuple[int, int] = (3, 11)
    health: str = "/ok"
    sleeps: bool = True


def _perdure(site: Site) -> Start:
    database = site.urls.get("postgres") or f"sqlite:///{(site.folder / 'threads.db').resolve()}"
    program = [sys.executable, "-c", "from perdure.cli import main; main()"]
    command = [*program, "serve", "--dev", "--log-level", "warning", "--port", str(site.port)]
    return Start(command, {"PERDURE_DB": database, "PERDURE_RUNTIME_CONCURRENCY": str(CONCURRENCY)})


def _langgraph(site: Site) -> Start:
    quiet = ["--no-browser", "--no-reload", "--allow-blocking", "--server-log-level", "WARNING"]
    size = ["--n-jobs-per-worker", str(CONCURRENCY), "--port", str(site.port)]
    return Start(
        [str(site.programs / "langgraph"), "dev", *quiet, *size],
        {
            "LANGSMITH_TRACING": "false",
            "LANGGRAPH_CLI_NO_ANALYTICS": "1",
            "LANGGRAPH_NO_VERSION_CHECK": "true",
        },
    )


def _aegra(site: Site) -> Start:
    where = ["--host", "127.0.0.1", "--port", str(site.port)]
    quiet = ["--no-access-log", "--log-level", "warning"]
    environment = {
        "DATABASE_URL": site.urls["postgres"],
        "AEGRA_CONFIG": "langgraph.json",
        "AUTH_TYPE": "noop",
        "ENV_MODE": "PRODUCTION",
        "LOG_LEVEL": "ERROR",
    }
    if redis := site.urls.get("redis"):
        environment |= {
            "REDIS_BROKER_ENABLED": "true",
            "REDIS_URL": redis,
            "WORKER_COUNT": str(_AEGRA_WORKERS),
            "N_JOBS_PER_WORKER": str(-(-CONCURRENCY // _AEGRA_WORKERS)),
        }
    return Start([str(site.programs / "uvicorn"), "aegra_api.main:app", *where, *quiet], environment)


_OURS = (
    "the run before it begins, every step before the next one, the end before the answer; accepted runs "
    "continue after a crash"
)
_AEGRA_PACKAGES = ("aegra-api==0.11.0",)
_AEGRA_SHOWN = ("aegra-api", "langgraph")

HOSTS: dict[str, Host] = {
    PERDURE: Host("**Perdure**, SQLite", _OURS, _perdure),
    PERDURE_PG: Host("**Perdure**, PostgreSQL", _OURS, _perdure, needs=("postgres",)),
    LANGGRAPH: Host(
        "`langgraph dev`",
        "nothing: threads and runs are in memory, which is pickled to files every 10 s; a crash loses what "
        "came since, and the runs under way",
        _langgraph,
        packages=("langgraph-cli[inmem]==0.4.40", "langgraph-api==0.16.7"),
        shown=("langgraph-api", "langgraph"),
    ),
    AEGRA: Host(
        "Aegra, PostgreSQL",
        "the run's row before it begins, a step's checkpoint while the next one runs; a run under way is "
        "lost in a crash",
        _aegra,
        packages=_AEGRA_PACKAGES,
        shown=_AEGRA_SHOWN,
        needs=("postgres",),
        least_python=(3, 12),
        health="/live",
    ),
    AEGRA_REDIS: Host(
        "Aegra, PostgreSQL and Valkey",
        "as without Valkey; queue and events go through it, and a run under way is taken up again once its "
        "lease is over",
        _aegra,
        packages=_AEGRA_PACKAGES,
        shown=_AEGRA_SHOWN,
        needs=("postgres", "redis"),
        least_python=(3, 12),
        health="/live",
        sleeps=False,
    ),
}
