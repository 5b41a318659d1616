"""Commands on the users of threads: what they use, and the removal of everything of a user."""

from __future__ import annotations

from collections.abc import Iterator, Set
from contextlib import aclosing
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.app import (
    AsJson,
    DataPlace,
    Yes,
    add_listing,
    format_count,
    handle_in,
    new_table,
    open_database,
    print_json,
    print_table,
    quote_id,
    require_consent,
    run_coroutine,
    say,
    warn,
)
from perdure.cli.memory import check_user, open_store, refuse_elsewhere
from perdure.cli.runs import open_walk
from perdure.cli.suggestions import Group
from perdure.errors import NotFound

if TYPE_CHECKING:
    from perdure.database.blocking import SyncDatabase
    from perdure.runtime.operations.user_removal import RemovalTerms
    from perdure.runtime.operations.walk_by_activity import ThreadWalk

users = typer.Typer(
    cls=Group, help="Look at what users use, and remove everything of one.", no_args_is_help=True
)


class Period(StrEnum):
    """A time up to now."""

    HOUR = "hour"
    DAY = "day"


Last = Annotated[Period, typer.Option(help="The last hour, or the last 24 hours", show_default=True)]


def list_users(last: Last = Period.DAY, *, place: DataPlace, as_json: AsJson = False) -> None:
    """List the users with their runs, tokens of models and costs, the most tokens first.

    A run's user is the user_id of its config, or the one of the server's authentication; the metadata of
    threads is not read. Workers store their counts every ten seconds. Of many users, the twenty with the most
    tokens are listed. A cost is known for models with a price in perdure.toml, as it was when they were
    called.
    """
    from perdure.runtime.operations.overview import read

    with open_database(place) as database:
        found: list[dict[str, Any]] = run_coroutine(read(handle_in(database), place.tenant))[last]["users"]

    def row(each: dict[str, Any]) -> Iterator[str]:
        yield "all others" if each["user"] is None else quote_id(each["user"])
        for key in ("runs", "failed", "calls", "input_tokens", "output_tokens"):
            yield f"{each[key]:,}"
        yield "" if each["cost"] is None else f"{each['cost']:,.4g}"

    table = new_table("user", numbers=("runs", "failed", "calls", "tokens in", "out", "cost"))
    print_table(found, as_json, table, row, f"No runs of users in the last {last}.")


