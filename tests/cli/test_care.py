"""The commands that apply retention policies, as a shell sees them."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import Retention, RetentionRules
from perdure.database.base import handle_of
from perdure.engine.retention import sweep
from perdure.engine.retention.sweep import RetentionProgress, RetentionTerms
from perdure.engine.retention.thread_expiry import Clocks
from perdure.errors import Unavailable
from tests.cli.test_commands import Shell, converse, shell

__all__ = ["shell"]

# `perdure.cli` has a group of commands of the same name.
care: Any = sys.modules["perdure.cli.care"]


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
    assert "'odd' was not swept: its metadata names a retention policy that does not exist" in caplog.text


def test_a_process_goes_on_after_threads_and_databases_that_cannot_be_swept(
    shell: Shell, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with perdure.connect_sync(url) as db:
        graph_metadata(db, "odd")
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 1:
            monkeypatch.setattr(care, "open_database", unavailable)
        elif len(waits) == 2:
            monkeypatch.setattr(care, "open_database", opened)
        else:
            raise KeyboardInterrupt

    def unavailable(*place: object) -> Any:
        raise Unavailable("the database is away")

    opened = care.open_database
    monkeypatch.setattr(care, "_wait", wait)
    done = shell("care", "run", "--keep-last", "1", "--every", "2h", "--db", url)
    assert waits == [7200, 7200, 7200]
    assert done.returncode == 130
    assert done.stdout.count("3 threads looked at") == 2
    assert "the database is away; the next sweep is tried in 7200 s" in done.stderr


def test_a_process_does_not_start_where_it_reaches_no_database(
    shell: Shell, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unavailable(*place: object) -> Any:
        raise Unavailable("the database is away")

    monkeypatch.setattr(care, "open_database", unavailable)
    done = shell("care", "run", "--keep-last", "1", "--db", url)
    assert (done.returncode, done.stderr) == (1, "perdure: the database is away\n")


def test_a_prune_does_not_continue_what_was_begun_with_other_numbers(shell: Shell, url: str) -> None:
    with perdure.connect_sync(url) as db:
        rules = RetentionRules(Retention(keep_last=50))
        terms = RetentionTerms(rules, handle_of(db).digest, handle_of(db).budget)
        begun = sweep.begin("killed", "", 1, 1, rules.fingerprint)
        state, version = handle_of(db).run(begun) or (RetentionProgress(), 0)
        state, _ = handle_of(db).run(sweep.step(state, terms, 1, Clocks(2, 2)))
        handle_of(db).run(sweep.save(state, "", version, 2))
    assert shell("threads", "prune", "--all", "--keep-last", "2", "--db", url).returncode == 0
    assert counts(url) == [2, 2]


@pytest.mark.parametrize("duration", ["9" * 300 + "w", "9" * 306 + "s", "0s", "-1d", "nand"])
def test_a_duration_without_a_number_is_refused(shell: Shell, url: str, duration: str) -> None:
    done = shell("care", "run", "--once", "--idle", duration, "--db", url)
    assert done.returncode == 1
    assert "--idle" in done.stderr


def test_a_number_above_all_keeps_everything(shell: Shell, url: str) -> None:
    done = shell("care", "run", "--once", "--keep-last", "9" * 30, "--idle", "9" * 30 + "d", "--db", url)
    assert done.returncode == 0, done
    assert counts(url) == [9, 9]


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
