"""Providers of keys that fail, and records of keys that were changed."""

from __future__ import annotations

import asyncio
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import pytest

import perdure
from perdure import admin
from perdure.database.base import handle_of
from perdure.errors import BadSetting, DecryptionError, KeyMissing, Unavailable
from perdure.model.ops import Commit, Fetch, Put
from perdure.model.records import RESERVED, SEAL
from perdure.storage import stored_keys
from perdure.storage.url import open_driver

pytest.importorskip("cryptography", reason='pip install "perdure[encryption]"')

from tests.storage.key_notes import OLD, OTHER, PLACE, Provider, data_key_of, heard, id_of, keys_in, say


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/t.db"


# Providers that fail


def test_a_provider_that_is_down_at_the_start_opens_nothing(url: str) -> None:
    with perdure.connect_sync(url, migrate=True, encryption_key=OLD) as db:
        say(db, "a", "x")
    provider = Provider(OLD)

    def fail(_: str) -> None:
        raise ConnectionError("secret words of a library")

    provider.before = fail
    threads = {each.name for each in threading.enumerate()}
    with pytest.raises(
        Unavailable, match=rf"key provider Provider failed \(ConnectionError\).*{id_of(OLD)}"
    ) as caught:
        perdure.connect_sync(url, encryption_key=provider).__enter__()
    assert "secret words" not in str(caught.value)
    assert {each.name for each in threading.enumerate()} <= threads | {"perdure-keys"}
    with perdure.connect_sync(url, encryption_key=OLD) as db:
        assert heard(db, "a") == "x"


def test_a_new_database_gets_no_keys_while_the_provider_is_down(url: str) -> None:
    with perdure.connect_sync(url, migrate=True):
        pass
    provider = Provider(OLD)

    def fail(_: str) -> None:
        raise ConnectionError

    provider.before = fail
    with pytest.raises(Unavailable, match="to wrap its keys"):
        perdure.connect_sync(url, encryption_key=provider).__enter__()
    with perdure.connect_sync(url):
        """It has none."""


