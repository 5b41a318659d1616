"""The record of a database's keys: rotations beside live runs, kills, races, and providers that fail.

Covers perdure.admin.databases.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import admin
from perdure.database.base import handle_of
from perdure.errors import BadSetting, Conflict, KeyMissing
from perdure.keys import FileKeys
from perdure.model.ops import Commit, Fetch, Get, Put
from perdure.model.records import ITEM, RESERVED
from perdure.model.store_items import partition_of
from perdure.model.values.compression import SEALED
from perdure.storage import stored_keys
from tests.backends import BACKENDS, EMPTY

pytest.importorskip("cryptography", reason='pip install "perdure[encryption]"')

from tests.storage.key_notes import (
    NEW,
    OLD,
    OTHER,
    Provider,
    data_key_of,
    heard,
    id_of,
    key_file,
    keys_in,
    say,
)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/t.db"


@pytest.mark.parametrize("backend", [each for each in BACKENDS if each != "memory"])
def test_keys_are_rotated_beside_an_open_database_and_the_old_one_is_removed(backend: str) -> None:
    with EMPTY[backend]() as url:
        with perdure.connect_sync(url, migrate=True, encryption_key=OLD) as live:
            say(live, "first", "with the old key")
            with perdure.connect_sync(url, encryption_key=[NEW, OLD]) as other:
                assert admin.rotate_keys(other).wrapping_key == id_of(NEW)
                after = admin.rotate_keys(other, data_key=True)
                assert len(after.data_keys) == 2
                say(other, "second", "with the new data key")
            # It was given the old wrapping key alone, and has its data keys.
            assert heard(live, "first") == "with the old key"
            say(live, "third", "by the process from before")
            with pytest.raises(KeyMissing, match=f"needs the key {id_of(NEW)}"):
                heard(live, "second")
        with perdure.connect_sync(url, encryption_key=NEW) as late:
            assert [heard(late, name) for name in ("first", "second", "third")] == [
                "with the old key",
                "with the new data key",
                "by the process from before",
            ]
        with pytest.raises(KeyMissing, match=f"needs the key {id_of(NEW)}"):
            perdure.connect_sync(url, encryption_key=OLD).__enter__()
        with pytest.raises(KeyMissing, match=f"wrapped with {id_of(NEW)}.*PERDURE_KEYS"):
            perdure.connect_sync(url).__enter__()


def test_a_running_process_learns_a_new_data_key_by_one_call_for_all_that_wait(url: str) -> None:
    provider = Provider(OLD)

    async def main() -> None:
        async with perdure.connect(url, migrate=True, encryption_key=provider) as live:
            with perdure.connect_sync(url, encryption_key=OLD) as other:
                admin.rotate_keys(other, data_key=True)
                for number in range(20):
                    say(other, str(number), "new")
            provider.calls.clear()
            provider.before = lambda _: time.sleep(0.1)
            store = live.store()
            found = await asyncio.gather(*(store.aget(("notes",), str(n)) for n in range(20)))
            assert all(each is not None and each.value == {"text": "new"} for each in found)

    asyncio.run(main())
    assert provider.calls == ["unwrap"]


def test_a_process_that_only_writes_takes_a_new_data_key_soon(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_keys, "_REFRESH_S", 0.05)
    with perdure.connect_sync(url, migrate=True, encryption_key=OLD) as live:
        with perdure.connect_sync(url, encryption_key=OLD) as other:
            after = admin.rotate_keys(other, data_key=True)
        end = time.monotonic() + 20
        while True:
            say(live, "mine", "x")
            if data_key_of(url, "mine") == after.data_keys[0].id:
                break
            assert time.monotonic() < end
            time.sleep(0.02)


def test_an_unknown_data_key_costs_one_read_in_five_seconds_and_no_call(url: str) -> None:
    provider = Provider(OLD)
    with perdure.connect_sync(url, migrate=True, encryption_key=provider) as db:
        say(db, "a", "x")
        driver = handle_of(db).driver
        partition = partition_of("", ("notes",))
        inner = driver._inner  # type: ignore[attr-defined]
        ((record,),) = inner.perform(Fetch(partition, (Get(ITEM, ("a",)),)))
        foreign = SEALED + b"\xee\xee\xee\xee" + record.body[len(SEALED) + 4 :]
        inner.perform(
            Commit(partition, (Put(ITEM, ("a",), record.fields, foreign, version=record.version + 1),))
        )
        provider.calls.clear()
        reads = 0
        perform = inner.perform

        def counted(effect: Any) -> Any:
            nonlocal reads
            reads += getattr(effect, "partition", None) == RESERVED
            return perform(effect)

        inner.perform = counted
        for _ in range(20):
            with pytest.raises(KeyMissing, match="data key eeeeeeee"):
                heard(db, "a")
        assert reads == 1
        assert provider.calls == []


@pytest.mark.parametrize("both", [False, True], ids=["two wrap", "two begin data keys"])
def test_of_two_rotations_at_once_one_wins_and_the_other_says_so(url: str, both: bool) -> None:
    barrier = threading.Barrier(2, timeout=20)

    def meet(call: str) -> None:
        if call == "wrap":
            barrier.wait()

    providers = Provider(NEW, OLD), Provider(OTHER, OLD)
    with perdure.connect_sync(url, migrate=True, encryption_key=OLD) as first:
        say(first, "a", "before")
        outcomes: list[Any] = [None, None]

        def rotate(number: int) -> None:
            try:
                with perdure.connect_sync(url, encryption_key=providers[number]) as db:
                    providers[number].before = meet
                    outcomes[number] = admin.rotate_keys(db, data_key=both)
            except Conflict as error:
                outcomes[number] = error

        threads = [threading.Thread(target=rotate, args=(number,)) for number in range(2)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    lost = [number for number, each in enumerate(outcomes) if isinstance(each, Conflict)]
    assert len(lost) == 1
    assert "another process rotated the keys" in str(outcomes[lost[0]])
    won = outcomes[1 - lost[0]]
    assert won.wrapping_key == id_of((NEW, OTHER)[1 - lost[0]])
    with perdure.connect_sync(url, encryption_key=(NEW, OTHER)[1 - lost[0]]) as db:
        assert admin.encryption_keys(db) == won
        assert heard(db, "a") == "before"


KILLED = """
import os, signal, sys
import perdure
from perdure import admin
from perdure.database.opening import open_database
from perdure.storage.key_providers import LocalKeys
from perdure.testing.faults import FaultyDriver
from perdure.storage import stored_keys

