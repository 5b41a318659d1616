"""What commands print of ids, states and messages, whoever wrote them.

Covers perdure.cli.app.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import orjson
import pytest
from langchain_core.messages import AIMessage, HumanMessage, ToolCall
from langgraph.graph import START, MessagesState, StateGraph
from typing_extensions import TypedDict

import perdure
from tests.cli.test_commands import Shell, converse, shell

__all__ = ["shell"]


def test_an_id_is_printed_as_it_is(shell: Shell, tmp_path: Path) -> None:
    """Console markup, names of emoji, ids that are longer than a line, and escape sequences."""
    url = {"PERDURE_DB": "sqlite:///t.db"}
    for name in ("user:key:7", "[/x]", "y" * 400, "red\x1b[31m", "two\nlines"):
        converse(tmp_path / "t.db", name, 2)
        shown = name if name.isprintable() else repr(name)
        assert shell("threads", "show", name, **url).stdout.startswith(f"{shown}  question 0 [bold]\n")
        tagged = shell("threads", "tag", name, f"t{name}", **url).stdout
        assert tagged.startswith(f"{shown}: {shown[0] if shown[0] == chr(39) else ''}t")
        assert tagged.count("\n") == 1
        assert shell("threads", "diff", name, **url).stdout.startswith(f"{shown}  ")
        digest = shell("threads", "digest", name, **url).stdout
        assert digest.endswith(f"  {shown}\n")
        assert digest.count("\n") == 1
        pruned = shell("threads", "prune", name, "--keep-last", "1", **url).stdout
        assert pruned == f"{shown}: 5 checkpoints removed, 1 stay\n"
        exported = shell("export", name, "--output", "one.arc", "--force", **url)
        assert f"  {shown}, 1 checkpoints\n" in exported.stdout
        assert shell("threads", "delete", name, "--yes", **url).stdout == f"{shown} is gone\n"


def test_a_missing_url_names_the_threads_of_perdure_dev_here(shell: Shell, tmp_path: Path) -> None:
    done = shell("threads", "ls")
    assert done.stderr.startswith("perdure: which database? Pass --db")
    assert "perdure dev" not in done.stderr
    (tmp_path / ".perdure").mkdir()
    (tmp_path / ".perdure" / "dev.db").touch()
    assert "perdure dev in this folder are in sqlite:///.perdure/dev.db" in shell("threads", "ls").stderr


def test_a_path_is_printed_as_it_is(shell: Shell, tmp_path: Path) -> None:
    path = f"{'y' * 210}[/x]:key:.db"
    (tmp_path / path).parent.mkdir()
    for words in ((), (), ("--check",), ("--dry-run",)):
        done = shell("migrate", *words, "--db", f"sqlite:///{path}")
        assert done.returncode == 0, done
        assert path in done.stdout
        assert done.stdout.count("\n") == 1
    assert (tmp_path / path).exists()


def test_what_anybody_wrote_does_not_reach_the_terminal_as_a_command(shell: Shell, tmp_path: Path) -> None:
    evil = "\x1b]0;title\x07\x9b2J\r"
    message = AIMessage(f"a\tb\n{evil}", tool_calls=[ToolCall(name="call", args={"x": evil}, id="c1")])
    url = {"PERDURE_DB": "sqlite:///t.db"}
    with perdure.connect_sync(f"sqlite:///{tmp_path / 't.db'}", migrate=True) as db:
        builder = StateGraph(MessagesState).add_node("ask", lambda state: {"messages": [message]})
        graph = builder.add_edge(START, "ask").compile(checkpointer=db.checkpointer())
        graph.invoke({"messages": [HumanMessage("tea?")]}, {"configurable": {"thread_id": f"ada{evil}"}})
        db.tag(f"ada{evil}", f"tag{evil}")
    for words in (
        ("threads", "show", f"ada{evil}"),
        ("threads", "history", f"ada{evil}"),
        ("threads", "diff", f"ada{evil}"),
        ("threads", "digest"),
        ("threads", "ls"),
        ("threads", "top"),
        ("fsck",),
        ("care", "run", "--once", "--keep-last", "1"),
    ):
        done = shell(*words, **url)
        assert done.returncode == 0, done
        printed = done.stdout + done.stderr
        assert [c for c in printed if not c.isprintable() and c not in "\t\n"] == [], words
    assert "b\n\\x1b]0;title" in shell("threads", "show", f"ada{evil}", **url).stdout


@pytest.mark.parametrize("older", ["nan", "inf", "1e308", "-1"])
def test_a_time_that_is_none_is_refused(shell: Shell, tmp_path: Path, older: str) -> None:
    converse(tmp_path / "t.db", "ada", 1)
    done = shell("threads", "stuck", "--older", older, PERDURE_DB="sqlite:///t.db")
    assert done.returncode == 2
    assert "--older" in done.stderr


def test_json_is_json_whatever_a_state_holds(shell: Shell, tmp_path: Path) -> None:
    nested: Any = "leaf"
    for _ in range(100):
        nested = [nested]
    values = {
        "floats": [float("nan"), float("inf"), -float("inf")],
        "keys": {1: "a", None: "b", 1.5: "c", False: "d", "é": "e"},
        "bytes": b"\xff\x00",
        "nested": nested,
        "set": {1, 2},
        "tuple": (1, (2,)),
        "text": "\x00\u2028",
        "half a character": ["cut \ud83d", "whole 🙂"],
    }

    class State(TypedDict):
        held: Annotated[Any, lambda old, new: new]

    with perdure.connect_sync(f"sqlite:///{tmp_path / 't.db'}", migrate=True) as db:
        builder = StateGraph(State).add_node("hold", lambda state: {"held": values})
        graph = builder.add_edge(START, "hold").compile(checkpointer=db.checkpointer())
        graph.invoke({"held": None}, {"configurable": {"thread_id": "ada"}})

    def strict(name: str) -> Any:
        raise AssertionError(f"{name} is not JSON")

    for words in (
        ("threads", "show", "ada", "--json"),
        ("threads", "diff", "ada", "--json"),
        ("threads", "history", "ada", "--json"),
        ("export", "ada"),
    ):
        done = shell(*words, PERDURE_DB="sqlite:///t.db")
        assert done.returncode == 0, done.stderr
        for line in [done.stdout] if words[0] == "export" else done.stdout.splitlines():
            json.loads(line, parse_constant=strict)
            orjson.loads(line)
            assert words[1] != "show" or ("cut \\ufffd" in line and "whole \\ud83d\\ude42" in line)


@pytest.mark.parametrize("group", ["threads", "tenants", "memory"])
def test_every_listing_has_two_names(shell: Shell, group: str) -> None:
    url = {"PERDURE_DB": "sqlite:///t.db"}
    assert shell("migrate", **url).returncode == 0
    done = [shell(group, name, "--json", **url) for name in ("ls", "list")]
    assert done[0].returncode == 0, done[0].stderr
    assert done[0].stdout == done[1].stdout
