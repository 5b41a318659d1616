"""Route of a thread's size in storage, by channel."""

from __future__ import annotations

from perdure.server.openapi import make_router
from perdure.server.resources import CallerNow, GatedRoute, ThreadId
from perdure.server.responses import Json

router = make_router("threads", GatedRoute)


@router.get("/threads/{thread_id}/storage")
async def storage(caller: CallerNow, thread_id: ThreadId) -> Json:
    """Return the number of bytes that a thread holds, by channel. Data shared by checkpoints is counted
    once. The whole thread is read for this, a few megabytes at a time, so a large thread takes a while."""
    await caller.authorize_thread(thread_id, "read")
    found = await caller.threads.measure(thread_id)
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
