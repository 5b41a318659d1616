"""Servers and workers of one database as an operator runs them, each a process of its own under a command
line of ``perdure``; any of them can be killed, told to stop, and started again where it was."""

from __future__ import annotations

import asyncio
import functools
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path
from typing import Any

import httpx
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient

import perdure
from tests.chaos import talker
from tests.servers.ports import free_port

WITHIN_S = 60.0
"""How long anything is waited for. Nothing takes that long but a machine that has something else to do."""
LEASE_S = 2.0
DRAIN_S = 10.0
GRAPH = "agent"
_TIMEOUT: Any = httpx.Timeout(WITHIN_S)
_PATIENCE = "patience=1"


@functools.cache
def processes() -> ForkServerContext:
    """Processes that are forked from one that imported everything once."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        [__name__, "perdure.cli", "perdure.server.hosting.process", "perdure.runtime"]
    )
    return context


def live(words: Sequence[str], folder: str, log: str) -> None:
    """Be ``perdure`` with a command line."""
    os.chdir(folder)
    said = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(said, stream.fileno())
    sys.argv = ["perdure", *words]
    from perdure.cli import main

    main()


class Member:
    """A process of a fleet. ``gone`` is set when the one that runs now is killed."""

    def __init__(self, name: str, words: Sequence[str], folder: Path) -> None:
        self.name = name
        self.gone = asyncio.Event()
        self._words = words
        self._folder = folder
        self._log = folder / f"{name}.log"
        self._process: ForkServerProcess | None = None
        self._heard = 0

    @property
    def process(self) -> ForkServerProcess:
        assert self._process is not None, f"{self.name} was not started"
        return self._process

    @property
    def said(self) -> str:
        """What the process that runs now has said."""
        return self._log.read_text()[self._heard :] if self._log.exists() else ""

    def start(self) -> None:
        self._heard = len(self._log.read_text()) if self._log.exists() else 0
        self.gone = asyncio.Event()
        self._process = processes().Process(
            target=live, args=(self._words, str(self._folder), str(self._log)), daemon=True
        )
        self._process.start()

    async def ready(self) -> None:
        """Return when it does its work."""
        deadline = time.monotonic() + WITHIN_S
        while not await self._is_ready():
            assert self.process.is_alive(), f"{self.name} ended with {self.process.exitcode}: {self.said}"
            assert time.monotonic() < deadline, f"{self.name} does not begin: {self.said}"
            await asyncio.sleep(0.05)

    async def _is_ready(self) -> bool:
        return " runs " in self.said

    def kill(self) -> None:
        """End it as a power cut would."""
        self.process.kill()
        self.process.join()
        self.gone.set()

    async def stop(self) -> int | None:
        """Ask it to end, in order; its exit code, or ``None`` if it does not."""
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGTERM)
        await asyncio.to_thread(self.process.join, WITHIN_S)
        return self.process.exitcode


class Server(Member):
    """A server that accepts runs and leaves them to workers."""

    def __init__(self, name: str, database: str, folder: Path) -> None:
        self.port = free_port()
        place = f"{GRAPH}=./agents.py:graph"
        words = ("serve", place, "--no-work", "--db", database, "--port", str(self.port))
        super().__init__(name, words, folder)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> LangGraphClient:
        """LangGraph's own client, as it is."""
        return get_client(url=self.url, api_key=None, timeout=_TIMEOUT)

    def http(self) -> httpx.AsyncClient:
        """For what LangGraph's client does not show."""
        return httpx.AsyncClient(base_url=self.url, timeout=_TIMEOUT, trust_env=False)

    async def _is_ready(self) -> bool:
        try:
            async with self.http() as client:
                return (await client.get("/ready")).is_success
        except httpx.TransportError:
            return False


class Fleet:
    """Two servers and two workers on a database."""

    def __init__(self, database: str, folder: Path) -> None:
        self.folder = folder
        shutil.copy(talker.__file__, folder / "agents.py")
        # One that is lost is not waited for longer than tests take.
        self.database = f"{database}{'&' if '?' in database else '?'}{_PATIENCE}"
        with perdure.connect_sync(self.database, migrate=True):
            """Only its schema is wanted."""
        work = ("worker", f"{GRAPH}=./agents.py:graph", "--all-tenants", "--db", self.database)
        how = ("--lease", str(LEASE_S), "--poll", "0.25", "--drain", str(DRAIN_S))
        self.servers = [Server(f"server-{n}", self.database, folder) for n in range(2)]
        self.workers = [Member(f"worker-{n}", (*work, *how), folder) for n in range(2)]

    @property
    def members(self) -> list[Member]:
        return [*self.servers, *self.workers]

    async def ready(self) -> None:
        """Return when all of them work."""
        for member in self.members:
            await member.ready()

    def repeated(self) -> list[str]:
        """The steps that were executed again after they had been stored."""
        notes = self.folder / "notes"
        return talker.repeated(notes.read_text()) if notes.exists() else []

    def damage(self) -> list[str]:
        """What ``perdure fsck`` finds."""
        with perdure.connect_sync(self.database) as database:
            return [str(finding) for finding in database.fsck()]


@contextmanager
def fleet(database: str) -> Iterator[Fleet]:
    """A fleet that has begun; it is killed at the end."""
    with tempfile.TemporaryDirectory(prefix="perdure-fleet-") as folder:
        sailing = Fleet(database, Path(folder))
        for member in sailing.members:
            member.start()
        try:
            yield sailing
        finally:
            for member in sailing.members:
                member.kill()
