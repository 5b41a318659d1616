"""Exports of threads that have nothing to export: a delayed message, a message that waits, a follower."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

import perdure
from perdure.runtime import Runtime
from tests.cli.test_commands import Shell, converse, shell
from tests.langgraph import graphs

__all__ = ["shell"]

DB = ("--db", "sqlite:///t.db")


@pytest.fixture
def threads(tmp_path: Path) -> None:
    """A conversation, and threads without a state."""
    converse(tmp_path / "t.db", "ada", 1)

    async def fill() -> None:
        async with perdure.connect(f"sqlite:///{tmp_path / 't.db'}") as db:
            graph = graphs.chat(db.checkpointer())
            async with Runtime(db, graph, works=False) as runtime:
                await runtime.submit("later", {"messages": []}, delay=3600)
                await runtime.accept("waits", "hello")
                await runtime.expect_followers("followed")

    asyncio.run(fill())


@pytest.mark.usefixtures("threads")
def test_an_export_of_all_leaves_out_threads_without_a_state(shell: Shell) -> None:
    left_out = [f"{name}: left out, as it has no state" for name in ("followed", "later", "waits")]
    done = shell("export", "--all", "--to", "sqlite:///stock.db", *DB)
    assert (done.returncode, done.stdout.split(":")[0]) == (0, "ada")
    assert done.stderr.splitlines() == [*left_out, "1 thread at sqlite:///stock.db"]
    done = shell("export", "--all", "--as", "history", *DB)
    assert (done.returncode, json.loads(done.stdout)["thread_id"]) == (0, "ada")
    assert done.stderr.splitlines() == left_out


@pytest.mark.usefixtures("threads")
def test_a_file_names_what_it_leaves_behind_and_passes_over_what_is_empty(shell: Shell) -> None:
    done = shell("export", "--all", "--output", "all", *DB)
    assert (done.returncode, done.stdout.split()[1]) == (1, "ada,")
    first, second, *behind = done.stderr.splitlines()
    assert (first, second) == ("followed: left out, as it is empty", "1 thread is in all, in the clear")
    assert [line.split(" has ")[0] for line in behind] == [
        "later: not exported: thread 'later'",
        "waits: not exported: thread 'waits'",
    ]


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("more", [(), ("--as", "history"), ("--to", "sqlite:///stock.db")])
def test_a_named_thread_without_a_state_is_not_called_missing(shell: Shell, more: tuple[str, ...]) -> None:
    for name in ("later", "waits", "followed"):
        done = shell("export", name, *more, *DB)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"perdure: thread '{name}' has no state to export: ")
    done = shell("export", "nowhere", *more, *DB)
    assert (done.returncode, done.stderr.split(";")[0]) == (1, "perdure: there is no thread 'nowhere'")
    done = shell("export", *more, *DB)
    assert (done.returncode, done.stdout) == (1, "")


def test_an_export_of_an_empty_database_asks_for_no_name(shell: Shell, tmp_path: Path) -> None:
    with perdure.connect_sync(f"sqlite:///{tmp_path / 't.db'}", migrate=True):
        pass
    (tmp_path / "all").write_text("an export of before")
    done = shell("export", "--all", "--output", "all", "--force", *DB)
    said = "perdure: there is no thread to export; all was not written\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)
    assert (tmp_path / "all").read_text() == "an export of before"
    done = shell("export", "--all", "--to", "sqlite:///stock.db", *DB)
    assert (done.returncode, done.stderr) == (0, "0 threads at sqlite:///stock.db\n")
    done = shell("export", "--all", "--as", "history", *DB)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    for more in ("--output", "one"), ("--as", "history"), ("--to", "sqlite:///stock.db"):
        done = shell("export", *more, *DB)
        assert (done.returncode, "which thread?" in done.stderr) == (1, True)


@pytest.mark.usefixtures("threads")
def test_a_listing_shows_no_age_where_nothing_has_changed_yet(shell: Shell) -> None:
    lines = [line.split() for line in shell("threads", "ls", *DB).stdout.splitlines()[1:]]
    assert ["busy", "waits"] in lines
