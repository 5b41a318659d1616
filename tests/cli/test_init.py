"""Command ``perdure init``: its project works, and no file is overwritten.

Covers perdure.cli.new_project.agent.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.running import run_cli

WITHIN_S = 120.0
ROOT = Path(__file__).resolve().parent.parent.parent
FILES = {
    ".dockerignore",
    ".env",
    ".env.example",
    ".gitignore",
    "Dockerfile",
    "README.md",
    "agent.py",
    "langgraph.json",
    "requirements.txt",
    "test_agent.py",
}

Init = Callable[..., tuple[int, str, str]]


@pytest.fixture
def init(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Init:
    """Run ``perdure init`` in an empty folder: its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UV_RUN_RECURSION_DEPTH", raising=False)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)

    def call(*words: str) -> tuple[int, str, str]:
        return run_cli(monkeypatch, capfd, "init", *words)

    return call


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["-agent", "-", "~", "a'b $HOME", "--"])
def test_the_printed_command_leads_to_the_folder_whatever_its_name(
    init: Init, tmp_path: Path, name: str
) -> None:
    code, printed, told = init("--", name)
    assert code == 0, told
    (first, *_) = printed.splitlines()
    done = subprocess.run(
        ["bash", "-ec", f"{first}\npwd"], capture_output=True, text=True, timeout=WITHIN_S, check=True
    )
    assert done.stdout == f"{tmp_path / name}\n"


def test_the_printed_commands_run_as_they_are_printed(init: Init, tmp_path: Path) -> None:
    code, printed, told = init("my agent")
    assert code == 0, told
    assert names(tmp_path / "my agent") == FILES
    assert all(f"  {name} " in told for name in FILES)
    *before, last = printed.splitlines()
    assert before == ["cd 'my agent'", "python -m pytest"]
    assert last == "perdure dev"  # tests/cli/test_dev.py runs it
    done = subprocess.run(
        ["bash", "-ec", "\n".join(before)],
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        capture_output=True, text=True, timeout=WITHIN_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_the_written_test_fails_for_a_graph_that_forgets(init: Init, tmp_path: Path) -> None:
    init()
    agent = tmp_path / "agent.py"
    agent.write_text(agent.read_text().replace("count = sum(", "count = 0 * sum("))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"], cwd=tmp_path, capture_output=True, text=True,
        timeout=WITHIN_S, check=False,
    )  # fmt: skip
    assert "1 failed, 1 passed" in done.stdout


@pytest.mark.parametrize("name", ["agent.py", "langgraph.json", "test_agent.py", "perdure.toml"])
def test_nothing_is_written_beside_another_project(init: Init, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("mine")
    code, printed, told = init()
    assert (code, printed) == (1, "")
    assert f"this folder has {name} already, so nothing was written" in told
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {name: "mine"}


def test_other_files_stay_as_they_are_and_are_named(init: Init, tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("mine")
    (tmp_path / ".gitignore").symlink_to(tmp_path / "nowhere")
    code, _, told = init()
    assert code == 0
    assert "Left as they were: .gitignore, README.md" in told
    assert "Add .env and .perdure/ to .gitignore" in told
    assert (tmp_path / "README.md").read_text() == "mine"
    assert not (tmp_path / "nowhere").exists()
    assert names(tmp_path) == FILES


def test_a_file_in_place_of_the_folder_is_refused(init: Init, tmp_path: Path) -> None:
    (tmp_path / "agent").write_text("mine")
    code, _, told = init("agent")
    assert (code, told) == (1, "perdure: agent is not a folder; name one that the project is written to\n")


def test_a_write_that_fails_leaves_no_file(
    init: Init, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Path.read_text

    def failing(path: Path, *args: object, **more: object) -> str:
        if path.name == "Dockerfile":
            raise OSError(28, "No space left on device")
        return real(path, *args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Path, "read_text", failing)
    code, _, told = init()
    assert (code, told) == (1, "perdure: [Errno 28] No space left on device\n")
    assert names(tmp_path) == set()


def test_commands_name_the_interpreter_where_the_path_has_another(
    init: Init, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    python = shlex.quote(sys.executable)
    assert init("a")[1].splitlines()[1:] == [f"{python} -m pytest", f"{python} -m perdure dev"]
    monkeypatch.setenv("UV_RUN_RECURSION_DEPTH", "1")
    assert init("b")[1].splitlines() == ["cd b", "uv run python -m pytest", "uv run perdure dev"]


def test_what_is_not_installed_is_installed_first(init: Init, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["perdure.cli.init"], "find_spec", lambda name: None)
    assert init("a")[1].splitlines()[1] == "python -m pip install 'perdure[dev]' pytest"


def test_the_image_installs_a_release_with_extras_that_there_are(init: Init, tmp_path: Path) -> None:
    init()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (tmp_path / "Dockerfile").read_text()
    ((extras, release),) = re.findall(r'pip install "perdure\[(.+)\]~=(.+)"', text)
    assert set(extras.split(",")) <= set(project["optional-dependencies"])
    assert release == project["version"]
    assert {"git", "clone"}.isdisjoint(text.split())
    assert {".env", ".perdure"} <= set((tmp_path / ".dockerignore").read_text().split())
    assert {".env", ".perdure/"} <= set((tmp_path / ".gitignore").read_text().split())
    assert json.loads((tmp_path / "langgraph.json").read_text())["graphs"] == {"agent": "./agent.py:graph"}
