"""Everything that is stored of a user: what is found, for a view and for the removal, and the order in which
it is removed. Its caller decides who may do that, and how a thread is removed."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence, Set
from contextlib import AbstractAsyncContextManager, aclosing, nullcontext, suppress
from typing import Any, NamedTuple

from perdure.database.handle import DatabaseHandle
from perdure.engine import versioned_documents
from perdure.engine.complete_reads import PAGE, read_all
from perdure.engine.items import items
from perdure.engine.queue import crons, scheduled
from perdure.engine.threads.measure import measure
from perdure.engine.transact import ATTEMPTS
from perdure.engine.versioned_documents import Versioned
from perdure.errors import Contention, Corrupt
from perdure.langgraph.store import PerdureStore
from perdure.memory import Memory
from perdure.memory.users import namespace_of
from perdure.model.ops import Check, Drop, FindThreads, Range
from perdure.model.program import Program, ask
from perdure.model.records import CHAT_SESSIONS, INBOX, RUN, SERVER, Partition
from perdure.model.users import name_user
from perdure.runtime.agent_memory.memory_turns import lane_of
from perdure.runtime.agents.default_assistants import make_default_id
from perdure.runtime.agents.run_user import user_of_config
from perdure.runtime.operations.thread_search import ThreadQuery, search
from perdure.runtime.operations.thread_users import load_users, read_user_checks
from perdure.runtime.operations.walk_by_activity import ThreadWalk
from perdure.runtime.threads.rows import load_row
from perdure.runtime.threads.user_and_title import find_user, user_of_options

_ASSISTANT = "assistant"


async def find_crons(database: DatabaseHandle, tenant: str, user: str) -> list[crons.Cron]:
    """Return a user's crons: those that start runs of the user, and those whose metadata names the user, as
    it is that of their threads."""
    all_crons = await database.arun(crons.read_all_crons(crons.place(tenant)))
    assistants = await _read_assistants(database, tenant) if all_crons else []
    configs = {assistant.name: assistant.body.get("config") for assistant in assistants}
    return [cron for cron in all_crons if user in _list_users(cron.body, configs)]


def _list_users(cron: Mapping[str, Any], configs: Mapping[str, Any]) -> set[str | None]:
    """Return the user of a cron's runs and those of its metadata, any of which may be missing. The verified
    user of a run comes before its config, and that before the config of its assistant."""
    payload = cron.get("payload") or {}
    runs_as = (
        name_user((cron.get("user") or {}).get("identity"))
        or user_of_options(payload)
        or user_of_config(configs.get(str(cron.get("assistant_id"))))
    )
    of_runs = (payload.get("config") or {}).get("metadata") or {}
    return {runs_as, find_user(cron.get("metadata") or {}), find_user(of_runs)}


async def find_assistants(database: DatabaseHandle, tenant: str, user: str) -> list[str]:
    """Return the ids of a user's assistants: the user is the owner by their metadata or, if that names none,
    by their config. An assistant without an owner is for all users, and so is the default one of a graph."""
    found: list[str] = []
    for assistant in await _read_assistants(database, tenant):
        body = assistant.body
        owner = find_user(body.get("metadata") or {}) or user_of_config(body.get("config"))
        if owner == user and not await _is_default(database, tenant, assistant.name):
            found.append(assistant.name)
    return found


async def _is_default(database: DatabaseHandle, tenant: str, assistant_id: str) -> bool:
    """Return True for the default assistant of a graph, which may have been given another graph since."""
    program = versioned_documents.list_versions(_place_assistants(tenant), _ASSISTANT, assistant_id)
    graphs = {version.body["graph_id"] for version in await database.arun(program)}
    return assistant_id in map(make_default_id, graphs)


async def _read_assistants(database: DatabaseHandle, tenant: str) -> list[Versioned]:
    program = versioned_documents.read_all_current(_place_assistants(tenant), _ASSISTANT)
    return await database.arun(program)


def _place_assistants(tenant: str) -> Partition:
    return Partition(tenant, f"{_ASSISTANT}s", SERVER)


class UserThread(NamedTuple):
    """A thread that was examined for a user.

    Attributes:
        cursor: Where to continue after it.
        thread_id: The thread, ``None`` if it does not name the user.
        others: Other users whom it names, too.
    """

    cursor: str
    thread_id: str | None
    others: Set[str]


async def find_threads(walk: ThreadWalk, user: str, cursor: str = "") -> AsyncGenerator[UserThread, None]:
    """Yield the threads of a tenant by their ids, those of a user with their other users, as a search for the
    user finds them."""
    by_id = walk._replace(is_by_id=True)
    async with aclosing(search(by_id, ThreadQuery(user=user), cursor)) as steps:
        async for step in steps:
            thread_id = None if step.row is None else step.row.thread_id
            yield UserThread(step.cursor, thread_id, step.users - {user})


async def find_unlisted(walk: ThreadWalk, user: str) -> dict[str, Set[str]]:
    """Return the threads that have messages of a user, and are in no listing, as none of their runs has
    begun; each with the other users who have messages there."""
    database, found = walk.database, dict[str, Set[str]]()
    for partition in await database.arun(scheduled.find_threads(walk.tenant)):
        if await database.arun(load_row(partition)) is None:
            users = await load_users(database, partition, None)
            if user in users:
                found[partition.thread] = users - {user}
    return found


class UserData(NamedTuple):
    """Data that goes with a user beside the listed threads, as ``docs/operating.md`` lists it. The view of it
    and the removal are both made from this.

    Attributes:
        crons: The user's crons.
        assistants: The ids of the user's assistants.
        memories: The user's memories.
        unlisted: Threads in no listing that have messages of the user, each with its other users.
        turns: The number of the user's turns that memories are, or were, extracted from, in the user's lane.
        sessions: The partitions with sessions of the user's chats, which go if no thread of the chat is left.
        names: The number of namespaces of the store that hold nothing and have the user's id as a label.
    """

    crons: Sequence[crons.Cron]
    assistants: Sequence[str]
    memories: Sequence[Memory]
    unlisted: Mapping[str, Set[str]]
    turns: int = 0
    sessions: Sequence[Partition] = ()
    names: int = 0


async def find_user_data(walk: ThreadWalk, user: str, memories: Sequence[Memory]) -> UserData:
    """Return what goes with a user beside the listed threads; the caller knows where memories may be."""
    own_crons = await find_crons(walk.database, walk.tenant, user)
    own_assistants = await find_assistants(walk.database, walk.tenant, user)
    of_user = _labels_of_user(user)
    names = items.count_empty_names(walk.tenant, lambda labels: not of_user.isdisjoint(labels))
    return UserData(
        own_crons,
        own_assistants,
        memories,
        await find_unlisted(walk, user),
        await walk.database.arun(_count(Partition(walk.tenant, lane_of(user)), Range(INBOX))),
        await walk.database.arun(_find_chats(walk.tenant, user)),
        await walk.database.arun(names),
    )


async def describe_user_data(
    walk: ThreadWalk, user: str, data: UserData, store: PerdureStore
) -> dict[str, Any]:
    """Return what is stored of a user beside the listed threads as JSON data: the ids of ``crons``,
    ``assistants`` and ``unlisted`` threads, and the numbers of ``entries`` of memories, of ``turns`` that
    they are extracted from, and of ``names`` of empty namespaces, all of which go with the user; the number
    of chats with ``sessions``, which go if no thread of the chat is left; and the number of ``items`` in the
    store, in ``namespaces`` with the user's id as a label, each with its number of ``items``, which stay."""
    entries, of_user = 0, _labels_of_user(user)
    for memory in data.memories:
        entries += len(await memory.afacts(history=True)) + len(await memory.asummaries())
    places = [memory.namespace for memory in data.memories]

    def stays(labels: tuple[str, ...]) -> bool:
        return not of_user.isdisjoint(labels) and not any(labels[: len(at)] == at for at in places)

    counts = await store.acount_items(stays)
    return {
        "crons": sorted(cron.id for cron in data.crons),
        "assistants": sorted(data.assistants),
        "unlisted": sorted(thread_id for thread_id, others in data.unlisted.items() if not others),
        "entries": entries,
        "items": sum(counts.values()),
        "namespaces": [{"namespace": list(labels), "items": counts[labels]} for labels in sorted(counts)],
        "turns": data.turns,
        "names": data.names,
        "sessions": len(data.sessions),
    }


