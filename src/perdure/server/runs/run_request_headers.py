"""Headers of a request that set how its run is accepted. Unmodified clients can send them, although their
methods have no parameters for these terms."""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders

IDEMPOTENCY_KEY = "idempotency-key"
"""Header whose value is the same when a message is sent again."""
DEBOUNCE_MS = "x-debounce-ms"
"""Header with the time to wait for further messages, in milliseconds."""
MULTITASK = "x-multitask-strategy"
"""Header that overrides the multitask strategy."""


def without_terms(headers: Headers, key: str | None = None) -> Headers:
    """Return the headers of a request that holds a message of another protocol, without those that would
    change how its run is accepted.

    Args:
        headers: the headers of the request.
        key: the idempotency key of the message in that protocol, if it has one.
    """
    out = MutableHeaders(raw=list(headers.raw))
    for name in (IDEMPOTENCY_KEY, DEBOUNCE_MS, MULTITASK):
        if name in out:
            del out[name]
    if key is not None:
        out[IDEMPOTENCY_KEY] = key
    return out
