"""The plan of a thread's agent, its subagents, and the files that it keeps in the state of its thread."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from perdure.inspector.access import Access
from perdure.inspector.timeline import number, read_thread, require_parameter
from perdure.langgraph.reading.thread_agents import Subagent, load_subagents, load_todos
from perdure.langgraph.reading.thread_files import load_file, load_files
from perdure.runtime.json_encoding import to_plain
from perdure.storage.own_threads import run_in_own_thread

_SECONDS = 0.4
_SUBAGENTS_MAX = 50


def _read_place(asked: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments that name the checkpoint of a request."""
    return {"namespace": asked.get("namespace") or "", "checkpoint_id": asked.get("checkpoint") or None}


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
        **_read_place(asked),
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


async def files(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of the files at a checkpoint, in the order of their paths.

    Args:
        access: The viewer's rights.
        asked: ``id`` of the thread; ``checkpoint``, the latest without it; ``namespace``; ``after``, the
            cursor of the previous page.
    """
    partition, _ = await read_thread(access, asked)
    program = load_files(
        partition,
        access.handle.digest,
        **_read_place(asked),
        after=asked.get("after") or "",
    )
    page = await access.handle.arun(program)
    return {**page._asdict(), "files": [each._asdict() for each in page.files]}


async def file(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return a part of a file's text.

    Args:
        access: The viewer's rights.
        asked: as for ``files``, with the ``path``, and ``start``, the index of the first character.
    """
    partition, _ = await read_thread(access, asked)
    program = load_file(
        partition,
        access.handle.digest,
        require_parameter(asked, "path"),
        **_read_place(asked),
        start=number(asked, "start") or 0,
    )
    found = await access.handle.arun(program)
    return {
        **found._asdict(),
        "file": found.file._asdict(),
        "text": await run_in_own_thread(to_plain, found.text),
    }
