"""The to-dos and subagents of a thread on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import perdure
from examples.researcher.agent import FIELDS, agent
from tests.cli.test_commands import Shell, shell

__all__ = ["shell"]

URL = {"PERDURE_DB": "sqlite:///t.db"}


def test_a_thread_is_shown_with_to_dos_and_subagents(shell: Shell, tmp_path: Path) -> None:
    with perdure.connect_sync(f"sqlite:///{tmp_path / 't.db'}", migrate=True) as database:
        app = agent()
        app.checkpointer, app.store = database.checkpointer(), database.store()
        at: Any = {"configurable": {"thread_id": "ada"}}
        app.invoke({"messages": [("user", "[bold]\x1b[31mtea")]}, at)
    shown = shell("threads", "show", "ada", COLUMNS="200", **URL).stdout
    assert "\x1b" not in shown
    assert "completed: Have three researchers look things up\n" in shown
    assert "in progress: Write the report and have it published\n" in shown
    (editor,) = (line for line in shown.splitlines() if line.startswith("editor"))
    assert "waits for an answer" in editor
    assert " ago" in editor
    assert "Publish /report.md" in editor
    assert "costs of [bold]" in shown
    found = json.loads(shell("threads", "show", "ada", "--json", **URL).stdout)
    assert [each["status"] for each in found["todos"]] == ["completed", "in_progress"]
    states = {each["name"]: each["state"] for each in found["subagents"]}
    assert states == {"editor": "asked", **dict.fromkeys(FIELDS, "done")}
    space = next(each["namespace"] for each in found["subagents"] if each["name"] == "risks")
    assert "risks of" in shell("threads", "show", "ada", "--namespace", space, **URL).stdout
