"""The public names of ``perdure.testing``, pinned: adding one is a decision."""

from __future__ import annotations

import inspect
from pathlib import Path

import perdure.testing
from perdure.testing import conformance, faults, fixtures


def test_the_public_names_are_these() -> None:
    assert set(perdure.testing.__all__) == {"assert_sound", "from_export", "strict"}
    assert set(conformance.__all__) == {
        "Awaited",
        "Backend",
        "Blocking",
        "DriverContract",
        "Narrow",
        "SaverContract",
        "StoreContract",
    }
    assert set(fixtures.__all__) == {"Cold", "cold"}
    assert set(faults.__all__) == {
        "ALL",
        "Action",
        "ErrorName",
        "Fault",
        "FaultyDriver",
        "READS",
        "WRITES",
        "fail",
        "faulty",
        "kill",
        "refuse",
    }


def test_the_package_has_these_modules_and_no_other() -> None:
    folder = Path(perdure.testing.__file__).parent
    found = {
        path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert found == {
        "__init__",
        "channels",
        "conformance",
        "faults",
        "fixtures",
        "graph_assertions",
        "recorded_threads",
    }


def test_each_public_name_is_documented() -> None:
    for module in (perdure.testing, conformance):
        for name in module.__all__:
            assert inspect.getdoc(getattr(module, name)), f"{module.__name__}.{name}"
    for name in ("Fault", "FaultyDriver", "fail", "faulty", "kill", "refuse"):
        assert inspect.getdoc(getattr(faults, name)), name
