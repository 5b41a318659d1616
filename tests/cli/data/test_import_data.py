"""The command ``perdure import``: what it prints, refuses, and leaves behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.store.sqlite import SqliteStore

import perdure
from perdure.imports.kinds import SourceKind
from tests.cli.running import run_cli
from tests.imports import threads

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run ``perdure`` in an empty folder, in this process: its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    for name in ("PERDURE_DB", "DATABASE_URL", "PERDURE_TENANT", "PERDURE_KEYS"):
        monkeypatch.delenv(name, raising=False)

    def call(*words: str) -> tuple[int, str, str]:
        return run_cli(monkeypatch, capfd, *words)

    return call


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "old.db"
    with SqliteSaver.from_conn_string(str(path)) as saver:
        threads.fill(saver, 3)
    with SqliteStore.from_conn_string(str(path)) as store:
        store.setup()
        store.put(("users", "ada"), "name", {"is": "Ada"})
    with perdure.connect_sync(f"sqlite:///{tmp_path}/new.db", migrate=True):
        pass
    return path


IMPORT = ("import", "old.db", "--from", "langgraph-sqlite", "--db", "sqlite:///new.db")


def test_a_file_of_the_stock_saver_is_imported_and_reported(run: Run, old: Path, tmp_path: Path) -> None:
    code, out, err = run(*IMPORT, "--dry-run")
    assert (code, err) == (0, "")
    assert out.startswith("Would import from old.db to sqlite:///new.db: 3 threads, ")
    code, out, err = run(*IMPORT)
    assert (code, err) == (0, "")
    assert out.startswith("Imported from old.db to sqlite:///new.db: 3 threads, ")
    assert "checkpoints compared equal with langgraph-checkpoint-sqlite" in out
    assert "store: 1 items, 0 were there already, 0 had expired" in out
    code, out, _ = run(*IMPORT, "--json")
    assert json.loads(out)["threads"] == {"imported": 0, "extended": 0, "unchanged": 3, "skipped": 0}
    with perdure.connect_sync(f"sqlite:///{tmp_path}/new.db") as db:
        assert len(list(db.threads())) == 3
        assert db.store().get(("users", "ada"), "name").value == {"is": "Ada"}  # type: ignore[union-attr]


def test_what_was_deleted_at_the_source_is_named(run: Run, old: Path) -> None:
    run(*IMPORT)
    with SqliteSaver.from_conn_string(str(old)) as saver:
        saver.delete_thread("parked 0")
    with SqliteStore.from_conn_string(str(old)) as store:
        store.delete(("users", "ada"), "name")
    code, out, err = run(*IMPORT)
    assert code == 0
    assert "2 threads unchanged; 1 thread only at the target" in out
    assert "store: 0 items, 0 were there already, 0 had expired; 1 only at the target stay" in out
    assert err == "thread 'parked 0' of an earlier import is not at this source any more; it stays as it is\n"
    _, out, _ = run(*IMPORT, "--json")
    named, summary = map(json.loads, out.splitlines())
    assert named == {"thread_id": "parked 0", "only_at_target": True}
    assert (summary["threads_only_at_target"], summary["items_only_at_target"]) == (1, 1)


def test_threads_of_another_source_do_not_count_as_deleted(run: Run, old: Path, tmp_path: Path) -> None:
    run(*IMPORT)
    (tmp_path / "talks.jsonl").write_text(
        '{"thread_id": "bob", "messages": [{"role": "user", "content": "Hi"}]}'
    )
    code, out, err = run("import", "talks.jsonl", "--from", "history", "--db", "sqlite:///new.db")
    assert (code, err) == (0, "")
    assert "only at the target" not in out.splitlines()[0]
    with SqliteSaver.from_conn_string(str(tmp_path / "second.db")) as saver:
        threads.fill(saver, 1)
    second = ("import", "second.db", "--db", "sqlite:///new.db")
    _, out, err = run(*second, "--from", "langgraph-sqlite", "--thread", "parked 0")
    assert "not at this source" not in err
    code, out, err = run(*second, "--from", "langgraph-sqlite")
    assert "not at this source" not in err
    assert "only at the target" not in out.splitlines()[0]


def test_after_ten_deleted_threads_the_others_are_counted(run: Run, old: Path, tmp_path: Path) -> None:
    path = tmp_path / "talks.jsonl"
    lines = [
        f'{{"thread_id": "t{n:02}", "messages": [{{"role": "user", "content": "Hi"}}]}}\n' for n in range(13)
    ]
    path.write_text("".join(lines))
    command = ("import", str(path), "--from", "history", "--db", "sqlite:///new.db")
    assert run(*command)[0] == 0
    path.write_text(lines[0])
    code, out, err = run("import", "./talks.jsonl", *command[2:])
    assert code == 0
    assert "12 threads only at the target" in out
    assert len(err.splitlines()) == 11
    assert err.splitlines()[-1] == "the same holds for 2 more threads; --json names all"
    _, out, _ = run(*command, "--json")
    assert out.count('"only_at_target": true') == 12


def test_threads_and_a_tenant_can_be_named(run: Run, old: Path, tmp_path: Path) -> None:
    code, out, err = run(*IMPORT, "--thread", "parked 0", "--tenant", "acme")
    assert (code, err) == (0, "")
    assert "1 thread," in out
    code, _, err = run(*IMPORT, "--thread", "nothing")
    assert code == 1
    assert "old.db has no thread 'nothing'; nothing was imported" in err
    with perdure.connect_sync(f"sqlite:///{tmp_path}/new.db", tenant="acme") as db:
        assert [t.thread_id for t in db.threads()] == ["parked 0"]


def test_a_thread_that_is_skipped_is_named_with_the_reason(run: Run, old: Path, tmp_path: Path) -> None:
    with SqliteSaver.from_conn_string(str(old)) as saver:
        saver.conn.execute("UPDATE checkpoints SET type = 'pickle' WHERE thread_id = 'finished 1'")
        saver.conn.commit()
    code, out, err = run(*IMPORT)
    assert code == 1
    assert "thread 'finished 1' was skipped: a value is pickled" in err
    assert "1 thread skipped" in out
    with perdure.connect_sync(f"sqlite:///{tmp_path}/new.db") as db:
        assert sorted(t.thread_id for t in db.threads()) == ["forked 2", "parked 0"]


def test_the_options_of_an_archive_are_refused_elsewhere(run: Run, old: Path) -> None:
    code, _, err = run(*IMPORT, "--replace")
    assert code == 1
    assert "--replace belongs to --from archive" in err


def test_a_stock_file_is_not_taken_for_a_database_and_the_command_is_named(
    run: Run, old: Path, tmp_path: Path
) -> None:
    before = old.read_bytes()
    for words in (("migrate",), ("threads", "ls")):
        code, _, err = run(*words, "--db", "sqlite:///old.db")
        assert code == 1
        assert "perdure import old.db --from langgraph-sqlite --db sqlite:///new.db" in err
    assert old.read_bytes() == before


def test_a_conversation_goes_out_and_in_as_json(run: Run, old: Path, tmp_path: Path) -> None:
    assert run(*IMPORT)[0] == 0
    code, out, err = run("export", "finished 1", "--as", "history", "--db", "sqlite:///new.db")
    assert (code, err) == (0, "")
    assert [m["role"] for m in json.loads(out)][:3] == ["user", "assistant", "tool"]
    code, lines, _ = run("export", "--all", "--as", "history", "--db", "sqlite:///new.db")
    assert sorted(json.loads(line)["thread_id"] for line in lines.splitlines()) == [
        "finished 1",
        "forked 2",
        "parked 0",
    ]
    (tmp_path / "talks.jsonl").write_text(lines)
    with perdure.connect_sync(f"sqlite:///{tmp_path}/second.db", migrate=True):
        pass
    code, _, err = run("import", "talks.jsonl", "--from", "history", "--db", "sqlite:///second.db")
    assert (code, err) == (0, "")
    code, again, _ = run("export", "--all", "--as", "history", "--db", "sqlite:///second.db")
    assert (code, again) == (0, lines)


def test_the_help_names_every_kind_of_source(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    _, helped, _ = run("import", "--help")
    assert all(kind in helped for kind in SourceKind)
