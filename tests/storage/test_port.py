"""Capabilities of a driver in the layers over it, and in the driver that only reads: each of them is decided
there, so that a new one is not forgotten."""

from __future__ import annotations

from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from perdure.storage import port
from perdure.storage.encryption import DataKeys, EncryptedDriver, Keyring
from perdure.storage.memory import MemoryDriver
from perdure.storage.port import Capabilities, CommitsAndFetches, Driver, WrappingDriver
from perdure.storage.sqlite.reader import SqliteReader
from perdure.storage.url import open_driver

EVERY = frozenset(field.name for field in fields(Capabilities))
SEALED = {
    "keeps_fields": "a sealed body is bound to the fields of its record",
    "vectors": "sealed vectors cannot be compared where they are stored",
}
"""Capabilities that a key takes away, with the reason."""
UNCHANGED = frozenset(
    "has_listing searches_items removes_expired reads_heads_first reads_with_commits is_local is_kept "
    "is_read_only is_archive has_threads bell examiner statements count_bytes cut_log password".split()
)
"""Capabilities that do not depend on what a body holds."""
OF_WRITERS = {
    "keeps_fields": "it is about puts",
    "statements": "they are executed by commits",
    "cut_log": "a log is emptied into the file",
}
"""Capabilities of SQLite that its driver without a writer lacks, with the reason."""


class Having(MemoryDriver):
    """A driver with a value of its own for each capability."""

    capabilities = Capabilities(**{name: name for name in EVERY})  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "threads.db"
    open_driver(f"sqlite:///{made}", migrate=True).close()
    return made


def capabilities_of(driver: Driver) -> dict[str, Any]:
    return {name: getattr(driver.capabilities, name) for name in EVERY}


def test_encryption_decides_on_each_capability() -> None:
    assert not UNCHANGED & SEALED.keys()
    assert UNCHANGED | SEALED.keys() == EVERY, "decide in EncryptedDriver what becomes of it under a key"
    inner = Having()
    assert capabilities_of(EncryptedDriver(inner, None)) == capabilities_of(inner)
    sealed = capabilities_of(EncryptedDriver(inner, Keyring(DataKeys.create(0))))
    assert {name for name in EVERY if sealed[name] != name} == SEALED.keys()


def test_a_layer_has_what_its_driver_has_but_for_reads_with_commits() -> None:
    inner = Having()
    expected = replace(inner.capabilities, reads_with_commits=False)
    assert WrappingDriver(inner).capabilities == expected


def test_encryption_has_each_protocol_that_a_driver_may_have_beside_the_six_requests() -> None:
    found = {
        name
        for name, each in vars(port).items()
        if isinstance(each, type)
        and each.__module__ == port.__name__
        and getattr(each, "_is_runtime_protocol", False)
    }
    assert found == {CommitsAndFetches.__name__}
    assert isinstance(EncryptedDriver(MemoryDriver(), None), CommitsAndFetches)


def test_a_file_that_is_only_read_has_the_capabilities_of_sqlite_but_for_those_of_writers(path: Path) -> None:
    with closing(open_driver(f"sqlite:///{path}")) as writer, closing(SqliteReader(path)) as reader:
        default = Capabilities()
        writing, reading = capabilities_of(writer), capabilities_of(reader)
        lacking = {
            name
            for name in EVERY
            if writing[name] != (missing := getattr(default, name)) and reading[name] == missing
        }
        assert lacking == OF_WRITERS.keys(), "give it to SqliteReader, or say why it lacks it"
