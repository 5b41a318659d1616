"""Commands on the schema of a graph, as a shell sees them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph.types import Command

import perdure
from perdure.cli import main

APP = """
import operator
from typing import Annotated, TypedDict
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from perdure.runtime import Agent
from perdure.schema import Schema, convert, rename_channel, rename_node


class Before(TypedDict, total=False):
    topic: str
    notes: str


class After(TypedDict, total=False):
    subject: str
    notes: Annotated[list[str], operator.add]


def ask(state):
    return {"notes": interrupt("why?")}


def question(state):
    return {"notes": [interrupt("why?")]}


old = StateGraph(Before).add_node("ask", ask).add_edge(START, "ask").compile()
new = StateGraph(After).add_node("question", question).add_edge(START, "question").compile()
schema = Schema(2, [
    rename_channel(2, "topic", "subject"),
    rename_node(2, "ask", "question"),
    convert(2, "notes", lambda note: [note]),
])
agent = Agent(new, schema=schema)
typo = Agent(new, schema=Schema(2, [rename_node(2, "ask", "qeustion")]))
failing = Agent(new, schema=Schema(2, [*schema.steps, convert(2, "notes", lambda note: note["none"])]))
no_schema = 7
"""

Shell = Callable[..., tuple[int, str, str]]


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shell:
    """Run ``perdure schema`` in a folder with the program, in this process."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PERDURE_DB", f"sqlite:///{tmp_path / 'threads.db'}")
    name = f"app_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(APP)

    def run(*words: str) -> tuple[int, str, str]:
        given = [word.replace("app:", f"{name}:") for word in words]
        monkeypatch.setattr("sys.argv", ["perdure", "schema", *given])
        code = 0
        try:
            main()
        except SystemExit as ended:
            code = int(ended.code or 0)
        held = capfd.readouterr()
        return code, held.out.replace(name, "app"), held.err.replace(name, "app")

    return run


def old_threads(tmp_path: Path, shell: Shell, *threads: str) -> None:
    """Threads of the older graph that wait for an answer; those that start with an x have answered once."""
    import sys

    shell("show", "app:old")
    module = sys.modules[f"app_of_{tmp_path.name.replace('-', '_')}"]
    with perdure.connect_sync(f"sqlite:///{tmp_path / 'threads.db'}", migrate=True) as db:
        graph = module.old.copy(update={"checkpointer": db.checkpointer()})
        for thread in threads:
            config: Any = {"configurable": {"thread_id": thread}}
            graph.invoke({"topic": "t"}, config)
            if thread.startswith("x"):
                graph.invoke(Command(resume="so"), config)


def test_a_graph_is_shown_with_its_steps(shell: Shell) -> None:
    code, shown, _ = shell("show", "app:agent")
    assert code == 0
    assert "schema version 2" in shown
    assert "rename_node(2, 'ask', 'question')" in shown
    assert "channel    notes: list[str], reduced by _operator.add" in shown
    assert "node       question" in shown
    _, line, _ = shell("show", "app:agent", "--json")
    assert json.loads(line)["fingerprint"]["nodes"] == ["question"]


def test_a_change_without_a_new_version_fails_the_check(shell: Shell, tmp_path: Path) -> None:
    code, _, why = shell("check", "app:old")
    assert code == 1
    assert "not recorded yet" in why
    assert "--write" in why
    assert shell("check", "app:old", "--write")[0] == 0
    assert shell("check", "app:old")[:2] == (0, "app:old: schema version 1 as recorded\n")
    file = tmp_path / "perdure.schema.json"
    file.write_text(file.read_text().replace(":old", ":new"))
    before = file.read_bytes()
    for words in (("check", "app:new"), ("check", "app:new", "--write")):
        code, _, why = shell(*words)
        assert code == 1
        assert "node ask is gone" in why
        assert "Schema(2, steps=[…])" in why
    assert file.read_bytes() == before
    file.write_text(file.read_text().replace(":new", ":agent"))
    code, _, why = shell("check", "app:agent")
    assert code == 1
    assert "version 1 is recorded, its schema version is 2" in why
    assert shell("check", "app:agent", "--write")[0] == 0
    assert shell("check", "app:agent")[0] == 0
    _, line, _ = shell("check", "app:agent", "--json")
    assert json.loads(line) == {"graph": json.loads(line)["graph"], "version": 2, "ok": True, "why": []}
    file.write_text("{}")
    assert "is not a record of schemas" in shell("check", "app:agent")[2]


