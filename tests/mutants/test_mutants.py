"""Each deliberate break has to fail a test of the contract that passes without it.

Covers perdure.testing.conformance.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import pytest

from perdure.storage.port import Driver
from perdure.testing.conformance import Backend, DriverContract, SaverContract, StoreContract
from tests.backends import BACKENDS, fresh
from tests.mutants.breaks import MUTANTS, Mutant
from tests.mutants.store import STORE_MUTANTS

FULL = os.environ.get("PERDURE_CHAOS") == "full"
SPARSE = 16
"""One mutant in so many is tried on a backend over the network; with ``PERDURE_CHAOS=full`` all are."""

CONTRACTS: dict[str, tuple[type[Any], Callable[[Driver], Any]]] = {
    "driver": (DriverContract, lambda driver: driver),
    "saver": (SaverContract, Backend),
    "store": (StoreContract, Backend),
}


def names_of(contract: str) -> list[str]:
    names = [name for name in dir(CONTRACTS[contract][0]) if name.startswith("test_")]
    assert len(names) > 25
    return names


def fails(contract: str, name: str, on: str, wrap: Callable[[Driver], Driver] | None) -> bool:
    """Whether a test of a contract fails now, on a driver of its own. A programming error is not a verdict:
    it would make a mutant that breaks everything look caught."""
    suite, given = CONTRACTS[contract]
    with fresh(on) as driver:
        try:
            getattr(suite(), name)(given(driver if wrap is None else wrap(driver)))
        except (AttributeError, NameError, TypeError):
            raise
        except Exception:
            return True
    return False


def failing(contract: str, on: str, wrap: Callable[[Driver], Driver] | None) -> set[str]:
    """The tests of a contract that fail now."""
    return {name for name in names_of(contract) if fails(contract, name, on, wrap)}


@cache
def failing_unmutated(contract: str, on: str) -> set[str]:
    return failing(contract, on, None)


def first_failing(mutant: Mutant, on: str) -> str | None:
    """A test that fails now; those are tried first that notice the mutant in memory, which is quick."""
    noticed = failing(mutant.contract, mutant.on, mutant.wrap)
    names = sorted(names_of(mutant.contract), key=lambda name: name not in noticed)
    return next((name for name in names if fails(mutant.contract, name, on, mutant.wrap)), None)


EVERYWHERE = [mutant for mutant in MUTANTS if mutant.on == "memory"]
"""Mutants of no driver in particular."""
DISTANT = [name for name in BACKENDS if name not in ("memory", "sqlite")]


QUICK = 8
"""One mutant in so many is tried in the quick run, too."""


def of(trials: Iterable[tuple[Mutant, str]]) -> list[Any]:
    return [
        pytest.param(
            mutant,
            on,
            id=f"{mutant.contract}: {mutant.name}, {on}",
            marks=[pytest.mark.slow] if n % QUICK else [],
        )
        for n, (mutant, on) in enumerate(trials)
    ]


@pytest.mark.parametrize(
    ("mutant", "on"),
    of(
        [(mutant, mutant.on) for mutant in (*MUTANTS, *STORE_MUTANTS)]
        + [(mutant, on) for on in DISTANT for mutant in EVERYWHERE if FULL]
    ),
)
def test_a_mutant_is_caught(mutant: Mutant, on: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert failing_unmutated(mutant.contract, on) == set()
    if mutant.patch is not None:
        mutant.patch(monkeypatch)
    caught_by = failing(mutant.contract, on, mutant.wrap)
    print(f"\n{mutant.name}: caught by {len(caught_by)}: {', '.join(sorted(caught_by)[:4])}")
    assert len(caught_by) < 30, f"this breaks nearly everything, which proves nothing: {mutant.name}"
    assert caught_by, f"no test of the {mutant.contract} contract fails when {mutant.name}"


@pytest.mark.parametrize(
    ("mutant", "on"), of((m, on) for n, on in enumerate(DISTANT) for m in EVERYWHERE[n::SPARSE])
)
def test_a_mutant_is_caught_over_the_network(mutant: Mutant, on: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if mutant.patch is not None:
            mutant.patch(patch)
        caught_by = first_failing(mutant, on)
    assert caught_by, f"no test of the {mutant.contract} contract fails when {mutant.name}"
    assert not fails(mutant.contract, caught_by, on, None), f"{caught_by} fails without a mutant, too"
