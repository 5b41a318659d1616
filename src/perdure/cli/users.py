"""Commands on the users of threads: what they use, what is stored of one, and the removal of all of it."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import aclosing, suppress
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
    json_text,
    make_legible,
    new_group,
    new_table,
    open_database,
    print_json,
    print_result,
    print_table,
    quote_id,
    read_local_prices,
    require_consent,
    run_coroutine,
    say,
    warn,
)
from perdure.cli.memory import check_user, open_store, refuse_elsewhere
from perdure.cli.runs import Since, open_walk, parse_since
from perdure.cli.thread_listing import THREAD_BYTES, format_iso
from perdure.cli.thread_steps import describe_usage, money, read_currency
from perdure.errors import Contention, Corrupt, NotFound

if TYPE_CHECKING:
    from perdure.database.blocking import SyncDatabase
    from perdure.model.model_calls import ModelCall
    from perdure.model.ops import Check
    from perdure.runtime.operations.user_removal import RemovalTerms, UserData
    from perdure.runtime.operations.walk_by_activity import ThreadWalk

users = new_group("users", "Look at what users use and cost and what is stored of one, and remove it.")


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

    currency = read_currency()

    def row(each: dict[str, Any]) -> Iterator[str]:
        yield "all others" if each["user"] is None else quote_id(each["user"])
        for key in ("runs", "failed", "calls", "input_tokens", "output_tokens"):
            yield f"{each[key]:,}"
        yield "" if each["cost"] is None else money(each["cost"], currency)

    table = new_table("user", numbers=("runs", "failed", "calls", "tokens in", "out", "cost"))
    print_table(found, as_json, table, row, f"No runs of users in the last {last}.")


def show(
    user: Annotated[str, typer.Argument(help="The user's id", callback=check_user)],
    *,
    since: Since = None,
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """Show all that is stored of a user, and what of it `perdure users delete` would remove.

    Threads come with their runs, bytes and costs of models, and with the other users for whom they stay;
    --since limits them to those that changed. Each is read to measure it. The bytes are those of checkpoints,
    values and writes. Sessions of a chat go if no thread of the chat is left.

    Items in the store that have the user's id as a label of their namespace stay, and are listed by
    namespace: the program that wrote them removes them. The states of limits by user stay, too, until they
    are idle: `perdure limits reset` empties one. With --json the rest is in the last line.
    """
    from perdure.model.model_calls import total
    from perdure.runtime.operations.limit_states import find_of_user
    from perdure.runtime.operations.user_removal import describe_user_data

    place = place.with_key()
    with open_walk(place) as found, open_store(place) as kept:
        data = _find_data(found.walk, kept, user)
        shared_unlisted = sum(bool(others) for others in data.unlisted.values())
        sums = {"threads": 0, "shared": shared_unlisted, "runs": 0, "bytes": 0}
        prices = read_local_prices()
        calls: list[ModelCall] = []

        def print_thread(entry: dict[str, Any], of_thread: Sequence[ModelCall]) -> None:
            entry["usage"] = usage = total(of_thread, prices)
            size = "?" if entry["bytes"] is None else f"{entry['bytes']:,}"
            line = f"{entry['status']:<11}  {format_count(entry['runs'], 'run'):>9}  {size:>15} bytes"
            line += f"  {quote_id(entry['thread_id'])}"
            if usage["cost"] is not None:
                line += f"  cost {money(usage['cost'], usage['currency'])}"
            if entry["others"]:
                line += f"  stays, as it is also of {', '.join(map(quote_id, entry['others']))}"
                sums["shared"] += 1
            else:
                sums["threads"] += 1
                sums["runs"] += entry["runs"]
                sums["bytes"] += entry["bytes"] or 0
                calls.extend(of_thread)
            print_result(as_json, entry, line)

        earliest = parse_since(since, found.now)
        run_coroutine(_show_threads(found.walk, user, earliest, print_thread))
        if since is None and not (sums["threads"] or sums["shared"]):
            _refuse_elsewhere(found.database, kept, place.tenant, user, data)
        stored = run_coroutine(describe_user_data(found.walk, user, data, kept.store()))
        of_user = run_coroutine(find_of_user(found.walk.database, place.tenant, user))
        limits = [{"limit": entry["limit"], "key": entry["key"]} for entry in of_user]
    usage = total(calls, prices)
    if as_json:
        print_json({"user": user, **sums, "usage": usage, **stored, "limits": limits})
        return
    whose = quote_id(user)
    if since is not None:
        whose += " (of the threads only those that changed in this time)"
    say(f"goes with {whose}: {', '.join(_describe_removed(sums, stored))}")
    if usage["calls"]:
        say(f"tokens in these threads: {describe_usage(usage)}")
    _print_kept(sums["shared"], stored, limits)
    say(THREAD_BYTES)


def _describe_removed(sums: Mapping[str, int], stored: Mapping[str, Any]) -> Iterator[str]:
    size = f"{format_count(sums['runs'], 'run')} and {format_count(sums['bytes'], 'byte')}"
    yield f"{format_count(sums['threads'], 'thread')} with {size}"
    if stored["unlisted"]:
        yield f"{format_count(len(stored['unlisted']), 'thread')} that had not begun"
    yield format_count(len(stored["crons"]), "cron")
    yield format_count(len(stored["assistants"]), "assistant")
    yield f"memories: {stored['entries']:,}"
    yield f"{format_count(stored['turns'], 'turn')} for their extraction"
    yield f"{format_count(stored['names'], 'empty namespace')}"
    yield f"sessions of {format_count(stored['sessions'], 'chat')}"


def _print_kept(shared: int, stored: Mapping[str, Any], limits: Sequence[Mapping[str, Any]]) -> None:
    """Print what a removal of the user leaves, and how each part is removed."""
    stays = (
        format_count(shared, "shared thread"),
        f"{format_count(stored['items'], 'item')} in the store",
        f"{format_count(len(limits), 'state')} of limits",
    )
    say(f"stays: {', '.join(stays)}")
    for each in stored["namespaces"]:
        place = json_text(each["namespace"], ascii_only=False)
        count = format_count(each["items"], "item")
        say(f"  {count} in the namespace {make_legible(place)}, for your program to remove")
    for each in limits:
        key = " ".join(
            f"--key {shlex.quote(quote_id(f'{what}={name}'))}" for what, name in each["key"].items()
        )
        say(f"  `perdure limits reset {shlex.quote(quote_id(each['limit']))} {key}` empties this state")


async def _show_threads(
    walk: ThreadWalk,
    user: str,
    since: int | None,
    show_one: Callable[[dict[str, Any], Sequence[ModelCall]], None],
) -> None:
    """Describe the threads of a user, each by ``show_one`` with its calls of models, none if they cannot be
    read."""
    from perdure.langgraph.reading.thread_calls import load_all_calls
    from perdure.model.records import Partition
    from perdure.runtime.operations.thread_search import ThreadQuery, search
    from perdure.runtime.operations.user_removal import describe_user_thread

    async with aclosing(search(walk, ThreadQuery(user=user, since=since))) as steps:
        async for step in steps:
            if step.row is None:
                continue
            row, others = step.row, step.users - {user}
            entry = {
                "thread_id": row.thread_id,
                "status": row.status,
                "updated_at": format_iso(row.updated_at),
            }
            calls: Sequence[ModelCall] = ()
            with suppress(Corrupt, Contention):
                program = load_all_calls(Partition(walk.tenant, row.thread_id), walk.database.digest)
                calls = await walk.database.arun(program)
            show_one({**entry, **await describe_user_thread(walk, row.thread_id, others)}, calls)


def delete(
    user: Annotated[str, typer.Argument(help="The user's id", callback=check_user)],
    yes: Yes = False,
    *,
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """Remove everything of a user: crons, assistants, threads, and memories.

    Threads are those that have no other user: the owner in their metadata, or the user of all of their runs
    and messages. They are removed with runs, messages and replies; runs that are under way end. A thread in
    which other users have runs, or messages that wait, stays and is named: remove it by
    `perdure threads delete`.

    Crons are those that start runs of the user, or whose metadata names the user; assistants those whose
    owner, by their metadata or else by user_id in their config, is the user.

    Assistants without an owner, the default ones of graphs, items and histories of sessions that an agent
    itself stored, the log of actions, the counts of the last day, the states of limits by user, and backups
    stay. `perdure users show` names the items and the limits of the user that are left. On SQLite the end is
    to empty the database's log, which holds what was removed. Safe to interrupt and to run again.
    """
    from perdure.engine.retention.thread_removal import delete_thread
    from perdure.model.records import Partition
    from perdure.runtime.operations.user_removal import RemovalTerms

    place = place.with_key()
    with open_walk(place) as found, open_store(place) as kept:
        data = _find_data(found.walk, kept, user)
        threads_found = {**data.unlisted, **run_coroutine(_find_threads(found.walk, user))}
        shared = sorted(thread_id for thread_id, others in threads_found.items() if others)
        own_threads = threads_found.keys() - set(shared)
        if not threads_found:
            _refuse_elsewhere(found.database, kept, place.tenant, user, data)
        crons, assistants = len(data.crons), len(data.assistants)
        rest = f"{format_count(crons, 'cron')} and {format_count(assistants, 'assistant')}"
        counted = f"{format_count(len(own_threads), 'thread')}, {rest}"
        question = f"Remove {counted} of the user {quote_id(user)}, and all that is known of the user?"
        require_consent(question, yes)
        handle = handle_in(found.database)

        async def remove_thread(thread_id: str, checks: Sequence[Check]) -> bool | None:
            program = delete_thread(Partition(place.tenant, thread_id), checks)
            return await handle.arun(program) or None

        terms = RemovalTerms(data, remove_thread, remove_thread, partial(_end_runs, found.walk, user))
        threads, known, is_in_log = run_coroutine(_remove(found.walk, user, terms))
    if is_in_log:
        warn(
            "Other processes use the database: what was removed stays in its log until they have written a "
            "few megabytes, or end. Run this again later to empty the log."
        )
    if as_json:
        counts = {"threads": threads, "crons": crons, "assistants": assistants}
        print_json({"user": user, **counts, "entries": known, "shared": shared})
        return
    entries = f"{known} entries of what was known" if known else "nothing was known"
    say(f"{quote_id(user)}: {format_count(threads, 'thread')}, {rest} removed, {entries}")
    for thread_id in shared:
        others = ", ".join(map(quote_id, sorted(threads_found[thread_id])))
        say(f"{quote_id(thread_id)} stays, as it is also of {others}")
    say(f"`perdure users show {shlex.quote(quote_id(user))}` names what stays, such as items in the store.")


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


def _find_data(walk: ThreadWalk, kept: SyncDatabase, user: str) -> UserData:
    """Return what goes with a user beside the listed threads."""
    from perdure.memory import Memory
    from perdure.memory.memory import find_roots
    from perdure.memory.users import ROOT
    from perdure.runtime.operations.user_removal import find_user_data

    store = kept.store()
    memories = [Memory(store, user, root=root) for root in sorted({ROOT, *find_roots(store, user)})]
    return run_coroutine(find_user_data(walk, user, memories))


def _refuse_elsewhere(
    database: SyncDatabase, kept: SyncDatabase, tenant: str, user: str, data: UserData
) -> None:
    """Raise ``NotFound`` if no tenant was named, nothing of the user is stored without one, and a tenant has
    threads or memories of the user: an empty result would be taken for an answer about all tenants."""
    from perdure import admin
    from perdure.memory.memory import find_roots
    from perdure.memory.users import ROOT
    from perdure.runtime.operations.walk_by_activity import ThreadWalk

    if tenant or data.crons or data.assistants or data.unlisted or find_roots(kept.store(), user):
        return
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
users.command()(show)
users.command()(delete)
