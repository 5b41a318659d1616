"""A finished summary of a thread, stored in the thread until its next run puts it among the messages.

The content is the caller's. It is stored by compare-and-set, so that one is kept of several that are made at
the same time. It is stored only in a thread that has the run after which it was made: a thread that was
deleted and created again under the same id does not have that run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from perdure.engine import documents
from perdure.engine.documents import Document
from perdure.engine.requests import expect_unchanged, try_commit
from perdure.model.ops import Check, Expect
from perdure.model.program import Program
from perdure.model.records import HEAD, RUN, Partition

SUMMARY = ("conversation", "summary")
"""Key of the document."""

_HAS_HEAD = Check(HEAD, ("",), Expect.PRESENT)


def load(partition: Partition) -> Program[Document | None]:
    """Return the latest summary that was stored for a thread, ``None`` if there is none."""
    return (yield from documents.get(partition, *SUMMARY))


@dataclass(frozen=True, slots=True)
class FinishedSummary:
    """A summary that was made after a run.

    Args:
        body: The summary, as plain data.
        run: The id of the run.
        before: The summary that was waiting when this one was begun, if any.
    """

    body: Mapping[str, Any]
    run: str
    before: Document | None = None


def store(partition: Partition, made: FinishedSummary, now: int, *, fresh: int) -> Program[bool]:
    """Store a finished summary in place of the one that it was made from.

    Args:
        partition: The thread.
        made: The summary.
        now: The current time in microseconds.
        fresh: A version that was never used.

    Returns:
        False if another summary was stored meanwhile, or the thread of the run is gone.
    """
    write = documents.plan_put(*SUMMARY, made.body, now, expect_unchanged(made.before), fresh)
    same_thread = Check(RUN, (made.run,), Expect.PRESENT)
    return (yield from try_commit(partition, (write, _HAS_HEAD, same_thread)))
