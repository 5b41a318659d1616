"""A Redis database is migrated by marks of its buckets, also beside processes of the release before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any

import pytest

import perdure
from perdure.model.ops import (
    Commit,
    Drop,
    Fetch,
    FindDue,
    FindExpired,
    FindRuns,
    FindThreads,
    Get,
    Range,
    Stage,
)
from perdure.model.records import CHUNK, HEAD
from perdure.storage.kv.keys import LAYOUT_VERSION
from perdure.storage.redis import driver as backend
from perdure.storage.redis import scripts
from perdure.storage.redis.cluster import Call
from perdure.testing.conformance import rows
from tests.servers import valkey
from tests.storage.next_layout import next_layout

PRESENT = backend.SCHEMA_VERSION


def test_raising_the_version_changes_and_marks_nothing_else_and_lowers_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old, new = str(PRESENT), str(PRESENT + 1).encode()
    with valkey.empty() as url, valkey.shared().client() as client:
        prefix = url.partition("prefix=")[2]
        client.set(f"{prefix}:layout", f"{old} 3")
        with closing(backend.open_driver(url)) as driver:
            rows.store_ops(driver, *rows.every_kind())
        before = {key: client.dump(key) for key in client.scan_iter(f"{prefix}:*", count=1000)}
        client.script_flush()
        with next_layout():
            assert backend.plan_migration(url) == [
                f"SET {prefix}:{{N}}:v {PRESENT + 1}, for each N from 0 to 2",
                f"SET {prefix}:layout '{PRESENT + 1} 3' XX",
            ]
            assert backend.migrate(url) == PRESENT
        assert client.get(f"{prefix}:layout") == new + b" 3"
        after = {key: client.dump(key) for key in client.scan_iter(f"{prefix}:*", count=1000)}
        changed = {key.decode() for key, dump in after.items() if dump != before.get(key)}
        marks = {f"{prefix}:{{{bucket}}}:v": new for bucket in range(3)}
        assert changed == {f"{prefix}:layout", *marks}
        assert {mark: client.get(mark) for mark in marks} == marks
        client.set(f"{prefix}:{{1}}:v", "9")
        client.set(f"{prefix}:layout", "9 3")
        # As when a newer release comes between the look and the write.
        with next_layout():
            monkeypatch.setattr(backend, "_read_layout", lambda settings: (PRESENT, 3))
            assert backend.migrate(url) == PRESENT
        assert (client.get(f"{prefix}:layout"), client.get(f"{prefix}:{{1}}:v")) == (b"9 3", b"9")


REQUESTS = (
    Fetch(rows.HERE, (Get(HEAD, ("",)), Range(CHUNK))),
    Commit(rows.HERE, (rows.head("c2"),)),
    Stage(rows.HERE, (rows.chunk(b"late"),)),
    Drop(rows.HERE),
    *(FindThreads(""), FindDue("", 1 << 50), FindRuns("", "r"), FindExpired("", 1 << 50)),
)


def killed_before_the_record(call_once: Callable[..., Any]) -> Callable[..., Any]:
    def act(settings: Any, *calls: Call) -> Any:
        for call in calls:
            if call.parts[0] == b"EVALSHA" and any(part.endswith(b":layout") for part in call.parts):
                raise KeyboardInterrupt
        return call_once(settings, *calls)

    return act


@contextmanager
def scripts_of_the_next_layout() -> Iterator[None]:
    """Its scripts on records, which do what those of this release do."""
    names = ("commit", "fetch", "threads", "indexed", "drop")
    with next_layout(), pytest.MonkeyPatch.context() as patch:
        new = {name.upper(): scripts.make_record_script(name, backend.SCHEMA_VERSION) for name in names}
        for name, script in new.items():
            patch.setattr(scripts, name, script)
        patch.setattr(scripts, "ALL", (*new.values(), scripts.RAISE))
        yield


@pytest.mark.parametrize(
    "empty", [valkey.empty, pytest.param(valkey.empty_on_cluster, marks=pytest.mark.slow)]
)
def test_a_process_that_had_it_open_does_nothing_after_a_migration(
    empty: Callable[[], AbstractContextManager[str]],
) -> None:
    with empty() as url:
        assert backend.migrate(url) == 0
        with closing(backend.open_driver(url)) as driver:
            rows.store_ops(driver, rows.head(), rows.lane("inbox", 5))
            with next_layout():
                assert backend.migrate(url) == LAYOUT_VERSION
                for effect in REQUESTS:
                    with pytest.raises(
                        perdure.MigrationRequired,
                        match=rf"newer release .*\(MIGRATED to layout {LAYOUT_VERSION + 1}\)",
                    ):
                        driver.perform(effect)
                    with pytest.raises(perdure.MigrationRequired, match="newer release"):
                        asyncio.run(driver.aperform(effect))
        with scripts_of_the_next_layout(), closing(backend.open_driver(url)) as driver:
            assert rows.get(driver, HEAD, "") is not None
            for effect in REQUESTS:
                driver.perform(effect)


def test_a_migration_that_ended_between_its_writes_is_finished_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with valkey.empty() as url:
        backend.migrate(url)
        with closing(backend.open_driver(url)) as driver:
            rows.store_ops(driver, rows.head(), rows.lane("inbox", 5))
            with next_layout(), monkeypatch.context() as patch:
                patch.setattr(backend, "_call_once", killed_before_the_record(backend._call_once))
                with pytest.raises(KeyboardInterrupt):
                    backend.migrate(url)
            for effect in REQUESTS:
                with pytest.raises(perdure.MigrationRequired, match="newer release"):
                    driver.perform(effect)
        with next_layout():
            assert backend.migrate(url) == LAYOUT_VERSION
            assert backend.schema_version(url) == LAYOUT_VERSION + 1
