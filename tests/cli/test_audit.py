"""The command ``perdure audit`` as CI sees it: what it prints, and its exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest

from perdure.cli import main

APP = """
from typing import Annotated, TypedDict

from langgraph.graph import START, StateGraph

from perdure import Replaces
from perdure.runtime import Agent


class State(TypedDict):
    docs: list[str]


class Sound(TypedDict):
    docs: Annotated[list[str], Replaces]


def made(schema):
    return StateGraph(schema).add_node("work", lambda state: {"docs": []}).add_edge(START, "work")


graph = made(State).compile()
sound = Agent(made(Sound).compile())


def factory(config):
    return made(State)
"""


class Done(NamedTuple):
    """How the command ended."""

    returncode: int
    stdout: str
    stderr: str


Audited = Callable[..., Done]


@pytest.fixture
def app() -> str:
    """A module's name that no other test imports."""
    return f"app_{uuid4().hex}"


@pytest.fixture
def audited(
    app: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Audited:
    """Run ``perdure audit`` in this process, in a folder with an application."""
    (tmp_path / f"{app}.py").write_text(APP, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])

    def run(*words: str) -> Done:
        code = 0
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["perdure", "audit", *words])
            try:
                main()
            except SystemExit as done:
                code = int(done.code or 0)
        return Done(code, *capfd.readouterr())

    return run


def test_a_finding_is_printed_and_fails(app: str, audited: Audited) -> None:
    done = audited(f"{app}:graph", "--ignore", "undeclared-key")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0].startswith(f"{app}.py:11: bare-collection: channel docs: list[str] has no reducer")
    assert lines[1].strip().startswith("why: ")
    assert lines[2].strip().startswith("fix: ")
    assert lines[3:] == ["1 finding"]
    assert done.stderr == "--ignore undeclared-key matches no finding; remove it\n"


def test_several_graphs_as_json(app: str, audited: Audited) -> None:
    graphs = {"one": f"./{app}.py:graph", "two": f"./{app}.py:sound", "made": f"./{app}.py:factory"}
    Path("langgraph.json").write_text(json.dumps({"graphs": graphs}), encoding="utf-8")
    done = audited("--json")
    assert done.returncode == 1, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(each["graph"], each["check"], each["channel"]) for each in found] == [
        ("one", "bare-collection", "docs"),
        ("made", "bare-collection", "docs"),
    ]
    assert Path(found[0]["file"]) == Path.cwd() / f"{app}.py"
    assert found[0]["line"] == 11


def test_a_sound_graph_passes_and_so_does_an_ignored_finding(app: str, audited: Audited) -> None:
    done = audited(f"{app}:sound", f"bad={app}:graph", "--ignore", "bare-collection:docs")
    assert (done.returncode, done.stdout) == (
        0,
        "agent: nothing was found\nbad: nothing was found, 1 ignored\n",
    )


def test_checks_are_listed_and_an_unknown_one_is_refused(app: str, audited: Audited) -> None:
    listed = audited("--list", "--json")
    assert listed.returncode == 0
    assert "not-batching-invariant" in [json.loads(line)["check"] for line in listed.stdout.splitlines()]
    refused = audited(f"{app}:graph", "--ignore", "bare")
    assert refused.returncode == 2
    assert "there is no check 'bare'" in refused.stderr
    missing = audited(f"{app}:grph")
    assert missing.returncode == 1
    assert missing.stderr == f"perdure: {app}:grph: module '{app}' has no 'grph'; it has graph, sound\n"
