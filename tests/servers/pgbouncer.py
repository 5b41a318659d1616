"""A private PgBouncer, from the system's packages, before a private PostgreSQL."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.conftest import missing
from tests.servers import postgres
from tests.servers.certificates import Issued
from tests.servers.ports import free_port
from tests.servers.postgres import Postgres

_READY_S = 60


class PgBouncer:
    """A pooler in ``transaction`` mode with few server connections, so that those of a client change often.
    With ``tls`` it takes no client that does not encrypt."""

    def __init__(self, server: Postgres, *, size: int = 3, tls: Issued | None = None) -> None:
        program = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")
        if program is None:
            missing("pgbouncer", "install it with your system's packages (Debian: apt-get install pgbouncer)")
            raise AssertionError
        self._program = program
        self.folder = Path(tempfile.mkdtemp(prefix="perdure-pgb-", dir="/tmp"))
        self.port = free_port()
        self.process: subprocess.Popen[bytes] | None = None
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            nobody = pwd.getpwnam("nobody")
            self._as = {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}
            os.chown(self.folder, nobody.pw_uid, nobody.pw_gid)
        settings: dict[str, Any] = {
            "listen_addr": "127.0.0.1",
            "listen_port": self.port,
            "unix_socket_dir": "",
            "auth_type": "any",
            "pool_mode": "transaction",
            "default_pool_size": size,
            "max_client_conn": 300,
            "ignore_startup_parameters": "extra_float_digits",
        }
        if tls is not None:
            settings |= {"client_tls_sslmode": "require"}
            for name, content in (("cert", tls.certificate), ("key", tls.key)):
                file = self.folder / name
                file.write_bytes(content)
                file.chmod(0o600)
                if self._as:
                    os.chown(file, self._as["user"], self._as["group"])
                settings[f"client_tls_{name}_file"] = str(file)
        lines = [f"{name} = {value}" for name, value in settings.items()]
        target = f"* = host=127.0.0.1 port={server.port} user=postgres"
        (self.folder / "pgbouncer.ini").write_text("\n".join(("[databases]", target, "[pgbouncer]", *lines)))
        self.start()

    def start(self) -> None:
        """Start it, or start it again on its port."""
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(
                [self._program, "-q", self.folder / "pgbouncer.ini"],
                stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, cwd=self.folder, **self._as,
            )  # fmt: skip
        deadline = time.monotonic() + _READY_S
        while not self._ready():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"pgbouncer did not start: {(self.folder / 'log').read_text()[-2000:]}")
            time.sleep(0.02)

    def stop(self, how: signal.Signals = signal.SIGKILL) -> None:
        """Stop it; SIGKILL cuts every connection as a crash does."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(how)
            self.process.wait(_READY_S)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _ready(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


@contextmanager
def pooled(server: Postgres | None = None, tls: Issued | None = None) -> Iterator[PgBouncer]:
    """A pooler before a server, the shared one unless another is given."""
    bouncer = PgBouncer(server or postgres.shared(), tls=tls)
    try:
        yield bouncer
    finally:
        bouncer.close()
