"""Wrapping keys in AWS KMS.

boto3 finds the credentials of the process by itself. Only the keys that ``AwsKms`` is given are trusted. A
key id that is stored in a database says which key was used, but does not make that key a trusted one.
"""

from __future__ import annotations

from contextlib import closing
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl

from perdure.errors import BadSetting, KeyMissing, MissingExtra, PerdureError, Unavailable
from perdure.storage.own_threads import run_in_own_thread

_CONNECT_S = 3
_READ_S = 5
_FORM = "aws-kms:alias/my-key?region=eu-central-1, with ,alias/my-old-key after a rotation"
_CONTEXT = {"perdure": "data keys"}
"""Encryption context of a wrapped key: it is needed to unwrap the key, and AWS logs it."""

_NOT_THIS_KEY = frozenset(("IncorrectKeyException", "InvalidCiphertextException"))
_UNUSABLE = {
    "NotFoundException": "does not exist",
    "DisabledException": "is disabled",
    "KMSInvalidStateException": "is to be deleted, or cannot be used in its state",
    "InvalidKeyUsageException": "does not encrypt and decrypt",
}


class AwsKms:
    """Keys of AWS KMS: the first wraps, all unwrap.

    A key is named by its ARN, its id, or an alias such as ``alias/perdure``. The process needs
    ``kms:Encrypt`` for the first one and ``kms:Decrypt`` for all of them.

    Args:
        keys: The keys.
        region: Their region; by default that of the first key's ARN, else that of the process.
        endpoint: The URL of the service, if it is not AWS's own.

    Raises:
        BadSetting: No key is named.
        MissingExtra: boto3 is not installed.
    """

    def __init__(self, *keys: str, region: str | None = None, endpoint: str | None = None) -> None:
        if not keys or not all(keys):
            raise BadSetting(f"no key of AWS KMS is named; write {_FORM}")
        try:
            import_module("boto3")
        except ImportError as error:
            raise MissingExtra('AWS KMS needs extras: pip install "perdure[encryption,dynamodb]"') from error
        self._keys = keys
        self._region = region or _region_of(keys[0])
        self._endpoint = endpoint

    @classmethod
    def of_text(cls, text: str) -> AwsKms:
        """Return the provider that a setting such as ``aws-kms:alias/perdure?region=eu-central-1`` names.

        Raises:
            BadSetting: The setting cannot be used.
        """
        names, _, query = text.removeprefix("aws-kms:").removeprefix("//").partition("?")
        parameters = dict(parse_qsl(query, keep_blank_values=True))
        if unknown := sorted(set(parameters) - {"region", "endpoint"}):
            raise BadSetting(f"{text}: unknown parameter {', '.join(unknown)}; write {_FORM}")
        if "@" in text:
            raise BadSetting(
                f"aws-kms: takes no credentials; put them where the AWS tools look. Write {_FORM}"
            )
        return cls(*names.split(","), region=parameters.get("region"), endpoint=parameters.get("endpoint"))

    def __repr__(self) -> str:
        return f"AwsKms({', '.join(map(repr, self._keys))})"

    async def wrap(self, plain: bytes) -> tuple[str, bytes]:
        """Return the ARN of the first key, and the key wrapped with it."""
        key = self._keys[0]
        answer = await run_in_own_thread(
            self._call, "encrypt", KeyId=key, Plaintext=plain, EncryptionContext=_CONTEXT
        )
        if isinstance(answer, str):
            raise KeyMissing(f"the key {key} of AWS KMS {_UNUSABLE.get(answer, answer)}")
        return answer["KeyId"], answer["CiphertextBlob"]

    async def unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        """Return the key that was wrapped."""
        return await run_in_own_thread(self._unwrap, key_id, wrapped)

    def _unwrap(self, key_id: str, wrapped: bytes) -> bytes:
        codes: dict[str, str] = {}
        for key in sorted(self._keys, key=lambda key: key != key_id):
            answer = self._call("decrypt", KeyId=key, CiphertextBlob=wrapped, EncryptionContext=_CONTEXT)
            codes[key] = "IncorrectKeyException"
            if isinstance(answer, str):
                codes[key] = answer
            elif answer["KeyId"] == key_id:
                plain: bytes = answer["Plaintext"]
                return plain
        states = (
            f"{key} {_UNUSABLE.get(code, 'did not wrap it, or it was changed')}"
            for key, code in codes.items()
        )
        raise KeyMissing(
            f"none of the named keys of AWS KMS unwraps the database's key; name the one that wrapped it: "
            f"{', '.join(states)}"
        )

    def _call(self, operation: str, **parameters: Any) -> dict[str, Any] | str:
        """Return the answer, or the code with which the service refused this key.

        Raises:
            PerdureError: The call failed for another reason.
        """
        from boto3.session import Session
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError

        config = Config(
            connect_timeout=_CONNECT_S,
            read_timeout=_READ_S,
            retries={"total_max_attempts": 2, "mode": "standard"},
            user_agent_extra="perdure",
        )
        try:
            # Each call has a client of its own: calls are rare, and a forked process shares no connection.
            session = Session(region_name=self._region)
            with closing(session.client("kms", endpoint_url=self._endpoint, config=config)) as client:
                answer: dict[str, Any] = getattr(client, operation)(**parameters)
                return answer
        except ClientError as error:
            code = str(error.response.get("Error", {}).get("Code", ""))
            if code in _NOT_THIS_KEY or code in _UNUSABLE:
                return code
            raise Unavailable(
                f"AWS KMS refused to {operation} with {parameters['KeyId']} ({code}); check the credentials, "
                "the role and the key's policy"
            ) from error
        except (BotoCoreError, ValueError) as error:
            raise _translate(error) from error


def _translate(error: Exception) -> PerdureError:
    name = type(error).__name__
    if name == "NoRegionError":
        return BadSetting(f"no AWS region is known for the key; add ?region=… or set AWS_REGION: {_FORM}")
    if name in ("NoCredentialsError", "PartialCredentialsError", "CredentialRetrievalError"):
        return Unavailable(
            "no AWS credentials were found; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, configure a "
            "profile, or run where a role is attached"
        )
    return Unavailable(f"AWS KMS does not answer ({name}); check the region, the endpoint and the network")


def _region_of(key: str) -> str | None:
    parts = key.split(":")
    if len(parts) > 5 and parts[0] == "arn":
        return parts[3] or None
    return None
