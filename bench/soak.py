"""A soak: a server of several processes on PostgreSQL at a steady load, while its processes are killed.

`python -m bench.soak --minutes 60`, or `make soak`. Every client repeats what was not answered, under the
same idempotency key. At the end each thread has to hold every message that was answered once, in order. The
table has, by minute: first tokens of streams that were not broken off, what a break cost, memory and files.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx

from bench import servers
from bench.figures import percentile
from bench.served import agent
from bench.servers.machine import free_port

KEY = "Idempotency-Key"
_PROGRAM = [sys.executable, "-c", "from perdure.cli import main; main()"]
_STARTING_S = 300.0
_WARMING_S = 10.0
_CALIBRATION_S = 15.0
_AGAIN_S = 0.5
_SAMPLED_S = 5.0
_LEFT_S = 120.0
"""Longest wait for what is under way at the end."""


@dataclass
class Minute:
    """What happened in a minute. `first_ms` are first tokens of whole streams, `recovered_s` the times from a
    break to the answer."""

    first_ms: list[float] = field(default_factory=list)
    recovered_s: list[float] = field(default_factory=list)
    broken: int = 0
    kills: int = 0
    megabytes: list[float] = field(default_factory=list)
    files: list[int] = field(default_factory=list)

    def line(self, number: int) -> str:
        """Return the minute's line of the table."""
        p50, p99 = (percentile(self.first_ms, share) if self.first_ms else 0.0 for share in (0.5, 0.99))
        recovered, size = max(self.recovered_s, default=0.0), max(self.megabytes, default=0.0)
        return (
            f"{number:6}  {len(self.first_ms):7}  {p50:11.1f} / {p99:8.1f}     {self.broken:6}  "
            f"{recovered:14.1f}  {self.kills:5}  {size:.0f}  {max(self.files, default=0)}"
        )