def delete(
    user: Annotated[str, typer.Argument(help="The user's id", callback=check_user)],
    yes: Yes = False,
    *,
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """Remove everything of a user: crons, assistants, threads, and memories.

    Threads are those that have no other user: the owner in their metadata, or the user of all of their runs.
    They are removed with runs, messages and replies; runs that are under way end. A thread in which other
    users have runs, too, stays and is named: remove it by `perdure threads delete`.

    Crons are those that start runs of the user, or whose metadata names the user; assistants those whose
    owner, by their metadata or else by user_id in their config, is the user.

    Assistants without an owner, the default ones of graphs, items and histories of sessions that an agent
    itself stored, the log of actions, the counts of the last day, and backups stay. On SQLite the end is to
    empty the database's log, which holds what was removed. Safe to interrupt and to run again.
    """
    from perdure.memory import Memory
    from perdure.memory.memory import find_roots
    from perdure.memory.users import ROOT
    from perdure.runtime.operations.user_removal import (
        RemovalTerms,
        find_assistants,
        find_crons,
        find_unlisted,
    )

    place = place.with_key()
    with open_walk(place) as found, open_store(place) as kept:
        handle = handle_in(found.database)
        own_crons = run_coroutine(find_crons(handle, place.tenant, user))
        own_assistants = run_coroutine(find_assistants(handle, place.tenant, user))
        unlisted = run_coroutine(find_unlisted(found.walk, user))
        listed = run_coroutine(_find_threads(found.walk, user))
        shared = sorted(thread_id for thread_id, others in listed.items() if others)
        own_threads = (listed.keys() - set(shared)) | unlisted
        roots = find_roots(kept.store(), user)
        if not place.tenant and not (own_crons or own_assistants or listed or unlisted or roots):
            _refuse_elsewhere(found.database, kept, user)
        rest = f"{format_count(len(own_crons), 'cron')} and {format_count(len(own_assistants), 'assistant')}"
        counted = f"{format_count(len(own_threads), 'thread')}, {rest}"
        question = f"Remove {counted} of the user {quote_id(user)}, and all that is known of the user?"
        require_consent(question, yes)
        saver, store = found.database.checkpointer(), kept.store()

        async def remove_thread(thread_id: str) -> bool:
            await saver.adelete_thread(thread_id)
            return True

        terms = RemovalTerms(
            own_crons,
            own_assistants,
            [Memory(store, user, root=root) for root in {ROOT, *roots}],
            remove_thread,
            remove_thread,
            unlisted,
            partial(_end_runs, found.walk, user),
        )
        threads, known, is_in_log = run_coroutine(_remove(found.walk, user, terms))
    if is_in_log:
        warn(
            "Other processes use the database: what was removed stays in its log until they have written a "
            "few megabytes, or end. Run this again later to empty the log."
        )
    if as_json:
        counts = {"threads": threads, "crons": len(own_crons), "assistants": len(own_assistants)}
        print_json({"user": user, **counts, "entries": known, "shared": shared})
        return
    entries = "nothing was known" if not known else f"{known} entries of what was known"
    say(f"{quote_id(user)}: {format_count(threads, 'thread')}, {rest} removed, {entries}")
    for thread_id in shared:
        others = ", ".join(map(quote_id, sorted(listed[thread_id])))
        say(f"{quote_id(thread_id)} stays, as it has runs of other users, too: {others}")


async def _remove(walk: ThreadWalk, user: str, terms: RemovalTerms) -> tuple[int, int, bool]:
    """Remove everything of a user; return the numbers of threads and of entries of memories, and True if the
    database's log may hold them."""
    from perdure.runtime.operations.user_removal import remove_user

    threads, entries, is_in_log = 0, 0, False
    async with aclosing(remove_user(walk, user, terms)) as steps:
        async for step in steps:
            threads, entries = threads + step.threads, entries + step.entries
            is_in_log = step.is_in_log
    return threads, entries, is_in_log


async def _end_runs(walk: ThreadWalk, user: str) -> None:
    from perdure.runtime.operations.stops import stop_runs

    async with aclosing(stop_runs(walk, user=user)) as steps:
        async for _ in steps:
            pass


async def _find_threads(walk: ThreadWalk, user: str, enough: int | None = None) -> dict[str, Set[str]]:
    """Return a user's threads, at most ``enough`` of them, each with the other users whom it names."""
    from perdure.runtime.operations.user_removal import find_threads

    found: dict[str, Set[str]] = {}
    async with aclosing(find_threads(walk, user)) as steps:
        async for step in steps:
            if step.thread_id is not None:
                found[step.thread_id] = step.others
            if len(found) == enough:
                break
    return found


def _refuse_elsewhere(database: SyncDatabase, kept: SyncDatabase, user: str) -> None:
    """Raise ``NotFound`` if a tenant has threads or memories of the user: no tenant was named, and an empty
    result would be taken for an answer about all tenants."""
    from perdure import admin
    from perdure.memory.users import ROOT
    from perdure.runtime.operations.walk_by_activity import ThreadWalk

    handle = handle_in(database)
    names = sorted(filter(None, admin.tenants(database)))
    others = [name for name in names if run_coroutine(_find_threads(ThreadWalk(handle, name), user, 1))]
    if not others:
        refuse_elsewhere(kept, "", user, ROOT)
        return
    raise NotFound(
        f"the user {quote_id(user)} has no thread without a tenant, but has some in {len(others)} of them; "
        f"pass --tenant {quote_id(others[0])}" + (", or another one" if len(others) > 1 else "")
    )


add_listing(users, list_users)
users.command()(delete)
