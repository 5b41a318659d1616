"""A Redis database that an earlier release wrote opens, keeps everything and goes on.

``redis1.json`` holds the keys of such a database, and what they hold, in hexadecimal, as the first release of
the layout wrote them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure.model.ops import Commit, Committed, Drop, Expect, Fetch, Find, Get, Put, Range, Stage
from perdure.model.records import (
    CHECKPOINT,
    CHUNK,
    EPOCH,
    GC,
    HEAD,
    ITEM,
    KINDS,
    LANE,
    RESERVED,
    SEAL,
    STORE,
    TAG,
    WRITE,
    Kind,
    Partition,
    Record,
)
from perdure.storage.redis import driver as backend
from perdure.storage.redis import scripts
from perdure.storage.redis.driver import RedisDriver
from perdure.storage.redis.scripts import NUMBERS
from perdure.testing.conformance import rows
from perdure.testing.conformance.queues import due
from tests.servers import valkey

FORMAT_1 = Path(__file__).with_name("redis1.json")
PREFIX = "format1"
PARTITIONS = (
    Partition("", "a"),
    Partition("acme", "\0 ü\U0001f600"),
    Partition("acme", "docs", STORE),
    RESERVED,
)
KINDS_1: tuple[Kind, ...] = (HEAD, GC, EPOCH, CHECKPOINT, CHUNK, WRITE, TAG, SEAL, ITEM)
"""The kinds that the layout began with."""


def puts() -> tuple[Put, ...]:
    """Records of every kind, with every sort of value."""
    place = {"parent_id": None, "source": "loop", "step": -1}
    texts = {"channel": "x", "task_path": "~", "nonce": ""}
    item = {"created_at": 1, "updated_at": 2, "ttl": None}
    return (
        Put(HEAD, ("",), {"checkpoint_id": "c2", "seq": 2}, version=1 << 40),
        Put(HEAD, ("n\0|s",), {"checkpoint_id": "é", "seq": -1}, version=2),
        Put(GC, (), version=7),
        Put(EPOCH, (), {"open_run": None}, version=3),
        Put(CHECKPOINT, ("", "c1"), {**place, "seq": (1 << 53) + 1, "run_id": "r\0un"}, b"\0\xffbody"),
        Put(CHECKPOINT, ("", "c2"), {**place, "seq": 1 << 53, "run_id": None, "parent_id": "c1"}, b""),
        Put(CHUNK, (b"\0\x01\xff",), {"generation": 1 << 33}, b"\xfe" * 40),
        Put(WRITE, ("", "c1", "task", -3), texts, b"write", version=9),
        Put(TAG, ("t",), {"namespace": "", "checkpoint_id": "c1"}, version=1),
        Put(SEAL, ("word",), {}, b"seal", version=1),
        Put(ITEM, ("k\0",), {**item, "expires_at": 1 << 50}, b"item", version=4),
        Put(ITEM, ("l",), {**item, "expires_at": None}, b"", version=5),
    )


@pytest.fixture
def url() -> Iterator[str]:
    """A database as the first release left it."""
    with valkey.empty() as url, valkey.shared().client() as client:
        prefix = url.partition("prefix=")[2].encode()
        for key, value in json.loads(FORMAT_1.read_text()).items():
            name = bytes.fromhex(key).replace(PREFIX.encode(), prefix, 1)
            if isinstance(value, str):
                client.set(name, bytes.fromhex(value))
            elif isinstance(value, dict):
                client.hset(name, mapping={bytes.fromhex(f): bytes.fromhex(v) for f, v in value.items()})
            else:
                client.zadd(name, {bytes.fromhex(member): 0 for member in value})
        yield url


@pytest.fixture
def driver(url: str) -> Iterator[RedisDriver]:
    assert backend.migrate(url) == 1
    with closing(backend.open_driver(url)) as driver:
        yield driver


def test_an_older_layout_is_refused_with_the_command_to_run(url: str) -> None:
    with pytest.raises(perdure.MigrationRequired, match="has layout version 1, not 5; run `perdure migrate`"):
        backend.open_driver(url)
    prefix = url.partition("prefix=")[2]
    assert backend.pending(url) == [
        f"SET {prefix}:{{N}}:v 5, for each N from 0 to 3",
        f"SET {prefix}:layout '5 4' XX",
    ]
    assert backend.schema_version(url) == 1
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(backend.migrate, [url] * 8)) <= {1, 5}
    assert backend.pending(url) == []
    assert backend.migrate(url) == backend.schema_version(url) == backend.SCHEMA_VERSION == 5


def test_raising_the_version_changes_and_marks_nothing_else_and_lowers_none(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = url.partition("prefix=")[2]
    with valkey.shared().client() as client:
        before = {key: client.dump(key) for key in client.scan_iter(f"{prefix}:*", count=1000)}
        client.set(f"{prefix}:layout", "1 3")
        client.script_flush()
        assert backend.migrate(url) == 1
        assert client.get(f"{prefix}:layout") == b"5 3"
        after = {key: client.dump(key) for key in client.scan_iter(f"{prefix}:*", count=1000)}
        changed = {key.decode() for key, dump in after.items() if dump != before.get(key)}
        marks = {f"{prefix}:{{{bucket}}}:v": b"5" for bucket in range(3)}
        assert changed == {f"{prefix}:layout", *marks}
        assert {mark: client.get(mark) for mark in marks} == marks
        client.set(f"{prefix}:{{1}}:v", "9")
        client.set(f"{prefix}:layout", "9 3")
        # As when a newer release comes between the look and the write.
        monkeypatch.setattr(backend, "_stored", lambda settings: (1, 3))
        assert backend.migrate(url) == 1
        assert (client.get(f"{prefix}:layout"), client.get(f"{prefix}:{{1}}:v")) == (b"9 3", b"9")


@contextmanager
def next_release() -> Iterator[None]:
    """The migration of a later release."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backend, "SCHEMA_VERSION", backend.SCHEMA_VERSION + 1)
        yield


