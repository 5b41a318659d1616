"""Moving house as a shell sees it: export, import, copy, what they print and refuse, and being killed.

Covers perdure.admin.moving, perdure.cli.data.copy, perdure.cli.data.export.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import admin
from perdure.database.base import handle_of
from perdure.model.records import THREADS, Partition
from perdure.runtime import Runtime
from perdure.storage.sql.schema import SCHEMA_VERSION
from perdure.storage.url import redact
from tests.cli.running import run_cli
from tests.houses import conversation, furnish
from tests.langgraph import graphs
from tests.langgraph.session import config

KEY = bytes(range(32))

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


def database(path: Path, *, key: bytes | None = None, fill: Callable[[perdure.SyncDatabase], Any]) -> str:
    url = f"sqlite:///{path}"
    with perdure.connect_sync(url, migrate=True, encryption_key=key) as db:
        fill(db)
    return url


def empty(db: perdure.SyncDatabase) -> None:
    """Leaves it as it is."""


def talk(db: perdure.SyncDatabase, thread: str = "ada", turns: int = 3) -> Any:
    graph = graphs.chat(db.checkpointer())
    for n in range(turns):
        graph.invoke(graphs.message(n), config(thread))


def queued(db: perdure.SyncDatabase) -> Any:
    """A message that waits for a worker on the thread "bob"."""

    async def accept() -> None:
        async with Runtime(db, graphs.chat(db.checkpointer()), works=False) as runtime:
            await runtime.accept("bob", "hello")

    asyncio.run(accept())


def damage(path: Path, thread: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        t = "(SELECT pk FROM perdure_thread WHERE thread = ?)"
        connection.execute(f"UPDATE perdure_chunk SET body = x'c1' WHERE t = {t}", (thread,))


def digests(url: str, key: bytes | None = None) -> dict[Partition, str]:
    with perdure.connect_sync(url, encryption_key=key) as db:
        return {p: admin.digest_of(db, p).hex for p in admin.partitions(db, None)}


def arrived(url: str) -> dict[Partition, str]:
    """The threads that a graph would find, with their digests."""
    with perdure.connect_sync(url) as db:
        return {
            p: admin.digest_of(db, p).hex
            for p in admin.partitions(db, None)
            if p.space == THREADS and db.checkpointer(tenant=p.tenant).get_tuple(config(p.thread)) is not None
        }


def test_copy_brings_everything_and_says_so(run: Run, tmp_path: Path) -> None:
    source = database(tmp_path / "a.db", fill=lambda db: furnish(db, 12))
    target = database(tmp_path / "b.db", fill=empty)
    words = ("copy", "--from", source, "--to", target)
    code, out, err = run(*words, "--dry-run")
    assert (code, err) == (0, "")
    assert "'conversation 0': would be copied, 183 checkpoints" in out
    assert "Would copy to" in out
    assert digests(target) == {}
    code, out, err = run(*words)
    assert (code, err) == (0, "")
    assert digests(target) == digests(source)
    assert "'conversation 0': copied, 183 checkpoints" in out
    assert digests(source)[Partition("", "conversation 0")] in out
    assert "store 'users'/'ada': copied, 2 items" in out
    assert "12 threads with" in out.splitlines()[-1]
    assert "3 store namespaces with 4 items" in out.splitlines()[-1]
    code, out, err = run(*words)
    assert (code, err) == (0, "")
    assert "15 were there already" in out
    code, out, _ = run("fsck", "--db", target)
    assert code == 0


def test_copy_takes_one_tenant_or_some_threads(run: Run, tmp_path: Path) -> None:
    def fill(db: perdure.SyncDatabase) -> None:
        for thread in ("ada", "eve", "bob"):
            talk(db, thread, 1)
        graphs.chat(db.checkpointer(tenant="other")).invoke(graphs.message(0), config("ada"))

    source = database(tmp_path / "a.db", fill=fill)
    target = database(tmp_path / "b.db", fill=empty)
    words = ("copy", "--from", source, "--to", target)
    assert run(*words, "--thread", "ada", "--thread", "eve", "--tenant", "")[0] == 0
    assert list(digests(target)) == [Partition("", "ada"), Partition("", "eve")]
    assert run(*words, "--tenant", "other")[0] == 0
    assert Partition("other", "ada") in digests(target)
    code, _, err = run(*words, "--thread", "gone")
    assert code == 1
    assert "there is no thread 'gone'" in err


def test_copy_reports_what_differs_and_goes_on(run: Run, tmp_path: Path) -> None:
    source = database(tmp_path / "a.db", fill=lambda db: (talk(db, "ada"), talk(db, "eve")))
    target = database(tmp_path / "b.db", fill=lambda db: talk(db, "ada", 1))
    words = ("copy", "--from", source, "--to", target)
    code, out, err = run(*words, "--dry-run")
    assert code == 1
    assert "'ada' differs at the target; pass --replace" in err
    before = digests(target)
    code, out, err = run(*words)
    assert code == 1
    assert "thread 'ada' is at the target already and differs" in err
    assert "'eve': copied" in out
    assert digests(target).items() >= before.items()
    code, out, err = run(*words, "--replace", "--dry-run")
    assert (code, err) == (0, "")
    assert "'ada': would be replaced" in out
    code, out, err = run(*words, "--replace")
    assert (code, err) == (0, "")
    assert digests(target) == digests(source)


def test_copy_between_keys(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason='pip install "perdure[encryption]"')
    source = database(tmp_path / "a.db", key=KEY, fill=talk)
    target = database(tmp_path / "b.db", fill=empty)
    (tmp_path / "key").write_text(KEY.hex())
    (tmp_path / "short").write_text("abc")
    words = ("copy", "--from", source, "--to", target)
    code, _, err = run(*words)
    assert (code, "is encrypted" in err) == (1, True)
    code, _, err = run(*words, "--from-keys", "short")
    assert (code, "short holds no key: 32 bytes, or 64 hex digits" in err) == (1, True)
    assert run(*words, "--from-keys", "key")[0] == 0
    assert digests(target) == digests(source, KEY)
    again = database(tmp_path / "c.db", fill=empty)
    assert run("copy", "--from", target, "--to", again, "--to-keys", "key")[0] == 0
    assert digests(again, KEY) == digests(target)


def test_both_databases_are_named_as_arguments_or_as_options(run: Run, tmp_path: Path) -> None:
    source, target = database(tmp_path / "a.db", fill=talk), database(tmp_path / "b.db", fill=empty)
    first = (source, target), ("--from", source, "--to", target)
    for words in (*first, ("--from", source, target), (source, "--to", target), ("--to", target, source)):
        code, out, err = run("copy", *words, "--dry-run")
        assert (code, err) == (0, ""), words
        assert out.splitlines()[-1].startswith("Would copy to") is True
    assert run("copy", source, target)[0] == 0
    assert digests(target) == digests(source)
    for named, told in (
        ([], "which database is to be read?"),
        ([source], "which database is to be written?"),
        ([source, target, "--to", target], "name more than two databases"),
    ):
        code, _, err = run("copy", *named)
        assert code == 2
        assert told in " ".join(err.replace("│", "").split())


def test_copy_refuses_what_makes_no_sense(run: Run, tmp_path: Path) -> None:
    source = database(tmp_path / "a.db", fill=talk)
    code, _, err = run("copy", "--from", source, "--to", source)
    assert (code, "same database" in err) == (1, True)
    code, _, err = run("copy", "--from", source, "--to", f"sqlite:///{tmp_path}/none.db")
    assert (code, "perdure migrate" in err) == (1, True)


@pytest.mark.parametrize("command", ["copy", "migrate", "ls"])
def test_no_password_is_ever_printed(run: Run, tmp_path: Path, command: str) -> None:
    url = "mysql://user:hunter2@host/db?token=hunter2"
    source = database(tmp_path / "a.db", fill=empty)
    words = {
        "copy": ("copy", "--from", source, "--to", url),
        "migrate": ("migrate", "--db", url, "--check"),
        "ls": ("threads", "ls", "--db", url),
    }[command]
    code, out, err = run(*words)
    assert code == 1
    assert "hunter2" not in out + err
    assert redact(url) == "mysql://user@host/db"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sqlite:////absolute/t.db", "sqlite:////absolute/t.db"),
        ("sqlite:///t.db", "sqlite:///t.db"),
        ("postgresql://me:pw@host:5432/db?sslkey=pw", "postgresql://me@host:5432/db"),
        ("postgresql://me:pw/pw@host/db", "postgresql://me@host/db"),
        ("postgresql://me:pw?pw#pw@pw@host/db", "postgresql://me@host/db"),
        ("redis://:pw@host:6379/0", "redis://host:6379/0"),
        ("d1://account/database?token=pw", "d1://account/database"),
    ],
)
def test_a_url_is_shown_without_its_secrets(url: str, shown: str) -> None:
    assert redact(url) == shown


def test_migrate_looks_before_it_acts(run: Run, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    code, out, err = run("migrate", "--db", url, "--dry-run")
    assert (code, "CREATE TABLE" in out) == (0, True)
    code, out, err = run("migrate", "--db", url, "--check")
    assert (code, out) == (1, "")
    assert f"{url} is at schema version 0, this release needs {SCHEMA_VERSION}; run `perdure migrate`" in err
    assert not (tmp_path / "t.db").exists()
    assert run("migrate", "--db", url)[0] == 0
    for flag in ("--check", "--dry-run"):
        code, out, err = run("migrate", "--db", url, flag)
        assert (code, "already" in out, err) == (0, True, "")
    with sqlite3.connect(tmp_path / "t.db") as connection:
        connection.execute("UPDATE perdure_schema SET version = 99")
    connection.close()
    for words in ((), ("--check",), ("--dry-run",)):
        code, out, err = run("migrate", "--db", url, *words)
        assert (code, out) == (1, "")
        assert "99" in err
        assert "upgrade perdure" in err


def test_an_export_comes_back_as_it_was(run: Run, tmp_path: Path) -> None:
    source = database(tmp_path / "a.db", fill=lambda db: furnish(db, 8))
    target = database(tmp_path / "b.db", fill=empty)
    code, out, err = run("export", "--all", "-o", "all.perdure", "--db", source)
    assert code == 0
    assert "7 threads are in all.perdure, in the clear" in err
    code, _, err = run("export", "--all", "-o", "all.perdure", "--db", source)
    assert (code, "all.perdure exists; pass --force" in err) == (1, True)
    code, dry, _ = run("import", "all.perdure", "--from", "archive", "--dry-run", "--db", target)
    assert (code, digests(target)) == (0, {})
    assert "conversation 0: would be imported" in dry
    code, _, err = run("import", "all.perdure", "--from", "archive", "--db", target)
    assert (code, err) == (0, "")
    there = digests(target)
    assert there == {p: d for p, d in digests(source).items() if p in there}
    assert len(there) == 7
    code, printed, _ = run("threads", "digest", "conversation 0", "--db", target)
    assert printed.split()[0] == there[Partition("", "conversation 0")]
    assert printed.split()[0] in out
    assert "is there already" in run("import", "all.perdure", "--from", "archive", "--db", target)[1]
    assert run("fsck", "--db", target)[0] == 0


def test_an_export_of_all_names_what_is_damaged_and_has_the_others(run: Run, tmp_path: Path) -> None:
    source = database(tmp_path / "a.db", fill=lambda db: (talk(db, "ada"), talk(db, "eve", 1)))
    target = database(tmp_path / "b.db", fill=empty)
    damage(tmp_path / "a.db", "ada")
    code, out, err = run("export", "--all", "-o", "all", "--db", source)
    assert (code, out.splitlines()[0].split()[1]) == (1, "eve,")
    # Nothing of the other is in the file.
    assert b"\xc4\x03ada" not in (tmp_path / "all").read_bytes()
    assert "1 thread is in all" in err
    assert "ada: not exported: " in err
    assert "damaged" in err
    assert run("import", "all", "--from", "archive", "--db", target)[0] == 0
    assert set(digests(target)) == {Partition("", "eve")}
    # One that is named is wanted whole.
    assert run("export", "ada", "eve", "-o", "two", "--db", source)[0] == 1
    assert not (tmp_path / "two").exists()
    assert run("threads", "delete", "eve", "--yes", "--db", source)[0] == 0
    # A file without a thread in it takes the place of no other.
    (tmp_path / "all").write_text("a file of before")
    code, out, err = run("export", "--all", "-o", "all", "--force", "--db", source)
    assert (code, out) == (1, "")
    assert err.splitlines()[-1] == "perdure: no thread can be exported; all was not written"
    assert (tmp_path / "all").read_text() == "a file of before"


def test_an_export_of_all_leaves_out_what_is_under_way(run: Run, tmp_path: Path) -> None:
    source = database(tmp_path / "a.db", fill=lambda db: (talk(db, "ada"), talk(db, "eve", 1), queued(db)))
    target = database(tmp_path / "b.db", fill=empty)
    code, out, err = run("export", "--all", "-o", "all", "--db", source)
    assert (code, [line.split()[1] for line in out.splitlines()]) == (1, ["ada,", "eve,"])
    assert "bob: not exported: thread 'bob' has messages or replies under way" in err
    assert run("import", "all", "--from", "archive", "--db", target)[0] == 0
    assert set(digests(target)) == {Partition("", "ada"), Partition("", "eve")}
    code, _, err = run("export", "bob", "-o", "one", "--db", source)
    assert (code, "under way" in err, (tmp_path / "one").exists()) == (1, True, False)


def test_an_export_that_the_disk_has_no_room_for_is_refused_in_one_sentence(tmp_path: Path) -> None:
    url = database(tmp_path / "a.db", fill=lambda db: talk(db, "x" * 1000, turns=60))
    before = b"of an earlier export"
    (tmp_path / "out.arc").write_bytes(before)
    command = [sys.executable, "-m", "perdure", "export", "--all", "-o", "out.arc", "--force", "--db", url]
    done = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        # More than the file that all processes share for the log of the database.
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000)),
    )
    assert done.returncode == 1
    assert done.stderr == "perdure: out.arc cannot be written: File too large; nothing of it was kept\n"
    assert (tmp_path / "out.arc").read_bytes() == before
    assert not list(tmp_path.glob("*.part"))


def test_a_dry_copy_names_what_a_copy_would_refuse(run: Run, tmp_path: Path) -> None:
    source = database(tmp_path / "a.db", fill=lambda db: (talk(db, "ada"), queued(db), talk(db, "bob")))
    target = database(tmp_path / "b.db", fill=empty)
    for more in ("--dry-run",), ():
        code, out, err = run("copy", "--from", source, "--to", target, *more)
        assert (code, "thread 'bob': not copied" in out, "under way" in err) == (1, True, True)
        assert "1 thread with" in out


def test_all_histories_are_printed_but_those_of_damaged_threads(run: Run, tmp_path: Path) -> None:
    source = database(tmp_path / "a.db", fill=lambda db: (talk(db, "ada"), talk(db, "eve", 1)))
    damage(tmp_path / "a.db", "ada")
    code, out, err = run("export", "--all", "--as", "history", "--db", source)
    assert (code, [json.loads(line)["thread_id"] for line in out.splitlines()]) == (1, ["eve"])
    assert "ada: not exported: " in err
    assert run("export", "ada", "eve", "--as", "history", "--db", source)[:2] == (1, "")


def test_a_source_that_is_not_there_is_not_to_be_created(run: Run, tmp_path: Path) -> None:
    target = database(tmp_path / "b.db", fill=empty)
    code, _, err = run("copy", "--from", f"sqlite:///{tmp_path}/none.db", "--to", target)
    assert (code, "there is no file" in err, "migrate" in err) == (1, True, False)


def test_an_import_goes_where_it_is_told(run: Run, tmp_path: Path) -> None:
    source = database(tmp_path / "a.db", fill=lambda db: (talk(db, "ada"), talk(db, "eve", 1)))
    assert run("export", "ada", "eve", "-o", "two", "--db", source)[0] == 0
    code, _, err = run("import", "two", "--from", "archive", "--rename", "x", "--db", source)
    assert (code, "--rename names one thread, two holds 2" in err) == (1, True)
    one = ("import", "two", "--from", "archive", "--thread", "ada", "--db", source)
    code, _, err = run(*one, "--rename", "eve")
    assert (code, "'eve' is taken by a different thread; nothing was imported" in err) == (1, True)
    assert run(*one, "--rename", "copy of ada", "--tenant", "other")[0] == 0
    found = digests(source)
    assert found[Partition("other", "copy of ada")] == found[Partition("", "ada")]
    assert run(*one, "--rename", "eve", "--replace")[0] == 0
    assert digests(source)[Partition("", "eve")] == found[Partition("", "ada")]
    code, _, err = run("import", "two", "--from", "archive", "--thread", "bob", "--db", source)
    assert (code, "does not hold the thread 'bob'; it holds 'ada', 'eve'" in err) == (1, True)


def test_a_file_that_is_not_whole_changes_nothing(run: Run, tmp_path: Path) -> None:
    source = database(tmp_path / "a.db", fill=talk)
    target = database(tmp_path / "b.db", fill=empty)
    assert run("export", "ada", "-o", "good", "--db", source)[0] == 0
    whole = (tmp_path / "good").read_bytes()
    half = len(whole) // 2
    for name, content, said in (
        ("cut", whole[:half], "ends early"),
        ("changed", whole[:half] + bytes([whole[half] ^ 1]) + whole[half + 1 :], "changed"),
        ("other", b"{}", "ends early"),
        ("sqlite", (tmp_path / "a.db").read_bytes(), "is not an export"),
    ):
        (tmp_path / name).write_bytes(content)
        code, _, err = run("import", name, "--from", "archive", "--db", target)
        assert code == 1, name
        assert said in err or name == "changed"
        assert name in err
        assert digests(target) == {}
    code, _, err = run("import", "none", "--from", "archive", "--db", target)
    assert (code, "there is no file none" in err) == (1, True)


def test_an_encrypted_database_is_exported_sealed_unless_asked(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason='pip install "perdure[encryption]"')
    source = database(tmp_path / "a.db", key=KEY, fill=talk)
    clear = database(tmp_path / "b.db", fill=empty)
    other = database(tmp_path / "c.db", key=bytes(32), fill=empty)
    (tmp_path / "key").write_bytes(KEY)
    (tmp_path / "zero").write_bytes(bytes(32))
    keyed = ("--db", source, "--keys", "key")
    assert "sealed with the database's key" in run("export", "ada", "-o", "sealed", *keyed)[2]
    assert "in the clear" in run("export", "ada", "-o", "open", "--clear", *keyed)[2]
    assert b"question 1" not in (tmp_path / "sealed").read_bytes()
    assert b"question 1" in (tmp_path / "open").read_bytes()
    code, _, err = run("import", "sealed", "--from", "archive", "--db", clear)
    assert (code, "sealed is encrypted" in err, digests(clear)) == (1, True, {})
    code, _, err = run("import", "sealed", "--from", "archive", "--db", other, "--keys", "zero")
    assert (code, "sealed is encrypted, and needs the key" in err) == (1, True)
    assert run("import", "sealed", "--from", "archive", "--file-keys", "key", "--db", clear)[0] == 0
    words = ("--file-keys", "key", "--db", other, "--keys", "zero")
    assert run("import", "sealed", "--from", "archive", *words)[0] == 0
    assert (
        run("import", "open", "--from", "archive", "--rename", "x", "--db", other, "--keys", "zero")[0] == 0
    )
    assert set(digests(other, bytes(32)).values()) == set(digests(source, KEY).values())
    assert digests(clear) == digests(source, KEY)


def test_a_key_for_a_file_in_the_clear_is_refused(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason='pip install "perdure[encryption]"')
    source = database(tmp_path / "a.db", fill=talk)
    target = database(tmp_path / "b.db", key=KEY, fill=empty)
    (tmp_path / "key").write_bytes(KEY)
    assert run("export", "ada", "-o", "open", "--db", source)[0] == 0
    words = ("import", "open", "--from", "archive", "--db", target, "--keys", "key")
    for dry in ((), ("--dry-run",)):
        code, _, err = run(*words, "--file-keys", "key", *dry)
        assert (code, "open is in the clear, although a key was given for it" in err) == (1, True)
        assert digests(target, KEY) == {}
    assert run(*words)[0] == 0
    assert digests(target, KEY) == digests(source)


def test_readable_json_is_as_before(run: Run, tmp_path: Path) -> None:
    source = database(tmp_path / "a.db", fill=talk)
    code, out, _ = run("export", "ada", "--db", source)
    assert (code, json.loads(out)["format"]) == (0, "perdure.thread/1")
    code, _, err = run("export", "--all", "--db", source)
    assert (code, "JSON is written for one thread" in err) == (1, True)


def test_what_has_not_arrived_can_be_deleted(run: Run, tmp_path: Path) -> None:
    from perdure.engine.threads.transfer_claim import CLAIM
    from perdure.model.ops import Commit, Delete, Put
    from perdure.model.records import GC, HEAD, SEAL

    def fill(db: perdure.SyncDatabase) -> None:
        talk(db)
        ops = (Delete(HEAD, ("",)), Delete(GC, ()), Put(SEAL, CLAIM, version=1))
        handle_of(db).driver.perform(Commit(Partition("", "ada"), ops))

    url = database(tmp_path / "a.db", fill=fill)
    code, _, err = run("fsck", "--db", url)
    assert (code, "it has not arrived" in err) == (1, True)
    assert run("threads", "delete", "ada", "--yes", "--db", url)[0] == 0
    assert digests(url) == {}


# Killed


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> str:
    return database(tmp_path_factory.mktemp("house") / "a.db", fill=lambda db: furnish(db, 50))


@pytest.fixture(scope="module")
def long_thread(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database with one thread, of which a copy takes several commits."""
    path = tmp_path_factory.mktemp("thread") / "a.db"
    return database(path, fill=lambda db: conversation(db.checkpointer(), "conversation 0", db))


