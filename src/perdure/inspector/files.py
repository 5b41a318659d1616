"""The files that an agent keeps in the state of its thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from perdure.inspector.access import Access
from perdure.inspector.timeline import number, read_thread, require_parameter
from perdure.langgraph.reading.thread_files import load_file, load_files
from perdure.runtime.json_encoding import to_plain
from perdure.storage.own_threads import run_in_own_thread


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
        namespace=asked.get("namespace") or "",
        checkpoint_id=asked.get("checkpoint") or None,
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
        namespace=asked.get("namespace") or "",
        checkpoint_id=asked.get("checkpoint") or None,
        start=number(asked, "start") or 0,
    )
    found = await access.handle.arun(program)
    return {
        **found._asdict(),
        "file": found.file._asdict(),
        "text": await run_in_own_thread(to_plain, found.text),
    }