async def describe_user_thread(walk: ThreadWalk, thread_id: str, others: Iterable[str]) -> dict[str, Any]:
    """Return the numbers of a user's thread as JSON data: its ``runs``, its ``bytes``, ``None`` if it cannot
    be measured, and the ``others`` whom it names, for whom it stays."""
    partition = Partition(walk.tenant, thread_id)
    size = None
    with suppress(Corrupt, Contention):
        size = (await walk.database.arun(measure(partition, walk.database.digest))).total
    runs = await walk.database.arun(_count(partition, Range(RUN)))
    return {"runs": runs, "bytes": size, "others": sorted(others)}


def _count(partition: Partition, all_records: Range) -> Program[int]:
    (records,) = yield from read_all(partition, all_records._replace(bodies=False))
    return len(records)


def _find_chats(tenant: str, user: str) -> Program[list[Partition]]:
    """Return the partitions with the sessions of the chats of a user. The id of a user who writes in a chat
    starts with the channel and the chat."""
    found: list[Partition] = []
    channel, is_of_channel, rest = user.partition(":")
    prefix = f"{CHAT_SESSIONS}{channel}:{rest.partition(':')[0]}:"
    after: Partition | None = None
    while is_of_channel:
        page = yield from ask(FindThreads(tenant, after=after, limit=PAGE, space=SERVER, prefix=prefix))
        found += [hit.partition for hit in page]
        if len(page) < PAGE:
            break
        after = page[-1].partition
    return found


