"""The commands as a shell sees them: output, exit codes, and what is refused in one sentence.

Covers perdure.cli.data.migrate, perdure.cli.data.fsck, perdure.cli.threads,
perdure.langgraph.reading.plain_reading, perdure.model.missing_thread.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main
from langchain_core.messages import AIMessage, HumanMessage, ToolCall
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from typer.main import get_command

import perdure
from perdure.__main__ import main as entry_point
from perdure.cli import main
from perdure.cli.app import app, reflow

Shell = Callable[..., "Done"]

_COMMAND = functools.cache(get_command)
"""Makes the command of an application once: it is the same for each call, and takes longer than most."""


class Done(NamedTuple):
    """How a command ended."""

    returncode: int
    stdout: str
    stderr: str


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Shell:
    """Run ``perdure`` in an empty folder, in this process."""
    monkeypatch.chdir(tmp_path)
    for name in ("PERDURE_DB", "DATABASE_URL", "PERDURE_TENANT", "PERDURE_KEYS"):
        monkeypatch.delenv(name, raising=False)

    def run(*words: str, **env: str) -> Done:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "argv", ["perdure", *words])
            patch.setattr(sys, "stdin", StringIO())
            patch.setattr(typer.main, "get_command", _COMMAND)
            for name, value in env.items():
                patch.setenv(name, value)
            capfd.readouterr()
            code = 0
            try:
                main()
            except SystemExit as done:
                code = int(done.code or 0)
            return Done(code, *capfd.readouterr())

    return run


def converse(path: Path, thread: str, turns: int, *, key: bytes | None = None) -> None:
    builder = StateGraph(MessagesState)
    builder.add_node("answer", lambda state: {"messages": [AIMessage(f"answer {len(state['messages'])}")]})
    builder.add_edge(START, "answer")
    with perdure.connect_sync(f"sqlite:///{path}", migrate=True, encryption_key=key) as db:
        graph = builder.compile(checkpointer=db.checkpointer())
        for turn in range(turns):
            config: RunnableConfig = {"configurable": {"thread_id": thread}}
            graph.invoke({"messages": [HumanMessage(f"question {turn} [bold]")]}, config)


def test_migrate_makes_a_database_and_may_be_repeated(shell: Shell, tmp_path: Path) -> None:
    first = shell("migrate", "--db", "sqlite:///t.db")
    assert first.returncode == 0
    assert "is ready" in first.stdout
    again = shell("migrate", "--db", "sqlite:///t.db")
    assert again.returncode == 0
    assert "already" in again.stdout
    assert (tmp_path / "t.db").exists()


@pytest.mark.parametrize(
    ("words", "mend"),
    [
        (("threads", "ls"), "PERDURE_DB"),
        (("threads", "ls", "--db", "sqlite:///none.db"), "perdure migrate --db sqlite:///none.db"),
        (("threads", "ls", "--db", "sqlite:///no ne.db"), "perdure migrate --db 'sqlite:///no ne.db'`"),
        (("threads", "ls", "--db", "sqlite://none.db"), "sqlite:///none.db"),
        (("threads", "ls", "--db", "mysql://x/y"), "unknown scheme 'mysql'"),
        (("threads", "ls", "--db", "redis://:hunter2[@[::1/0"), "the database URL cannot be parsed"),
        (("threads", "ls", "--db", "\x1b[31m.db"), r"for a SQLite file write sqlite:///\x1b[31m.db"),
        (("threads", "ls", "--db", "threads.db"), "for a SQLite file write sqlite:///threads.db"),
        (("migrate", "--db", "sqlite:///no/such/folder/t.db"), "create it first"),
        (("migrate", "--db", "memory://"), "has no schema"),
    ],
)
def test_a_url_that_cannot_be_used_stops_with_the_mend(
    shell: Shell, words: tuple[str, ...], mend: str
) -> None:
    done = shell(*words)
    assert done.returncode == 1
    assert done.stderr.startswith("perdure: ")
    assert mend in done.stderr


def test_the_command_that_an_error_names_runs_as_it_is_printed(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "a b%3F.db").touch()
    url = "sqlite:///a b%253F.db"
    done = shell("threads", "ls", "--db", url)
    (command,) = re.findall(r"run `perdure (.+?)`", done.stderr)
    assert shell(*shlex.split(command)).returncode == 0
    assert shell("threads", "ls", "--db", url).returncode == 0


def test_a_file_that_is_not_a_database_is_left_alone(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "t.db").write_bytes(b"these are not the bytes of a database" * 100)
    before = (tmp_path / "t.db").read_bytes()
    for words in (("migrate", "--db", "sqlite:///t.db"), ("threads", "ls", "--db", "sqlite:///t.db")):
        done = shell(*words)
        assert done.returncode == 1
        assert "is not a SQLite database" in done.stderr
    assert (tmp_path / "t.db").read_bytes() == before


def test_a_listing_shows_ids_whole_and_none_that_changes_the_terminal(shell: Shell, tmp_path: Path) -> None:
    for name in ("x" * 400, "[bold]b", "red\x1b[31m", "two\nlines"):
        converse(tmp_path / "t.db", name, 1)
    listed = shell("threads", "ls", PERDURE_DB="sqlite:///t.db").stdout
    heading, *lines = listed.splitlines()
    assert heading.split() == ["age", "status", "thread"]
    assert {line.split()[1] for line in lines} == {"idle"}
    assert [line.split(maxsplit=2)[2] for line in lines] == [
        "[bold]b", r"'red\x1b[31m'", r"'two\nlines'", "x" * 400,
    ]  # fmt: skip


def test_threads_are_listed_shown_and_told_apart_by_tenant(shell: Shell, tmp_path: Path) -> None:
    converse(tmp_path / "t.db", "ada", 2)
    url = {"PERDURE_DB": "sqlite:///t.db"}
    assert "ada" in shell("threads", "ls", **url).stdout
    entry = json.loads(shell("threads", "ls", "--json", **url).stdout)
    assert (entry["thread_id"], entry["status"]) == ("ada", "idle")
    assert entry["created_at"] <= entry["updated_at"]
    assert "No threads yet" in shell("threads", "ls", "--tenant", "other", **url).stdout
    shown = shell("threads", "show", "ada", **url)
    assert "question 1 [bold]" in shown.stdout
    assert "answer 3" in shown.stdout
    gone = shell("threads", "show", "eve", **url)
    assert gone.returncode == 1
    assert "there is no thread 'eve'" in gone.stderr


def test_a_tag_outlives_pruning_and_export_has_everything(shell: Shell, tmp_path: Path) -> None:
    converse(tmp_path / "t.db", "ada", 3)
    url = {"PERDURE_DB": "sqlite:///t.db"}
    data = json.loads(shell("export", "ada", **url).stdout)
    assert data["format"] == "perdure.thread/1"
    assert len(data["checkpoints"]) == 9
    last = data["checkpoints"][-1]["values"]["messages"]
    assert [m["value"]["content"] for m in last][-2:] == ["question 2 [bold]", "answer 5"]
    early = data["checkpoints"][2]["checkpoint_id"]
    assert early in shell("threads", "tag", "ada", "approved", "--checkpoint", early, **url).stdout
    pruned = shell("threads", "prune", "ada", "--keep-last", "1", **url)
    assert "7 checkpoints removed, 2 stay" in pruned.stdout
    history = shell("threads", "history", "ada", **url).stdout
    assert early in history
    assert "approved" in history
    assert "sound" in shell("fsck", **url).stdout
    assert shell("threads", "tag", "ada", "approved", "--remove", **url).returncode == 0
    missing = shell("threads", "tag", "ada", "approved", "--remove", **url)
    assert missing.returncode == 1
    assert "no tag 'approved'" in missing.stderr


def test_a_thread_goes_on_from_a_tag_and_a_copy_leaves_it_as_it_is(shell: Shell, tmp_path: Path) -> None:
    converse(tmp_path / "t.db", "ada", 3)
    url = {"PERDURE_DB": "sqlite:///t.db"}
    listed = shell("threads", "history", "ada", "--json", **url).stdout.splitlines()
    early = json.loads(listed[-3])["checkpoint_id"]
    shell("threads", "tag", "ada", "approved", "--checkpoint", early, **url)
    digest = shell("threads", "digest", "ada", **url).stdout.split()[0]
    forked = json.loads(
        shell("threads", "fork", "ada", "approved", "--into", "again", "--json", **url).stdout
    )
    assert (forked["thread_id"], forked["copy_of"]) == ("again", early)
    assert shell("threads", "digest", "ada", **url).stdout.split()[0] == digest
    shown = json.loads(shell("threads", "show", "again", "--json", **url).stdout)
    assert (shown["checkpoint_id"], shown["source"]) == (forked["checkpoint_id"], "fork")
    assert f"goes on from {early}" in shell("threads", "fork", "ada", early, **url).stdout
    assert "sound" in shell("fsck", **url).stdout
    taken = shell("threads", "fork", "ada", early, "--into", "again", **url)
    assert taken.returncode == 1
    assert "'again' already has checkpoints" in taken.stderr
    missing = shell("threads", "fork", "ada", "none", **url)
    assert missing.returncode == 1
    assert "no checkpoint, tag or step 'none'" in missing.stderr
    for words in (("tag", "ada", ""), ("fork", "ada", early, "--into", "")):
        unnamed = shell("threads", *words, **url)
        assert unnamed.returncode == 2
        assert "not empty" in unnamed.stderr


def test_a_copy_that_could_not_be_forked_stays_and_is_named(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converse(tmp_path / "t.db", "ada", 2)
    url = {"PERDURE_DB": "sqlite:///t.db"}
    listed = shell("threads", "history", "ada", "--json", **url).stdout.splitlines()
    early = json.loads(listed[-2])["checkpoint_id"]

    def refused(database: perdure.SyncDatabase, thread_id: str, checkpoint: str) -> str:
        raise perdure.RunInProgress("a run of another process is open")

    with monkeypatch.context() as patch:
        patch.setattr(perdure.SyncDatabase, "fork", refused)
        failed = shell("threads", "fork", "ada", early, "--into", "again", **url)
    assert failed.returncode == 1
    assert "a run of another process is open" in failed.stderr
    assert f"`perdure threads fork again {early}`" in failed.stderr
    assert f"goes on from {early}" in shell("threads", "fork", "again", early, **url).stdout


def test_a_checkpoint_is_shown_as_it_was(shell: Shell, tmp_path: Path) -> None:
    converse(tmp_path / "t.db", "ada", 2)
    url = {"PERDURE_DB": "sqlite:///t.db"}
    rows = [
        json.loads(line) for line in shell("threads", "history", "ada", "--json", **url).stdout.splitlines()
    ]
    assert [row["step"] for row in rows] == sorted((row["step"] for row in rows), reverse=True)
    assert all("channels" not in row for row in rows)
    first = next(row for row in rows if row["step"] == 1)["checkpoint_id"]
    latest = json.loads(shell("threads", "show", "ada", "--json", **url).stdout)
    assert (latest["thread_id"], latest["checkpoint_id"]) == ("ada", rows[0]["checkpoint_id"])
    then = json.loads(shell("threads", "show", "ada", "--checkpoint", first, "--json", **url).stdout)
    assert then["checkpoint_id"] == first
    lengths = [
        next(channel["length"] for channel in shown["channels"] if channel["name"] == "messages")
        for shown in (then, latest)
    ]
    assert lengths == [2, 4]
    assert "question 1" not in shell("threads", "show", "ada", "--checkpoint", first, **url).stdout
    missing = shell("threads", "show", "ada", "--checkpoint", "1ef", **url)
    assert missing.returncode == 1
    assert "has no checkpoint, tag or step '1ef'" in missing.stderr
    assert json.loads(shell("threads", "digest", "ada", "--json", **url).stdout)["thread_id"] == "ada"


def test_a_thread_that_does_not_exist_is_not_sound(shell: Shell, tmp_path: Path) -> None:
    converse(tmp_path / "t.db", "ada", 1)
    url = {"PERDURE_DB": "sqlite:///t.db"}
    missing = shell("fsck", "eve", **url)
    assert (missing.returncode, missing.stdout) == (1, "")
    assert "there is no thread 'eve'; `perdure threads ls` lists what there is" in missing.stderr
    assert "`perdure tenants ls` the tenants" in missing.stderr
    assert shell("fsck", "ada", **url).stdout == "1 thread is sound\n"


def test_a_command_without_standard_streams_prints_nowhere(tmp_path: Path) -> None:
    converse(tmp_path / "t.db", "ada", 1)
    command = f"{shlex.quote(sys.executable)} -m perdure threads delete ada --yes --db sqlite:///t.db"
    done = subprocess.run(["sh", "-c", f"{command} >&- 2>&-"], cwd=tmp_path, check=False)
    assert done.returncode == 0
    with perdure.connect_sync(f"sqlite:///{tmp_path / 't.db'}") as db:
        assert list(db.threads()) == []


def test_help_fills_the_width_and_keeps_examples(shell: Shell) -> None:
    helped = shell("threads", "retry", "--help", COLUMNS="80").stdout
    assert "so that a provider that recognises the key delivers it once." in " ".join(helped.split())
    lines = [line.strip() for line in helped.splitlines()]
    assert not any(line.startswith("delivers it once") for line in lines)
    assert "\n   perdure serve ./agent.py:graph --dev" in shell("serve", "--help").stdout
    assert reflow("One\ntwo.\n\n  perdure x\n  perdure y\n\nThree\nfour.") == (
        "One two.\n\n  perdure x\n  perdure y\n\nThree four."
    )


def test_fsck_counts_the_tenants_that_it_does_not_check(shell: Shell, tmp_path: Path) -> None:
    converse(tmp_path / "t.db", "ada", 1)
    with perdure.connect_sync(f"sqlite:///{tmp_path / 't.db'}", tenant="acme") as db:
        db.store().put(("facts",), "k", {"v": 1})
    url = {"PERDURE_DB": "sqlite:///t.db"}
    whole = shell("fsck", **url)
    assert (whole.returncode, whole.stdout) == (0, "1 thread is sound\n")
    assert whole.stderr.startswith(
        "1 other tenant not checked: `perdure tenants ls` lists them, --tenant NAME"
    )
    assert shell("fsck", "ada", **url).stderr == ""
    assert shell("fsck", "--json", **url) == (0, "", "")


def test_fsck_of_all_tenants_names_the_tenant_of_what_is_damaged(shell: Shell, tmp_path: Path) -> None:
    converse(tmp_path / "t.db", "ada", 1)
    url = {"PERDURE_DB": "sqlite:///t.db"}
    with perdure.connect_sync(f"sqlite:///{tmp_path / 't.db'}", tenant="acme") as db:
        db.store().put(("facts",), "k", {"v": 1})
        builder = StateGraph(MessagesState).add_node("say", lambda state: {"messages": [AIMessage("Hi.")]})
        graph = builder.add_edge(START, "say").compile(checkpointer=db.checkpointer())
        graph.invoke({"messages": [HumanMessage("Hello")]}, {"configurable": {"thread_id": "bob"}})
    sound = shell("fsck", "--all-tenants", **url)
    assert (sound.returncode, sound.stdout, sound.stderr) == (0, "2 threads of 2 tenants are sound\n", "")
    for words in (["--tenant", "acme"], ["ada"]):
        refused = shell("fsck", "--all-tenants", *words, **url)
        assert refused.returncode == 2
        assert "leave out --tenant" in " ".join(refused.stderr.replace("│", " ").split())
    with closing(sqlite3.connect(tmp_path / "t.db")) as connection:
        for table, thread in (("checkpoint", "bob"), ("item", "facts")):
            connection.execute(
                f"UPDATE perdure_{table} SET body = x'c1' WHERE t IN"
                " (SELECT pk FROM perdure_thread WHERE tenant = 'acme' AND thread LIKE ?)",
                (f"{thread}%",),
            )
        connection.commit()
    assert shell("fsck", **url).returncode == 0
    damaged = shell("fsck", "--all-tenants", **url)
    assert damaged.returncode == 1
    assert "tenant 'acme': thread 'bob'" in damaged.stderr
    assert "database: tenant 'acme': store 'facts" in damaged.stderr
    found = [json.loads(line) for line in shell("fsck", "--all-tenants", "--json", **url).stdout.splitlines()]
    assert {(each.get("tenant"), each["thread_id"]) for each in found} == {(None, None), ("acme", "bob")}


def test_a_thread_that_a_tenant_does_not_have_names_the_tenant(shell: Shell, tmp_path: Path) -> None:
    converse(tmp_path / "t.db", "ada", 1)
    for words in (("threads", "show"), ("threads", "digest"), ("export",), ("fsck",)):
        missing = shell(*words, "ada", "--tenant", "acme", PERDURE_DB="sqlite:///t.db")
        assert missing.returncode == 1, words
        assert "tenant 'acme' has no thread 'ada'; `perdure threads ls --tenant acme`" in missing.stderr


def test_a_call_of_a_tool_is_shown(shell: Shell, tmp_path: Path) -> None:
    message = AIMessage("", tool_calls=[ToolCall(name="price", args={"sku": "tée"}, id="c1")])
    with perdure.connect_sync(f"sqlite:///{tmp_path / 't.db'}", migrate=True) as db:
        builder = StateGraph(MessagesState).add_node("ask", lambda state: {"messages": [message]})
        graph = builder.add_edge(START, "ask").compile(checkpointer=db.checkpointer())
        graph.invoke({"messages": [HumanMessage("tea?")]}, {"configurable": {"thread_id": "ada"}})
    shown = shell("threads", "show", "ada", PERDURE_DB="sqlite:///t.db").stdout
    assert shown.endswith('\nhuman\ntea?\n\nai by ask\ncalls price with {"sku": "tée"}\n')


@pytest.mark.parametrize("command", ["show", "history", "inbox", "delete", "tag"])
def test_a_url_in_place_of_a_thread_is_recognised(shell: Shell, command: str) -> None:
    done = shell("threads", command, "postgresql://me:secret@host/threads")
    assert done.returncode == 2
    assert "is a database; pass it as --db" in " ".join(done.stderr.replace("│", " ").split())
    assert "secret" not in done.stderr


def test_damage_is_found_in_a_thread_that_does_not_open(shell: Shell, tmp_path: Path) -> None:
    for name in ("ada", "bob"):
        converse(tmp_path / "t.db", name, 1)
    with closing(sqlite3.connect(tmp_path / "t.db")) as connection:
        ada = "(SELECT pk FROM perdure_thread WHERE thread = 'ada')"
        connection.execute(f"UPDATE perdure_checkpoint SET body = x'c1' WHERE t = {ada}")
        connection.commit()
    url = {"PERDURE_DB": "sqlite:///t.db"}
    checked = shell("fsck", **url)
    assert checked.returncode == 1
    assert "'ada'" in checked.stderr
    assert "unreadable" in checked.stderr
    assert "'bob'" not in checked.stderr


def test_delete_asks_first(shell: Shell, tmp_path: Path) -> None:
    converse(tmp_path / "t.db", "ada", 1)
    url = {"PERDURE_DB": "sqlite:///t.db"}
    unanswered = shell("threads", "delete", "ada", **url)
    assert unanswered.returncode == 1
    assert "Aborted" not in unanswered.stderr
    assert "Nothing was removed. Pass --yes to remove it without a question." in unanswered.stderr
    assert "ada" in shell("threads", "ls", **url).stdout
    assert shell("threads", "delete", "ada", "--yes", **url).returncode == 0
    assert "No threads yet" in shell("threads", "ls", **url).stdout


def test_a_declined_deletion_names_the_option(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    converse(tmp_path / "t.db", "ada", 1)
    monkeypatch.setattr("typer.confirm", lambda *_, **__: False)
    refused = shell("threads", "delete", "ada", PERDURE_DB="sqlite:///t.db")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "Pass --yes" in refused.stderr
    forgotten = shell("memory", "forget", "--user", "ada", PERDURE_DB="sqlite:///t.db")
    assert (forgotten.returncode, forgotten.stdout) == (1, "")
    assert "Pass --yes" in forgotten.stderr


def test_an_encrypted_database_needs_its_key_file(shell: Shell, tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason='pip install "perdure[encryption]"')
    key = bytes(range(32))
    converse(tmp_path / "t.db", "ada", 1, key=key)
    (tmp_path / "key").write_text(key.hex())
    url = {"PERDURE_DB": "sqlite:///t.db"}
    assert "question 0" in shell("threads", "show", "ada", "--keys", "key", **url).stdout
    closed = shell("threads", "show", "ada", **url)
    assert closed.returncode == 1
    assert "encrypted" in closed.stderr


def test_a_key_file_names_the_keys_of_a_rotation(shell: Shell, tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason='pip install "perdure[encryption]"')
    old, new = bytes(range(32)), bytes(range(32, 64))
    converse(tmp_path / "t.db", "ada", 1, key=old)
    (tmp_path / "old").write_text(old.hex())
    (tmp_path / "keys").write_text(f"{new.hex()}\n\n{old.hex()}\n")
    url = {"PERDURE_DB": "sqlite:///t.db"}
    assert shell("export", "ada", "--output", "a.perdure", "--keys", "old", **url).returncode == 0
    keys = {"PERDURE_KEYS": "keys"}
    assert "question 0" in shell("threads", "show", "ada", **url, **keys).stdout
    imported = shell("import", "a.perdure", "--from", "archive", "--rename", "bob", **url, **keys)
    assert imported.returncode == 0, imported.stderr
    assert shell("threads", "ls", "--keys", "old", **url).returncode == 0
    rotated = shell("keys", "rotate", **url, **keys)
    assert rotated.returncode == 0, rotated.stderr
    refused = shell("threads", "ls", "--keys", "old", **url)
    assert refused.returncode == 1
    assert "is encrypted, and needs the key" in refused.stderr


@pytest.mark.parametrize("content", ["", "\n", "00" * 31, f"{'00' * 32}\n00", "key\n" + "00" * 32, "00" * 64])
def test_a_file_that_holds_no_key_is_refused(shell: Shell, tmp_path: Path, content: str) -> None:
    (tmp_path / "key").write_text(content)
    refused = shell("threads", "ls", "--keys", "key", "--db", "sqlite:///t.db")
    assert refused.returncode == 1
    assert "key holds no key" in refused.stderr


def test_help_teaches(shell: Shell) -> None:
    for words in ((), ("threads",), ("threads", "prune"), ("fsck",), ("migrate",), ("demo",)):
        done = shell(*words, "--help")
        assert done.returncode == 0
        assert "Usage" in done.stdout
    assert shell("--version").stdout.strip()


def test_no_help_has_words_in_brackets_which_would_be_taken_for_markup() -> None:
    def texts(command: Any, name: str) -> Iterator[tuple[str, str]]:
        yield name, command.help or ""
        yield from ((name, getattr(each, "help", None) or "") for each in command.params)
        for called, under in getattr(command, "commands", {}).items():
            yield from texts(under, f"{name} {called}")

    shown = [(name, text) for name, text in texts(get_command(app), "perdure") if text]
    assert len(shown) > 100
    assert [each for each in shown if re.search(r"\[[a-z#/@].*?\]", each[1])] == []


@pytest.mark.parametrize(
    "program", [[Path(sys.executable).with_name("perdure")], [sys.executable, "-m", "perdure"]]
)
def test_the_installed_program_refuses_in_one_sentence(program: list[str | Path], tmp_path: Path) -> None:
    done = subprocess.run(
        [*program, "threads", "ls", "--db", "sqlite:///none.db"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no device that is always full")
def test_an_output_that_is_full_and_bytes_that_are_no_text_are_refused_in_one_sentence(
    tmp_path: Path,
) -> None:
    converse(tmp_path / "t.db", "ada", 1)
    program = [sys.executable, "-m", "perdure"]
    for words, wanted in (
        (["export", "ada"], "No space left on device"),
        (["threads", "show", b"a\xff"], "a lone surrogate"),
    ):
        with open("/dev/full", "w") as full:
            done = subprocess.run(
                [*program, *words, "--db", f"sqlite:///{tmp_path / 't.db'}"],
                stdout=full,
                stderr=subprocess.PIPE,
                text=True,
                timeout=60,
                check=False,
            )
        assert done.returncode == 1
        assert wanted in done.stderr
        assert done.stderr.count("\n") == 1


def test_an_encoding_that_lacks_characters_is_named_in_one_sentence(tmp_path: Path) -> None:
    converse(tmp_path / "t.db", "日本", 1)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "perdure",
            "threads",
            "show",
            "日本",
            "--db",
            f"sqlite:///{tmp_path / 't.db'}",
        ],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == "perdure: ascii cannot show all characters; set PYTHONIOENCODING=utf-8\n"


def test_the_database_may_be_named_in_perdure_toml(shell: Shell, tmp_path: Path) -> None:
    converse(tmp_path / "t.db", "ada", 1)
    converse(tmp_path / "other.db", "bob", 1)
    (tmp_path / "perdure.toml").write_text('database_url = "sqlite:///t.db"\n')
    assert "ada" in shell("threads", "ls").stdout
    assert "bob" in shell("threads", "ls", DATABASE_URL="sqlite:///other.db").stdout
    assert "bob" in shell("threads", "ls", "--db", "sqlite:///other.db").stdout
    (tmp_path / "perdure.toml").write_text("lease_s = 3\n")
    done = shell("threads", "ls")
    assert done.returncode == 1
    assert "perdure.toml" in done.stderr


def test_fsck_counts_and_checks_histories(shell: Shell, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/threads.db"
    words = [[{"role": "user", "content": "hello " * 500}], [{"role": "assistant", "content": "hi"}]]
    with perdure.connect_sync(url, migrate=True) as db:
        for name in ("one", "two"):
            for turn in words * 80:
                db.history().commit(db.history().load(name), turn)
    done = shell("fsck", "--db", url)
    assert (done.returncode, done.stdout.strip()) == (0, "0 threads and 2 histories are sound")
    with closing(sqlite3.connect(tmp_path / "threads.db")) as connection, connection:
        connection.execute("DELETE FROM perdure_item WHERE key <> ''")
    done = shell("fsck", "--db", url)
    assert done.returncode == 1
    assert "a part of its history is missing" in done.stderr


def test_an_interruption_before_the_commands_are_imported_leaves_no_traceback() -> None:
    started = """
import builtins
real = builtins.__import__

def interrupted(name, *args, **kwargs):
    if name == "perdure.cli":
        raise KeyboardInterrupt
    return real(name, *args, **kwargs)

builtins.__import__ = interrupted
from perdure.__main__ import main
main()
"""
    ended = subprocess.run([sys.executable, "-c", started], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_an_interruption_before_the_command_begins_leaves_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(sys, "argv", ["perdure", "threads", "ls"])
    # Typer makes the commands of the functions before it handles anything.
    monkeypatch.setattr(typer.main, "get_command", interrupted)
    with pytest.raises(SystemExit) as ended:
        entry_point()
    assert (ended.value.code, *capfd.readouterr()) == (130, "", "")
