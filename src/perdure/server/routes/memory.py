"""Routes of the requesting user's memories: list and forget. They are Perdure's own.

The graphs' policies determine the user from verified claims; a request cannot name another.
"""

from __future__ import annotations

from fastapi import Response

from perdure.errors import NotFound
from perdure.runtime.agent_memory.memory_turns import lane_of
from perdure.server.memories import memories_of
from perdure.server.openapi import make_router
from perdure.server.resources import CallerNow, EntryId, GatedRoute
from perdure.server.responses import Json

router = make_router("memory", GatedRoute)


@router.get("/memory")
async def list_memory(caller: CallerNow) -> Json:
    """Return all that is known of the user, with its history."""
    exported = [await memory.aexport() for memory in memories_of(caller)]
    return Json(
        {kind: [each for export in exported for each in export[kind]] for kind in ("facts", "summaries")}
    )


@router.delete("/memory")
async def forget_all(caller: CallerNow) -> Json:
    """Remove all that is known of the user, and the turns that wait for their extraction."""
    removed = 0
    for memory in memories_of(caller):
        await caller.runtime.delete(lane_of(memory.user))
        removed += await memory.aforget()
    return Json({"removed": removed})


@router.delete("/memory/{entry_id}", status_code=204)
async def forget(caller: CallerNow, entry_id: EntryId) -> Response:
    """Remove a fact in all its versions, or the summary of a thread."""
    missing: NotFound | None = None
    for memory in memories_of(caller):
        try:
            await memory.aforget(entry_id)
        except NotFound as error:
            missing = error
        else:
            return Response(status_code=204)
    raise missing or NotFound(f"nothing of the id {entry_id!r} is known")
