"""The commands on keys, by hand: what they show, what they change, and what they say without a key."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import perdure
from perdure.cli import main

pytest.importorskip("cryptography", reason='pip install "perdure[encryption]"')

OLD, NEW = bytes(range(32)), bytes(range(32, 64))
URL = "sqlite:///t.db"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    monkeypatch.chdir(tmp_path)
    for name in ("DATABASE_URL", "PERDURE_KEYS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PERDURE_DB", URL)
    Path("old").write_text(OLD.hex())
    Path("new").write_text(f"{NEW.hex()}\n{OLD.hex()}\n")
    Path("alone").write_text(NEW.hex())
    with perdure.connect_sync(URL, migrate=True, encryption_key=OLD) as db:
        db.store().put(("n",), "a", {"n": 1})

    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["perdure", *words])
        capfd.readouterr()
        code = 0
        try:
            main()
        except SystemExit as done:
            code = int(done.code or 0)
        return code, *capfd.readouterr()

    return call


def test_the_old_key_is_replaced_step_by_step(run: Run) -> None:
    code, before, _ = run("keys", "ls", "--keys", "old")
    assert (code, "encrypts and decrypts" in before) == (0, True)
    code, out, err = run("keys", "rotate", "--keys", "new")
    assert (code, "wrapped with" in out, "archives and backups" in " ".join(err.split())) == (0, True, True)
    code, after, _ = run("keys", "ls", "--keys", "alone")
    assert code == 0
    assert before.split()[2] != after.split()[2] == out.split()[2]
    code, _, err = run("keys", "ls", "--keys", "old")
    assert (code, f"needs the key {after.split()[2]}" in err) == (1, True)
    code, _, err = run("threads", "ls")
    assert (code, f"wrapped with {after.split()[2]}" in err, "--keys or PERDURE_KEYS" in err) == (
        1,
        True,
        True,
    )
    with perdure.connect_sync(URL, encryption_key=NEW) as db:
        found = db.store().get(("n",), "a")
        assert found is not None
        assert found.value == {"n": 1}


def test_a_check_names_what_is_under_an_old_key_with_the_remedy(run: Run) -> None:
    code, out, err = run("keys", "ls", "--check", "--keys", "old")
    assert (code, "encrypts and decrypts 1 value" in out, err) == (0, True, "")
    run("keys", "rotate", "--data-key", "--keys", "old")
    with perdure.connect_sync(URL, encryption_key=OLD) as db:
        db.store().put(("n",), "b", {"n": 2})
        db.store().put(("n",), "c", {"n": 3})
    code, out, err = run("keys", "ls", "--check", "--keys", "new")
    said = " ".join(err.split())
    assert (code, "encrypts and decrypts 2 values" in out, "decrypts 1 value" in out) == (0, True, True)
    assert "The provider wraps with" in said
    assert "run perdure keys rotate, then take" in said
    assert "1 value under earlier data keys can be read as before" in said
    run("keys", "rotate", "--keys", "new")
    _, out, err = run("keys", "ls", "--check", "--json", "--keys", "new")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["values"] for row in rows] == [2, 1]
    assert {row["provider_key"] for row in rows} == {row["wrapping_key"] for row in rows}


def test_a_data_key_is_begun_and_a_dry_run_begins_none(run: Run) -> None:
    code, out, err = run("keys", "rotate", "--data-key", "--dry-run", "--keys", "old")
    assert (code, "a new data key encrypts" in out, "Nothing was changed" in err) == (0, True, True)
    code, out, _ = run("keys", "rotate", "--data-key", "--json", "--keys", "old")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["encrypts"] for row in rows] == [True, False]
    assert all(row["wrapping_key"] == row["wrapping_key_before"] for row in rows)
    assert not any(row["dry_run"] for row in rows)
    _, out, _ = run("keys", "list", "--json", "--keys", "old")
    assert [json.loads(line)["data_key"] for line in out.splitlines()] == [row["data_key"] for row in rows]


def test_the_provider_of_the_settings_file_is_used(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("perdure.toml").write_text('keys = "old"\n')
    assert run("keys", "ls")[0] == 0
    assert run("threads", "ls")[0] == 0
    monkeypatch.setenv("PERDURE_KEYS", "alone")
    assert run("keys", "ls")[0] == 1
    assert run("keys", "ls", "--keys", "old")[0] == 0


def test_what_is_not_encrypted_has_no_keys(run: Run) -> None:
    with perdure.connect_sync("sqlite:///clear.db", migrate=True):
        pass
    for words in (("ls",), ("rotate",)):
        code, _, err = run("keys", *words, "--db", "sqlite:///clear.db")
        assert (code, "is not encrypted: it has no keys" in err) == (1, True)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ("nowhere", "the key file nowhere cannot be read"),
        (OLD.hex(), "has a key itself"),
        ("no_module:keys", "no_module:keys cannot be imported"),
        ("json:dumps", "json:dumps"),
        ("os:sep", "returns no provider"),
    ],
)
def test_a_provider_that_cannot_be_used_is_named(run: Run, keys: str, reason: str) -> None:
    code, _, err = run("keys", "ls", "--keys", keys)
    assert (code, reason in " ".join(err.split())) == (1, True)
    assert OLD.hex() not in err


def test_a_function_on_the_path_returns_a_provider(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("own_keys.py").write_text(
        "from perdure.keys import FileKeys\n\n\ndef provider():\n    return FileKeys('old')\n"
    )
    monkeypatch.syspath_prepend(".")
    assert run("keys", "ls", "--keys", "own_keys:provider")[0] == 0
