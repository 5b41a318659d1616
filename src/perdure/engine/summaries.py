"""A finished summary of a thread, stored in the thread until its next run puts it among the messages.

The content is the caller's. It is stored by compare-and-set, so that of several makers one is kept, and only
in a thread that exists.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.engine import documents
from perdure.engine.documents import Document
from perdure.model.messages import encode
from perdure.model.ops import Check, Commit, Committed, Expect, Put
from perdure.model.program import Program, ask
from perdure.model.records import DOCUMENT, HEAD, Partition

SUMMARY = ("conversation", "summary")
"""Key of the document."""

_LATEST = Check(HEAD, ("",), Expect.PRESENT)


def waiting(partition: Partition) -> Program[Document | None]:
    """Return the latest summary that was stored for a thread, ``None`` if there is none."""
    return (yield from documents.get(partition, *SUMMARY))


def store(
    partition: Partition, body: Mapping[str, Any], now: int, before: Document | None, *, fresh: int
) -> Program[bool]:
    """Store a finished summary in the place of the one that its maker saw.

    Args:
        partition: The thread.
        body: The summary, as plain data.
        now: The current time in microseconds.
        before: The summary that was waiting when this one was begun, if any.
        fresh: A version that was never used.

    Returns:
        False if another summary was stored meanwhile, or the thread is gone.
    """
    expect, version = (Expect.ABSENT, fresh) if before is None else (before.version, before.version + 1)
    write = Put(DOCUMENT, SUMMARY, {"updated_at": now}, encode(dict(body), "summary"), expect, version)
    outcome = yield from ask(Commit(partition, (write, _LATEST)))
    return isinstance(outcome, Committed)