# A shell that starts the tests in the background has its children ignore Ctrl-C.
HEEDING = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from perdure.cli import main
main()
"""


def start(source: str, target: str) -> subprocess.Popen[str]:
    # The test has to be faster than what it stops.
    return subprocess.Popen(
        ["nice", "-n", "10", sys.executable, "-c", HEEDING, "copy", "--from", source, "--to", target],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )


@pytest.mark.parametrize(
    "blow",
    [
        pytest.param(signal.SIGKILL, id="kill"),
        pytest.param(signal.SIGINT, id="interrupt"),
    ],
)
@pytest.mark.slow
def test_a_copy_that_is_killed_again_and_again_gets_there(
    house: str, tmp_path: Path, blow: signal.Signals
) -> None:
    expected = digests(house)
    # On a busy machine every blow may come when everything is done: then once more, into another database.
    for attempt in range(5):
        target = database(tmp_path / f"{attempt}.db", fill=empty)
        if sum(stopped_after(lines, house, target, expected, blow) for lines in (1, 12, 30)):
            break
    else:
        pytest.fail("every copy was done before it was stopped")
    process = start(house, target)
    out, err = process.communicate(timeout=100)
    assert (process.returncode, err) == (0, "")
    assert "were there already" in out
    assert digests(target) == expected


def stopped_after(
    lines: int, source: str, target: str, expected: dict[Any, Any], blow: signal.Signals
) -> bool:
    """Stop a copy that has printed so many lines. Returns whether it was not done yet."""
    process = start(source, target)
    assert process.stdout is not None
    try:
        for _ in range(lines):
            assert process.stdout.readline()
        time.sleep(0.002 * lines)
        process.send_signal(blow)
        _, err = process.communicate(timeout=60)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        process.wait()
    assert process.returncode in (0, 130 if blow is signal.SIGINT else -blow), err
    if process.returncode == 130:
        assert "Run the same command again" in err
        assert "Traceback" not in err
    there = arrived(target)
    assert there.items() <= expected.items()
    assert len(there) >= lines - 1
    return process.returncode != 0


CHILD = """
import sys
from perdure import admin
from perdure.database.opening import open_database
from perdure.model.records import Partition
from perdure.testing.faults import WRITES, Fault, faulty, kill

source, target, at, when = sys.argv[1:]
with faulty(target, Fault(int(at), kill, when), counts=WRITES) as (there, driver):
    here = open_database(source)
    admin.move(here, Partition("", "conversation 0"), there)
"""


@pytest.mark.parametrize(
    ("at", "when", "found"),
    [
        pytest.param(1, "after", "absent", marks=pytest.mark.slow),
        (2, "after", "partial"),
        pytest.param(3, "before", "partial", marks=pytest.mark.slow),
        (5, "before", "partial"),
    ],
)
def test_a_process_that_dies_at_a_write_leaves_no_thread_behind(
    long_thread: str, tmp_path: Path, at: int, when: str, found: str
) -> None:
    target = database(tmp_path / "b.db", fill=empty)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, long_thread, target, str(at), when], timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    partition = Partition("", "conversation 0")
    assert arrived(target) == {}
    with perdure.connect_sync(long_thread) as here, perdure.connect_sync(target) as there:
        assert admin.partitions(there, None) == [partition]
        assert admin.move(here, partition, there).found.value == found
        assert there.fsck(partition.thread) == []
    assert digests(target)[partition] == digests(long_thread)[partition]
