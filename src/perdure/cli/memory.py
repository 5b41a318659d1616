"""Commands on the memories of users: list, export, forget."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.app import (
    AsJson,
    DataPlace,
    Yes,
    add_listing,
    handle_in,
    new_group,
    open_database,
    out,
    print_json,
    quote_id,
    require_consent,
)
from perdure.errors import NotFound

if TYPE_CHECKING:
    from perdure.database.blocking import SyncDatabase

memory = new_group("memory", "Look at, export and forget what is known of users.")


def check_user(user: str | None) -> str | None:
    """Return the id of a user as it was passed; raise ``BadParameter`` if it is not valid for a
    memory."""
    from perdure.memory.users import namespace_of

    if user is not None:
        try:
            namespace_of(user)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
    return user


def _check_namespace(labels: list[str] | None) -> list[str] | None:
    from langgraph.store.base import GetOp

    from perdure.langgraph.store_arguments import validate

    if labels is not None:
        try:
            validate(GetOp(tuple(labels), "item"))
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
    return labels


User = Annotated[str, typer.Option("--user", help="The user's id", callback=check_user)]
Namespace = Annotated[
    list[str] | None,
    typer.Option(
        help="A label of MemoryPolicy(root=…), if it is not the default; repeat it for a longer one",
        callback=_check_namespace,
    ),
]


def list_memory(
    user: Annotated[
        str | None,
        typer.Option("--user", help="List the facts of this user; all users without", callback=check_user),
    ] = None,
    *,
    history: Annotated[
        bool, typer.Option("--history", help="Also the facts that were superseded or retracted")
    ] = False,
    namespace: Namespace = None,
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """List the users with memories, or the memories of one user, oldest first."""
    from perdure.memory import Memory, users

    root = _make_root(namespace)
    with open_store(place) as kept:
        if user is None:
            for name in users(kept.store(), root=root):
                if as_json:
                    print_json({"user": name})
                else:
                    typer.echo(quote_id(name))
            return
        user_memory = Memory(kept.store(), user, root=root)
        facts, summaries = user_memory.facts(history=history), user_memory.summaries()
        if not facts and not summaries:
            refuse_elsewhere(kept, place.tenant, user, root)
    if as_json:
        for fact in facts:
            print_json({"id": fact.id, **fact.dump()})
        for summary in summaries:
            print_json({"thread": summary.thread, **summary.dump()})
        return
    for fact in facts:
        line = f"{fact.id}  {fact.known_from:%Y-%m-%d}  {_format_line(fact.text)}"
        if fact.known_until is not None:
            line += f" (until {fact.known_until:%Y-%m-%d})"
        typer.echo(line)
    for summary in summaries:
        typer.echo(f"thread {quote_id(summary.thread)}  {summary.at:%Y-%m-%d}  {_format_line(summary.text)}")
    if not facts and not summaries:
        out.print("Nothing is known of this user.")


add_listing(memory, list_memory)


@memory.command("export")
def export_memory(
    user: User,
    namespace: Namespace = None,
    *,
    place: DataPlace,
) -> None:
    """Print all that is known of a user, with its history, as one JSON object."""
    from perdure.memory import Memory

    root = _make_root(namespace)
    with open_store(place) as kept:
        exported = Memory(kept.store(), user, root=root).export()
        if not exported["facts"] and not exported["summaries"]:
            refuse_elsewhere(kept, place.tenant, user, root)
    typer.echo(json.dumps(exported, indent=2))


@memory.command()
def forget(
    user: User,
    id: Annotated[  # noqa: A002 - the field's name
        str | None, typer.Argument(help="A fact's id, or a thread; all that is known without")
    ] = None,
    *,
    yes: Yes = False,
    namespace: Namespace = None,
    place: DataPlace,
    as_json: AsJson = False,
) -> None:
    """Remove a fact in all its versions, the summary of a thread, or all that is known of a user.

    Without an id, turns that wait for their extraction are removed, too. The user's threads stay: delete them
    with `perdure threads delete`. Safe to interrupt and to run again.
    """
    from perdure.memory import Memory
    from perdure.runtime.agent_memory.memory_turns import lane_of

    root, place = _make_root(namespace), place.with_key()
    with (
        open_database(place) as database,
        open_store(place) as kept,
    ):
        user_memory = Memory(kept.store(), user, root=root)
        what = "all that is known of" if id is None else f"{quote_id(id)} of"
        require_consent(f"Remove {what} the user {quote_id(user)}?", yes)
        if id is None:
            # Remove the turns first, so that no waiting turn adds memories during the removal.
            database.checkpointer().delete_thread(lane_of(user))
        removed = user_memory.forget(id)
        if not removed:
            refuse_elsewhere(kept, place.tenant, user, root)
    if as_json:
        print_json({"user": user, "removed": removed})
    elif id is None and not removed:
        out.print("Nothing was known of this user.")
    else:
        out.print(f"{removed} entries removed")


@contextmanager
def open_store(place: DataPlace) -> Iterator[SyncDatabase]:
    """Open the database in which servers and workers with these settings keep memories: the store's own
    database, if the settings name one, or else that of the threads.

    Raises:
        BadSetting: The settings are invalid.
        BadUrl: There is no URL.
    """
    from perdure.config.resolve import resolve_config

    place = place.with_key()
    configuration = resolve_config(file=None, flags={}, environ=os.environ, has_key=place.keys is not None)
    with open_database(replace(place, db=configuration.store_url() or place.db)) as database:
        yield database


def refuse_elsewhere(kept: SyncDatabase, tenant: str, user: str, root: tuple[str, ...]) -> None:
    """Raise ``NotFound`` if no tenant was named, and another tenant has memories of the user: an empty result
    would be taken for an answer about all tenants."""
    from perdure.engine.items.items import read_namespaces
    from perdure.memory import users
    from perdure.memory.users import namespace_of

    if tenant:
        return
    there = {each.tenant for each in handle_in(kept).run(read_namespaces(None, namespace_of(user, root)))}
    others = [each for each in sorted(there - {tenant}) if user in users(kept.store(tenant=each), root=root)]
    if others:
        raise NotFound(
            f"nothing is known of the user {quote_id(user)} without a tenant, but in {len(others)} of them; "
            f"pass --tenant {quote_id(others[0])}" + (", or another one" if len(others) > 1 else "")
        )


def _make_root(namespace: Sequence[str] | None) -> tuple[str, ...]:
    from perdure.memory.users import ROOT

    return tuple(namespace or ROOT)


def _format_line(text: str) -> str:
    return quote_id(" ".join(text.split()))
