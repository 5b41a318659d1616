"""Signatures of webhooks, by which a receiver knows who sent a notice, and when.

They follow the specification of Standard Webhooks (https://www.standardwebhooks.com): three headers with the
notice's id, the time of the attempt, and an HMAC-SHA256 over both and the body for each secret. The id is the
same at every attempt. A receiver that refuses old times, and ids that it knows, cannot be sent a recorded
notice again.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Sequence

from perdure.config.webhook_secrets import key_of


def signed(secrets: Sequence[str], notice_id: str, at: int, body: bytes) -> dict[str, str]:
    """Return the headers that sign a notice, with a signature for each secret, none without one.

    Args:
        secrets: the secrets; several while receivers change from one to the next.
        notice_id: the id of the notice.
        at: the time of the attempt, in seconds since 1970.
        body: the body as it is sent.
    """
    if not secrets:
        return {}
    content = b".".join((notice_id.encode(), str(at).encode(), body))
    digests = (hmac.digest(key_of(secret), content, "sha256") for secret in secrets)
    return {
        "webhook-id": notice_id,
        "webhook-timestamp": str(at),
        "webhook-signature": " ".join(f"v1,{base64.b64encode(digest).decode()}" for digest in digests),
    }
