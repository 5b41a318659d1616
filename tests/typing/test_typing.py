"""The public API has the types that ``tests/typing`` asserts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_a_checker_sees_the_types_of_the_public_api() -> None:
    pytest.importorskip("mypy", reason="make types installs it")
    command = [sys.executable, "-m", "mypy", "tests/typing/databases.py"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
