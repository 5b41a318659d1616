"""The plan of a thread's agent, and its subagents."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from perdure.inspector.access import Access
from perdure.inspector.timeline import read_thread
from perdure.langgraph.reading.thread_agents import Subagent, load_subagents, load_todos

_SECONDS = 0.4
_SUBAGENTS_MAX = 50


async def todos(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return the to-dos in the state of a thread at a checkpoint.

    Args:
        access: The viewer's rights.
        asked: ``id`` of the thread; ``checkpoint``, the latest without it; ``namespace``.
    """
    partition, _ = await read_thread(access, asked)
    program = load_todos(
        partition,
        access.handle.digest,
        namespace=asked.get("namespace") or "",
        checkpoint_id=asked.get("checkpoint") or None,
    )
    return {"todos": [each._asdict() for each in await access.handle.arun(program)]}


async def subagents(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return the next subagents of a thread, as many as there is time to read.

    Args:
        access: The viewer's rights.
        asked: ``id`` of the thread; ``after``, the cursor of the previous part.
    """
    partition, _ = await read_thread(access, asked)
    after: str | None = asked.get("after") or ""
    until = time.monotonic() + _SECONDS
    found: list[Subagent] = []
    while after is not None and len(found) < _SUBAGENTS_MAX and (not found or time.monotonic() < until):
        page = await access.handle.arun(load_subagents(partition, access.handle.digest, after=after))
        found += page.subagents
        after = page.cursor
    return {"subagents": [each._asdict() for each in found], "cursor": after}
