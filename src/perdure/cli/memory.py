"""Commands on what is known of users: list, export, forget."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.cli.app import AsJson, Db, KeyFile, Keys, Tenant, err, key_of, opened, out, print_json, printable

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore

memory = typer.Typer(help="Look at, export and forget what is known of users.", no_args_is_help=True)


def _checked_user(user: str | None) -> str | None:
    from perdure.memory.users import namespace_of

    if user is not None:
        try:
            namespace_of(user)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
    return user


def _checked_namespace(labels: list[str] | None) -> list[str] | None:
    from langgraph.store.base import GetOp

    from perdure.langgraph.store_arguments import validate

    if labels is not None:
        try:
            validate(GetOp(tuple(labels), "item"), has_index=False)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from error
    return labels


User = Annotated[str, typer.Option("--user", help="The user's id", callback=_checked_user)]
Namespace = Annotated[
    list[str] | None,
    typer.Option(
        help="A label of MemoryPolicy(root=…), if it is not the default; repeat it for a longer one",
        callback=_checked_namespace,
    ),
]


@memory.callback()
def group() -> None:
    """Look at, export and forget what is known of users."""


@memory.command("ls")
def list_memory(
    user: Annotated[
        str | None,
        typer.Option("--user", help="List the facts of this user; all users without", callback=_checked_user),
    ] = None,
    *,
    history: Annotated[
        bool, typer.Option("--history", help="Also the facts that were superseded or retracted")
    ] = False,
    namespace: Namespace = None,
    db: Db = None,
    tenant: Tenant = "",
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """List the users of whom something is known, or what is known of one, oldest first."""
    from perdure.memory import Memory, users

    root = _root(namespace)
    with _store(db, tenant, key_file) as store:
        if user is None:
            for name in users(store, root=root):
                if as_json:
                    print_json({"user": name})
                else:
                    typer.echo(printable(name))
            return
        known = Memory(store, user, root=root)
        facts, summaries = known.facts(history=history), known.summaries()
    if as_json:
        for fact in facts:
            print_json({"id": fact.id, **fact.stored()})
        for summary in summaries:
            print_json({"thread": summary.thread, **summary.stored()})
        return
    for fact in facts:
        ended = "" if fact.known_until is None else f" (until {fact.known_until:%Y-%m-%d})"
        typer.echo(f"{fact.id}  {fact.known_from:%Y-%m-%d}  {_line(fact.text)}{ended}")
    for summary in summaries:
        typer.echo(f"thread {printable(summary.thread)}  {summary.at:%Y-%m-%d}  {_line(summary.text)}")
    if not facts and not summaries:
        out.print("Nothing is known of this user.")


@memory.command("export")
def export_memory(
    user: User,
    namespace: Namespace = None,
    db: Db = None,
    tenant: Tenant = "",
    key_file: KeyFile = None,
) -> None:
    """Print all that is known of a user, with its history, as one JSON object."""
    from perdure.memory import Memory

    with _store(db, tenant, key_file) as store:
        typer.echo(json.dumps(Memory(store, user, root=_root(namespace)).export(), indent=2))


@memory.command()
def forget(
    user: User,
    id: Annotated[  # noqa: A002 - the field's name
        str | None, typer.Argument(help="A fact's id, or a thread; all that is known without")
    ] = None,
    *,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask")] = False,
    namespace: Namespace = None,
    db: Db = None,
    tenant: Tenant = "",
    key_file: KeyFile = None,
    as_json: AsJson = False,
) -> None:
    """Remove a fact in all its versions, the summary of a thread, or all that is known of a user.

    Without an id, turns that wait for their extraction are removed, too. The user's threads stay: delete them
    with `perdure threads delete`. Safe to interrupt and to run again.
    """
    from perdure.memory import Memory
    from perdure.runtime.memory_turns import lane_of

    key = key_of(key_file)
    with opened(db, tenant, key) as database, _store(db, tenant, key) as store:
        known = Memory(store, user, root=_root(namespace))
        what = "all that is known of" if id is None else f"{printable(id)} of"
        if not yes and not typer.confirm(f"Remove {what} the user {printable(user)}?"):
            err.print("Nothing was removed.")
            raise typer.Exit(1)
        if id is None:
            # First, so that no waiting turn adds to what is removed.
            database.checkpointer().delete_thread(lane_of(user))
        removed = known.forget(id)
    if as_json:
        print_json({"user": user, "removed": removed})
    elif id is None and not removed:
        out.print("Nothing was known of this user.")
    else:
        out.print(f"{removed} entries removed")


@contextmanager
def _store(db: str | None, tenant: str, key_file: typer.FileBinaryRead | Keys | None) -> Iterator[BaseStore]:
    """Open the store in which servers and workers with these settings keep memories: in a database of its
    own, if the settings name one, or else in that of the threads.

    Raises:
        BadSetting: The settings are invalid.
        BadUrl: There is no URL.
    """
    from perdure.config.resolve import settle

    key = key_of(key_file)
    settled = settle(file=None, flags={}, environ=os.environ, has_key=key is not None)
    with opened(settled.store_url() or db, tenant, key) as database:
        yield database.store()


def _root(namespace: Sequence[str] | None) -> tuple[str, ...]:
    from perdure.memory.users import ROOT

    return tuple(namespace or ROOT)


def _line(text: str) -> str:
    return printable(" ".join(text.split()))
