"""The command as CI sees it: output, exit codes, JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from langgraph.types import Command

import perdure
from perdure.replay import record_calls
from tests.cli.test_commands import Shell, shell
from tests.replay.agents import build, parts

__all__ = ["shell"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"sqlite:///{tmp_path}/threads.db"
    with perdure.connect_sync(url, migrate=True) as db:
        graph = record_calls(build(parts()).compile(checkpointer=db.checkpointer()))
        graph.invoke({"messages": [("user", "look up tea")]}, {"configurable": {"thread_id": "one"}})
        graph.invoke(Command(resume="yes"), {"configurable": {"thread_id": "one"}})
    return url


def test_an_unchanged_graph_exits_with_0(shell: Shell, url: str, tmp_path: Path) -> None:
    before = (tmp_path / "threads.db").read_bytes()
    done = shell("replay", "one", "--graph", "tests.replay.agents:unchanged", "--db", url)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "one: 8 steps replayed, nothing differs\n"
    assert (tmp_path / "threads.db").read_bytes() == before


def test_a_changed_one_exits_with_1_and_names_the_step(shell: Shell, url: str) -> None:
    done = shell("replay", "one", "--graph", "tests.replay.agents:changed", "--db", url)
    assert done.returncode == 1
    assert "one: step 1, node agent: what is sent to the model 'Counted' differs: system" in done.stdout
    assert "one: differs at step 1, checkpoint " in done.stdout
    as_json = shell("replay", "one", "--graph", "tests.replay.agents:changed", "--db", url, "--json", "--all")
    *found, whole = map(json.loads, as_json.stdout.splitlines())
    assert [(each["kind"], each["step"]) for each in found] == [("prompt", 1), ("prompt", 3)]
    assert (whole["same"], whole["replayed"], whole["skipped"]) == (False, 8, [])


def test_a_thread_or_graph_that_is_not_there_is_one_sentence(shell: Shell, url: str) -> None:
    done = shell("replay", "two", "--graph", "tests.replay.agents:unchanged", "--db", url)
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no thread 'two'" in done.stderr
    assert (
        "has no 'absent'"
        in shell("replay", "one", "--graph", "tests.replay.agents:absent", "--db", url).stderr
    )
    refused = shell(
        "replay", "one", "--graph", "tests.replay.agents:unchanged", "--db", url, "--context", "[1]"
    )
    assert (refused.returncode, "has to be a JSON object" in refused.stderr) == (1, True)
