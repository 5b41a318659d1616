"""Secrets that sign webhooks, in the form of Standard Webhooks (https://www.standardwebhooks.com)."""

from __future__ import annotations

import base64
import binascii

_PREFIX = "whsec_"
_BYTES_MIN, _BYTES_MAX = 24, 64


def key_of(secret: str) -> bytes:
    """Return the key of a secret. ``ValueError`` unless it is ``whsec_`` with 24 to 64 bytes in base64."""
    try:
        key = base64.b64decode(secret.removeprefix(_PREFIX), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    if not secret.startswith(_PREFIX) or not _BYTES_MIN <= len(key) <= _BYTES_MAX:
        # The secret itself must not appear.
        raise ValueError(f"a secret is {_PREFIX} and {_BYTES_MIN} to {_BYTES_MAX} random bytes in base64")
    return key
