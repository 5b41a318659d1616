"""The servers that take part in a load: all stand from the first figure to the last, and take turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from bench import servers
from bench.desk import Desk
from bench.served import rooms
from bench.served.hosts import HOSTS
from bench.served.process import HostFailed, Served
from bench.served.wire import Refused
from bench.servers import Missing, Server

Results = dict[str, Any]

VARIANT = "appendfsync everysec"
"""Of Valkey, which has a queue and passing events to keep, and no threads."""
_numbers = count()

KEEPERS: dict[str, servers.Starter] = {"postgres": servers.postgres, "redis": servers.redis}


@contextmanager
def start_servers(
    desk: Desk, found: Results, names: Sequence[str], figures: Sequence[str]
) -> Iterator[TestedServers]:
    """Start servers and the databases behind them. ``found`` gets what is known of both; each server has a
    list for each of its ``figures``."""
    found |= {"keepers": {}, "hosts": {}}
    with ExitStack() as stack:
        needs = {need for name in names for need in HOSTS[name].needs}
        keepers = {name: _start_keeper(stack, found, name) for name in KEEPERS if name in needs}
        tested = TestedServers(desk, found["hosts"], keepers)
        stack.callback(tested.leave)
        for name in names:
            tested.add(name, figures)
        yield tested


def _start_keeper(stack: ExitStack, found: Results, name: str) -> Server | None:
    try:
        server = stack.enter_context(KEEPERS[name]())
    except Missing as missing:
        found["keepers"][name] = {"skipped": str(missing)}
        return None
    if VARIANT in server.variants:
        server.vary(VARIANT)
    found["keepers"][name] = {"settings": server.settings, "variant": VARIANT in server.variants}
    return server


class TestedServers:
    """The servers that take part. One that fails leaves, and what it had comes to nothing."""

    def __init__(self, desk: Desk, seen: dict[str, Results], keepers: Mapping[str, Server | None]) -> None:
        self._desk = desk
        self._seen = seen
        self._keepers = keepers
        self._served: dict[str, Served] = {}
        self._programs: dict[str, Path] = {}

    def add(self, name: str, figures: Sequence[str]) -> None:
        """Install a server where it is not yet, and start it."""
        seen = self._seen[name] = {figure: [] for figure in figures}
        with self._leave_on_failure(name):
            host = HOSTS[name]
            self._programs[name] = rooms.programs(host)
            python, packages = rooms.versions(host, self._programs[name])
            seen |= {"python": python, "packages": packages}
            self._served[name] = self.start(name)

    def start(self, name: str) -> Served:
        """A process of its own, on empty databases of its own."""
        host, number = HOSTS[name], next(_numbers)
        urls = {need: self._empty(need, f"server-{number}") for need in host.needs}
        return Served(host, self._programs[name], self._desk.scratch / f"server-{number}", urls)

    def each(self, turn: int, visit: Callable[[str, Served, Results, TestedServers], None]) -> None:
        order = list(self._served)
        first = turn % len(order) if order else 0
        for name in order[first:] + order[:first]:
            with self._leave_on_failure(name):
                visit(name, self._served[name], self._seen[name], self)

    def leave(self) -> None:
        for served in self._served.values():
            served.leave()

    def _empty(self, need: str, name: str) -> str:
        if (keeper := self._keepers[need]) is None:
            raise Missing(f"it needs {need}, which is not there")
        return keeper.empty(name)

    @contextmanager
    def _leave_on_failure(self, name: str) -> Iterator[None]:
        """What is missing here is said on the page; a failure is ours to look into and fails the run."""
        try:
            yield
        except Missing as missing:
            self._seen[name]["skipped"] = str(missing)
        except (HostFailed, Refused) as failure:
            self._seen[name]["skipped"] = str(failure)
            self._desk.notes.append(f"{HOSTS[name].label} left the load: {failure}")
        else:
            return
        if (served := self._served.pop(name, None)) is not None:
            served.leave()
