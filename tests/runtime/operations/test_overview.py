"""Sums of counts as an operator sees them; ``tests/runtime/test_activity.py`` has those of real runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure.database.base import handle_of
from perdure.engine.retention.old_counts import HOUR_US, HOURS, MINUTES, partition_of
from perdure.model.ops import Commit, Now, Put
from perdure.model.records import DOCUMENT
from perdure.runtime import Runtime, Settings
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
    minute = HOUR_US // 60
    database, line = near.open()
    present = int(near.driver.perform(Now()))
    now = present // HOUR_US * HOUR_US + 50 * minute
    line.ahead_us = now - present
    began = now - minutes_ago * minute
    hour = began // HOUR_US * HOUR_US
    puts = [
        Put(DOCUMENT, (name, str(at)), {"updated_at": at}, count_runs(at, versions), version=1)
        for name, at, versions in (
            (HOURS, hour - 5 * HOUR_US, ("old",)),
            (HOURS, hour, ("old", "new")),
            (MINUTES, began, ("new",)),
            (MINUTES, began + minute, ("old", "new")),
        )
    ]
    near.driver.perform(Commit(partition_of(""), tuple(puts)))
    found = asyncio.run(overview.read(handle_of(database), ""))
    since = {each["version"]: each["since"] for each in found["day"]["versions"]}
    assert since == {"new": began, "old": hour - 5 * HOUR_US}


def _fail(state: MessagesState) -> None:
    raise ValueError("no luck")


def test_threads_are_counted_that_the_listing_is_unsure_about(tmp_path: Path) -> None:
    path = tmp_path / "threads.db"

    async def main() -> dict[str, Any]:
        async with perdure.connect(f"sqlite:///{path}", migrate=True) as database:
            graph = StateGraph(MessagesState).add_node("fail", _fail).add_edge(START, "fail").compile()
            async with Runtime(database, graph, settings=Settings(poll=0.05, attempts=1)) as runtime:
                for thread in "ab":
                    ticket = await runtime.submit(thread, {"messages": []})
                    assert (await runtime.wait(ticket)).state == "failed"
            # As for a thread in which a program may have gone on since.
            latest = "SELECT max(t) FROM perdure_listing"
            with closing(apsw.Connection(str(path))) as other:
                other.execute(f"UPDATE perdure_listing SET status = 'unsure' WHERE t = ({latest})")
            return await overview.read(handle_of(database), "")

    found = asyncio.run(main())
    assert found["threads"] == {"failed": 2, "interrupted": 0, "asleep": 0}
    assert found["is_whole"]


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
