"""What every test shares: how hard Hypothesis looks, and what happens when a real part is missing."""

import os
import re
import shutil
from pathlib import Path

import pytest
from hypothesis import settings

IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}

# In CI the same examples every time: a red build is red for everyone. At home, new ones on every run.
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("dev", deadline=None)
settings.load_profile("ci" if IN_CI else "dev")


ELSEWHERE = {"redis", "redis-cluster", "d1", "dynamodb"}
"""Backends on which what is above the port runs in `make test-all` only: SQLite and PostgreSQL stand for all,
and the storage suite and the contracts of saver and store show on every backend that they may."""
EVERYWHERE = re.compile(r"tests/(storage|mutants)/|test_\w*(contract|conformance)\w*\.py$")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if not EVERYWHERE.search(Path(item.path).as_posix()) and ELSEWHERE & _words(item):
            item.add_marker(pytest.mark.slow)


def _words(item: pytest.Item) -> set[str]:
    """The words of a test's parameters; those of a backend's name stay together."""
    spec = getattr(item, "callspec", None)
    return set() if spec is None else set(re.findall(r"redis-cluster|\w+", spec.id))


def missing(part: str, mend: str) -> None:
    """Ends the test: skipped on a laptop, failed in CI, where a part nobody misses would stay missing."""
    message = f"{part} is not installed; {mend}"
    if IN_CI:
        pytest.fail(message, pytrace=False)
    pytest.skip(message)


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of a Chromium for playwright's `executable_path`; nothing is downloaded."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    missing("chromium", "install it with your system's packages (Debian: apt-get install chromium)")
    raise AssertionError
