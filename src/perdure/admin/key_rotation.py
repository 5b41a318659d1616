"""Keys of an encrypted database: what there is, and rotation."""

from __future__ import annotations

from perdure.database.asynchronous import Database
from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.errors import BadSetting
from perdure.storage.stored_keys import EncryptionKeys, StoredKeys


def encryption_keys(database: Database | SyncDatabase) -> EncryptionKeys | None:
    """Return the keys of a database, without what is secret; ``None`` if it is not encrypted.

    Raises:
        KeyMissing: The provider does not have the key with which they are wrapped.
        Unavailable: The provider or the database does not answer.
    """
    keys = handle_of(database).keys
    return None if keys is None else keys.view()


def rotate_keys(
    database: Database | SyncDatabase, *, data_key: bool = False, dry_run: bool = False
) -> EncryptionKeys:
    """Wrap the keys of a database anew with the present wrapping key of its provider, and return them. No
    value is written again.

    Processes that begin afterwards need that wrapping key only. Those that run go on, whatever they were
    given.

    Args:
        database: The database.
        data_key: Create a data key, too, which encrypts values from now on. The earlier ones stay: they
            decrypt what they encrypted. Other processes use it within about a minute.
        dry_run: Ask the provider, and change nothing.

    Raises:
        BadSetting: The database is not encrypted.
        Conflict: Another process rotated the keys at the same time; nothing was changed.
        KeyMissing: The provider does not have the key with which they are wrapped; nothing was changed.
        Unavailable: The provider or the database does not answer.
    """
    return _keys_of(database).rotate(data_key=data_key, dry_run=dry_run)


def _keys_of(database: Database | SyncDatabase) -> StoredKeys:
    keys = handle_of(database).keys
    if keys is None:
        raise BadSetting(
            "the database is not encrypted, so there are no keys to rotate; move its threads to one that is: "
            "perdure copy"
        )
    return keys
