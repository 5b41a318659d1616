"""Routes of a thread's tags: names of checkpoints that nothing removes. They are Perdure's own."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Response

from perdure.engine import tags
from perdure.model.records import Record
from perdure.server import requests
from perdure.server.responses import Json
from perdure.server.state import CallerNow, ThreadId

router = APIRouter(tags=["threads"])

TagName = Annotated[str, Path(min_length=1, max_length=256)]


@router.get("/threads/{thread_id}/tags")
async def list_tags(caller: CallerNow, thread_id: ThreadId) -> Json:
    """Return a thread's tags, by name."""
    await caller.thread(thread_id, "read")
    found = await caller.host.database.arun(tags.list_tags(caller.partition(thread_id)))
    return Json([_shown(each) for each in found])


@router.put("/threads/{thread_id}/tags/{name}")
async def put_tag(caller: CallerNow, thread_id: ThreadId, name: TagName, asked: requests.NewTag) -> Json:
    """Point a tag at a checkpoint, the latest by default. A tag of that name is moved."""
    await caller.thread(thread_id, "update")
    program = tags.set_tag(
        caller.partition(thread_id),
        name,
        namespace=asked.checkpoint_ns,
        checkpoint_id=asked.checkpoint_id,
    )
    checkpoint_id = await caller.host.database.arun(program)
    return Json({"name": name, "checkpoint_ns": asked.checkpoint_ns, "checkpoint_id": checkpoint_id})


@router.delete("/threads/{thread_id}/tags/{name}", status_code=204)
async def delete_tag(caller: CallerNow, thread_id: ThreadId, name: TagName) -> Response:
    """Remove a tag; its checkpoint is then kept like any other."""
    await caller.thread(thread_id, "update")
    await caller.host.database.arun(tags.remove_tag(caller.partition(thread_id), name))
    return Response(status_code=204)


def _shown(tag: Record) -> dict[str, str]:
    return {
        "name": tag.key[0],
        "checkpoint_ns": tag.fields["namespace"],
        "checkpoint_id": tag.fields["checkpoint_id"],
    }
