"""Values are counted by data key on every backend, more of them than one request reads."""

from __future__ import annotations

import pytest

import perdure
from perdure import admin
from perdure.errors import BadSetting
from tests.servers import postgres, valkey

pytest.importorskip("cryptography", reason='pip install "perdure[encryption]"')

KEY = bytes(range(32))


def put(db: perdure.SyncDatabase, first: int, last: int) -> None:
    for number in range(first, last):
        db.store().put(("n", str(number % 3)), f"k{number}", {"n": number})


def check(url: str) -> None:
    with perdure.connect_sync(url, migrate=True, encryption_key=KEY) as db:
        assert admin.count_by_data_key(db) == {}
        put(db, 0, 350)
        admin.rotate_keys(db, data_key=True)
        put(db, 340, 400)
        keys = admin.encryption_keys(db)
        assert keys is not None
        newest, oldest = (each.id for each in keys.data_keys)
        assert admin.count_by_data_key(db) == {newest: 60, oldest: 340}


def test_sqlite(tmp_path: object) -> None:
    check(f"sqlite:///{tmp_path}/t.db")


def test_postgresql() -> None:
    with postgres.empty() as url:
        check(url)


def test_redis() -> None:
    with valkey.empty() as url:
        check(url)


def test_an_unencrypted_database_has_nothing_to_count() -> None:
    with perdure.connect_sync("memory://") as db, pytest.raises(BadSetting, match="is not encrypted"):
        admin.count_by_data_key(db)
