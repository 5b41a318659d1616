"""Servers under load: what the client takes for an answer, and what the page makes of figures."""

from __future__ import annotations

import asyncio
import os
import stat
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from bench import report
from bench.desk import Desk
from bench.plan import FULL, QUICK
from bench.served import agent, load, rooms, tested
from bench.served.hosts import AEGRA, AEGRA_REDIS, HOSTS, LANGGRAPH, PERDURE, PERDURE_PG, Host, Site, Start
from bench.served.process import HostFailed, Served
from bench.served.wire import Connection, Refused
from bench.servers import Missing
from bench.workloads import server
from tests.bench.small_servers import Easy, Reply, answering, asked, chunked, plain, told
from tests.bench.test_report import results


async def twice(port: int) -> list[Any]:
    async with Connection(port) as connection:
        return [await connection.ask("/a", {}), await connection.ask("/b", {})]


@pytest.mark.parametrize("answer", [plain([1]), chunked(b"\n", b"[", b"1]")])
def test_a_connection_is_kept(answer: list[bytes]) -> None:
    assert asked(lambda *_: answer, twice) == ([[1], [1]], [2])


def test_a_connection_that_the_server_closes_is_opened_again() -> None:
    assert asked(lambda *_: plain([1], more="Connection: close\r\n"), twice) == ([[1], [1]], [1, 1])


def test_a_refusal_is_no_answer() -> None:
    with pytest.raises(Refused, match=r'/a was answered with 503: \{"detail": "full"\}'):
        asked(lambda *_: plain({"detail": "full"}, "503 Service Unavailable"), twice)


