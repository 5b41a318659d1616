"""Whatever two processes do at once with messages, runs and replies comes out as one after the other.

Covers perdure.engine.queued_records.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from perdure.storage.port import Driver
from tests.backends import fresh
from tests.interleavings.explorer import explore
from tests.interleavings.queues import CASES

QUICK = 150
STORED = 60
"""Pairs of a set-up that are explored in the quick run, and on a database."""


@pytest.mark.parametrize("setting", CASES)
def test_some_pairs_come_out_as_one_after_the_other(setting: str) -> None:
    explored = explore(CASES[setting], pairs=CASES[setting].sample(setting, QUICK))
    assert not explored.found, "\n".join(map(str, explored.found))
    assert explored.interleavings > QUICK


@pytest.mark.slow
@pytest.mark.parametrize("setting", CASES)
def test_all_pairs_come_out_as_one_after_the_other(setting: str) -> None:
    explored = explore(CASES[setting])
    print(f"{setting}: {explored}")
    assert not explored.found, "\n".join(map(str, explored.found))
    assert explored.pairs == len(CASES[setting].operations) ** 2


@pytest.fixture(scope="module", params=["sqlite", "postgresql", "redis"])
def stored(request: pytest.FixtureRequest) -> Iterator[Driver]:
    with fresh(request.param) as driver:
        yield driver


@pytest.mark.slow
@pytest.mark.parametrize("setting", CASES)
def test_some_pairs_come_out_as_one_after_the_other_in_a_database(setting: str, stored: Driver) -> None:
    explored = explore(CASES[setting], stored, CASES[setting].sample(setting, STORED))
    assert not explored.found, "\n".join(map(str, explored.found))
