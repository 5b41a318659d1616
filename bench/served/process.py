"""A server under load, from its start to its end: asleep while others are measured, and weighed with all of
its processes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bench.served import agent
from bench.served.hosts import Host, Site
from bench.servers.machine import free_port

_STARTING_S = 90.0
_LEAVING_S = 20.0
_SETTLING_S = 0.2
_CONFIGURATION = {
    "dependencies": ["."],
    "graphs": {name: f"./agent.py:{name}" for name in ("chat", "tokens", "crowd")},
}


class HostFailed(Exception):
    """The server did not start, died, or did not do what it was asked."""


class Served:
    """Listens on loopback, on a port of its own, when it has been made; then it sleeps."""

    def __init__(self, host: Host, programs: Path, folder: Path, urls: Mapping[str, str]) -> None:
        import psutil

        folder.mkdir()
        shutil.copy(str(agent.__file__), folder / "agent.py")
        (folder / "langgraph.json").write_text(json.dumps(_CONFIGURATION))
        self.port = free_port()
        start = host.start(Site(programs, folder, self.port, urls))
        self._log = folder / "server.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                start.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=folder,
                env={**os.environ, **start.environment},
            )
        self._sleeps = host.sleeps
        self._root: Any = psutil.Process(self._process.pid)
        try:
            self._wait(host.health)
        except BaseException:
            self.leave()
            raise
        self._sleep()

    @contextmanager
    def awake(self) -> Iterator[int]:
        """Its port, while it may run."""
        os.sync()
        self._signal(signal.SIGCONT)
        time.sleep(_SETTLING_S)
        try:
            yield self.port
        finally:
            if self._process.poll() is None:
                self._sleep()

    def weight(self) -> int:
        """Bytes of memory that its processes have, those shared with others included."""
        return sum(int(each.memory_info().rss) for each in self._family())

    def cpu_s(self) -> float:
        """Seconds of a processor that its processes have had."""
        times = [each.cpu_times() for each in self._family()]
        return float(sum(each.user + each.system for each in times))

    def leave(self) -> None:
        if self._process.poll() is None:
            family = self._family()
            self._signal(signal.SIGCONT)
            self._process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):  # those that are left are killed below
                self._process.wait(_LEAVING_S)
            for each in family:
                if each.is_running():
                    each.kill()
        self._process.wait()

    def last_words(self) -> str:
        lines = [line for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1][-300:] if lines else "it said nothing"

    def _family(self) -> list[Any]:
        import psutil

        try:
            return [self._root, *self._root.children(recursive=True)]
        except psutil.NoSuchProcess:
            raise HostFailed(f"has ended: {self.last_words()}") from None

    def _sleep(self) -> None:
        if self._sleeps:
            self._signal(signal.SIGSTOP)

    def _signal(self, number: int) -> None:
        for each in self._family():
            each.send_signal(number)

    def _wait(self, health: str) -> None:
        deadline = time.monotonic() + _STARTING_S
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        while True:
            with suppress(urllib.error.URLError, OSError):  # not yet listening, or not yet ready
                direct.open(f"http://127.0.0.1:{self.port}{health}", timeout=5).close()
                return
            if self._process.poll() is not None:
                raise HostFailed(f"ended at its start: {self.last_words()}")
            if time.monotonic() > deadline:
                raise HostFailed(f"did not answer {_STARTING_S:.0f} s after its start: {self.last_words()}")
            time.sleep(0.05)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.leave()
