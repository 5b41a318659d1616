"""Search for threads by status, title, user, metadata, error, tag, time, words of the conversation, and cost.

Nothing but the status and the time is in an index, so threads are read, a few at a time, the latest activity
first where the database can do that. Words are searched in the latest messages of each thread that meets the
earlier conditions; the cost is computed for the remaining threads.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple, TypeVar

from perdure.database.handle import DatabaseHandle
from perdure.engine.threads import tags
from perdure.engine.threads.undisturbed import read_undisturbed
from perdure.errors import BadSetting, Contention, Corrupt
from perdure.langgraph.reading.thread_calls import load_all_calls
from perdure.langgraph.reading.thread_messages import find_conversation
from perdure.model.model_calls import NO_PRICES, Prices, total
from perdure.model.program import Program
from perdure.model.records import Partition
from perdure.runtime.operations.failures import failure_of
from perdure.runtime.operations.thread_users import find_owner, load_users
from perdure.runtime.operations.walk_by_activity import ThreadWalk, VisitedThread
from perdure.runtime.operations.word_search import Excerpt, find_excerpt, has_words, words_of
from perdure.runtime.threads.index import contains
from perdure.runtime.threads.rows import ThreadRow
from perdure.runtime.threads.user_and_title import find_title
from perdure.storage.port import arun

R = TypeVar("R")

_AT_ONCE = 16
"""Threads that are examined at the same time, which share the round trips of their requests."""
_THREAD_BYTES = 32 * 1024
"""Stored size of records from which they are decoded in an OS thread, as that would block the event loop."""


class ThreadQuery(NamedTuple):
    """Conditions on threads besides those of the walk; one that is not given does not restrict the search.

    Attributes:
        title: part of the title, in either case.
        user: one of its users: the owner that its metadata names, or else those of all of its runs and
            messages, also of messages that wait.
        graph: the graph that its metadata name, or else that of its newest run.
        metadata: JSON data that its metadata contain.
        error: part of the type or the text of the error of its newest run, in either case.
        tag: name of a tag in the thread.
        since: earliest time of its last change, in microseconds since 1970.
        before: latest time of its last change.
        words: words that its title or one of its messages contains.
        cost: least cost of its calls of models, in the currency of the prices.
        prices: prices of models, which a cost needs.

    Raises:
        BadSetting: from ``search``, if there is a cost and no price.
    """

    title: str | None = None
    user: str | None = None
    graph: str | None = None
    metadata: Mapping[str, Any] | None = None
    error: str | None = None
    tag: str | None = None
    since: int | None = None
    before: int | None = None
    words: str | None = None
    cost: float | None = None
    prices: Prices = NO_PRICES

    @property
    def needs_more(self) -> bool:
        """True if a thread has to be read further than its row."""
        return any(each is not None for each in (self.user, self.tag, self.words, self.cost))

    def is_met(self, row: ThreadRow) -> bool:
        """Return False if the row of a thread, which is read anyway, shows that it does not meet the
        conditions."""
        if self.since is not None and row.updated_at < self.since:
            return False
        if self.before is not None and row.updated_at > self.before:
            return False
        if self.title is not None and self.title.casefold() not in find_title(row.metadata).casefold():
            return False
        if self.user is not None and find_owner(row) not in (None, self.user):
            return False
        if self.graph is not None and find_graph(row) != self.graph:
            return False
        if self.metadata is not None and not contains(row.metadata, self.metadata):
            return False
        if self.error is None:
            return True
        failure = None
        if row.run is not None:
            failure = failure_of(row.run.note)
        return failure is not None and failure.has(self.error)


class ThreadMatch(NamedTuple):
    """A thread that was examined.

    Attributes:
        cursor: where to continue after it.
        row: the thread, ``None`` if it does not match.
        excerpt: the part of the conversation with the words.
        speaker: the role of the message that has the excerpt, with the name if it has one.
        cost: the cost, if the query has one.
        users: its users, if the query has one.
        examined: the number of threads that were examined since the step before.
    """

    cursor: str
    row: ThreadRow | None
    excerpt: str | None = None
    speaker: str | None = None
    cost: float | None = None
    users: frozenset[str] = frozenset()
    examined: int = 1


async def search(
    walk: ThreadWalk, query: ThreadQuery, cursor: str = "", enough: int | None = None
) -> AsyncGenerator[ThreadMatch, None]:
    """Yield the threads that were examined, those that match with their rows.

    Args:
        walk: the threads.
        query: the conditions.
        cursor: where to continue, empty for the beginning.
        enough: the number of threads after which the caller is likely to stop.

    Raises:
        BadSetting: a cost is asked for, and no model has a price.
    """
    if query.cost is not None and not query.prices.models:
        raise BadSetting(
            'a search by cost needs prices of models: set them in perdure.toml, under [prices.models."NAME"]'
        )
    under_way: deque[asyncio.Task[ThreadMatch]] = deque()
    try:
        async with aclosing(walk.steps(cursor, enough)) as steps:
            async for step in steps:
                if step.row is not None and _is_last(walk, query, step.row):
                    break
                if not query.needs_more:
                    is_met = step.row is not None and query.is_met(step.row)
                    yield ThreadMatch(step.cursor, step.row if is_met else None, examined=step.examined)
                    continue
                under_way.append(asyncio.create_task(_examine(walk, query, step)))
                if len(under_way) == _AT_ONCE:
                    yield await under_way.popleft()
        while under_way:
            yield await under_way.popleft()
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)


async def _examine(walk: ThreadWalk, query: ThreadQuery, step: VisitedThread) -> ThreadMatch:
    row = step.row
    no_match = ThreadMatch(step.cursor, None, examined=step.examined)
    if row is None or not query.is_met(row):
        return no_match
    partition = Partition(walk.tenant, row.thread_id)
    users = frozenset[str]()
    if query.user is not None:
        users = await load_users(walk.database, partition, row)
        if query.user not in users:
            return no_match
    if query.tag is not None and not await _has_tag(walk.database, partition, query.tag):
        return no_match
    part = await _find_words(walk.database, partition, row, words_of(query.words or ""))
    if part is None:
        return no_match
    cost = None
    if query.cost is not None:
        cost = await _compute_cost(walk.database, partition, query.prices)
        if cost is None or cost < query.cost:
            return no_match
    return ThreadMatch(step.cursor, row, part.text or None, part.speaker or None, cost, users, step.examined)


def _is_last(walk: ThreadWalk, query: ThreadQuery, row: ThreadRow) -> bool:
    """Return True if this thread and all that follow were changed too long ago. An unreadable thread may have
    no time, and one whose first message waits has none."""
    return (
        walk.is_by_time
        and row.fault is None
        and not walk.is_oldest_first
        and query.since is not None
        and 0 < row.updated_at < query.since
    )


def find_graph(row: ThreadRow) -> str | None:
    """Return the graph of a thread: the one that its metadata name, or else that of its newest run."""
    return row.graph_id or (None if row.run is None else row.run.graph)


async def _has_tag(database: DatabaseHandle, partition: Partition, name: str) -> bool:
    """Return True if a thread has a tag; False if that cannot be read, as the search has to go on with the
    next thread."""
    try:
        stored_tags = await database.arun(tags.list_tags(partition))
    except Corrupt:
        return False
    return any(tag.key[0] == name for tag in stored_tags)


async def _find_words(
    database: DatabaseHandle, partition: Partition, row: ThreadRow, wanted: list[str]
) -> Excerpt | None:
    """Return the part of a conversation with the words, an empty one if the title has them or no words are
    asked for, ``None`` if neither has them or the state cannot be read."""
    if not wanted or has_words(find_title(row.metadata), wanted):
        return Excerpt()
    if not row.has_state:
        return None

    def read() -> Program[Excerpt | None]:
        _, messages = yield from find_conversation(partition, database.digest)
        if messages is None:
            return None
        return find_excerpt(messages, wanted)

    try:
        return await _read_aside(database, read_undisturbed(partition, read))
    except (Corrupt, Contention):
        return None


async def _compute_cost(database: DatabaseHandle, partition: Partition, prices: Prices) -> float | None:
    """Return the cost of a thread's calls of models, ``None`` if no call has a price, or if they cannot be
    read."""
    try:
        calls = await _read_aside(database, load_all_calls(partition, database.digest))
    except (Corrupt, Contention):
        return None
    found: float | None = total(calls, prices)["cost"]
    return found


async def _read_aside(database: DatabaseHandle, program: Program[R]) -> R:
    """Run a program that may decode much data, in an OS thread where there are such threads."""
    has_threads = database.driver.capabilities.has_threads
    return await arun(program, database.driver, in_threads=has_threads, thread_bytes=_THREAD_BYTES)
