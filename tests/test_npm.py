"""Packages from npm are installed by the first test that needs them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.servers import npm

NPM = """#!/bin/sh
echo "$@" >> {log}
mkdir -p "$3/node_modules" && touch "$3/node_modules/.package-lock.json"
exit {code}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "package-lock.json").write_text(json.dumps({"lockfileVersion": 3, "packages": {}}))
    return tmp_path


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    npm.problem.cache_clear()
    yield
    npm.problem.cache_clear()


def provide(path: Path, monkeypatch: pytest.MonkeyPatch, code: int = 0) -> Path:
    """Put a program of the name npm first on PATH. Returns the file with its arguments, one call a line."""
    log = path / "calls"
    log.touch()
    program = path / "bin" / "npm"
    program.parent.mkdir()
    program.write_text(NPM.format(log=log, code=code))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    return log


def test_packages_are_installed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = provide(folder, monkeypatch)
    assert npm.problem(folder) is None
    npm.problem.cache_clear()
    assert npm.problem(folder) is None
    assert log.read_text().splitlines() == [
        f"ci --prefix {folder} --ignore-scripts --no-audit --no-fund --silent"
    ]


def test_new_pins_are_installed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = provide(folder, monkeypatch)
    assert npm.problem(folder) is None
    npm.problem.cache_clear()
    later = (folder / "node_modules" / ".package-lock.json").stat().st_mtime + 10
    os.utime(folder / "package-lock.json", (later, later))
    assert npm.problem(folder) is None
    assert len(log.read_text().splitlines()) == 2


def test_a_failure_is_given_and_not_tried_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = provide(folder, monkeypatch, code=7)
    (folder / "node_modules").mkdir()
    for _ in range(2):
        reason = npm.problem(folder)
        assert reason is not None
        assert "npm ended with 7" in reason
    assert len(log.read_text().splitlines()) == 1


def test_without_npm_the_reason_names_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    assert "apt-get install nodejs npm" in (npm.problem(folder) or "")
