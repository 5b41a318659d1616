"""The workflows and hooks beside the code: they can be read, and the programs that they start are there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_the_proof(path: Path) -> None:
    steps = [step for job in read(path)["jobs"].values() for step in job["steps"]]
    commands = [step["run"] for step in steps if "run" in step]
    sections = [command.split()[1:] for command in commands if command.startswith(".ci/run")]
    if path.stem == "release":
        assert sections == [["--whole"]]
    else:
        assert sorted(name for each in sections for name in each) == sorted(SECTIONS)
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


SECTIONS = ("lint", "package", "slow", "tests")
TARGETS = ["make test", "make test-all", "make lint", "make types", "make package"]
FAKE_GIT = "#!/bin/sh\necho 08a00c6\n"
FAKE_MAKE = """#!/bin/sh
echo "make $*" >>calls
[ "$1" != "$FAILS" ]
"""


def proof(
    folder: Path, *arguments: str, **variables: str
) -> tuple[subprocess.CompletedProcess[str], list[str]]:
    """Run the proof with programs that only note their calls, on a commit whose id ends in 6; return how it
    ended and the calls of make."""
    programs = folder / "bin"
    programs.mkdir()
    (folder / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", folder / ".ci" / "run")
    for name, content in {
        "chromium": "#!/bin/sh\n",
        "pgbouncer": "#!/bin/sh\n",
        "git": FAKE_GIT,
        "make": FAKE_MAKE,
    }.items():
        (programs / name).write_text(content)
        (programs / name).chmod(0o755)
    ended = subprocess.run(
        [folder / ".ci" / "run", *arguments],
        env={"PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    calls = folder / "calls"
    return ended, calls.read_text().splitlines() if calls.exists() else []


@pytest.mark.parametrize(("arguments", "part"), [((), "7/8"), (("--whole",), "1/1")])
def test_the_proof_runs_one_part_of_the_slow_tests_or_all(
    arguments: tuple[str, ...], part: str, tmp_path: Path
) -> None:
    ended, calls = proof(tmp_path, *arguments)
    assert ended.returncode == 0, ended.stdout
    assert [call.partition(" ARGS=")[0] for call in calls] == TARGETS
    assert f" --part {part} " in calls[1], ended.stdout


def test_the_proof_knows_no_other_option(tmp_path: Path) -> None:
    ended, calls = proof(tmp_path, "--all")
    usage = "usage: .ci/run [--whole] [lint] [tests] [slow] [package]\n"
    assert (ended.returncode, ended.stderr, calls) == (2, usage, [])


def test_sections_of_the_proof_run_alone(tmp_path: Path) -> None:
    ended, calls = proof(tmp_path, "lint", "package")
    assert ended.returncode == 0, ended.stdout
    assert calls == ["make lint", "make types", "make package"]


def test_the_parts_of_the_tests_are_all_of_them() -> None:
    """Every test is in exactly one part, also beside other selections."""

    def collected(*options: str) -> list[str]:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "--collect-only",
            "-q",
            "-p",
            "no:randomly",
            "tests/model",
            *options,
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
        return [line for line in done.stdout.splitlines() if "::" in line]

    whole = collected("-m", "not slow")
    parts = [collected("-m", "not slow", "--part", f"{n}/3") for n in (1, 2, 3)]
    assert sorted(name for part in parts for name in part) == sorted(whole)
    assert all(parts)


@pytest.mark.parametrize("part", ["0/4", "5/4", "1", "a/b", "1/0"])
def test_what_is_no_part_is_refused(part: str) -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "tests/model", "--part", part]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 4
    assert f"{part!r} is not a part; write 1/4 for the first of four" in done.stderr


def test_a_failed_part_fails_the_proof_and_is_not_repeated(tmp_path: Path) -> None:
    ended, calls = proof(tmp_path, FAILS="test")
    assert (ended.returncode, ended.stderr) == (1, "")
    assert ended.stdout.partition("=== summary\n")[2].splitlines() == ["failed: make test"]
    assert [call.partition(" ARGS=")[0] for call in calls] == TARGETS


def test_the_hooks_are_tools_of_the_lint_group() -> None:
    tools = {entry.partition(">")[0].partition("[")[0] for entry in PROJECT["dependency-groups"]["lint"]}
    hooks = [hook for repo in read(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    assert len(hooks) == len({hook["id"] for hook in hooks}) > 0
    for hook in hooks:
        path, *rest = shlex.split(hook["entry"])
        folder, program = path.rsplit("/", 1)
        # The uv that make installs is on no PATH.
        assert folder == ".venv/bin"
        if program == "python":
            assert (ROOT / rest[0]).is_file()
        else:
            assert {"lint-imports": "import-linter"}.get(program, program) in tools


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "README.md", ".pre-commit-config.yaml"])
def test_nothing_is_advised_that_needs_uv_on_the_path(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert not re.findall(r"`uvx? |^\s*uvx? |entry: uvx? ", text, re.MULTILINE)


def make(folder: Path, *words: str, **variables: str) -> list[str]:
    """Run a target with a uv that only notes its calls; the first call of ruff fails."""
    uv = folder / "uv"
    uv.write_text('#!/bin/sh\necho "$*" >>"$CALLS"\ncase "$*" in *"ruff check"*) exit 1;; esac\n')
    uv.chmod(0o755)
    calls = folder / "calls"
    ended = subprocess.run(
        ["make", "--silent", f"UV={uv}", *words],
        cwd=ROOT,
        env={**os.environ, "CALLS": str(calls), **variables},
        capture_output=True,
        text=True,
        timeout=60,
    )
    return [*calls.read_text().splitlines(), str(ended.returncode)]


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_the_fixes_are_applied_and_what_is_left_fails(tmp_path: Path) -> None:
    run = "run --no-default-groups --group lint ruff"
    assert make(tmp_path, "fix", "ARGS=src") == [f"{run} check --fix src", f"{run} format src", "2"]


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_the_hooks_are_installed_beside_their_tools(tmp_path: Path) -> None:
    synced, installed, status = make(tmp_path, "hooks")
    assert "--group lint" in synced
    assert (installed, status) == ("tool run pre-commit install", "0")


def test_the_changelog_has_the_version() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    version = PROJECT["project"]["version"]
    title = "\n## [Unreleased]\n" if ".dev" in version else f"\n## [{version}] - "
    assert title in changes