REQUESTS = (
    Fetch(rows.HERE, (Get(HEAD, ("",)), Range(CHUNK))),
    Commit(rows.HERE, (rows.head("c2"),)),
    Stage(rows.HERE, (rows.chunk(b"late"),)),
    Drop(rows.HERE),
    *(Find(index, "", until=1 << 50, value="r") for index in ("threads", "due", "runs", "expired")),
)


def killed_before_the_record(once: Callable[..., Any]) -> Callable[..., Any]:
    def act(*args: Any, script: scripts.Script | None = None) -> Any:
        if script is not None:
            raise KeyboardInterrupt
        return once(*args)

    return act


@contextmanager
def scripts_of_the_next_release() -> Iterator[None]:
    """Its scripts on records, which do what those of this release do."""
    names = ("commit", "fetch", "threads", "indexed", "drop")
    with next_release(), pytest.MonkeyPatch.context() as patch:
        new = {name.upper(): scripts.on_records(name, backend.SCHEMA_VERSION) for name in names}
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
            rows.stored(driver, rows.head(), rows.lane("inbox", 5))
            with next_release():
                assert backend.migrate(url) == 5
                for effect in REQUESTS:
                    with pytest.raises(
                        perdure.MigrationRequired, match=r"newer release .*\(MIGRATED to layout 6\)"
                    ):
                        driver.perform(effect)
                    with pytest.raises(perdure.MigrationRequired, match="newer release"):
                        asyncio.run(driver.aperform(effect))
        with scripts_of_the_next_release(), closing(backend.open_driver(url)) as driver:
            assert rows.get(driver, HEAD, "") is not None
            for effect in REQUESTS:
                driver.perform(effect)


def test_a_migration_that_ended_between_its_writes_is_finished_by_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with valkey.empty() as url:
        backend.migrate(url)
        with closing(backend.open_driver(url)) as driver:
            rows.stored(driver, rows.head(), rows.lane("inbox", 5))
            with next_release(), monkeypatch.context() as patch:
                patch.setattr(backend, "_once", killed_before_the_record(backend._once))
                with pytest.raises(KeyboardInterrupt):
                    backend.migrate(url)
            for effect in REQUESTS:
                with pytest.raises(perdure.MigrationRequired, match="newer release"):
                    driver.perform(effect)
        with next_release():
            assert backend.migrate(url) == 5
            assert backend.schema_version(url) == 6


def test_the_numbers_of_the_first_kinds_stay() -> None:
    assert KINDS[: len(KINDS_1)] == KINDS_1
    assert [NUMBERS[kind] for kind in KINDS_1] == list(range(1, len(KINDS_1) + 1))


@pytest.mark.parametrize("at", PARTITIONS)
def test_records_of_the_first_layout_are_all_there(driver: RedisDriver, at: Partition) -> None:
    expected = [Record(p.kind, p.key, p.fields, p.version, p.body) for p in puts()]
    gets = driver.perform(Fetch(at, tuple(Get(r.kind, r.key) for r in expected)))
    assert list(gets) == [(r,) for r in expected]
    ranges = driver.perform(Fetch(at, tuple(Range(kind) for kind in KINDS_1)))
    assert [r for found in ranges for r in found] == expected
    ((first, second),) = driver.perform(Fetch(at, (Range(CHECKPOINT, ("",), "seq"),)))
    assert (first.key[1], second.key[1]) == ("c2", "c1")


def test_threads_of_the_first_layout_are_found_and_removed(driver: RedisDriver) -> None:
    named = {p for p in PARTITIONS if p != RESERVED}
    for space in ("thread", STORE):
        found = [f.partition for f in driver.perform(Find("threads", None, space=space))]
        assert found == sorted(p for p in named if p.space == space)
    assert {f.partition for f in driver.perform(Find("runs", None, "r\0un"))} >= named
    assert {f.partition for f in driver.perform(Find("expired", None, until=1 << 50))} >= named
    assert driver.perform(Find("expired", None, until=(1 << 50) - 1)) == ()
    for at in PARTITIONS:
        driver.perform(Drop(at))
    assert driver.perform(Find("threads", None)) == driver.perform(Find("runs", None, "r\0un")) == ()


def test_threads_of_the_first_layout_go_on(driver: RedisDriver) -> None:
    at = PARTITIONS[1]
    raised = puts()[2]._replace(expect=7, version=8)
    assert driver.perform(Commit(at, (raised, puts()[0]._replace(expect=1 << 40)))) == Committed()
    assert driver.perform(Commit(at, (raised,))) != Committed()
    absent = Put(CHECKPOINT, ("", "c1"), puts()[4].fields, expect=Expect.ABSENT)
    assert driver.perform(Commit(at, (absent,))) != Committed()


@pytest.mark.parametrize("at", PARTITIONS[:2])
def test_threads_of_the_first_layout_take_messages(driver: RedisDriver, at: Partition) -> None:
    assert due(driver, 1 << 60) == []
    assert rows.commit(driver, rows.lane("inbox", 5, Expect.ABSENT), rows.inbox(1), rows.dedupe(b"d"), at=at)
    assert due(driver, 5) == [(at.thread, "inbox")]
    assert {f.partition for f in driver.perform(Find("runs", None, "r\0un"))} >= {at}
    driver.perform(Drop(at))
    assert due(driver, 1 << 60) == []
    assert rows.get(driver, LANE, "inbox", at=at) is None
