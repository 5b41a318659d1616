"""Signatures of webhooks, by which a receiver knows who sent a notice, and when.

They follow the specification of Standard Webhooks (https://www.standardwebhooks.com): three headers with the
notice's id, the time of the attempt, and an HMAC-SHA256 over both and the body for each secret. The id is the
same at every attempt. A receiver that refuses old times, and ids that it has seen, also refuses a recorded
notice that somebody sends again.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Mapping, Sequence

from perdure.config.webhook_secrets import key_of

ID, TIMESTAMP, SIGNATURE = "webhook-id", "webhook-timestamp", "webhook-signature"
"""Headers of a signature."""

_AGE_MAX_S = 300


def sign(secrets: Sequence[str], notice_id: str, at: int, body: bytes) -> dict[str, str]:
    """Return the headers that sign a notice, with a signature for each secret; no headers without a secret.

    Args:
        secrets: the secrets; several while receivers change from one to the next.
        notice_id: the id of the notice.
        at: the time of the attempt, in seconds since 1970.
        body: the body as it is sent.
    """
    if not secrets:
        return {}
    return {
        ID: notice_id,
        TIMESTAMP: str(at),
        SIGNATURE: " ".join(_make_digests(secrets, notice_id, at, body)),
    }


def is_signed(secrets: Sequence[str], headers: Mapping[str, str], now: float, body: bytes) -> bool:
    """Return True if a request that was received is signed with one of the secrets, at a time at most 5
    minutes from ``now``.

    Args:
        secrets: the secrets.
        headers: the headers of the request.
        now: the time of its receipt, in seconds since 1970.
        body: the body as it was received.
    """
    notice_id, signed_at = headers.get(ID, ""), headers.get(TIMESTAMP, "")
    if (
        not notice_id
        or not signed_at.isdecimal()
        or len(signed_at) > len("1" * 12)
        or abs(now - int(signed_at)) > _AGE_MAX_S
    ):
        return False
    signatures = headers.get(SIGNATURE, "").encode().split()
    expected = [digest.encode() for digest in _make_digests(secrets, notice_id, int(signed_at), body)]
    return any(hmac.compare_digest(signature, digest) for signature in signatures for digest in expected)


def _make_digests(secrets: Sequence[str], notice_id: str, at: int, body: bytes) -> list[str]:
    content = b".".join((notice_id.encode(), str(at).encode(), body))
    digests = (hmac.digest(key_of(secret), content, "sha256") for secret in secrets)
    return [f"v1,{base64.b64encode(digest).decode()}" for digest in digests]
