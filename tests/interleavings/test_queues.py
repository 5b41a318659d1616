"""Whatever two processes do at once with messages, runs and replies comes out as one after the other.

Covers perdure.engine.queue.queued_records.
"""

from __future__ import annotations

import pytest

from perdure.storage.port import Driver
from tests.interleavings.explorer import check
from tests.interleavings.queues import CASES

QUICK = 150
STORED = 60
"""Pairs of a set-up that are explored in the quick run, and on a database."""


@pytest.mark.parametrize("setting", CASES)
def test_some_pairs_come_out_as_one_after_the_other(setting: str) -> None:
    check(setting, CASES[setting], size=QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("setting", CASES)
def test_all_pairs_come_out_as_one_after_the_other(setting: str) -> None:
    check(setting, CASES[setting])


@pytest.mark.slow
@pytest.mark.parametrize("setting", CASES)
def test_some_pairs_come_out_as_one_after_the_other_in_a_database(setting: str, stored: Driver) -> None:
    check(setting, CASES[setting], stored, size=STORED)
