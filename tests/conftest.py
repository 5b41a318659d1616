"""What every test shares: how hard Hypothesis looks, and what happens when a real part is missing."""

import os
import shutil

import pytest
from hypothesis import settings

IN_CI = os.environ.get("CI", "").lower() in {"1", "true"}

# In CI the same examples every time: a red build is red for everyone. At home, new ones on every run.
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.register_profile("dev", deadline=None)
settings.load_profile("ci" if IN_CI else "dev")


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
