"""``perdure inspect`` as a process: it serves on this machine alone, and changes nothing.

Covers perdure.inspector.serve.
"""

from __future__ import annotations

import hashlib
import re
import signal
import subprocess
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

import perdure
from perdure.cli.app import app
from perdure.errors import BadSetting, NotAllowed
from tests.cli.processes import PROGRAM
from tests.cli.test_commands import Shell, shell
from tests.inspector import staging
from tests.web.heads import is_cut_off

__all__ = ["shell"]


def test_a_database_that_is_not_there_is_an_error(shell: Shell) -> None:
    done = shell("inspect", "sqlite:///none.db", "--no-browser")
    assert done.returncode == 1
    assert done.stderr.startswith("perdure: sqlite:///none.db: there is no file")


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (["--compare", "new.py:graph"], "--compare is for replays"),
        (["--graph", "a.py:graph", "--allow", "replay", "--work"], "--work runs what actions start"),
        (["--graph", "a=a.py:g", "--compare", "a=b.py:g", "--allow", "replay"], "a name of its own"),
    ],
)
def test_graphs_that_cannot_be_compared_are_refused(given: list[str], reason: str) -> None:
    done = CliRunner().invoke(app, ["inspect", "sqlite:///none.db", *given])
    assert isinstance(done.exception, BadSetting)
    assert reason in str(done.exception)


def test_one_tenant_and_all_of_them_exclude_each_other() -> None:
    done = CliRunner().invoke(app, ["inspect", "sqlite:///none.db", "--tenant", "acme", "--all-tenants"])
    assert isinstance(done.exception, NotAllowed)
    assert "exclude each other" in str(done.exception)


def test_actions_are_those_of_the_configured_graphs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    asked = ["inspect", "sqlite:///none.db", "--allow", "tag", "--no-browser", "--port", "0"]
    done = CliRunner().invoke(app, asked)
    assert str(done.exception).startswith("actions need both: --graph")
    (tmp_path / "perdure.toml").write_text('[graphs]\nagent = "./of_the_file.py:graph"\n')
    done = CliRunner().invoke(app, asked)
    assert str(done.exception).startswith("./of_the_file.py:graph: there is no file")


@pytest.mark.slow
def test_a_process_serves_a_copied_file(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"
    with perdure.connect_sync(f"sqlite:///{path}", migrate=True) as database:
        staging.fill(database)
    with perdure.connect_sync(f"sqlite:///{path}", tenant="acme") as database:
        staging.say(staging.compiled(database), "theirs", "tides")
    before = hashlib.sha256(path.read_bytes()).hexdigest()
    command = [str(PROGRAM), "inspect", f"sqlite:///{path}", "--port", "0", "--no-browser"]
    command.append("--all-tenants")
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = re.search(r"http://127\.0\.0\.1:\d+/inspect/", process.stderr.readline())
        assert found is not None
        with httpx.Client(trust_env=False, timeout=30) as client:
            listed = client.get(f"{found[0]}api/threads").json()["threads"]
            others = client.get(f"{found[0]}api/threads", params={"tenant": "acme"}).json()["threads"]
            assert client.get(found[0]).text.startswith("<!doctype html>")
        assert is_cut_off(found[0])
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 0
        assert "Traceback" not in process.stderr.read()
    assert len(listed) == 4
    assert [each["thread_id"] for each in others] == ["theirs"]
    assert hashlib.sha256(path.read_bytes()).hexdigest() == before
