"""The workflows and hooks beside the code: they can be read, and the programs that they start are there."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
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
def test_a_workflow_runs_the_whole_proof(path: Path) -> None:
    steps = [step for job in read(path)["jobs"].values() for step in job["steps"]]
    commands = [step["run"] for step in steps if "run" in step]
    assert ".ci/run" in commands
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


FAKE_MAKE = """#!/bin/sh
echo "make $*" >>calls
mkdir -p .pytest_cache/v/cache
case "$*" in
    *--last-failed*) exit ${AGAIN} ;;
    "test "*|test) printf '%s' "$FAILED" >.pytest_cache/v/cache/lastfailed; exit 2 ;;
esac
"""


@pytest.mark.parametrize(
    ("failing", "again", "status"), [(1, 0, 0), (3, 0, 0), (1, 2, 1), (4, 0, 1), (0, 0, 1)]
)
def test_a_few_failed_tests_run_once_more_and_are_named(
    failing: int, again: int, status: int, tmp_path: Path
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (tmp_path / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", tmp_path / ".ci" / "run")
    for name in ("chromium", "pgbouncer", "make"):
        (programs / name).write_text(FAKE_MAKE if name == "make" else "#!/bin/sh\n")
        (programs / name).chmod(0o755)
    names = [f"tests/test_x.py::test_{n}[a b]" for n in range(failing)]
    variables = {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "FAILED": json.dumps(dict.fromkeys(names, True)),
        "AGAIN": str(again),
    }
    ended = subprocess.run(
        [tmp_path / ".ci" / "run"], env=variables, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == status, ended.stdout + ended.stderr
    assert ended.stderr == ""
    summary = ended.stdout.partition("=== summary\n")[2].splitlines()
    calls = (tmp_path / "calls").read_text().splitlines()
    repeats = [call for call in calls if "--last-failed" in call]
    assert len(calls) - len(repeats) == 3
    assert len(repeats) == (1 if 1 <= failing <= 3 else 0)
    if status:
        assert summary == ["failed: make test"]
    else:
        assert summary[:-1] == [f"failed beside others, passed alone: {name}" for name in names]


def test_the_hooks_are_tools_of_the_lint_group() -> None:
    tools = {entry.partition(">")[0].partition("[")[0] for entry in PROJECT["dependency-groups"]["lint"]}
    hooks = [hook for repo in read(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]]
    assert len(hooks) == len({hook["id"] for hook in hooks}) > 0
    for hook in hooks:
        runner, sub, option, program, *rest = shlex.split(hook["entry"])
        assert (runner, sub, option) == ("uv", "run", "--no-sync")
        if program == "python":
            assert (ROOT / rest[0]).is_file()
        else:
            assert {"lint-imports": "import-linter"}.get(program, program) in tools


def test_the_changelog_has_the_version() -> None:
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## [{PROJECT['project']['version']}] - " in changes
