"""The commands that apply retention policies, as a shell sees them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.database.base import handle_of
from perdure.engine import sweep
from tests.cli.test_commands import Shell, converse, shell

__all__ = ["shell"]


@pytest.fixture
def url(tmp_path: Path) -> str:
    for name in ("ada", "bob"):
        converse(tmp_path / "t.db", name, 3)
    return f"sqlite:///{tmp_path / 't.db'}"


def counts(url: str) -> list[int]:
    with perdure.connect_sync(url) as db:
        return [len(db.timeline(name)) for name in ("ada", "bob")]


def test_a_dry_run_prints_what_a_sweep_then_removes(shell: Shell, url: str) -> None:
    planned = shell("care", "run", "--dry-run", "--keep-last", "2", "--db", url)
    assert "2 threads looked at; 0 expired threads and 14 checkpoints would be removed" in planned.stdout
    assert counts(url) == [9, 9]
    done = shell("care", "run", "--once", "--keep-last", "2", "--db", url, "--json")
    swept = json.loads(done.stdout)
    assert swept == {
        "threads": 2,
        "expired": 0,
        "checkpoints": 14,
        "bytes": int(planned.stdout.rsplit(", ", 1)[1].split()[0].replace(",", "")),
        "unfinished": 0,
        "items": 0,
        "failed": 0,
        "dry_run": False,
    }
    assert counts(url) == [2, 2]
    status = shell("care", "status", "--db", url)
    assert "The last sweep ended at 20" in status.stdout
    assert "14 checkpoints removed" in status.stdout
    assert shell("fsck", "--db", url).returncode == 0


def test_the_policy_is_that_of_the_settings(shell: Shell, url: str) -> None:
    Path("perdure.toml").write_text("[retention]\nkeep_last = 4\n", encoding="utf-8")
    assert shell("care", "run", "--once", "--db", url).returncode == 0
    assert counts(url) == [4, 4]
    assert shell("care", "run", "--once", "--db", url, PERDURE_RETENTION_KEEP_LAST="3").returncode == 0
    assert counts(url) == [3, 3]


def test_without_a_policy_nothing_is_removed(shell: Shell, url: str) -> None:
    done = shell("care", "run", "--once", "--db", url)
    assert done.returncode == 1
    assert "which threads and checkpoints may go? Pass --keep-last 50" in done.stderr
    assert shell("care", "run", "--once", "--idle", "soon", "--db", url).returncode == 1
    assert "No sweep has ended here yet." in shell("care", "status", "--db", url).stdout
    assert counts(url) == [9, 9]


def test_another_process_sweeps(shell: Shell, url: str) -> None:
    with perdure.connect_sync(url) as db:
        handle_of(db).run(sweep.begin("another", "", time.time_ns() // 1000, 600_000_000))
    done = shell("care", "run", "--once", "--keep-last", "1", "--db", url)
    assert (done.returncode, "Another process sweeps" in done.stderr) == (0, True)
    assert "A sweep is under way" in shell("care", "status", "--db", url).stdout
    assert shell("threads", "prune", "--all", "--keep-last", "1", "--db", url).returncode == 1
    assert counts(url) == [9, 9]


def test_a_damaged_thread_is_reported(shell: Shell, url: str, caplog: pytest.LogCaptureFixture) -> None:
    with perdure.connect_sync(url) as db:
        graph_metadata(db, "odd")
    done = shell("care", "run", "--once", "--keep-last", "1", "--db", url)
    assert done.returncode == 1
    assert "1 thread could not be swept" in done.stdout
    assert "'odd' was not swept: its metadata name a retention policy that does not exist" in caplog.text


def graph_metadata(db: perdure.SyncDatabase, thread: str) -> None:
    from tests.langgraph import graphs

    graph = graphs.chat(db.checkpointer())
    named: Any = {"configurable": {"thread_id": thread}, "metadata": {"retention": "none"}}
    graph.invoke(graphs.message(0), named)


@pytest.mark.parametrize(
    ("words", "left"),
    [
        (("--all", "--keep-last", "2"), [2, 2]),
        (("ada", "--keep-last", "2"), [2, 9]),
        (("--all", "--older-than", "1d"), [9, 9]),
        (("--all", "--older-than", "1ms"), None),
        (("--all", "--keep-last", "2", "--dry-run"), [9, 9]),
        (("ada", "bob", "--keep-last", "2", "--older-than", "1d"), [9, 9]),
        (("ada", "--all", "--keep-last", "2"), None),
        (("--keep-last", "2"), None),
        (("--all",), None),
    ],
)
def test_prune_takes_threads_or_all(
    shell: Shell, url: str, words: tuple[str, ...], left: list[int] | None
) -> None:
    done = shell("threads", "prune", *words, "--db", url)
    assert (done.returncode == 0) == (left is not None), done
    assert counts(url) == (left or [9, 9])
    if left == [2, 9]:
        assert done.stdout == "ada: 7 checkpoints removed, 2 stay\n"