RemoveThread = Callable[[str, Sequence[Check]], Awaitable[bool | None]]
"""Removes a thread if the checks hold: returns True if it did, False if the thread stays, and ``None`` if a
check does not hold."""


class RemovalTerms(NamedTuple):
    """Terms of a removal: its parts beside the listed threads, and how the caller removes a thread.

    Attributes:
        data: What goes beside the listed threads.
        remove_thread: Removes a listed thread.
        remove_unlisted: Removes a thread that is in no listing.
        end_runs: Ends the user's runs; called once nothing of the user can begin another.
        record: Returns a context around the last step, with a dict that receives the number of ``entries``.
    """

    data: UserData
    remove_thread: RemoveThread
    remove_unlisted: RemoveThread
    end_runs: Callable[[], Awaitable[None]] | None = None
    record: Callable[[], AbstractAsyncContextManager[dict[str, Any]]] = lambda: nullcontext({})


class Removed(NamedTuple):
    """Numbers of threads, crons, assistants and entries of memories that a step removed, and of threads that
    stay because they name other users, too (``shared``). A later call can continue from ``cursor``, which is
    set after each thread that was examined. ``is_in_log`` is True if the database's log may hold what was
    removed."""

    threads: int = 0
    shared: int = 0
    crons: int = 0
    assistants: int = 0
    entries: int = 0
    cursor: str | None = None
    is_in_log: bool = False


async def remove_user(
    walk: ThreadWalk, user: str, terms: RemovalTerms, cursor: str = ""
) -> AsyncGenerator[Removed, None]:
    """Remove everything of a user, and yield each step: first what would begin, or learn, something new, then
    the threads, and then what is known of the user. Threads that name other users, too, stay. At the end it
    empties the database's log."""
    if not cursor:
        for cron in terms.data.crons:
            await walk.database.arun(crons.remove(crons.place(walk.tenant), cron.id))
        for assistant_id in terms.data.assistants:
            program = versioned_documents.remove(_place_assistants(walk.tenant), _ASSISTANT, assistant_id)
            await walk.database.arun(program)
        await terms.remove_unlisted(lane_of(user), ())
        if terms.end_runs is not None:
            await terms.end_runs()
        yield Removed(crons=len(terms.data.crons), assistants=len(terms.data.assistants))
    async with aclosing(find_threads(walk, user, cursor)) as steps:
        async for step in steps:
            counts = Removed()
            if step.thread_id is not None:
                counts = await _remove_own(walk, user, step.thread_id, terms.remove_thread)
            yield counts._replace(cursor=step.cursor)
    async with terms.record() as record:
        threads = shared = 0
        for thread_id in sorted(await find_unlisted(walk, user)):
            counts = await _remove_own(walk, user, thread_id, terms.remove_unlisted)
            threads, shared = threads + counts.threads, shared + counts.shared
        record["entries"] = entries = sum([await memory.aforget() for memory in terms.data.memories])
        # A turn that was under way may have come to the lane before the user was forgotten; a later one finds
        # the mark of that.
        await terms.remove_unlisted(lane_of(user), ())
        # Names of namespaces that hold nothing, also of those whose items a program removed earlier.
        of_user = _labels_of_user(user)
        await walk.database.arun(
            items.remove_empty_names(walk.tenant, (), lambda labels: not of_user.isdisjoint(labels))
        )
        await walk.database.arun(_remove_chat_sessions(walk.tenant, user))
    is_cut = await walk.database.acut_log()
    yield Removed(threads=threads, shared=shared, entries=entries, is_in_log=not is_cut)


async def _remove_own(walk: ThreadWalk, user: str, thread_id: str, remove: RemoveThread) -> Removed:
    """Remove a thread if a user is its only one. What another user sends meanwhile keeps it.

    Raises:
        Contention: The thread keeps being sent messages.
    """
    partition = Partition(walk.tenant, thread_id)
    for _ in range(ATTEMPTS):
        checks = await walk.database.arun(read_user_checks(partition))
        row = await walk.database.arun(load_row(partition))
        users = await load_users(walk.database, partition, row)
        if user not in users:
            return Removed()
        if len(users) > 1:
            return Removed(shared=1)
        if (is_removed := await remove(thread_id, checks)) is not None:
            return Removed(threads=int(is_removed))
    raise Contention(f"thread {thread_id!r} keeps being sent messages; remove the user again later")


def _labels_of_user(user: str) -> set[str]:
    """Return the labels that name a user in a namespace: the id, and its form in those of memories."""
    labels = {user}
    with suppress(ValueError):
        labels.add(namespace_of(user, ())[0])
    return labels


def _remove_chat_sessions(tenant: str, user: str) -> Program[None]:
    """Remove the sessions of the user's chats that have no thread any more: their names have the provider's
    id of the chat."""
    for partition in (yield from _find_chats(tenant, user)):
        address = partition.thread.removeprefix(CHAT_SESSIONS)
        if not (yield from ask(FindThreads(tenant, prefix=address, limit=1))):
            yield from ask(Drop(partition))
