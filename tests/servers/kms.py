"""Keys of AWS KMS on the emulator that DynamoDB's tests use, too."""

from __future__ import annotations

import secrets
from contextlib import closing
from typing import Any, NamedTuple

import boto3

from tests.servers.dynamodb import REGION, credentials, endpoint

__all__ = ["REGION", "Key", "credentials", "disable", "endpoint", "key"]


class Key(NamedTuple):
    """A symmetric key."""

    arn: str
    alias: str


def key(name: str) -> Key:
    """A new key, with an alias that begins with a name."""
    alias = f"alias/{name}-{secrets.token_hex(4)}"
    with closing(_client()) as client:
        arn = client.create_key()["KeyMetadata"]["Arn"]
        client.create_alias(AliasName=alias, TargetKeyId=arn)
    return Key(arn, alias)


def disable(each: Key) -> None:
    """Disable a key: it neither encrypts nor decrypts any more."""
    with closing(_client()) as client:
        client.disable_key(KeyId=each.arn)


def _client() -> Any:
    return boto3.Session().client("kms", region_name=REGION, endpoint_url=endpoint())