def test_a_provider_that_is_down_later_stops_rotations_alone(
    url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider = Provider(OLD)

    def fail(_: str) -> None:
        raise ConnectionError

    with perdure.connect_sync(url, migrate=True, encryption_key=provider) as db:
        before = admin.encryption_keys(db)
        provider.before = fail
        say(db, "a", "x")
        assert heard(db, "a") == "x"
        with pytest.raises(Unavailable, match="failed"):
            admin.rotate_keys(db, data_key=True)
        say(db, "b", "y")
        with perdure.connect_sync(url, encryption_key=OLD) as other:
            assert admin.encryption_keys(other) == before
            admin.rotate_keys(other, data_key=True)
            say(other, "c", "z")
        with pytest.raises(KeyMissing, match=r"could not be read again.*failed"):
            heard(db, "c")
        assert heard(db, "a") == "x"
        provider.before = lambda _: None
        monkeypatch.setattr(stored_keys, "_UNFOUND_S", 0.0)
        db_keys = handle_of(db).keys
        assert db_keys is not None
        db_keys._unfound.clear()
        assert heard(db, "c") == "z"
    assert "the known keys stay in use" in caplog.text


@pytest.mark.parametrize("how", ["blocks", "waits"])
def test_a_slow_provider_ends_the_start_in_time(url: str, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    with perdure.connect_sync(url, migrate=True, encryption_key=OLD):
        pass
    monkeypatch.setattr(stored_keys, "_ANSWER_S", 0.3)
    released = threading.Event()

    class Slow(Provider):
        async def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
            if how == "blocks":
                released.wait(30)
            else:
                await asyncio.sleep(30)
            return await super().unwrap(key_id, wrapped)

    began = time.monotonic()
    with pytest.raises(Unavailable, match="did not answer within"):
        perdure.connect_sync(url, encryption_key=Slow(OLD)).__enter__()
    assert time.monotonic() - began < 15
    released.set()


@pytest.mark.parametrize("answer", [OTHER, b"short", "text", None], ids=["another", "short", "text", "none"])
def test_a_provider_that_returns_a_wrong_key_is_found_out(url: str, answer: Any) -> None:
    with perdure.connect_sync(url, migrate=True, encryption_key=OLD) as db:
        say(db, "a", "x")

    class Lying(Provider):
        async def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
            return answer

    with pytest.raises(DecryptionError, match=rf"Lying returned .*{id_of(OLD)}") as caught:
        perdure.connect_sync(url, encryption_key=Lying(OLD)).__enter__()
    assert OTHER.hex() not in "".join(traceback.format_exception(caught.value))


def test_a_provider_that_cannot_unwrap_what_it_wraps_is_found_out_before_anything_is_stored(
    url: str,
) -> None:
    class Forgetting(Provider):
        async def wrap(self, plain: bytes) -> tuple[str, bytes]:
            key_id, wrapped = await super().wrap(plain)
            return key_id, wrapped[:-1] + bytes([wrapped[-1] ^ 1])

    with pytest.raises(DecryptionError, match="cannot unwrap"):
        perdure.connect_sync(url, migrate=True, encryption_key=Forgetting(OLD)).__enter__()
    with perdure.connect_sync(url, encryption_key=OLD) as db:
        with (
            perdure.connect_sync(url, encryption_key=Forgetting(OLD)) as forgetting,
            pytest.raises(DecryptionError, match="cannot unwrap"),
        ):
            admin.rotate_keys(forgetting, data_key=True)
        assert len(keys_in(db).data_keys) == 1


@pytest.mark.parametrize("answer", ["text", ("id",), (1, b"x"), ("", b"x"), ("id", ""), ("a\nb", b"x")])
def test_what_is_no_wrapped_key_is_refused(url: str, answer: Any) -> None:
    class Wrong(Provider):
        async def wrap(self, plain: bytes) -> tuple[str, bytes]:
            return answer

    with pytest.raises(BadSetting, match=r"did not return \(key_id, wrapped\)"):
        perdure.connect_sync(url, migrate=True, encryption_key=Wrong(OLD)).__enter__()


def test_a_provider_that_wraps_nothing_is_refused(url: str) -> None:
    class Open(Provider):
        async def wrap(self, plain: bytes) -> tuple[str, bytes]:
            return "id", b"x" + plain

    with pytest.raises(BadSetting, match="the key itself"):
        perdure.connect_sync(url, migrate=True, encryption_key=Open(OLD)).__enter__()


# Records that were changed


def replace_record(url: str, body: bytes) -> None:
    driver = open_driver(url)
    try:
        ((record,),) = driver.perform(Fetch(RESERVED, (PLACE,)))
        driver.perform(Commit(RESERVED, (Put(SEAL, ("key",), {}, body, version=record.version + 1),)))
    finally:
        driver.close()


def record_in(url: str) -> bytes:
    driver = open_driver(url)
    try:
        ((record,),) = driver.perform(Fetch(RESERVED, (PLACE,)))
        return record.body
    finally:
        driver.close()


def test_a_changed_record_opens_nothing(url: str) -> None:
    with perdure.connect_sync(url, migrate=True, encryption_key=OLD) as db:
        say(db, "a", "x")
    body = record_in(url)
    for at in range(len(body)):
        replace_record(url, body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :])
        with pytest.raises(DecryptionError) as caught:
            perdure.connect_sync(url, encryption_key=OLD).__enter__()
        assert url in str(caught.value)
    for cut in (b"", body[:-1], body + b"x"):
        replace_record(url, cut)
        with pytest.raises(DecryptionError, match="damaged"):
            perdure.connect_sync(url, encryption_key=OLD).__enter__()
    replace_record(url, body)
    with perdure.connect_sync(url, encryption_key=OLD) as db:
        assert heard(db, "a") == "x"


def test_an_earlier_record_is_not_used_by_a_process_that_knows_better(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with perdure.connect_sync(url, migrate=True, encryption_key=OLD) as db:
        early = record_in(url)
        after = admin.rotate_keys(db, data_key=True)
        replace_record(url, early)
        with pytest.raises(DecryptionError, match="replaced by a foreign or an older one"):
            admin.rotate_keys(db)
        say(db, "a", "x")
        assert data_key_of(url, "a") == after.data_keys[0].id


def test_the_record_of_another_database_is_not_used(url: str, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path}/other.db"
    with perdure.connect_sync(other, migrate=True, encryption_key=OLD):
        pass
    with perdure.connect_sync(url, migrate=True, encryption_key=OLD) as db:
        say(db, "a", "x")
        replace_record(url, record_in(other))
        with pytest.raises(DecryptionError, match="replaced by a foreign"):
            admin.rotate_keys(db)
    with perdure.connect_sync(url, encryption_key=OLD) as db, pytest.raises(KeyMissing, match="data key"):
        heard(db, "a")
