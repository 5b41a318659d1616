"""Listings of threads: with their sizes, and the largest first."""

from __future__ import annotations

import json
from pathlib import Path

from perdure.runtime.agent_memory.memory_turns import lane_of
from tests.cli.test_commands import Shell, converse, shell

__all__ = ["shell"]


def test_sizes_are_measured_on_request(shell: Shell, tmp_path: Path) -> None:
    for name, turns in (("ada", 1), ("bob", 6)):
        converse(tmp_path / "t.db", name, turns)
    db = ("--db", "sqlite:///t.db")
    plain = [json.loads(line) for line in shell("threads", "ls", "--json", *db).stdout.splitlines()]
    assert all("bytes" not in each for each in plain)
    measured = [
        json.loads(line) for line in shell("threads", "ls", "--bytes", "--json", *db).stdout.splitlines()
    ]
    assert measured[1]["bytes"] > measured[0]["bytes"] > 100
    shown = shell("threads", "ls", "--bytes", *db).stdout
    assert f"{measured[1]['bytes']:,}  bob" in shown


def test_the_largest_threads_come_first(shell: Shell, tmp_path: Path) -> None:
    for name, turns in (("ada", 1), ("bob", 6), ("eve", 3)):
        converse(tmp_path / "t.db", name, turns)
    db = ("--db", "sqlite:///t.db")
    lines = shell("threads", "top", "-n", "2", *db).stdout.splitlines()
    assert [line.split()[-1] for line in lines[:3]] == ["thread", "bob", "eve"]
    first, sums = map(json.loads, shell("threads", "top", "-n", "1", "--json", *db).stdout.splitlines())
    assert (first["thread_id"], first["largest_channel"]) == ("bob", "messages")
    every = [json.loads(line) for line in shell("threads", "top", "--json", *db).stdout.splitlines()]
    assert every.pop() == sums
    assert (sums["threads"], sums["bytes"]) == (3, sum(each["bytes"] for each in every))
    assert sums["database_bytes"] > sums["bytes"]
    assert lines[3].split() == [f"{sums['bytes']:,}", "all,", "in", "3", "threads"]
    assert lines[4].split()[:3] == [f"{sums['database_bytes']:,}", "the", "database,"]
    assert "the database has messages, runs, replies, events and the store, too." in lines[5]
    assert "The bytes are those of this checkpoint's values;" in shell("threads", "show", "bob", *db).stdout
    assert shell("threads", "top", "--tenant", "none", *db).stdout.strip() == "No threads yet."


def test_threads_of_the_runtime_itself_are_left_out(shell: Shell, tmp_path: Path) -> None:
    for name in ("ada", lane_of("ada")):
        converse(tmp_path / "t.db", name, 1)
    db = ("--db", "sqlite:///t.db")
    (only,) = map(json.loads, shell("threads", "ls", "--json", *db).stdout.splitlines())
    assert only["thread_id"] == "ada"
    # Their bytes count.
    assert len(shell("threads", "top", "--json", *db).stdout.splitlines()) == 2 + 1
    assert shell("fsck", *db).stdout == "1 thread and 1 thread of the runtime itself are sound\n"


def test_a_thread_that_is_found_by_words_is_shown_with_them(shell: Shell, tmp_path: Path) -> None:
    converse(tmp_path / "t.db", "ada", 2)
    db = ("--db", "sqlite:///t.db")
    shown = shell("threads", "ls", "--words", "question 1", *db).stdout.splitlines()
    assert shown[-1] == "  human: question 1 [bold]"
    (found,) = map(
        json.loads, shell("threads", "ls", "--words", "1 question", "--json", *db).stdout.splitlines()
    )
    assert (found["excerpt"], found["speaker"]) == ("question 1 [bold]", "human")
    (plain,) = map(json.loads, shell("threads", "ls", "--json", *db).stdout.splitlines())
    assert "excerpt" not in plain
