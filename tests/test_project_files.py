"""The workflows and hooks beside the code: they can be read, and the programs that they start are there."""

from __future__ import annotations

import os
import shlex
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
