"""LangGraph's own conformance checks: every capability, driver and conflict rule, async and sync."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.conformance import checkpointer_test, validate
from langgraph.checkpoint.conformance.capabilities import Capability
from langgraph.checkpoint.conformance.report import ProgressCallbacks

from tests.langgraph.savers import DRIVERS, SyncOnly, opened

CHECKS = 81
"""How many there are in the release that is pinned: fewer would mean that some were skipped."""


WAYS = (("raise", "fork"), ("async", "sync"))
"""What happens when heads conflict, and kinds of call."""


def combinations() -> list[Any]:
    """Over a network, one way to ask is quick to run; all of them are shown on the backends that are near."""
    quick = [(name, *way) for name in ("memory", "sqlite") for way in itertools.product(*WAYS)]
    quick += [(name, "raise", "async") for name in DRIVERS]
    return [
        pytest.param(
            driver,
            on_conflict,
            face,
            id=f"{driver}-{on_conflict}-{face}",
            marks=[] if (driver, on_conflict, face) in quick else [pytest.mark.slow],
        )
        for driver, on_conflict, face in itertools.product(DRIVERS, *WAYS)
    ]


@pytest.mark.parametrize(("driver", "on_conflict", "face"), combinations())
def test_every_check_of_the_conformance_suite_passes(
    driver: str, on_conflict: Literal["raise", "fork"], face: str, tmp_path: Path
) -> None:
    made = 0

    @checkpointer_test(name=f"perdure-{driver}-{on_conflict}-{face}")
    async def saver() -> AsyncIterator[BaseCheckpointSaver[int]]:
        nonlocal made
        made += 1
        folder = tmp_path / str(made)
        folder.mkdir()
        with opened(driver, folder) as db:
            inner = db.checkpointer(on_conflict=on_conflict, may_list_all_threads=True)
            yield inner if face == "async" else SyncOnly(inner)

    ran: list[str] = []
    failed: dict[str, str | None] = {}

    def note(capability: str, name: str, passed: bool, error: str | None) -> None:
        ran.append(name)
        if not passed:
            failed[name] = error

    report = asyncio.run(validate(saver, progress=ProgressCallbacks(on_test_result=note)))
    assert failed == {}
    assert len(ran) == CHECKS
    assert {name for name, result in report.results.items() if result.detected} == {
        capability.value for capability in Capability
    }
