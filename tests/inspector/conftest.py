"""Time that does not pass: on a busy machine a page would end after fewer threads than a test has."""

from __future__ import annotations

import pytest

from perdure.inspector import listing, questions, replaying, runs, thread_health, users


@pytest.fixture(autouse=True)
def ample_time(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (listing, questions, replaying, runs, thread_health, users):
        monkeypatch.setattr(module, "_SECONDS", 60.0)
