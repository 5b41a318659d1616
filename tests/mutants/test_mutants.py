"""Each deliberate break has to fail a test of the contract that passes without it."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from perdure.storage.port import Driver
from perdure.testing.conformance import Backend, DriverContract, SaverContract
from tests.backends import fresh
from tests.mutants.breaks import MUTANTS, Mutant

CONTRACTS: dict[str, tuple[type[Any], Callable[[Driver], Any]]] = {
    "driver": (DriverContract, lambda driver: driver),
    "saver": (SaverContract, Backend),
}


def failing(contract: str, on: str, wrap: Callable[[Driver], Driver] | None) -> set[str]:
    """The tests of a contract that fail now, each on a driver of its own. A programming error is no verdict:
    it would make a mutant that breaks everything look caught."""
    suite, given = CONTRACTS[contract]
    names = [name for name in dir(suite) if name.startswith("test_")]
    assert len(names) > 40
    out: set[str] = set()
    for name in names:
        with fresh(on) as driver:
            try:
                getattr(suite(), name)(given(driver if wrap is None else wrap(driver)))
            except (AttributeError, NameError, TypeError):
                raise
            except Exception:
                out.add(name)
    return out


@cache
def failing_unmutated(contract: str, on: str) -> set[str]:
    return failing(contract, on, None)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.contract}: {mutant.name}")
def test_a_mutant_is_caught(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    assert failing_unmutated(mutant.contract, mutant.on) == set()
    if mutant.patch is not None:
        mutant.patch(monkeypatch)
    caught_by = failing(mutant.contract, mutant.on, mutant.wrap)
    print(f"\n{mutant.name}: caught by {len(caught_by)}: {', '.join(sorted(caught_by)[:4])}")
    assert len(caught_by) < 30, f"this breaks nearly everything, which proves nothing: {mutant.name}"
    assert caught_by, f"no test of the {mutant.contract} contract fails when {mutant.name}"
