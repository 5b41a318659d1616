"""Routes of a thread's tags: names of checkpoints that nothing removes. They are Perdure's own."""

from __future__ import annotations

from fastapi import Response

from perdure.server import requests
from perdure.server.openapi import make_router
from perdure.server.resources import CallerNow, GatedRoute, TagName, ThreadId
from perdure.server.responses import Json

router = make_router("threads", GatedRoute)


@router.get("/threads/{thread_id}/tags")
async def list_tags(caller: CallerNow, thread_id: ThreadId) -> Json:
    """Return a thread's tags, by name."""
    await caller.authorize_thread(thread_id, "read")
    return Json(await caller.threads.tags(thread_id))


@router.put("/threads/{thread_id}/tags/{name}")
async def put_tag(caller: CallerNow, thread_id: ThreadId, name: TagName, asked: requests.NewTag) -> Json:
    """Point a tag at a checkpoint, the latest by default. A tag of that name is moved."""
    await caller.authorize_thread(thread_id, "update")
    checkpoint_id = await caller.threads.set_tag(thread_id, name, asked.checkpoint_id, asked.checkpoint_ns)
    return Json({"name": name, "checkpoint_ns": asked.checkpoint_ns, "checkpoint_id": checkpoint_id})


@router.delete("/threads/{thread_id}/tags/{name}", status_code=204)
async def delete_tag(caller: CallerNow, thread_id: ThreadId, name: TagName) -> Response:
    """Remove a tag; its checkpoint is then kept like any other."""
    await caller.authorize_thread(thread_id, "update")
    await caller.threads.remove_tag(thread_id, name)
    return Response(status_code=204)
