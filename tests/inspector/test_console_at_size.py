"""The console over a database of many threads: what each of its views, searches and commands costs.

In full (``PERDURE_CHAOS=full``) there are 50,000 threads, one of 10,000 checkpoints and one of as many
messages. Filling them takes a while: ``PERDURE_CONSOLE_DB`` names a database that ``many_threads.fill`` has
filled before.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from perdure.inspector import api
from tests.backends import EMPTY
from tests.inspector import many_threads
from tests.inspector.many_threads import LONG, PRICES, RARE, TALK
from tests.servers.ports import free_port

pytestmark = pytest.mark.timeout(3600)
FULL = os.environ.get("PERDURE_CHAOS") == "full"
FILLED = os.environ.get("PERDURE_CONSOLE_DB")
THREADS, STEPS = (50_000, 10_000) if FULL else (300, 300)
SECOND = 1.0
"""Processor time that a view may take, of the server and of the database's own processes."""
GROWTH_MB = 40
_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
TIMES = 3

AGENT = """
from tests.inspector.many_threads import agent
graph = agent().compile()
"""


class Cost(NamedTuple):
    """Processor time of the program and of the database's processes, and the time on the clock, in
    seconds."""

    program: float
    database: float
    wall: float

    @property
    def cpu(self) -> float:
        return self.program + self.database


class Processor:
    """Processor time of a process and its children, which may have ended."""

    def __init__(self, pid: int | None) -> None:
        self._pid = pid

    def seconds(self) -> float:
        if self._pid is None:
            return 0.0
        # The times of children that ended are in those of their parent.
        ticks = sum(_ticks(self._pid)[:4])
        for each in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = _fields(int(each.parent.name))
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(fields[1]) == self._pid:
                ticks += int(fields[11]) + int(fields[12])
        return ticks * _TICK_S


