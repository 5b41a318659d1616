"""Keys of AWS KMS, by boto3, against an emulator."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path

import ormsgpack
import pytest

import perdure
from perdure import admin
from perdure.errors import BadSetting, DecryptionError, KeyMissing, MissingExtra, Unavailable
from perdure.keys import AwsKms
from perdure.model.ops import Commit, Fetch, Get, Put
from perdure.model.records import RESERVED, SEAL
from perdure.storage.key_providers import open_provider
from perdure.storage.url import open_driver
from tests.servers import kms
from tests.servers.ports import free_port

pytest.importorskip("cryptography", reason='pip install "perdure[encryption]"')


@pytest.fixture(autouse=True)
def aws() -> Iterator[None]:
    with kms.credentials():
        yield


def provider(*keys: str) -> AwsKms:
    return AwsKms(*keys, region=kms.REGION, endpoint=kms.endpoint())


def test_the_wrapping_key_is_replaced_and_then_disabled(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    old, new = kms.key("old"), kms.key("new")
    with perdure.connect_sync(url, migrate=True, encryption_key=provider(old.alias)) as live:
        live.store().put(("n",), "a", {"n": 1})
        with perdure.connect_sync(url, encryption_key=provider(new.alias, old.alias)) as db:
            assert found(db).wrapping_key == old.arn
            assert admin.rotate_keys(db, data_key=True).wrapping_key == new.arn
            db.store().put(("n",), "b", {"n": 2})
        kms.disable(old)
        live.store().put(("n",), "c", {"n": 3})
    with perdure.connect_sync(url, encryption_key=provider(new.alias)) as db:
        values = [item.value["n"] for item in db.store().search(("n",))]
        assert sorted(values) == [1, 2, 3]
    with pytest.raises(KeyMissing, match=rf"needs the key {new.arn}.*{old.alias} is disabled"):
        perdure.connect_sync(url, encryption_key=provider(old.alias)).__enter__()


def found(db: perdure.SyncDatabase) -> admin.EncryptionKeys:
    keys = admin.encryption_keys(db)
    assert keys is not None
    return keys


def test_a_disabled_key_that_is_needed_is_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    key = kms.key("gone")
    with perdure.connect_sync(url, migrate=True, encryption_key=provider(key.alias)):
        pass
    kms.disable(key)
    with pytest.raises(KeyMissing, match=rf"needs the key {key.arn}.*is disabled"):
        perdure.connect_sync(url, encryption_key=provider(key.alias)).__enter__()


def test_the_arn_of_the_key_is_its_id() -> None:
    key = kms.key("named")
    key_id, wrapped = asyncio.run(provider(key.alias).wrap(bytes(32)))
    assert key_id == key.arn
    assert asyncio.run(provider(key.arn).unwrap(key_id, wrapped)) == bytes(32)


def test_what_was_wrapped_and_changed_opens_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/t.db"
    key = kms.key("changed")
    with perdure.connect_sync(url, migrate=True, encryption_key=provider(key.alias)):
        pass
    driver = open_driver(url)
    ((record,),) = driver.perform(Fetch(RESERVED, (Get(SEAL, ("key",)),)))
    form, key_id, wrapped, sealed = ormsgpack.unpackb(record.body)
    body = ormsgpack.packb([form, key_id, wrapped[:-1] + bytes([wrapped[-1] ^ 1]), sealed])
    driver.perform(Commit(RESERVED, (Put(SEAL, ("key",), {}, body, version=record.version + 1),)))
    driver.close()
    # The service itself refuses it; the emulator returns another key.
    with pytest.raises(DecryptionError, match=key.arn):
        perdure.connect_sync(url, encryption_key=provider(key.alias)).__enter__()


def test_a_key_that_does_not_exist_is_named() -> None:
    with pytest.raises(KeyMissing, match="alias/nowhere of AWS KMS does not exist"):
        asyncio.run(provider("alias/nowhere").wrap(bytes(32)))


def test_a_setting_names_keys_region_and_endpoint() -> None:
    key = kms.key("named")
    named = open_provider(f"aws-kms:{key.alias}?region={kms.REGION}&endpoint={kms.endpoint()}")
    key_id, wrapped = asyncio.run(named.wrap(bytes(32)))
    assert asyncio.run(named.unwrap(key_id, wrapped)) == bytes(32)
    assert repr(named) == f"AwsKms({key.alias!r})"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("aws-kms:", "no key of AWS KMS is named"),
        ("aws-kms:alias/a,", "no key of AWS KMS is named"),
        ("aws-kms:alias/a?zone=x", "unknown parameter zone"),
        ("aws-kms:key:secret@alias/a", "takes no credentials"),
    ],
)
def test_a_setting_that_cannot_work_is_refused(text: str, reason: str) -> None:
    with pytest.raises(BadSetting, match=reason) as caught:
        open_provider(text)
    assert "secret" not in str(caught.value)


def test_a_service_that_does_not_answer_is_unavailable() -> None:
    port = free_port()
    away = AwsKms("alias/a", region=kms.REGION, endpoint=f"http://127.0.0.1:{port}")
    with pytest.raises(Unavailable, match="AWS KMS does not answer"):
        asyncio.run(away.wrap(bytes(32)))


def test_no_region_and_no_credentials_have_their_remedies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
    with pytest.raises(BadSetting, match=r"add \?region="):
        asyncio.run(AwsKms("alias/a").wrap(bytes(32)))
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/dev/null")
    with pytest.raises(Unavailable, match="no AWS credentials were found"):
        asyncio.run(provider("alias/a").wrap(bytes(32)))


def test_the_region_of_an_arn_is_used() -> None:
    assert AwsKms("arn:aws:kms:eu-west-3:111122223333:key/x")._region == "eu-west-3"
    assert AwsKms("arn:aws:kms:eu-west-3:111122223333:key/x", region="us-east-1")._region == "us-east-1"
    assert AwsKms("alias/x")._region is None


def test_without_boto_the_error_has_the_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(MissingExtra, match=r"perdure\[encryption,dynamodb\]"):
        AwsKms("alias/x")
