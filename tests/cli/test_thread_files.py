"""``perdure threads files``: what an agent keeps in its state, on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypedDict

from langgraph.graph import START, StateGraph

import perdure
from tests.cli.test_commands import Shell, shell

__all__ = ["shell"]

URL = {"PERDURE_DB": "sqlite:///t.db"}


class State(TypedDict):
    files: dict[str, Any]


def test_files_are_listed_and_printed(shell: Shell, tmp_path: Path) -> None:
    text = "a [bold] line\x1b[31m\n" * 20_000
    files = {f"/f{number:03}": {"content": str(number)} for number in range(250)}
    files |= {"/report.md": {"content": text}, "/p.png": {"content": "AAAA", "encoding": "base64"}}
    with perdure.connect_sync(f"sqlite:///{tmp_path / 't.db'}", migrate=True) as database:
        app = (
            StateGraph(State)
            .add_node("n", lambda _: {})
            .add_edge(START, "n")
            .compile(database.checkpointer())
        )
        app.invoke({"files": files}, {"configurable": {"thread_id": "ada"}})
        app.invoke({"files": {}}, {"configurable": {"thread_id": "bob"}})
    listed = [
        json.loads(line) for line in shell("threads", "files", "ada", "--json", **URL).stdout.splitlines()
    ]
    assert [each["path"] for each in listed] == sorted(files)
    assert f"{len(text):,}" in shell("threads", "files", "ada", **URL).stdout
    printed = shell("threads", "files", "ada", "/report.md", **URL).stdout
    assert "\x1b" not in printed
    assert printed.count("a [bold] line") == 20_000
    found = json.loads(shell("threads", "files", "ada", "/report.md", "--json", **URL).stdout)
    assert found["text"] == text
    assert "no files" in shell("threads", "files", "bob", **URL).stdout


def test_what_cannot_be_printed_is_an_error(shell: Shell, tmp_path: Path) -> None:
    files = {"/p.png": {"content": "AAAA", "encoding": "base64"}}
    with perdure.connect_sync(f"sqlite:///{tmp_path / 't.db'}", migrate=True) as database:
        app = (
            StateGraph(State)
            .add_node("n", lambda _: {})
            .add_edge(START, "n")
            .compile(database.checkpointer())
        )
        app.invoke({"files": files}, {"configurable": {"thread_id": "ada"}})
    for asked, words in (
        (("ada", "/p.png"), "is not text"),
        (("ada", "/other"), "no file '/other'"),
        (("eve",), "no thread 'eve'"),
        (("ada", "--checkpoint", "nope"), "nope"),
    ):
        refused = shell("threads", "files", *asked, **URL)
        assert refused.returncode
        assert words in refused.stderr
        assert "Traceback" not in refused.stderr