@dataclass
class Soak:
    """The load and its record; `said` has what was answered, by thread."""

    url: str
    began: float = field(default_factory=time.monotonic)
    minutes: list[Minute] = field(default_factory=list)
    said: dict[str, list[str]] = field(default_factory=dict)

    @property
    def now(self) -> Minute:
        number = int((time.monotonic() - self.began) // 60)
        while len(self.minutes) <= number:
            self.minutes.append(Minute())
        return self.minutes[number]

    @property
    def answer_count(self) -> int:
        return sum(map(len, self.said.values()))

    async def begin(self, client: httpx.AsyncClient) -> str:
        """Create a thread, and return its id."""
        while True:
            with suppress(httpx.TransportError):
                answer = await client.post("/threads", json={})
                if answer.status_code < 500:
                    thread: str = answer.raise_for_status().json()["thread_id"]
                    self.said[thread] = []
                    return thread
            await asyncio.sleep(_AGAIN_S)

    async def say(self, client: httpx.AsyncClient, thread: str, text: str) -> None:
        """Send a message until its stream has come to its end."""
        body = {
            "assistant_id": "tokens",
            "input": {"messages": [{"role": "user", "content": text}]},
            "stream_mode": ["messages-tuple"],
        }
        broke: float | None = None
        while True:
            start = time.perf_counter()
            try:
                first = await _follow(client, f"/threads/{thread}/runs/stream", body, text)
            except (httpx.TransportError, ConnectionError):
                self.now.broken += 1
                broke = broke or start
                await asyncio.sleep(_AGAIN_S)
                continue
            if broke is None:
                self.now.first_ms.append((first - start) * 1000)
            else:
                self.now.recovered_s.append(time.perf_counter() - broke)
            self.said[thread].append(text)
            return


async def _follow(client: httpx.AsyncClient, path: str, body: dict[str, Any], key: str) -> float:
    """Return when the first token came; `ConnectionError` unless the stream came to its end."""
    first: float | None = None
    name = ""
    async with client.stream("POST", path, json=body, headers={KEY: key}) as response:
        if response.status_code >= 500:
            raise ConnectionError(response.status_code)
        response.raise_for_status()
        async for line in response.aiter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
                if name == "error":
                    raise RuntimeError(f"the run of {key!r} failed")
                if name == "messages" and first is None:
                    first = time.perf_counter()
            elif name == "end" and line.startswith("data: "):
                return first or time.perf_counter()
    raise ConnectionError("the stream was cut off")


def audit(said: Sequence[str], stored: Sequence[tuple[str, str]]) -> tuple[list[str], list[str]]:
    """Return the messages that are lost, those without an answer or out of order included, and those that are
    there more than once. `stored` has the kind and the text of each message of the thread."""
    asked = [text for kind, text in stored if kind == "human"]
    twice = sorted({text for text in asked if asked.count(text) > 1})
    lost = [text for text in said if text not in asked]
    if not lost and not twice and [text for text in asked if text in set(said)] != list(said):
        lost = list(said)
    answered = {text for (kind, text), after in pairwise(stored) if kind == "human" and after[0] == "ai"}
    return lost + [text for text in said if text in asked and text not in answered], twice


async def _load(soak: Soak, talkers: int, turns: int, seconds: float, rate: float | None) -> int:
    """Have every talker talk: `rate` messages a second in all, or as fast as they are answered. After some
    turns a talker begins a new thread, so that the load at the end is that of the start."""
    until = time.monotonic() + seconds
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    count = 0

    async def talk(client: httpx.AsyncClient) -> None:
        nonlocal count
        # Of some the first thread is short, so that they do not all begin a new one at once.
        thread, left = "", random.randint(1, turns)
        while True:
            if rate is not None:
                await asyncio.sleep(random.expovariate(rate / talkers))
            if time.monotonic() >= until:
                return
            if not thread or not left:
                thread, left = await soak.begin(client), left or turns
            left -= 1
            await soak.say(
                client, thread, f"{thread[:8]} {len(soak.said[thread])} {random.getrandbits(64):x}"
            )
            count += 1

    async with httpx.AsyncClient(base_url=soak.url, timeout=120, limits=limits, trust_env=False) as client:
        talking = [asyncio.create_task(talk(client)) for _ in range(talkers)]
        _, left = await asyncio.wait(talking, timeout=seconds + _LEFT_S)
        for task in left:
            task.cancel()
        if left:
            print(f"{len(left)} messages were not answered {_LEFT_S:g} s after the load", file=sys.stderr)
        await asyncio.gather(*(task for task in talking if task not in left))
    return count


async def _disturb(soak: Soak, family: Family, every: float) -> None:
    """Kill the oldest process again and again, but not before something was answered since the last kill: a
    slow machine would have no process left that has started."""
    answered = -1
    while True:
        await asyncio.sleep(every)
        processes = family.processes()
        if (count := soak.answer_count) > answered and processes:
            answered = count
            min(processes, key=lambda process: process.create_time()).send_signal(signal.SIGKILL)
            soak.now.kills += 1


async def _show(soak: Soak) -> None:
    """Print each minute when it is over."""
    shown = 0
    while True:
        await asyncio.sleep(_SAMPLED_S)
        now = soak.now
        while soak.minutes[shown] is not now:
            print(soak.minutes[shown].line(shown + 1), flush=True)
            shown += 1


async def _sample(soak: Soak, family: Family) -> None:
    while True:
        weights, files = family.weigh()
        soak.now.megabytes.append(weights)
        soak.now.files.append(files)
        await asyncio.sleep(_SAMPLED_S)


class Family:
    """The server's processes, which are replaced as they end."""

    def __init__(self, pid: int) -> None:
        import psutil

        self._root = psutil.Process(pid)

    def processes(self) -> list[Any]:
        import psutil

        found = []
        for each in self._root.children():
            # One that has just been killed is a zombie, without a command line, or gone.
            with suppress(psutil.NoSuchProcess):
                if "resource_tracker" not in " ".join(each.cmdline()):
                    found.append(each)
        return found

    def weigh(self) -> tuple[float, int]:
        """The most megabytes and open files that one of them has."""
        import psutil

        found: list[tuple[float, int]] = []
        for each in self.processes():
            try:
                found.append((each.memory_info().rss / 1e6, each.num_fds()))
            except psutil.NoSuchProcess:
                continue
        return max((size for size, _ in found), default=0.0), max((count for _, count in found), default=0)


@contextmanager
def serve(database: str, folder: Path, workers: int) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """A server of several processes, from when it answers until the end."""
    shutil.copy(str(agent.__file__), folder / "agent.py")
    port = free_port()
    subprocess.run([*_PROGRAM, "migrate", "--db", database], cwd=folder, check=True)
    command = [*_PROGRAM, "serve", "tokens=./agent.py:tokens", "--db", database, "--port", str(port)]
    with open(folder / "server.log", "wb") as log:
        process = subprocess.Popen(
            [*command, "--workers", str(workers), "--log-level", "warning"],
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    url = f"http://127.0.0.1:{port}"
    try:
        end = time.monotonic() + _STARTING_S
        while True:
            try:
                httpx.get(f"{url}/ok", timeout=10, trust_env=False).raise_for_status()
                break
            except httpx.HTTPError:
                if process.poll() is not None or time.monotonic() > end:
                    raise RuntimeError((folder / "server.log").read_text()[-2000:]) from None
                time.sleep(0.2)
        yield url, process
    finally:
        process.terminate()
        process.wait()


async def run_soak(
    url: str, family: Family, arguments: argparse.Namespace
) -> tuple[Soak, float, list[str], list[str]]:
    """Return the record, the rate, and what is lost or there twice."""
    talkers, turns = arguments.threads, arguments.turns
    async with httpx.AsyncClient(base_url=url, timeout=120, trust_env=False) as client:
        said: dict[str, list[str]] = {}
        rate = arguments.rate
        if rate is None:
            # The first run of a process is slow, and so is the first turn of each thread.
            await _load(Soak(url, said=said), talkers, turns, _WARMING_S, None)
            count = await _load(Soak(url, said=said), talkers, turns, _CALIBRATION_S, None)
            rate = count / _CALIBRATION_S / 2
        soak = Soak(url, said=said)
        print(f"{rate:.1f} messages a second")
        print(
            "minute  streams  first token p50 / p99 ms  broken  recovered in s  kills  MB  files", flush=True
        )
        beside = [asyncio.create_task(_sample(soak, family)), asyncio.create_task(_show(soak))]
        if arguments.kill_every:
            beside.append(asyncio.create_task(_disturb(soak, family, arguments.kill_every)))
        try:
            await _load(soak, talkers, turns, arguments.minutes * 60, rate)
        finally:
            for task in beside:
                task.cancel()
        for task in beside:
            if task.done() and not task.cancelled():
                task.result()
        lost, twice = [], []
        for thread in said:
            state = (await client.get(f"/threads/{thread}/state")).json()
            stored = [(each["type"], str(each["content"])) for each in state["values"].get("messages", ())]
            gone, again = audit(said[thread], stored)
            lost += gone
            twice += again
    return soak, rate, lost, twice


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=5.0, help="length of the load (5)")
    parser.add_argument("--workers", type=int, default=2, help="server processes (2)")
    parser.add_argument("--threads", type=int, default=16, help="threads that talk at a time (16)")
    parser.add_argument("--turns", type=int, default=20, help="messages of a thread (20)")
    parser.add_argument("--rate", type=float, help="messages a second; half of what is measured first")
    parser.add_argument(
        "--kill-every", type=float, default=60.0, help="seconds between two kills; 0 for none"
    )
    parser.add_argument("--json", type=Path, help="write the record to this file, too")
    arguments = parser.parse_args()
    with (
        servers.postgres() as server,
        tempfile.TemporaryDirectory() as folder,
        serve(server.empty("soak"), Path(folder), arguments.workers) as (url, process),
    ):
        soak, rate, lost, twice = asyncio.run(run_soak(url, Family(process.pid), arguments))
    print(soak.minutes[-1].line(len(soak.minutes)))
    print(f"{soak.answer_count} messages answered in {len(soak.said)} threads")
    print(f"lost: {len(lost)}, twice: {len(twice)}")
    if arguments.json:
        record = {"rate": rate, "lost": lost, "twice": twice, "minutes": [vars(one) for one in soak.minutes]}
        arguments.json.write_text(json.dumps(record))
    sys.exit(1 if lost or twice else 0)


if __name__ == "__main__":
    main()
