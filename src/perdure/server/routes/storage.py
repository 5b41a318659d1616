"""Route of a thread's size: how much of it each channel takes."""

from __future__ import annotations

from fastapi import APIRouter

from perdure.errors import TooLarge
from perdure.server.auth.identity import Refusal
from perdure.server.host import CallerNow, ThreadId
from perdure.server.shapes import Json

router = APIRouter(tags=["threads"])

MEASURED_MOST = 64 * 1024 * 1024
"""How many bytes are read for an answer. All of a thread is, as its chunks have no size but their own."""


@router.get("/threads/{thread_id}/storage")
async def storage(caller: CallerNow, thread_id: ThreadId) -> Json:
    """How many bytes a thread holds, by channel. What checkpoints share is counted once."""
    await caller.thread(thread_id, "read")
    try:
        found = await caller.host.database.measure(caller.partition(thread_id), MEASURED_MOST)
    except TooLarge as error:
        raise Refusal(501, f"{error}; it holds more than {MEASURED_MOST} bytes") from error
    by_channel = {
        name: {"versions": part.count, "bytes": part.bytes} for name, part in sorted(found.channels.items())
    }
    return Json(
        {
            "thread_id": thread_id,
            "total_bytes": found.total,
            "checkpoints": {"count": found.checkpoints.count, "bytes": found.checkpoints.bytes},
            "channel_values": {
                "count": found.values.count,
                "bytes": found.values.bytes,
                "by_channel": by_channel,
            },
            "pending_writes": {"count": found.writes.count, "bytes": found.writes.bytes},
        }
    )