def test_a_step_that_leads_elsewhere_fails_the_check(shell: Shell) -> None:
    for words in (("check", "app:typo"), ("check", "app:typo", "--write")):
        code, _, why = shell(*words)
        assert code == 1
        assert "the graph has no node 'qeustion'" in why
    assert shell("check", "app:new", "--schema", "app:schema", "--write")[0] == 0
    assert "is not a Schema of perdure.schema" in shell("check", "app:new", "--schema", "app:no_schema")[2]


def test_the_schema_of_the_settings_is_used_as_in_a_server(shell: Shell, tmp_path: Path) -> None:
    name = f"app_of_{tmp_path.name.replace('-', '_')}"
    settings = tmp_path / "perdure.toml"
    settings.write_text(f'[graphs]\nmain = "./{name}.py:new"\n[schema]\nmain = "./{name}.py:schema"\n')
    assert "schema version 2" in shell("show")[1]
    old_threads(tmp_path, shell, "a")
    for words in ((), ("main",), (f"./{name}.py:new",)):
        code, shown, why = shell("plan", *words)
        assert (code, why) == (0, ""), words
        assert "tried for schema version 2" in shown
    assert shell("check", "--write")[:2] == (0, "main: schema version 2 recorded\n")
    # The record stands under the graph's name, and is found by its place as well.
    assert shell("check", f"./{name}.py:new")[:2] == (0, "main: schema version 2 as recorded\n")
    settings.write_text(f'[graphs]\nmain = "./{name}.py:new"\nother = "./{name}.py:old"\n')
    code, _, why = shell("plan")
    assert code == 1
    assert "which graph? Name one of main, other" in why
    assert shell("plan", "main")[0] == 1


def test_a_plan_names_the_threads_that_would_lose_something(shell: Shell, tmp_path: Path) -> None:
    old_threads(tmp_path, shell, "a", "b", "x")
    path = tmp_path / "threads.db"
    with perdure.connect_sync(f"sqlite:///{path}") as db:
        before = [db.digest(name).hex for name in "abx"]
    code, shown, _ = shell("plan", "app:agent", "--history")
    assert code == 0
    assert "3 of 3 threads tried for schema version 2" in shown
    assert "3 at version 1" in shown
    assert "2 would go on with a node, 0 pinned, 0 with problems" in shown
    code, shown, why = shell("plan", "app:new")
    assert code == 1
    assert "a: it would go on with the node 'ask', which the graph does not have" in why
    assert "x: the channel 'topic' has a value, and the graph has no such channel; rename or drop it" in why
    assert "x: the channel 'notes' holds str, the graph takes list; convert it" in why
    code, shown, why = shell("plan", "app:failing", "--json")
    assert code == 1
    lines = [json.loads(line) for line in shown.splitlines()]
    assert [line.get("thread_id") for line in lines] == ["x", None]
    assert "convert(2, 'notes') cannot be applied: TypeError" in lines[0]["problems"][0]
    assert lines[1]["with_problems"] == 1
    assert shell("plan", "app:agent", "--sample", "1")[1].startswith("1 of 3 threads")
    with perdure.connect_sync(f"sqlite:///{path}") as db:
        assert [db.digest(name).hex for name in "abx"] == before


def test_a_thread_is_pinned_and_released(shell: Shell, tmp_path: Path) -> None:
    old_threads(tmp_path, shell, "a")
    assert shell("pin", "a", "1")[:2] == (0, "a is pinned to schema version 1\n")
    assert "1 pinned, 0 with problems" in shell("plan", "app:agent")[1]
    assert "there is no thread 'none'" in shell("pin", "none", "1")[2]
    assert shell("unpin", "a")[0] == 0
    assert "0 pinned" in shell("plan", "app:agent")[1]


def test_a_thread_is_pinned_to_a_version_that_can_serve_it_alone(shell: Shell, tmp_path: Path) -> None:
    old_threads(tmp_path, shell, "a")
    assert "which graph?" in shell("pin", "a", "2")[2]
    assert "the schema does not have version 3, only those up to 2" in shell(
        "pin", "a", "3", "--graph", "app:agent"
    )[2].replace("\n", " ")
    assert "0 pinned" in shell("plan", "app:agent")[1]
    assert shell("pin", "a", "2", "--graph", "app:agent")[:2] == (0, "a is pinned to schema version 2\n")
    assert shell("pin", "a", "2", "--graph", "app:old", "--schema", "app:schema")[0] == 0
