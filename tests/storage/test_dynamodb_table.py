"""The table of a URL: made once by whoever asks, checked, and each mistake is one sentence with its mend."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import boto3
import pytest

import perdure
from perdure.errors import BadUrl, MigrationRequired, PerdureError, Unavailable
from perdure.storage.dynamodb import driver as dynamodb
from perdure.storage.dynamodb import table as dynamo_table
from perdure.storage.dynamodb.client import target_of
from tests.servers import dynamodb as server

NO_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE")


@pytest.fixture
def url() -> Iterator[str]:
    with server.empty() as url:
        yield url


def said(error: type[PerdureError], url: str) -> str:
    """The one sentence with which opening a URL ends."""
    with pytest.raises(error) as raised, perdure.connect_sync(url):
        pass
    assert "\n" not in str(raised.value)
    return str(raised.value)


def test_migrate_makes_the_table_and_pending_says_so(url: str) -> None:
    assert dynamodb.schema_version(url) == 0
    steps = dynamodb.plan_migration(url)
    assert [step.split()[0] for step in steps] == ["create", "let", "record"]
    assert dynamodb.migrate(url) == 0
    assert dynamodb.plan_migration(url) == []
    assert dynamodb.schema_version(url) == dynamodb.SCHEMA_VERSION
    assert dynamodb.migrate(url) == dynamodb.SCHEMA_VERSION
    boto = boto3.client("dynamodb", region_name=server.REGION, endpoint_url=server.endpoint())
    table = target_of(url).table
    found = boto.describe_table(TableName=table)["Table"]
    assert found["BillingModeSummary"]["BillingMode"] == "PAY_PER_REQUEST"
    ttl = boto.describe_time_to_live(TableName=table)["TimeToLiveDescription"]
    assert (ttl["TimeToLiveStatus"], ttl["AttributeName"]) == ("ENABLED", "x")


def test_many_that_migrate_at_once_all_succeed(url: str) -> None:
    with ThreadPoolExecutor(8) as pool:
        before = list(pool.map(lambda _: dynamodb.migrate(url), range(8)))
    assert set(before) <= {0, dynamodb.SCHEMA_VERSION}
    assert dynamodb.schema_version(url) == dynamodb.SCHEMA_VERSION


def test_a_missing_table_names_the_command(url: str) -> None:
    told = said(MigrationRequired, url)
    assert target_of(url).table in told
    assert "perdure migrate --db 'dynamodb://" in told
    assert "region" in told


def test_a_newer_layout_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamo_table, "SCHEMA_VERSION", dynamodb.SCHEMA_VERSION + 1)
    dynamodb.migrate(url)
    monkeypatch.undo()
    os.environ.update(server.CREDENTIALS)
    assert "upgrade perdure" in said(MigrationRequired, url)
    for ask in (dynamodb.migrate, dynamodb.plan_migration):
        with pytest.raises(MigrationRequired, match="upgrade perdure"):
            ask(url)


def test_a_table_of_another_make_is_left_alone(url: str) -> None:
    boto = boto3.client("dynamodb", region_name=server.REGION, endpoint_url=server.endpoint())
    boto.create_table(
        TableName=target_of(url).table,
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
    )
    for ask in (dynamodb.migrate, dynamodb.plan_migration):
        with pytest.raises(BadUrl, match=r"was not made by perdure.*name another table"):
            ask(url)


def test_another_region_has_no_such_table(url: str) -> None:
    dynamodb.migrate(url)
    told = said(MigrationRequired, url.replace(server.REGION, "us-west-2"))
    assert "us-west-2" in told
    assert "check the name and the region" in told


def test_without_a_region_the_url_is_refused(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    told = said(BadUrl, url.replace(f"region={server.REGION}&", ""))
    assert "no AWS region is known; add ?region=" in told


def test_without_credentials_nothing_is_asked(
    url: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    for name in NO_KEYS:
        monkeypatch.delenv(name, raising=False)
    nowhere = str(tmp_path_factory.mktemp("aws") / "none")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", nowhere)
    monkeypatch.setenv("AWS_CONFIG_FILE", nowhere)
    assert "no AWS credentials were found; set AWS_ACCESS_KEY_ID" in said(Unavailable, url)


def test_an_unreachable_endpoint_is_named() -> None:
    with socket.socket() as closed, server.credentials():
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        told = said(Unavailable, server.url_of("threads", f"http://127.0.0.1:{port}"))
    assert f"does not answer at http://127.0.0.1:{port}; check the region" in told


@pytest.mark.parametrize(
    ("url", "mend"),
    [
        ("dynamodb://", "a table's name"),
        ("dynamodb://ab", "3 to 255 letters"),
        ("dynamodb://threads/and/more", "a table's name"),
        ("dynamodb://threads?regoin=eu-central-1", "unknown parameter regoin"),
        ("dynamodb://threads?region=eu-central-1&endpoint=127.0.0.1:8000", "start with http://"),
        ("dynamodb://AKIAX:s3cret@threads?region=eu-central-1", "holds no keys"),
    ],
)
def test_a_url_that_cannot_be_is_refused_with_the_mend(url: str, mend: str) -> None:
    with pytest.raises(BadUrl) as raised:
        dynamodb.open_driver(url)
    assert mend in str(raised.value)
    assert "s3cret" not in str(raised.value)


def test_a_table_keeps_the_letters_of_its_name() -> None:
    assert target_of("dynamodb://My.Threads_1?region=eu-west-1").table == "My.Threads_1"
