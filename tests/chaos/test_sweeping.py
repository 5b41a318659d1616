"""Sweeps beside live runs of workers that are killed: what was acknowledged is there, unless a policy removed
it. Some seconds by default, ten minutes with ``PERDURE_CHAOS=full``."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import backends
from tests.chaos.sweeping import SweptFleet

FULL = os.environ.get("PERDURE_CHAOS") == "full"
SECONDS = float(os.environ.get("PERDURE_CHAOS_SECONDS", 600.0 if FULL else 3.0))


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("backend", ["sqlite", *(["postgresql"] if FULL else [])])
def test_sweeps_beside_runs_of_killed_workers_remove_what_the_policies_say_alone(
    backend: str, tmp_path: Path
) -> None:
    with backends.EMPTY[backend]() as url:
        fleet = SweptFleet(url, tmp_path, seed=16, seconds=SECONDS, size=12 if FULL else 4)
        wrong = fleet.run()
        print(dict(fleet.counts), fleet.swept)
    assert wrong == []
    assert min(fleet.counts["kills"], fleet.counts["tags"], fleet.swept.checkpoints) > 0
