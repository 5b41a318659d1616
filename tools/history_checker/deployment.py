"""A deployment as an operator runs it: servers and workers, each a process under a command line of the
product, and clients of the library, processes of their own. Each can be killed, paused, and started again."""

from __future__ import annotations

import functools
import multiprocessing
import os
import re
import signal
import socket
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import httpx

from . import defects, served_agents

GRAPH = "agent"
LEASE_S = 2.0
_STARTING_S = 180.0
_STOPPING_S = 60.0
_SETTINGS = f"""
[graphs]
{GRAPH} = "./agents.py:graph"

[auth]
path = "./agents.py:auth"
tenant_claims = ["org_id"]

[http]
webhook_hosts = ["127.0.0.1"]

[runtime]
lease = {LEASE_S}
poll = 0.25
drain = 5.0
backoff = 0.2
max_backoff = 1.0
"""


@functools.cache
def processes() -> ForkServerContext:
    """Return what forks processes from one that imported everything once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [__name__, "perdure.cli", "perdure.server.hosting.process", "perdure.runtime"]
    )
    return context


def be_program(words: Sequence[str], folder: str, log: str, defect: str | None) -> None:
    """Be ``perdure`` with a command line, with a defect if one is named."""
    _write_to(folder, log)
    sys.argv = ["perdure", *words]
    if defect is not None:
        defects.apply(defect)
    from perdure.cli import main

    main()


def be_client(
    work: Callable[..., None], arguments: Sequence[Any], folder: str, log: str, defect: str | None
) -> None:
    """Be a program that uses the library."""
    _write_to(folder, log)
    if defect is not None:
        defects.apply(defect)
    work(*arguments)


def _write_to(folder: str, log: str) -> None:
    os.chdir(folder)
    said = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(said, stream.fileno())


class Member:
    """A process of a deployment, which may be started again."""

    def __init__(self, name: str, folder: Path, target: Callable[..., None], *arguments: Any) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._start = (target, arguments)
        self._process: ForkServerProcess | None = None

    @property
    def process(self) -> ForkServerProcess:
        if self._process is None:
            raise RuntimeError(f"{self.name} was not started")
        return self._process

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.is_alive()

    def start(self) -> None:
        target, arguments = self._start
        self._process = processes().Process(target=target, args=arguments, daemon=True)
        self._process.start()

    def signal(self, number: signal.Signals) -> None:
        if self.is_alive and self.process.pid is not None:
            os.kill(self.process.pid, number)

    def kill(self) -> None:
        """End it as a power cut would."""
        self.signal(signal.SIGKILL)
        if self._process is not None:
            self._process.join()

    def stop(self) -> None:
        """Ask it to end, in order; it is killed if it does not."""
        self.signal(signal.SIGTERM)
        self.process.join(_STOPPING_S)
        self.kill()

    def finish(self) -> None:
        """Start it and return when it has come to its end.

        Raises:
            RuntimeError: it failed, or takes too long.
        """
        self.start()
        self.process.join(_STARTING_S)
        if self.process.exitcode != 0:
            raise RuntimeError(f"{self.name} fails: {self.log.read_text()[-2000:]}")

    def wait_until_ready(self) -> None:
        """Return when it works."""

    def _await(self, is_ready: Callable[[], bool]) -> None:
        deadline = time.monotonic() + _STARTING_S
        while not is_ready():
            if not self.is_alive or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} does not start: {self.log.read_text()[-2000:]}")
            time.sleep(0.1)


class Server(Member):
    """A server, which may leave its runs to workers."""

    def __init__(self, name: str, folder: Path, database: str, defect: str | None, *, works: bool) -> None:
        self.port = free_port()
        words = ["serve", "--db", database, "--port", str(self.port), *([] if works else ["--no-work"])]
        super().__init__(name, folder, be_program, words, str(folder), str(folder / f"{name}.log"), defect)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def wait_until_ready(self) -> None:
        self._await(self._is_ready)

    def _is_ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/ready", timeout=10.0, trust_env=False).is_success
        except httpx.TransportError:
            return False


class Worker(Member):
    """A worker of all tenants."""

    def __init__(self, name: str, folder: Path, database: str, defect: str | None) -> None:
        words = ["worker", "--db", database, "--all-tenants"]
        super().__init__(name, folder, be_program, words, str(folder), str(folder / f"{name}.log"), defect)
        self._heard = 0

    def start(self) -> None:
        self._heard = self.log.stat().st_size if self.log.exists() else 0
        super().start()

    def wait_until_ready(self) -> None:
        self._await(lambda: self.log.exists() and " runs " in self.log.read_text()[self._heard :])


class Deployment:
    """The members of a deployment in a folder; leaving it ends them all."""

    def __init__(
        self, folder: Path, database: str, *, servers: int, workers: int, defect: str | None
    ) -> None:
        self.folder = folder
        self._project = Path(served_agents.__file__).read_text()
        self._version = 1
        (folder / "agents.py").write_text(self._project)
        (folder / "perdure.toml").write_text(_SETTINGS)
        self.servers = [Server(f"server-{n}", folder, database, defect, works=n == 0) for n in range(servers)]
        self.workers = [Worker(f"worker-{n}", folder, database, defect) for n in range(workers)]
        self.clients: list[Member] = []
        self._database, self._defect = database, defect

    @property
    def members(self) -> list[Member]:
        return [*self.servers, *self.workers, *self.clients]

    def __enter__(self) -> Deployment:
        migration = Member(
            "migration", self.folder, be_program, ["migrate", "--db", self._database], str(self.folder),
            str(self.folder / "migration.log"), None,
        )  # fmt: skip
        migration.finish()
        for member in self.members:
            member.start()
        for member in self.members:
            member.wait_until_ready()
        return self

    def __exit__(self, *_: object) -> None:
        for member in self.members:
            member.kill()

    def add_client(self, name: str, work: Callable[..., None], *arguments: Any) -> None:
        """Add a process that runs a function, by its name on the command line and its arguments."""
        log = str(self.folder / f"{name}.log")
        self.clients.append(
            Member(name, self.folder, be_client, work, arguments, str(self.folder), log, self._defect)
        )

    def write_next_version(self) -> None:
        """Put a newer version of the project in the place of this one, for processes that start later."""
        self._version += 1
        newer = re.sub(r"^VERSION = \d+", f"VERSION = {self._version}", self._project, flags=re.MULTILINE)
        whole = self.folder / "agents.new"
        whole.write_text(newer)
        whole.replace(self.folder / "agents.py")


def free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
