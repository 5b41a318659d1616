"""Disconnects of clients that end their run: of several requests for one run, the latest one decides.

A server may notice late that a connection was lost, when its client has sent the request again. The first
request for a run stores nothing; each later one notes its number beside the run, for every process.
"""

from __future__ import annotations

from perdure.model.records import REQUESTS
from perdure.server.resources import Caller


async def note_request(caller: Caller, thread_id: str, run_id: str) -> int | None:
    """Note that a further request follows a run, and return its number; ``None`` if the thread is gone."""
    noted = await caller.runtime.thread_documents(thread_id, REQUESTS).change(run_id, lambda before: {})
    return noted and noted.version


async def cancel_left(caller: Caller, thread_id: str, run_id: str, request: int | None) -> None:
    """Cancel a run whose client has disconnected, unless a later request for it was noted.

    Args:
        caller: the authenticated user of the request.
        thread_id: the thread.
        run_id: the run.
        request: the number of the request, ``None`` for the first.
    """
    # A request that is noted after this read gets the run as one that was cancelled before it.
    latest = await caller.runtime.thread_documents(thread_id, REQUESTS).get(run_id)
    if (latest and latest.version) == request:
        await caller.runtime.cancel(thread_id, run_id)
