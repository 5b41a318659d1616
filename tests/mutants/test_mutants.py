"""Each deliberate break has to fail a test of the contract that passes without it."""

from __future__ import annotations

import os
from collections.abc import Callable
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
"""In a short run one mutant in so many is tried on a backend over the network."""

CONTRACTS: dict[str, tuple[type[Any], Callable[[Driver], Any]]] = {
    "driver": (DriverContract, lambda driver: driver),
    "saver": (SaverContract, Backend),
    "store": (StoreContract, Backend),
}


def failing(contract: str, on: str, wrap: Callable[[Driver], Driver] | None) -> set[str]:
    """The tests of a contract that fail now, each on a driver of its own. A programming error is no verdict:
    it would make a mutant that breaks everything look caught."""
    suite, given = CONTRACTS[contract]
    names = [name for name in dir(suite) if name.startswith("test_")]
    assert len(names) > 25
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


def trials() -> list[tuple[Mutant, str]]:
    """Every mutant on the driver that it is made for; those of no driver in particular on the others too: all
    of them in the long run, otherwise a few on each."""
    anywhere = [mutant for mutant in MUTANTS if mutant.on == "memory"]
    out = [(mutant, mutant.on) for mutant in (*MUTANTS, *STORE_MUTANTS)]
    for n, backend in enumerate(name for name in BACKENDS if name not in ("memory", "sqlite")):
        out += [(mutant, backend) for mutant in (anywhere if FULL else anywhere[n::SPARSE])]
    return out


@pytest.mark.parametrize(
    ("mutant", "on"), [pytest.param(m, on, id=f"{m.contract}: {m.name}, {on}") for m, on in trials()]
)
def test_a_mutant_is_caught(mutant: Mutant, on: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert failing_unmutated(mutant.contract, on) == set()
    if mutant.patch is not None:
        mutant.patch(monkeypatch)
    caught_by = failing(mutant.contract, on, mutant.wrap)
    print(f"\n{mutant.name}: caught by {len(caught_by)}: {', '.join(sorted(caught_by)[:4])}")
    assert len(caught_by) < 30, f"this breaks nearly everything, which proves nothing: {mutant.name}"
    assert caught_by, f"no test of the {mutant.contract} contract fails when {mutant.name}"
