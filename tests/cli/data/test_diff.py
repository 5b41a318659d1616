"""``perdure threads diff``."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.test_commands import Shell, converse, shell

__all__ = ["shell"]


def test_the_messages_that_a_turn_added_are_shown(shell: Shell, tmp_path: Path) -> None:
    converse(tmp_path / "t.db", "ada", 1)
    db = ("--db", "sqlite:///t.db")
    assert shell("threads", "tag", "ada", "first", *db).returncode == 0
    converse(tmp_path / "t.db", "ada", 2)
    done = shell("threads", "diff", "ada", "first", *db)
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert "+ human: question 0 [bold]" in lines
    assert "+ human: question 1 [bold]" in lines
    assert len([line for line in lines if line.startswith("+ ai: ")]) == 2
    assert not [line for line in lines if line.startswith("- ai: ")]

    found = [json.loads(line) for line in shell("threads", "diff", "ada", *db, "--json").stdout.splitlines()]
    (messages,) = [each for each in found if each["channel"] == "messages"]
    assert messages["change"] == "changed"
    assert [m["value"]["type"] for m in messages["added"]] == ["ai"]
    assert messages["removed"] == []
    assert messages["before"] != messages["after"]


def test_backwards_they_are_removed(shell: Shell, tmp_path: Path) -> None:
    converse(tmp_path / "t.db", "ada", 1)
    db = ("--db", "sqlite:///t.db")
    assert shell("threads", "tag", "ada", "first", *db).returncode == 0
    converse(tmp_path / "t.db", "ada", 1)
    latest = json.loads(shell("threads", "show", "ada", *db, "--json").stdout)["checkpoint_id"]
    done = shell("threads", "diff", "ada", latest, "first", *db)
    assert len([line for line in done.stdout.splitlines() if line.startswith("- ")]) >= 2
    assert "+ human" not in done.stdout


def test_an_unknown_checkpoint_is_named(shell: Shell, tmp_path: Path) -> None:
    converse(tmp_path / "t.db", "ada", 1)
    done = shell("threads", "diff", "ada", "absent", "--db", "sqlite:///t.db")
    assert done.returncode == 1
    assert "no checkpoint or tag 'absent'" in done.stderr
