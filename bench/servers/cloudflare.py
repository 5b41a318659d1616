"""D1: its own engine, started by the test suite's part, behind the REST interface of the service."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from bench.servers.machine import Missing, Server

if TYPE_CHECKING:
    from tests.servers.d1 import Server as Engine


class D1:
    """Databases are taken from the engine's stock and come back to it at the end."""

    variants: tuple[str, ...] = ()

    def __init__(self, engine: Engine, taken: ExitStack) -> None:
        self.port = urlsplit(engine.origin).port or 0
        self.settings = "D1's own engine (workerd) on this machine, behind the REST interface of the service"
        self._engine = engine
        self._taken = taken

    def vary(self, variant: str) -> None:
        raise ValueError(f"this server has one setting, not {variant!r}")

    def empty(self, name: str) -> str:
        from tests.servers import d1

        return str(self._engine.url(self._taken.enter_context(d1.database())))

    def measure_stored(self, url: str) -> int | None:
        """The size that the service reports with every answer."""
        import httpx

        parts = urlsplit(url)
        address = f"{self._engine.endpoint}/accounts/{parts.netloc}/d1/database{parts.path}/query"
        with_token = {"Authorization": f"Bearer {self._engine.token}"}
        answer = httpx.post(address, json={"sql": "SELECT 1 AS one"}, headers=with_token)
        answer.raise_for_status()
        size = answer.json()["result"][0].get("meta", {}).get("size_after")
        return None if size is None else int(size)

    def compact(self, url: str) -> None:
        """The service refuses `VACUUM`: freed pages stay in the file, for what is written next."""

    def measure_written(self) -> None:
        """The engine keeps no account of it in bytes."""


@contextmanager
def d1() -> Iterator[Server]:
    if shutil.which("node") is None:
        raise Missing("Node.js is not installed")
    for module in ("httpx", "pytest"):
        if find_spec(module) is None:
            raise Missing(f"{module} is not installed; pip install {module}")
    from tests.servers import d1 as part
    from tests.servers import npm

    if reason := npm.problem(part.FOLDER):
        raise Missing(f"miniflare is not installed; {reason}")
    with ExitStack() as taken:
        yield D1(part.started(), taken)