def test_an_answer_that_breaks_off_is_no_answer() -> None:
    with pytest.raises(Refused, match="/a broke off"):
        asked(lambda *_: [b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\nConnection: close\r\n\r\n[1"], twice)


def talker(forgets: int = 99) -> Reply:
    """Threads whose answers have all messages, but for those after so many."""
    had: dict[str, int] = {}

    def reply(path: str, body: dict[str, Any]) -> list[bytes]:
        if path == "/threads":
            return plain({"thread_id": str(len(had) + int.from_bytes(os.urandom(4)))})
        assert body["assistant_id"] == "chat"
        had[path] = min(forgets, had.get(path, 0) + 1)
        return plain({"messages": [{}] * (2 * had[path])})

    return reply


def test_every_request_of_every_client_is_timed_but_the_first() -> None:
    async def work(port: int) -> load.Seen:
        return await load.waits(port, await load.threads(port, 3), 4, 60.0)

    seen, had = asked(talker(), work)
    assert len(seen.ms) == 12
    assert had[-3:] == [5, 5, 5]
    assert seen.seconds > 0
    assert seen.share > 0


def test_a_budget_ends_the_requests() -> None:
    async def work(port: int) -> load.Seen:
        return await load.waits(port, await load.threads(port, 1), 1_000_000, 0.05)

    seen, _ = asked(talker(forgets=10**9), work)
    assert 0 < len(seen.ms) < 1_000_000


def test_an_answer_that_lacks_messages_is_no_figure() -> None:
    async def work(port: int) -> load.Seen:
        return await load.waits(port, await load.threads(port, 1), 4, 60.0)

    with pytest.raises(Refused, match="message 3 of a thread was answered with"):
        asked(talker(forgets=2), work)


def test_the_first_token_is_timed_for_every_stream() -> None:
    async def work(port: int) -> load.Seen:
        return await load.streams(port, ["a", "b"], 3)

    seen, _ = asked(lambda *_: told(agent.TOKENS), work)
    assert len(seen.ms) == 6


@pytest.mark.parametrize("answer", [told(agent.TOKENS - 1), told(agent.TOKENS, b"event: error\r\n\r\n")])
def test_a_stream_that_lacks_tokens_or_fails_is_no_figure(answer: list[bytes]) -> None:
    with pytest.raises(Refused, match="a stream told"):
        asked(lambda *_: answer, lambda port: load.streams(port, ["a"], 1))


def test_idle_streams_are_open_when_they_are_weighed() -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"

    async def main() -> tuple[int, int]:
        async with answering(lambda *_: [head]) as (port, opened):
            return await load.idle(port, [str(n) for n in range(50)], lambda: sum(opened), 0.01)

    assert asyncio.run(main()) == (0, 50)


def test_what_takes_too_long_is_refused() -> None:
    with pytest.raises(Refused, match="not done after 0 s"):
        load.within(0.01, lambda: asyncio.sleep(60))


def test_the_model_says_all_its_tokens() -> None:
    said = {"messages": [{"role": "user", "content": "hi"}]}

    async def main() -> tuple[list[str], str]:
        pieces = [piece async for piece, _ in agent.tokens.astream(said, stream_mode="messages")]
        answer = await agent.chat.ainvoke(said)
        return [piece.content for piece in pieces if piece.content], answer["messages"][-1].content

    words = [f"word{number} " for number in range(agent.TOKENS)]
    assert asyncio.run(main()) == (words, "You said: hi")


@pytest.mark.parametrize("name", HOSTS)
def test_no_server_listens_beyond_this_machine(name: str, tmp_path: Path) -> None:
    urls = {"postgres": "postgresql://here", "redis": "redis://here"}
    start = HOSTS[name].start(
        Site(tmp_path, tmp_path, 4711, {need: urls[need] for need in HOSTS[name].needs})
    )
    assert "4711" in start.command
    if "--host" in start.command:  # else it is loopback by itself
        assert start.command[start.command.index("--host") + 1] == "127.0.0.1"
    assert ("REDIS_URL" in start.environment) == (name == AEGRA_REDIS)


SERVER = """
import http.server, os, sys
class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
    def log_message(self, *_): pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answer).serve_forever()
"""


def host(script: str) -> Host:
    return Host("it", "nothing", lambda site: Start([sys.executable, "-c", script, str(site.port)], {}))


def comes_to(stopped: bool, family: Any) -> bool:
    """A signal takes a moment to arrive."""
    deadline = time.monotonic() + 60
    while (family.status() == "stopped") is not stopped:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def test_a_server_sleeps_until_it_is_asked(tmp_path: Path) -> None:
    psutil = pytest.importorskip("psutil")
    before = set(psutil.Process().children())
    with Served(host(SERVER), tmp_path, tmp_path / "it", {}) as served:
        (family,) = set(psutil.Process().children()) - before
        assert comes_to(True, family)
        with served.awake():
            assert comes_to(False, family)
            assert served.weight() > 1_000_000
        assert comes_to(True, family)
    assert not family.is_running()


def test_a_server_that_ends_at_its_start_says_why(tmp_path: Path) -> None:
    pytest.importorskip("psutil")
    with pytest.raises(HostFailed, match="ended at its start: no graph here"):
        Served(host("raise SystemExit('no graph here')"), tmp_path, tmp_path / "it", {})


def uv(folder: Path, script: str) -> str:
    program = folder / "uv"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return str(program)


def test_an_environment_that_cannot_be_made_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("UV", uv(tmp_path, "echo no network >&2; exit 1"))
    with pytest.raises(Missing, match="uv venv failed: no network"):
        rooms.programs(HOSTS[LANGGRAPH])


def test_an_environment_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made = 'if [ "$1" = venv ]; then shift 4; mkdir -p "$1"; fi'
    monkeypatch.setenv("UV", uv(tmp_path, f'echo "$@" >> {tmp_path}/calls; {made}'))
    assert rooms.programs(HOSTS[LANGGRAPH]) == rooms.programs(HOSTS[LANGGRAPH])
    venv, install = (tmp_path / "calls").read_text().splitlines()
    assert venv.startswith("venv ")
    assert "langgraph-api==0.16.7" in install


def test_a_python_that_is_too_old_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rooms, "_pythons", list)
    new = Host("it", "", HOSTS[AEGRA].start, packages=("it",), least_python=(9, 9))
    with pytest.raises(Missing, match=r"it needs Python 9\.9"):
        rooms.programs(new)


@pytest.mark.parametrize(
    ("late", "at"),
    [([10, 12, 20, 20.1, 90], 8), ([10, 12, 20], None), ([10, 50, 9], 2), ([10], None)],
)
def test_the_level_at_which_the_first_token_is_twice_as_late(late: list[float], at: int | None) -> None:
    levels = list(zip((1, 2, 4, 8, 16), late, strict=False))
    assert server.find_doubling(levels) == at


def test_a_ramp_is_over_when_tokens_come_far_too_late() -> None:
    ramps: list[list[float]] = [[], [10], [10, 40], [10, 41]]
    assert [server.is_over(ramp) for ramp in ramps] == [False, False, False, True]


def measured() -> dict[str, Any]:
    def visit(rate: float) -> dict[str, float]:
        return {"requests_per_s": rate, "p50_ms": 1000 / rate, "cpu_ms": 5.0}

    def seen(rates: list[float], ramps: list[dict[str, float]], stream: float) -> dict[str, Any]:
        return {
            "python": "3.12.0",
            "packages": {"it": "1"},
            "idle": [{"before": 100e6, "a_stream": stream}],
            "one": [visit(rate) for rate in rates],
            "many": [visit(2 * rate) for rate in rates],
            "streams": ramps,
            "shares": [0.1, 0.25],
        }

    return {
        "concurrency": 256,
        "clients": 16,
        "lone_requests": 60,
        "requests_a_client": 20,
        "requests_budget_s": 8.0,
        "tokens": 16,
        "pause_ms": 20.0,
        "levels": [1, 2, 4],
        "least_streams": 12,
        "idle_streams": 200,
        "idle_repeats": 1,
        "repeats": 3,
        "keepers": {
            "postgres": {"settings": "PostgreSQL 18", "variant": False},
            "redis": {"skipped": "no redis"},
        },
        "hosts": {
            PERDURE: seen([50, 100, 200], [{"1": 5.0, "2": 9.0, "4": 15.0}] * 3, 20_000.0),
            PERDURE_PG: {"skipped": "it ended"},
            LANGGRAPH: seen([10, 50, 40], [{"1": 10.0, "2": 50.0}, {"1": 10.0, "2": 60.0}, {"1": 9.0}], 3e4),
            AEGRA: {"skipped": "uv is not found"},
            AEGRA_REDIS: {"skipped": "it needs redis, which is not there"},
        },
    }


def test_the_page_has_figures_ratios_of_neighbours_and_what_is_missing() -> None:
    page = report.page(results({}, 1, server=measured()), [], "")
    # Ratios of 5, 2 and 5; medians of 100 and 40 would make 2.5.
    assert "| **Perdure**, SQLite | 100 | 5.00 × | 10.0 | 200 | 5.00 × | 5.00 |" in page
    assert "| `langgraph dev` | 40.0 | 1.00 × | 25.0 | 80.0 | 1.00 × | 5.00 |" in page
    assert "| **Perdure**, SQLite | 5.00 | 9.00 | 15.0 | 4 |" in page
    assert "| `langgraph dev` | 10.0 | 55.0 | – | 2 |" in page
    assert "| `langgraph dev` | 100 | 30.0 |" in page
    assert "- Aegra, PostgreSQL was not measured: uv is not found." in page
    assert "- Aegra, PostgreSQL and Valkey was not measured: it needs redis, which is not there." in page
    assert "The client had 25% of one processor at most." in page
    assert "Aegra needs a newer Python" not in page


def test_a_page_says_so_when_nothing_could_be_measured() -> None:
    found = measured()
    found["hosts"] = {name: {"skipped": "nothing starts"} for name in HOSTS}
    page = report.page(results({}, 1, server=found), [], "")
    assert page.count("was not measured: nothing starts.") == len(HOSTS)
    assert "### Streams at once" not in page


def test_a_page_without_the_section_says_nothing_of_it() -> None:
    assert "Servers under load" not in report.page(results({}, 1), [], "")


@pytest.mark.parametrize("plan", [QUICK, FULL])
def test_progress_comes_to_its_end(plan: Any, tmp_path: Path, easy: list[Easy]) -> None:
    steps: list[str] = []
    desk = Desk(plan, [], tmp_path, steps.append)
    found = server.run(desk)
    assert len(steps) == server.units(desk)
    assert not desk.notes
    assert all(len(seen["one"]) == plan.server_repeats for seen in found["hosts"].values())
    assert all(len(seen["idle"]) == plan.idle_repeats for seen in found["hosts"].values())
    assert [each.left for each in easy] == [1] * len(HOSTS) * plan.idle_repeats
    assert "| **Perdure**, SQLite |" in report.page(results({}, 1, server=found), [], "")


def test_a_server_that_fails_leaves_and_is_noted(
    tmp_path: Path, easy: list[Easy], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = 0

    async def failing(*_: object) -> load.Seen:
        nonlocal asked
        asked += 1
        if asked == len(HOSTS) + 2:  # after the requests before idle streams: the second one's
            raise Refused("it broke off")
        return load.Seen([1.0], 1.0, 0.5)

    monkeypatch.setattr(load, "waits", failing)
    desk = Desk(QUICK, [], tmp_path, lambda _: None)
    found = server.run(desk)
    gone = [name for name, seen in found["hosts"].items() if "skipped" in seen]
    assert gone == [PERDURE]
    assert desk.notes == [f"{HOSTS[PERDURE].label} left the load: it broke off"]
    assert [each.left for each in easy] == [1] * len(HOSTS)


def test_what_is_missing_is_no_failure(
    tmp_path: Path, easy: list[Easy], monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> Any:
        raise Missing("no valkey here")

    monkeypatch.setitem(tested.KEEPERS, "redis", missing)
    desk = Desk(QUICK, [], tmp_path, lambda _: None)
    hosts = server.run(desk)["hosts"]
    assert not desk.notes
    assert {name for name, seen in hosts.items() if "skipped" in seen} == {AEGRA_REDIS}
    assert hosts[AEGRA_REDIS]["skipped"] == "it needs redis, which is not there"
    assert len(easy) == len(HOSTS) - 1
