"""``perdure import http://…``: all that a server has is at the target as it was there, whatever stops it.

Covers perdure.cli.data.langgraph_server, perdure.cli.data.langgraph_server_records.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

import perdure
from tests.forking import fork_server
from tests.imports.langgraph_server import servers

IS_FULL = os.environ.get("PERDURE_CHAOS") == "full"
COUNT, KILLS = (500, 20) if IS_FULL else (6, 3)


def run(folder: Path, url: str, *words: str, stop_after: float | None = None) -> tuple[int, str]:
    """Import with the graph of a folder; return the exit code, and what was printed."""
    asked = ["import", url, "--db", "sqlite:///new.db", *words]
    return fork_server().run(asked, cwd=folder, environ=servers.ENVIRON, kill_after=stop_after)


@pytest.mark.timeout(3000)
@pytest.mark.parametrize("kind", servers.KINDS)
def test_all_of_a_server_arrives_however_often_it_is_killed(kind: str, tmp_path: Path) -> None:
    old, new = servers.project(tmp_path / "old"), servers.project(tmp_path / "new")
    target = f"sqlite:///{new / 'new.db'}"
    with perdure.connect_sync(target, migrate=True):
        pass
    graph = ("--graph", "agent")
    with servers.served(kind, old) as url, servers.client_of(url) as there:
        made = servers.fill(there, COUNT)
        # The second is the one that is timed: the first may find nothing compiled.
        for _ in range(2):
            began = time.monotonic()
            code, printed = run(new, url, *graph, "--dry-run")
            took = time.monotonic() - began
            assert (code, f"Would import from {url}" in printed) == (0, True), printed
        with perdure.connect_sync(target) as db:
            assert not list(db.threads())
        ends = [run(new, url, *graph, stop_after=took * (at + 1) / (KILLS + 1))[0] for at in range(KILLS)]
        assert -signal.SIGKILL in ends
        assert set(ends) <= {-signal.SIGKILL, 0}
        code, printed = run(new, url, *graph)
        assert code == 0, printed
        code, printed = run(new, url, *graph, "--json")
        assert code == 0
        report = json.loads(printed.splitlines()[-1])
        unchanged = {"imported": 0, "extended": 0, "unchanged": len(made), "skipped": 0}
        nothing = {"items": 0, "assistants": 0, "crons": 0, "records": 0}
        assert (report["threads"], {name: report[name] for name in nothing}) == (unchanged, nothing)
        with servers.served(servers.PERDURE, new, target) as copied, servers.client_of(copied) as here:
            before, after = servers.shown(there), servers.shown(here)
            for part, held in before.items():
                assert after[part] == held, part
            if kind != servers.AEGRA:
                assert servers.item_times(here) == servers.item_times(there)
            asked = made[servers.WORDS.index("inner")]
            answer = {"command": {"resume": "yes"}}
            assert here.runs.wait(asked, "agent", **answer)["notes"] == ["inner yes"]  # type: ignore[call-overload]


def test_options_of_a_server_are_refused_for_other_sources_and_a_bad_header_is(tmp_path: Path) -> None:
    with perdure.connect_sync(f"sqlite:///{tmp_path / 'new.db'}", migrate=True):
        pass
    code, printed = run(tmp_path, "http://127.0.0.1:9", "--header", "no colon")
    assert (code, "--header is NAME: VALUE" in printed) == (1, True), printed
    code, printed = run(tmp_path, "http://127.0.0.1:9")
    assert (code, "http://127.0.0.1:9 cannot be read" in printed) == (1, True), printed
    (tmp_path / "talks.json").write_text("[]")
    code, printed = run(tmp_path, "talks.json", "--graph", "agent:graph")
    assert (code, "are for a LangGraph server" in printed) == (1, True), printed