def _fields(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _ticks(pid: int) -> list[int]:
    return [int(each) for each in _fields(pid)[11:15]]


def _server_of(url: str) -> int | None:
    """Return the process of a PostgreSQL server, ``None`` for a file."""
    if not url.startswith("postgresql"):
        return None
    import psycopg

    # The client does not know the parameters of Perdure.
    with psycopg.connect(url.partition("?")[0]) as connection:
        (pid,) = connection.execute("SELECT pg_backend_pid()").fetchone() or (0,)
        return int(_fields(pid)[1])


class Console:
    """A server with the console in a process of its own, which runs no graph."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        (folder / "agent.py").write_text(AGENT)
        (folder / "perdure.toml").write_text(PRICES)
        self.environment = {**os.environ, "PERDURE_HTTP_INSPECTOR": "true", "PYTHONPATH": os.getcwd()}
        self.environment.pop("PERDURE_CHAOS", None)
        self.address = f"http://127.0.0.1:{(port := free_port())}"
        words = ["serve", "./agent.py:graph", "--db", url, "--no-work", "--port", str(port)]
        with open(folder / "log", "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "perdure", *words, "--log-level", "error"],
                cwd=folder, env=self.environment, stdout=log, stderr=log,
            )  # fmt: skip
        self.program, self.database = Processor(self.process.pid), Processor(_server_of(url))
        self.client = httpx.Client(base_url=self.address, trust_env=False, timeout=300)
        deadline = time.monotonic() + 120
        while True:
            try:
                self.client.get("/ok").raise_for_status()
                return
            except httpx.TransportError:
                assert self.process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.1)

    def ask(self, method: str, path: str, **how: Any) -> tuple[Any, Cost]:
        before = self.program.seconds(), self.database.seconds(), time.monotonic()
        response = self.client.request(method, path, **how)
        assert response.status_code == 200, f"{path} {how}: {response.text}"
        return response.json(), Cost(
            self.program.seconds() - before[0],
            self.database.seconds() - before[1],
            time.monotonic() - before[2],
        )

    def view(self, name: str, **asked: Any) -> tuple[Any, Cost]:
        if name == "run":
            thread, _ = self.ask("GET", "/inspect/api/thread", params={"id": asked["id"]})
            asked["run"] = thread["runs"][0]["run_id"]
        return self.ask("GET", f"/inspect/api/{name}", params=asked)

    def command(self, *words: str) -> tuple[str, Cost]:
        before, began = self.database.seconds(), time.monotonic()
        ended_before = os.times()
        done = subprocess.run(
            [sys.executable, "-m", "perdure", *words, "--db", self.url],
            cwd=self.folder, env={**self.environment, "COLUMNS": "200"}, capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        ended = os.times()
        program = ended.children_user + ended.children_system
        program -= ended_before.children_user + ended_before.children_system
        return done.stdout, Cost(program, self.database.seconds() - before, time.monotonic() - began)

    @property
    def memory_mb(self) -> float:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 1e6

    def close(self) -> None:
        self.client.close()
        self.process.terminate()
        self.process.wait(60)


@contextmanager
def filled(backend: str) -> Iterator[str]:
    if FILLED is not None:
        yield FILLED
        return
    with EMPTY[backend]() as url:
        many_threads.fill(url, THREADS, STEPS)
        yield url


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def console(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Console]:
    if FILLED is not None and not FILLED.startswith(request.param):
        pytest.skip("PERDURE_CONSOLE_DB is of another kind")
    with filled(request.param) as url:
        opened = Console(url, tmp_path_factory.mktemp("console"))
        try:
            yield opened
        finally:
            opened.close()


FAILED = next(name for name, _, kind in many_threads.names(THREADS) if kind == "failed")
VIEWS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("about", {}),
    ("overview", {}),
    ("threads", {}),
    ("threads", {"cursor": str(THREADS - 60)}),
    ("threads", {"sort": "age"}),
    ("threads", {"sort": "newest"}),
    ("threads", {"sort": "size"}),
    ("threads", {"id": "tagged-"}),
    ("threads", {"status": "error"}),
    ("threads", {"status": "interrupted"}),
    ("threads", {"status": "idle", "cursor": str(THREADS // 2)}),
    ("threads", {"title": "approved many times"}),
    ("threads", {"title": "no such title"}),
    ("threads", {"metadata": json.dumps({"owner": f"user-{THREADS % many_threads.USERS}"})}),
    ("threads", {"metadata": json.dumps({"owner": "nobody"})}),
    ("threads", {"words": "tides"}),
    ("threads", {"words": RARE}),
    ("threads", {"user": "user-7"}),
    ("threads", {"graph": "no such graph"}),
    ("threads", {"error": "no luck"}),
    ("threads", {"tag": "approved by the committee no. 07"}),
    ("threads", {"cost": "0.03"}),
    ("threads", {"cost": "1"}),
    ("threads", {"since": "30d", "words": "moon", "user": "user-7"}),
    ("runs", {}),
    ("runs", {"state": "failed"}),
    ("runs", {"stands": "1"}),
    ("runs", {"error": "no luck"}),
    ("runs", {"user": "user-7"}),
    ("runs", {"version": "no such version"}),
    ("user", {"user": "user-7"}),
    ("user", {"user": "user-7", "since": "1h"}),
    ("nodes", {}),
    ("nodes", {"since": "30d"}),
    ("growth", {}),
    ("questions", {}),
    ("queue", {}),
    ("limits", {}),
    ("care", {}),
    ("scan", {"what": "dead"}),
    ("scan", {"what": "dead", "repeated": "1"}),
    ("scan", {"what": "sizes"}),
    ("scan", {"what": "fsck"}),
    ("scan", {"what": "retention", "keep_last": "3"}),
    ("log", {}),
    *(
        (view, {"id": thread, **more})
        for thread in (LONG, TALK, FAILED)
        for view, more in (
            ("thread", {}),
            ("steps", {}),
            ("steps", {"before": STEPS // 2}),
            ("usage", {}),
            ("conversation", {}),
            ("picture", {}),
            ("todos", {}),
            ("subagents", {}),
            ("files", {}),
            ("branches", {}),
            ("timeline", {}),
            ("timeline", {"before": STEPS // 2}),
            ("checkpoint", {}),
            ("channel", {"channel": "messages"}),
            ("messages", {}),
            ("diff", {}),
        )
    ),
    ("file", {"id": LONG, "path": f"/notes/{many_threads.FILES // 2:03d}.md"}),
    ("run", {"id": FAILED, "run": "of the thread"}),
)
ON_NO_SERVER = frozenset({"tenants"})
"""Views that a server shows to nobody; ``tests/inspector/test_scale.py`` has them."""
SEARCHES: tuple[dict[str, Any], ...] = (
    {"limit": 50},
    {"limit": 50, "offset": THREADS - 60},
    {"limit": 50, "status": "error"},
    {"limit": 50, "metadata": {"owner": "user-7"}},
    {"limit": 50, "metadata": {"owner": "nobody"}},
    {"limit": 50, "metadata": {"owner": "user-7"}, "sort_by": "thread_id"},
    {"limit": 50, "sort_by": "thread_id", "sort_order": "asc"},
)
COMMANDS: tuple[tuple[str, ...], ...] = (
    ("threads", "ls", "-n", "50"),
    ("threads", "ls"),
    ("threads", "ls", "--words", RARE),
    ("threads", "ls", "--cost", "1"),
    ("threads", "ls", "--status", "error"),
    ("top", "--nodes"),
    ("threads", "show", LONG),
    ("threads", "show", TALK),
    ("runs", "ls"),
    ("runs", "ls", "--by-error"),
    ("runs", "ls", "--by-error", "--since", "1h"),
    ("top", "--once"),
    ("top", "--growth"),
    ("runs", "ls", "--graph-version", "no such version"),
)


def told(what: str, cost: Cost) -> str:
    return (
        f"{what:<90} {cost.program * 1000:7.0f} ms of the program, {cost.database * 1000:6.0f} of the "
        f"database, {cost.wall * 1000:7.0f} on the clock"
    )


def test_no_view_is_forgotten() -> None:
    assert {name for name, _ in VIEWS} == api.VIEWS.keys() - ON_NO_SERVER


@pytest.mark.slow
def test_each_view_takes_less_than_a_second(console: Console) -> None:
    slow: list[str] = []
    for view, asked in VIEWS:
        # The first one may read what is kept from then on; another one tells what the view costs.
        costs = [console.view(view, **asked)[1] for _ in range(TIMES)]
        best = min(costs, key=lambda cost: cost.cpu)
        line = told(f"{view} {json.dumps(asked)[:70]}", best)
        print(line)
        if best.cpu > SECOND:
            slow.append(line)
    for asked in SEARCHES:
        costs = [console.ask("POST", "/threads/search", json=asked)[1] for _ in range(TIMES)]
        best = min(costs, key=lambda cost: cost.cpu)
        line = told(f"POST /threads/search {json.dumps(asked)}", best)
        print(line)
        if best.cpu > SECOND:
            slow.append(line)
    assert slow == []


@pytest.mark.slow
def test_commands_read_what_they_show(console: Console) -> None:
    _, start = console.command("threads", "ls", "--prefix", "no such thread")
    print(told("start of a command", start))
    for words in COMMANDS:
        shown, cost = console.command(*words)
        line = told(" ".join(words), cost)
        print(f"{line}; {shown.count(chr(10)):,} lines")
        reads_all = words[:2] == ("threads", "ls") and "-n" not in words and "--status" not in words
        if reads_all or words in (("top", "--nodes"), ("runs", "ls", "--by-error")):
            each = (cost.cpu - start.cpu) / THREADS
            print(f"    {each * 1000:.2f} ms a thread")
            assert not FULL or each < 0.005
        else:
            assert not FULL or cost.cpu - start.cpu < 2 * SECOND


@pytest.mark.slow
def test_a_search_goes_through_all_threads_by_parts(console: Console) -> None:
    for asked, least in (
        ({"words": RARE}, 1),
        ({"cost": "0.1"}, 1),
        ({"tag": "approved by the committee no. 07"}, THREADS // 50),
    ):
        cursor: str | None = ""
        found = examined = parts = 0
        cpu = wall = slowest = 0.0
        while cursor is not None:
            page, cost = console.view("threads", **asked, cursor=cursor)
            found, examined, parts = found + len(page["threads"]), examined + page["examined"], parts + 1
            cpu, wall, slowest = cpu + cost.cpu, wall + cost.wall, max(slowest, cost.cpu)
            cursor = page["cursor"]
        print(
            f"{asked}: {found} found in {examined:,} threads, {parts} parts, {cpu:.1f} s of processors, "
            f"{wall:.1f} s on the clock, {cpu / examined * 1000:.2f} ms a thread, "
            f"slowest part {slowest:.2f} s"
        )
        assert found >= least
        assert examined >= THREADS
        assert slowest < 2 * SECOND


@pytest.mark.slow
def test_memory_stays_flat(console: Console) -> None:
    def read() -> None:
        for view, asked in VIEWS:
            console.view(view, **asked)

    # The caches are full, and all threads of the pools begun, after five rounds.
    for _ in range(5):
        read()
    before = console.memory_mb
    for _ in range(3):
        read()
    print(f"the server's memory: {before:.0f} MB, then {console.memory_mb:.0f} MB")
    assert console.memory_mb - before < GROWTH_MB
