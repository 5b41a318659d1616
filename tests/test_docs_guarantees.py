"""`docs/guarantees.md` names tests that there are, and its contracts run on every backend."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from perdure.testing.conformance import DriverContract, SaverContract, StoreContract
from tests import backends
from tests.langgraph import test_contract, test_store_contract

ROOT = Path(__file__).resolve().parent.parent
NAMED = re.findall(r"`((?:tests|src)/[\w/.]+)::(\w+)`", (ROOT / "docs" / "guarantees.md").read_text("utf-8"))
CONTRACTS = "src/perdure/testing/conformance/"


def test_it_names_many() -> None:
    assert len(NAMED) > 40


@pytest.mark.parametrize(("file", "name"), sorted(set(NAMED)))
def test_a_named_test_is_there(file: str, name: str) -> None:
    assert re.search(rf"^\s*(async )?def {name}\(", (ROOT / file).read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("name", sorted({name for file, name in NAMED if file.startswith(CONTRACTS)}))
def test_a_named_contract_is_one_that_runs(name: str) -> None:
    assert any(hasattr(contract, name) for contract in (DriverContract, SaverContract, StoreContract))


@pytest.mark.parametrize("tests", [test_contract, test_store_contract])
def test_the_contracts_above_the_port_run_on_every_backend(tests: Any) -> None:
    assert set(tests.TestOnEveryBackend.backend._fixture_function_marker.params) == set(backends.BACKENDS)


@pytest.mark.parametrize("backend", [name for name in backends.BACKENDS if name != "redis-cluster"])
def test_the_contract_of_a_driver_runs_on_every_backend(backend: str) -> None:
    kind = {"postgresql": "postgres"}.get(backend, backend)
    assert "(DriverContract)" in (ROOT / "tests" / "storage" / f"test_{kind}.py").read_text("utf-8")
