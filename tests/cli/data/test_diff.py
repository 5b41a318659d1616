"""``perdure threads diff``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import perdure
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
    assert "no checkpoint, tag or step 'absent'" in done.stderr


def test_checkpoints_are_named_by_the_numbers_of_their_steps(shell: Shell, tmp_path: Path) -> None:
    converse(tmp_path / "t.db", "ada", 2)
    db = ("--db", "sqlite:///t.db")
    listed = shell("threads", "history", "ada", "--json", *db).stdout.splitlines()
    views = [json.loads(line) for line in listed]
    (first,) = [view["checkpoint_id"] for view in views if view["step"] == 0]
    (second,) = [view["checkpoint_id"] for view in views if view["step"] == 1]
    done = shell("threads", "diff", "ada", "0", "1", *db)
    assert done.stdout.startswith(f"ada  {first} → {second}\n")
    shown = shell("threads", "show", "ada", "--checkpoint", "1", *db)
    assert f"checkpoint {second}\n" in shown.stdout
    # A number that two branches have names none of them.
    with perdure.connect_sync(f"sqlite:///{tmp_path / 't.db'}") as database:
        saver = database.checkpointer()
        config: Any = {"configurable": {"thread_id": "ada", "checkpoint_ns": "", "checkpoint_id": first}}
        found = saver.get_tuple(config)
        assert found is not None
        branch = {**found.checkpoint, "id": f"{second[:-12]}{'f' * 12}"}
        saver.put(config, branch, {"source": "loop", "step": 1, "parents": {}}, {})  # type: ignore[arg-type]
    done = shell("threads", "diff", "ada", "0", "1", *db)
    assert done.returncode == 1
    assert "has 2 checkpoints of step 1, on different branches" in done.stderr
    assert second in done.stderr