url, at = sys.argv[1], int(sys.argv[2])
OLD, NEW = bytes(range(32)), bytes(range(32, 64))
moment = 0


def pass_by():
    global moment
    moment += 1
    if moment == at:
        os.kill(os.getpid(), signal.SIGKILL)


class Provider:
    inner = LocalKeys([NEW, OLD])

    async def wrap(self, plain):
        pass_by()
        answer = await self.inner.wrap(plain)
        pass_by()
        return answer

    async def unwrap(self, key_id, wrapped):
        pass_by()
        answer = await self.inner.unwrap(key_id, wrapped)
        pass_by()
        return answer


with perdure.connect_sync(url, encryption_key=Provider()) as db:
    inner = db._handle.keys._driver
    perform = inner.perform

    def between(effect):
        pass_by()
        answer = perform(effect)
        pass_by()
        return answer

    inner.perform = between
    admin.rotate_keys(db, data_key=True)
print("rotated", moment)
"""


@pytest.mark.slow
def test_a_rotation_that_is_killed_at_any_moment_has_taken_effect_or_not(url: str) -> None:
    with perdure.connect_sync(url, migrate=True, encryption_key=OLD) as db:
        say(db, "a", "before")
    seen: set[tuple[str, int]] = set()
    for moment in range(1, 40):
        done = subprocess.run(
            [sys.executable, "-c", KILLED, url, str(moment)], capture_output=True, text=True, check=False
        )
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        with perdure.connect_sync(url, encryption_key=[NEW, OLD]) as db:
            assert heard(db, "a") == "before"
            say(db, f"after {moment}", "x")
            now = admin.encryption_keys(db)
            assert now is not None
        key = NEW if now.wrapping_key == id_of(NEW) else OLD
        with perdure.connect_sync(url, encryption_key=key) as db:
            assert heard(db, f"after {moment}") == "x"
        seen.add((now.wrapping_key, len(now.data_keys)))
        if done.returncode == 0:
            break
    else:
        pytest.fail("the rotation never ended")
    assert {id_of(OLD), id_of(NEW)} == {wrapping for wrapping, _ in seen}
    assert done.stdout.startswith("rotated")


def test_no_key_is_in_a_repr_a_log_an_error_or_a_file(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with perdure.connect_sync(url, migrate=True, encryption_key=FileKeys(key_file(tmp_path, OLD))) as db:
        say(db, "a", "x")
        admin.rotate_keys(db, data_key=True)
        keys = handle_of(db).keys
        assert keys is not None
        secret = [OLD, *(each.key for each in keys._opened.keys.secrets), keys.digest_key]
        shown = [repr(keys), repr(keys._opened), repr(keys._wrapping), repr(keys_in(db)), caplog.text]
        with admin.new_archive(tmp_path / "a.perdure", encryption_key=OLD) as archive:
            for partition in admin.partitions(db, tenant=None):
                admin.move(db, partition, archive)
    for each in secret:
        for text in shown:
            assert each.hex() not in text
            assert repr(each) not in text
        for path in (tmp_path / "t.db", tmp_path / "a.perdure"):
            assert each not in path.read_bytes()


def test_a_key_that_is_added_to_the_file_is_found_by_processes_that_run(url: str, tmp_path: Path) -> None:
    path = key_file(tmp_path, OLD)
    with perdure.connect_sync(url, migrate=True, encryption_key=FileKeys(path)) as live:
        say(live, "a", "before")
        key_file(tmp_path, NEW, OLD)
        with perdure.connect_sync(url, encryption_key=FileKeys(path)) as other:
            admin.rotate_keys(other, data_key=True)
            say(other, "b", "after")
        key_file(tmp_path, NEW)
        assert heard(live, "b") == "after"
        assert heard(live, "a") == "before"


def test_a_database_in_the_clear_has_no_keys() -> None:
    with perdure.connect_sync("memory://") as db:
        assert admin.encryption_keys(db) is None
        with pytest.raises(BadSetting, match="not encrypted"):
            admin.rotate_keys(db)


def test_a_database_in_memory_rotates() -> None:
    with perdure.connect_sync("memory://", encryption_key=OLD) as db:
        say(db, "a", "x")
        assert len(admin.rotate_keys(db, data_key=True).data_keys) == 2
        assert heard(db, "a") == "x"


def test_a_dry_run_asks_the_provider_and_changes_nothing(url: str) -> None:
    provider = Provider(NEW, OLD)
    with perdure.connect_sync(url, migrate=True, encryption_key=OLD) as db:
        before = keys_in(db)
    with perdure.connect_sync(url, encryption_key=provider) as db:
        provider.calls.clear()
        would = admin.rotate_keys(db, data_key=True, dry_run=True)
        assert (would.wrapping_key, len(would.data_keys)) == (id_of(NEW), 2)
        assert provider.calls == ["unwrap", "wrap", "unwrap"]
        assert keys_in(db) == before


def test_there_is_a_most_of_data_keys(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored_keys, "_DATA_KEYS_MOST", 2)
    with perdure.connect_sync(url, migrate=True, encryption_key=OLD) as db:
        admin.rotate_keys(db, data_key=True)
        with pytest.raises(perdure.errors.TooLarge, match="2 data keys"):
            admin.rotate_keys(db, data_key=True)
        admin.rotate_keys(db)


def test_two_processes_that_open_an_empty_database_get_the_same_keys(url: str) -> None:
    with perdure.connect_sync(url, migrate=True):
        pass
    barrier = threading.Barrier(2, timeout=20)
    found: list[admin.EncryptionKeys] = []

    def open_it() -> None:
        provider = Provider(OLD)
        provider.before = lambda call: call == "wrap" and barrier.wait()
        with perdure.connect_sync(url, encryption_key=provider) as db:
            found.append(keys_in(db))

    threads = [threading.Thread(target=open_it) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(found) == 2
    assert found[0] == found[1]
