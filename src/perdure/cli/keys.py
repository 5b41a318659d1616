"""Commands on the keys of an encrypted database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from perdure.cli.app import (
    AsJson,
    DataPlace,
    Db,
    Keys,
    add_listing,
    format_count,
    new_group,
    open_database,
    print_json,
    quote_id,
    say,
    warn,
)
from perdure.errors import BadSetting

if TYPE_CHECKING:
    from perdure.database.blocking import SyncDatabase
    from perdure.storage.stored_keys import EncryptionKeys

keys = new_group("keys", "See and rotate the keys of an encrypted database.")


def list_keys(
    *,
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="Also ask the provider for its present key, and count the values under each data key; this "
            "reads the whole database",
        ),
    ] = False,
    db: Db = None,
    keys: Keys = None,
    as_json: AsJson = False,
) -> None:
    """List the data keys, newest first, and the wrapping key that a process needs to start.

    The newest data key encrypts; all of them decrypt. The keys themselves are not shown. With --check, what
    is still under an old key is named with the remedy.
    """
    with open_database(DataPlace(db, keys=keys)) as database:
        found = _read_keys(database)
        state = _read_state(database) if check else None
    if as_json:
        _print_json(found, {}, state)
        return
    say(_describe(found))
    for number, each in enumerate(found.data_keys):
        what = "decrypts" if number else "encrypts and decrypts"
        if state is not None:
            what += f" {format_count(state.values.get(each.id, 0), 'value')}"
        say(f"{each.id}  {each.created_at:%Y-%m-%d %H:%M} UTC  {what}")
    if state is not None:
        for remedy in _find_remedies(found, state):
            warn(remedy)


class _KeyState(NamedTuple):
    """The key with which the provider wraps now, and the number of values by data key."""

    provider_key: str
    values: Mapping[str, int]


def _read_state(database: SyncDatabase) -> _KeyState:
    from perdure import admin

    wrapping_key = admin.rotate_keys(database, dry_run=True).wrapping_key
    return _KeyState(wrapping_key, admin.count_by_data_key(database))


def _find_remedies(keys: EncryptionKeys, state: _KeyState) -> Iterator[str]:
    if state.provider_key != keys.wrapping_key:
        yield (
            f"The provider wraps with {quote_id(state.provider_key)} now: run perdure keys rotate, then "
            f"take {quote_id(keys.wrapping_key)} out of its configuration."
        )
    if older := sum(state.values.get(each.id, 0) for each in keys.data_keys[1:]):
        yield (
            f"{format_count(older, 'value')} under earlier data keys can be read as before. To encrypt "
            "everything anew, copy the database to an empty one: perdure copy SOURCE TARGET --from-keys … "
            "--to-keys …"
        )
    if clear := state.values.get("", 0):
        yield (
            f"{format_count(clear, 'value')} in the clear, which are refused: written by a process without "
            "the keys. Find the threads with perdure fsck --all-tenants."
        )


@keys.command()
def rotate(
    *,
    data_key: Annotated[
        bool,
        typer.Option("--data-key", help="Also add a new data key, for everything written from now on"),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Call the provider, but change nothing")] = False,
    db: Db = None,
    keys: Keys = None,
    as_json: AsJson = False,
) -> None:
    """Wrap the data keys again, with the first of the wrapping keys, while all processes continue.

    To replace a wrapping key, name the new one before the old one, here and for
    every process that starts from now on; rotate; then take the old one out:

      perdure keys rotate --keys aws-kms:alias/new,alias/old

    Stored values are not rewritten. Archives and backups from before the rotation
    still need the old wrapping key. If two rotations run at the same time, one
    takes effect and the other ends with exit code 1.
    """
    from perdure import admin

    with open_database(DataPlace(db, keys=keys)) as database:
        before = _read_keys(database)
        after = admin.rotate_keys(database, data_key=data_key, dry_run=dry_run)
    if as_json:
        _print_json(after, {"wrapping_key_before": before.wrapping_key, "dry_run": dry_run}, None)
        return
    if dry_run:
        warn("Nothing was changed. The provider answered; the result of a rotation would be:")
    say(_describe(after))
    if data_key:
        name = "a new data key" if dry_run else f"the new data key {after.data_keys[0].id}"
        older = format_count(len(after.data_keys) - 1, "earlier data key")
        say(f"{name} encrypts new values; {older} for older values")
    if before.wrapping_key != after.wrapping_key:
        warn(
            f"Processes that start from now on do not need {quote_id(before.wrapping_key)}; archives "
            "and backups from before do."
        )


def _read_keys(database: SyncDatabase) -> EncryptionKeys:
    from perdure import admin

    found = admin.encryption_keys(database)
    if found is None:
        raise BadSetting(
            "the database is not encrypted: it has no keys. To encrypt its data, copy it to an empty "
            "database with perdure copy --to-keys"
        )
    return found


def _describe(keys: EncryptionKeys) -> str:
    name = quote_id(keys.wrapping_key)
    return f"wrapped with {name} at {keys.wrapped_at:%Y-%m-%d %H:%M} UTC"


def _print_json(keys: EncryptionKeys, more: dict[str, object], state: _KeyState | None) -> None:
    for number, each in enumerate(keys.data_keys):
        if state is not None:
            more = {"provider_key": state.provider_key, "values": state.values.get(each.id, 0)}
        print_json(
            {
                "data_key": each.id,
                "created_at": each.created_at.isoformat(),
                "encrypts": number == 0,
                "wrapping_key": keys.wrapping_key,
                "wrapped_at": keys.wrapped_at.isoformat(),
                **more,
            }
        )


add_listing(keys, list_keys)
