"""Search over the conversations that a user may see: all of the words, in a title or in one message."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

from perdure.runtime.json_encoding import to_plain
from perdure.runtime.operations.word_search import excerpt, has_words, words_of
from perdure.runtime.threads.order import Order
from perdure.runtime.threads.rows import ThreadRow
from perdure.server import responses
from perdure.server.auth.authorized_values import require_unnarrowed
from perdure.server.auth.filters import find_patterns
from perdure.server.resources import Caller
from perdure.server.state_snapshots import is_of_thread, list_messages, snapshot
from perdure.storage.own_threads import run_in_own_thread

FOUND_MOST = 20
"""Maximum number of conversations in one answer."""
SECONDS = 0.4
"""Seconds after which a search returns what it has found, with a cursor for the rest."""

_SHOWN = ["thread_id", "metadata", "status", "updated_at"]


async def search(caller: Caller, words: str, cursor: int) -> dict[str, Any]:
    """Return conversations that contain all words, the latest activity first, and the cursor of the rest.

    At least one conversation is examined for each call. Their states are read one by one, so a search over
    many conversations takes a while. Conversations that cannot be read are found by their titles only.

    Args:
        caller: The user, who may search threads.
        words: The words, separated by white space; upper and lower case are the same.
        cursor: Number of conversations to skip, from the last answer; 0 begins.
    """
    wanted = words_of(words)
    value: dict[str, Any] = {
        "metadata": {},
        "values": {},
        "status": None,
        "limit": FOUND_MOST,
        "offset": cursor,
    }
    conditions = await caller.may("threads", "search", value)
    require_unnarrowed(value, "values")
    found: list[dict[str, Any]] = []
    until = time.monotonic() + SECONDS
    rows = caller.threads.index.search(
        metadata=value["metadata"] or None,
        status=value["status"],
        sees=caller.make_filter(conditions),
        holding=find_patterns(conditions),
        order=Order("updated_at"),
        skip=cursor,
    )
    async with aclosing(rows) as walked:  # type: ignore[type-var]
        async for row in walked:
            cursor += 1
            entry = await _match(caller, row, wanted)
            if entry is not None:
                found.append(entry)
            if len(found) == FOUND_MOST or time.monotonic() > until:
                return {"found": found, "cursor": cursor}
    return {"found": found, "cursor": None}


async def _match(caller: Caller, row: ThreadRow, wanted: Sequence[str]) -> dict[str, Any] | None:
    shown = responses.select_parts(responses.thread(row, None), _SHOWN)
    title = row.metadata.get("title")
    if isinstance(title, str) and has_words(title, wanted):
        return shown
    if not row.has_state:
        return None
    try:
        state = await snapshot(caller, row)
    except Exception as error:
        if not is_of_thread(error):
            raise
        return None
    quoted = await run_in_own_thread(_find_excerpt, state.values, wanted)
    if quoted is None:
        return None
    return {**shown, "excerpt": quoted}


def _find_excerpt(values: Any, wanted: Sequence[str]) -> str | None:
    found = excerpt(list(map(to_plain, list_messages(values))), wanted)
    if found is None:
        return None
    return found.text
