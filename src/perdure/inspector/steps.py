"""Path of a thread through its nodes, with times, tokens and costs; its conversation; the picture of its
graph."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from typing import Any

from perdure.engine.threads import history
from perdure.engine.threads.chunk_reads import ChunkReader
from perdure.errors import BadSetting, GraphLoadError, NotAllowed, NotFound
from perdure.inspector.access import Access
from perdure.inspector.graph_picture import draw
from perdure.inspector.timeline import number, read_thread
from perdure.langgraph.reading.thread_calls import load_calls
from perdure.langgraph.reading.thread_messages import load_messages
from perdure.langgraph.reading.thread_steps import load_steps, show_step, way_of
from perdure.model.model_calls import ModelCall, dedupe_calls, show_call, total
from perdure.model.records import Partition
from perdure.runtime.json_encoding import to_plain
from perdure.runtime.threads.user_and_title import find_title
from perdure.storage.own_threads import run_in_own_thread

_SECONDS = 0.4
_CURSOR_MAX = 4096
_STEP = re.compile(r"-?[0-9]{1,9}")
_LATER = 8
"""Steps above one that was asked for."""


async def steps(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of a namespace's steps, newest first, with their path through the nodes.

    Args:
        access: The viewer's rights.
        asked: ``id`` of the thread; ``namespace``, the root by default; ``before``, the cursor of the
            previous page, or ``step``, the number of a step near the beginning of the page.

    Returns:
        ``steps``, their ``way``, the number of the ``newest`` step (on a page without ``before``), and the
        ``cursor`` of the next page.

    Raises:
        NotFound: There is no such step.
    """
    (partition, _), namespace = await read_thread(access, asked), asked.get("namespace") or ""
    before = number(asked, "before")
    newest = None
    if asked.get("step"):
        before = await _locate_step(access, partition, namespace, asked["step"])
        for record in await access.handle.arun(history.read_page(partition, namespace, below=None, limit=1)):
            newest = record.step
    page = await access.handle.arun(load_steps(partition, access.handle.digest, namespace, before))
    if before is None:
        newest = next((step.step for step in page.steps if step.checkpoint_id is not None), None)
    if not page.steps and namespace and not asked.get("before"):
        raise NotFound(f"thread {partition.thread!r} has no checkpoint in namespace {namespace[:80]!r}")
    shown = [show_step(step, access.prices) for step in page.steps]
    return {"steps": shown, "way": way_of(reversed(page.steps)), "newest": newest, "cursor": page.cursor}


async def _locate_step(access: Access, partition: Partition, namespace: str, step: str) -> int:
    """Return the cursor of a page that has a step, with some later ones above it; if several branches have a
    step of this number, the newest one."""
    if not _STEP.fullmatch(step):
        raise BadSetting(f"a step is a number, not {step[:40]!r}")
    found = await access.handle.arun(history.find_step(partition, namespace, int(step)))
    if not found:
        raise NotFound(f"thread {partition.thread!r} has no step {step}")
    return found[0][1] + 1 + _LATER


async def usage(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return the calls of models in the next part of a thread, as many as there is time to read.

    The same call may come in several parts, with the same ``id``.

    Args:
        access: The viewer's rights.
        asked: ``id`` of the thread; ``cursor`` of the previous part.
    """
    (partition, _), digest = await read_thread(access, asked), access.handle.digest
    after = _read_cursor(asked.get("cursor") or "")
    chunks = ChunkReader(partition, digest)
    until = time.monotonic() + _SECONDS
    calls: list[ModelCall] = []
    while True:
        part = await access.handle.arun(load_calls(partition, digest, after, chunks=chunks))
        calls += part.calls
        after = part.cursor
        if after is None or time.monotonic() > until:
            break
    found = dedupe_calls(calls)
    cursor = None
    if after is not None:
        cursor = json.dumps(after)
    return {
        "calls": [show_call(call, access.prices) for call in found],
        "usage": total(found, access.prices),
        "cursor": cursor,
    }


async def conversation(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of the conversation, oldest message first; the first page has the last messages.

    Args:
        access: The viewer's rights.
        asked: ``id`` of the thread; ``namespace``, the root by default; ``cursor`` of the previous page.
    """
    (partition, row), namespace = await read_thread(access, asked), asked.get("namespace") or ""
    program = load_messages(
        partition,
        access.handle.digest,
        access.prices,
        asked.get("cursor") or "",
        namespace=namespace,
    )
    page = await access.handle.arun(program)
    shown = page._asdict()
    shown["title"] = find_title(row.metadata) or page.title
    return {**shown, "messages": await run_in_own_thread(to_plain, page.messages)}


async def picture(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return the graph of a thread as nodes and edges, ``None`` with the ``reason`` if it is not known here.

    Args:
        access: The viewer's rights.
        asked: ``id`` of the thread.
    """
    _, row = await read_thread(access, asked)
    try:
        async with access.open_to_draw(row.graph_id, row.thread_id) as graph:
            return {"graph": await draw(graph), "reason": None}
    except (NotAllowed, NotFound, GraphLoadError, BadSetting) as error:
        return {"graph": None, "reason": str(error)}


def _read_cursor(cursor: str) -> tuple[str | int, ...] | None:
    """Return the key in a cursor; raise ``BadSetting`` for text that is not a cursor."""
    if not cursor:
        return None
    try:
        key = json.loads(cursor[:_CURSOR_MAX])
    except (ValueError, RecursionError):
        key = None
    if not isinstance(key, list) or [type(each) for each in key] != [str, str, str, int]:
        raise BadSetting(f"the cursor has to come from an earlier part, not {cursor[:40]!r}")
    return tuple(key)
