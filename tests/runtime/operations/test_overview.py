"""Sums of counts as an operator sees them; ``tests/runtime/test_activity.py`` has those of real runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from perdure.database.base import handle_of
from perdure.model.ops import Commit, Now, Put
from perdure.model.records import DOCUMENT
from perdure.runtime import activity
from perdure.runtime.activity import HOURS, MINUTES, partition_of
from perdure.runtime.operations import overview
from tests.runtime.graphs import Storage


def count_runs(at: int, versions: tuple[str, ...] = (), models: Mapping[str, Any] | None = None) -> bytes:
    """Return counts as a process stores them."""
    runs = {version: {"runs": 1, "failed": 0} for version in versions}
    graph = {"states": {"done": 1}, "end": {}, "first": {}, "versions": runs}
    parts = {"graphs": {"agent": graph}, "users": {}, "errors": {}, "models": models or {}}
    return json.dumps({"at": at, **parts}).encode()


@pytest.mark.parametrize("minutes_ago", [0, 15, 53, 70, 100])
def test_a_version_of_this_hour_or_the_one_before_has_its_minute(near: Storage, minutes_ago: int) -> None:
    minute = activity.HOUR_US // 60
    database, line = near.open()
    present = int(near.driver.perform(Now()))
    now = present // activity.HOUR_US * activity.HOUR_US + 50 * minute
    line.ahead_us = now - present
    began = now - minutes_ago * minute
    hour = began // activity.HOUR_US * activity.HOUR_US
    puts = [
        Put(DOCUMENT, (name, str(at)), {"updated_at": at}, count_runs(at, versions), version=1)
        for name, at, versions in (
            (HOURS, hour - 5 * activity.HOUR_US, ("old",)),
            (HOURS, hour, ("old", "new")),
            (MINUTES, began, ("new",)),
            (MINUTES, began + minute, ("old", "new")),
        )
    ]
    near.driver.perform(Commit(partition_of(""), tuple(puts)))
    found = asyncio.run(overview.read(handle_of(database), ""))
    since = {each["version"]: each["since"] for each in found["day"]["versions"]}
    assert since == {"new": began, "old": hour - 5 * activity.HOUR_US}


def test_the_dearest_model_comes_first() -> None:
    used = {"input_tokens": 5, "output_tokens": 5}
    models = {
        "free": {"calls": 9, "cost": 0, **used},
        "unknown": {"calls": 3, **used, "input_tokens": 900},
        "dear": {"calls": 1, "cost": 2.5, **used},
        "cheap": {"calls": 5, "cost": 0.5, **used},
    }
    counts = json.loads(count_runs(0, (), models))
    names = [each["model"] for each in overview._summarise([counts, counts])["models"]]
    assert names == ["dear", "cheap", "unknown", "free"]
