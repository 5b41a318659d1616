"""The lowest versions that the project allows have wheels for every Python that it names."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.conftest import missing
from tests.test_project_files import PROJECT
from tools.foreign_suites.places import find_uv

PYTHONS = [
    found[1]
    for line in PROJECT["project"]["classifiers"]
    if (found := re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", line))
]
BUILT = {"3.14": ("wordllama",)}
"""What no release has a wheel of for a Python: an installer builds it."""


def read_requirements(python: str) -> list[str]:
    extras = PROJECT["project"]["optional-dependencies"].values()
    every = [*PROJECT["project"]["dependencies"], *(line for extra in extras for line in extra)]
    return [line for line in every if not line.startswith(("perdure[", *BUILT.get(python, ())))]


def resolve_lowest(folder: Path, python: str, *options: str) -> dict[str, str]:
    """The version of each direct requirement that an installer takes which prefers the lowest."""
    uv = find_uv()
    if uv is None:
        missing("uv", "install it, or run the tests with make")
    given = folder / "given.txt"
    given.write_text("\n".join(read_requirements(python)))
    command = [
        *(str(uv), "pip", "compile", "--quiet", "--no-config", "--no-annotate", "--no-header"),
        *("--resolution", "lowest-direct", "--python-version", python),
        *("--python-platform", "x86_64-manylinux_2_28", *options, str(given)),
    ]
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    found = dict(line.split("==") for line in ended.stdout.split() if "==" in line)
    direct = {match[0] for line in read_requirements(python) if (match := re.match(r"[\w.-]+", line))}
    return {name: version for name, version in found.items() if name in direct}


@pytest.mark.slow
@pytest.mark.parametrize("python", PYTHONS)
def test_the_lowest_versions_need_no_compiler(python: str, tmp_path: Path) -> None:
    lowest = resolve_lowest(tmp_path, python)
    assert len(lowest) > 20
    assert resolve_lowest(tmp_path, python, "--only-binary", ":all:") == lowest
