"""Open questions of a tenant's threads, with the forms that answer them; the action ``answer`` takes the
answers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any

from perdure.inspector.access import Access
from perdure.inspector.requests import read_text, read_time
from perdure.runtime.operations import entries, open_questions
from perdure.runtime.operations.walk_by_activity import ThreadWalk

_SECONDS = 0.4
_PAGE = 50


async def questions(access: Access, asked: Mapping[str, str]) -> dict[str, Any]:
    """Return a page of open questions.

    Args:
        access: The viewer's rights.
        asked: ``user``, ``older`` (a span such as ``1d``: asked that long ago or earlier), ``id`` (the
            beginning of a thread's id) and ``cursor``, all optional.

    Returns:
        ``questions``, the oldest first within the page; the number of threads ``examined``; and the
        ``cursor`` to go on from, ``None`` at the end.

    Raises:
        BadSetting: A value cannot be used.
    """
    sees = await access.authorize_listing()
    user, prefix = read_text(asked, "user"), read_text(asked, "id")
    before = await read_time(access, asked, "older")
    walk = ThreadWalk(access.handle, access.tenant, sees, prefix=prefix or "")
    steps = open_questions.search(walk, user=user, asked_before=before, cursor=asked.get("cursor") or "")
    found: list[open_questions.AskedQuestion] = []
    examined, cursor = 0, None
    until = time.monotonic() + _SECONDS
    async with aclosing(steps):
        async for step in steps:
            examined += 1
            found += step.questions
            if len(found) >= _PAGE or time.monotonic() > until:
                cursor = step.cursor
                break
    found.sort(key=lambda each: each.since)
    return {
        "questions": [entries.make_question_entry(each) for each in found],
        "examined": examined,
        "cursor": cursor,
        "permissions": sorted(await access.permissions()),
    }
