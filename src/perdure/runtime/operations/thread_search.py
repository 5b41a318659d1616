"""Search for threads by what is known of them: status, title, user, metadata, error, tag, time, and words of
the conversation.

Nothing but the status and the time is in an index, so threads are read one by one, the latest activity first
where the database can do that. Words are looked for in the messages of the latest state of each thread that
meets every other condition.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

from perdure.database.handle import DatabaseHandle
from perdure.engine.threads import tags
from perdure.errors import Contention, Corrupt, NotFound
from perdure.langgraph.reading import plain_reading
from perdure.model.records import Partition
from perdure.runtime.operations.failures import failure_of
from perdure.runtime.operations.walk_by_activity import ThreadWalk
from perdure.runtime.operations.words import excerpt, has_words, words_of
from perdure.runtime.threads.index import contains
from perdure.runtime.threads.rows import ThreadRow
from perdure.runtime.threads.user_and_title import title_in, user_in, user_of_message

_MESSAGES = "messages"


class ThreadQuery(NamedTuple):
    """Conditions on threads besides those of the walk; what is not given is not asked.

    Attributes:
        title: part of the title, in either case.
        user: the user that its metadata names, or else that of its newest run.
        metadata: JSON data that its metadata contain.
        error: part of the type or the text of the error of its newest run, in either case.
        tag: name of a tag of one of its checkpoints.
        since: earliest time of its last change, in microseconds since 1970.
        before: latest time of its last change.
        words: words that its title or one of its messages contains.
    """

    title: str | None = None
    user: str | None = None
    metadata: Mapping[str, Any] | None = None
    error: str | None = None
    tag: str | None = None
    since: int | None = None
    before: int | None = None
    words: str | None = None

    def is_met(self, row: ThreadRow) -> bool:
        """Return False if what is read of a thread anyway tells that it does not meet the conditions."""
        if self.since is not None and row.updated_at < self.since:
            return False
        if self.before is not None and row.updated_at > self.before:
            return False
        if self.title is not None and self.title.casefold() not in title_in(row.metadata).casefold():
            return False
        if self.user is not None and user_in(row.metadata) not in (None, self.user):
            return False
        if self.metadata is not None and not contains(row.metadata, self.metadata):
            return False
        if self.error is None:
            return True
        failure = None if row.run is None else failure_of(row.run.note)
        return failure is not None and failure.has(self.error)


class ThreadMatch(NamedTuple):
    """A thread that was examined: where to go on after it, the thread, ``None`` if it does not match, and the
    part of the conversation with the words."""

    cursor: str
    row: ThreadRow | None
    excerpt: str | None = None


async def search(
    walk: ThreadWalk, query: ThreadQuery, cursor: str = "", enough: int | None = None
) -> AsyncGenerator[ThreadMatch, None]:
    """Yield the threads that were examined, those that match with their rows.

    Args:
        walk: the threads.
        query: the conditions.
        cursor: where to go on, empty for the beginning.
        enough: the number of threads after which the caller is likely to stop.
    """
    async with aclosing(walk.steps(cursor, enough)) as steps:
        async for step in steps:
            row = step.row
            if row is not None and _is_last(walk, query, row):
                return
            if row is None or not query.is_met(row):
                yield ThreadMatch(step.cursor, None)
                continue
            partition = Partition(walk.tenant, row.thread_id)
            if not await _meets_rest(walk.database, partition, row, query):
                yield ThreadMatch(step.cursor, None)
                continue
            found = await _find(walk.database, partition, row, words_of(query.words or ""))
            yield ThreadMatch(step.cursor, None if found is None else row, found or None)


def _is_last(walk: ThreadWalk, query: ThreadQuery, row: ThreadRow) -> bool:
    """Return True if this thread and all that follow were changed too long ago. One that cannot be read may
    have no time."""
    return (
        walk.is_by_time
        and row.fault is None
        and not walk.is_oldest_first
        and query.since is not None
        and row.updated_at < query.since
    )


async def _meets_rest(
    database: DatabaseHandle, partition: Partition, row: ThreadRow, query: ThreadQuery
) -> bool:
    """Return True if a thread has the user and the tag; False if that cannot be read, as the search has to go
    on with the next thread."""
    try:
        if query.user is not None and query.user != await _user(database, partition, row):
            return False
        return query.tag is None or await _has_tag(database, partition, query.tag)
    except Corrupt:
        return False


async def _user(database: DatabaseHandle, partition: Partition, row: ThreadRow) -> str | None:
    """Return the user of a thread: the one of its newest run if its metadata names none."""
    user = user_in(row.metadata)
    if user is None and row.run is not None:
        return await database.arun(user_of_message(partition, row.run.first))
    return user


async def _has_tag(database: DatabaseHandle, partition: Partition, name: str) -> bool:
    found = await database.arun(tags.list_tags(partition))
    return any(tag.key[0] == name for tag in found)


async def _find(
    database: DatabaseHandle, partition: Partition, row: ThreadRow, wanted: list[str]
) -> str | None:
    """Return the part of a conversation with the words, ``""`` if it is its title or no words are asked for,
    ``None`` if it does not have them. A state that cannot be read has none."""
    if not wanted or has_words(title_in(row.metadata), wanted):
        return ""
    if not row.has_state:
        return None

    def read() -> str | None:
        return _excerpt(database.run(plain_reading.load(partition, "", None, database.digest)), wanted)

    try:
        if database.driver.capabilities.has_threads:
            # A long conversation takes a while to decode.
            return await asyncio.to_thread(read)
        view = await database.arun(plain_reading.load(partition, "", None, database.digest))
    except (Corrupt, Contention, NotFound):
        return None
    return _excerpt(view, wanted)


def _excerpt(view: plain_reading.CheckpointView, wanted: list[str]) -> str | None:
    values = next((channel.value for channel in view.channels if channel.name == _MESSAGES), None)
    return excerpt(values, wanted)
