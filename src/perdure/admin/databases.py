"""Whole databases: what they hold, the backend's own check, keys, and archives as databases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from perdure.admin.hand_overs import collect_hand_overs
from perdure.database.asynchronous import Database
from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.database.opening import make_database
from perdure.engine.complete_reads import list_all_partitions
from perdure.errors import BadSetting, Corrupt, DecryptionError
from perdure.model.records import SPACES, THREADS, Partition
from perdure.storage.archive import Archive
from perdure.storage.key_providers import EncryptionKey, provider_of
from perdure.storage.stored_keys import EncryptionKeys, StoredKeys, is_encrypted, load_or_create_keys


def partitions(database: Database | SyncDatabase, tenant: str | None) -> list[Partition]:
    """Return every thread of a tenant, or of all if ``None``, then every namespace of its store, then a
    server's records for it, then the histories of its sessions, in order."""
    handle = handle_of(database)
    return [partition for space in SPACES for partition in handle.run(list_all_partitions(tenant, space))]


def tenants(database: Database | SyncDatabase) -> dict[str, int]:
    """Return the tenants that have threads or store items, by name, each with its number of threads.

    The names of all partitions are read.
    """
    counts: dict[str, int] = {}
    for partition in partitions(database, None):
        counts[partition.tenant] = counts.get(partition.tenant, 0) + (partition.space == THREADS)
    return dict(sorted(counts.items()))


def examine(database: Database | SyncDatabase, *, all_tenants: bool = False) -> list[str]:
    """Return the faults that the backend's own check finds in the database, the tenant's store and a server's
    records for it, in addition to ``fsck``; empty if the backend has no check of its own.

    Args:
        database: The database.
        all_tenants: Examine the stores of all tenants, and a server's records for them.
    """
    handle = handle_of(database)
    tenant = None if all_tenants else handle.tenant
    found = handle.examine(None)
    for space in SPACES[1:]:
        try:
            for partition in handle.run(list_all_partitions(tenant, space)):
                whose = ""
                if all_tenants:
                    whose = f"tenant {partition.tenant!r}: "
                found += [f"{whose}{space} {partition.thread!r}: {s}" for s in handle.examine(partition)]
        except Corrupt as error:
            found.append(str(error))
    return found


def encryption_keys(database: Database | SyncDatabase) -> EncryptionKeys | None:
    """Return the keys of a database, without what is secret; ``None`` if it is not encrypted.

    Raises:
        KeyMissing: The provider does not have the key with which they are wrapped.
        Unavailable: The provider or the database does not answer.
    """
    keys = handle_of(database).keys
    if keys is None:
        return None
    return keys.read_view()


def count_by_data_key(database: Database | SyncDatabase) -> Mapping[str, int]:
    """Return the number of stored values that each data key encrypts, by its id. Nothing is decrypted, but
    the whole database is read.

    Raises:
        BadSetting: The database is not encrypted.
        Unavailable: The database does not answer.
    """
    return _require_keys(database).count_values()


def rotate_keys(
    database: Database | SyncDatabase, *, data_key: bool = False, dry_run: bool = False
) -> EncryptionKeys:
    """Wrap the keys of a database again, with the present wrapping key of its provider, and return them. No
    value is written again.

    Processes that begin afterwards need that wrapping key only. Running processes are not affected, whichever
    key they were given.

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
    return _require_keys(database).rotate(data_key=data_key, dry_run=dry_run)


def _require_keys(database: Database | SyncDatabase) -> StoredKeys:
    keys = handle_of(database).keys
    if keys is None:
        raise BadSetting(
            "the database is not encrypted, so it has no keys; move its threads to one that is: perdure copy"
        )
    return keys


@contextmanager
def new_archive(path: Path, *, encryption_key: EncryptionKey | None = None) -> Iterator[SyncDatabase]:
    """Create a file to move threads into. It appears at ``path``, complete, when the block ends without an
    error. With a key everything that a user could have typed is encrypted.

    The waits that ``move`` is to hand over are taken from their databases at the end of the block, which have
    to be open then. If no file comes of it, the threads go on there.

    Raises:
        Conflict: A thread that is handed over was written to since it was moved; no file was written.
        NotAllowed: There is something at the path that is not a file.
        Unavailable: The file cannot be written.
    """
    archive = Archive.create(path)
    try:
        database = _open(archive, path, encryption_key)
        with collect_hand_overs(database) as hand_overs:
            yield database
            try:
                hand_overs.take()
                archive.finish()
            except BaseException:
                if not archive.is_in_place:
                    hand_overs.give_back()
                raise
    finally:
        archive.close()


@contextmanager
def open_archive(
    path: Path, *, encryption_key: EncryptionKey | None = None, sealed_only: bool = False
) -> Iterator[SyncDatabase]:
    """Open the threads in a file as a read-only database.

    Args:
        path: The file.
        encryption_key: Used if the file is encrypted.
        sealed_only: Refuse a file that is not encrypted.

    Raises:
        BadArchive: The file is not complete.
        DecryptionError: The key is another one, or the file is refused.
    """
    archive = Archive.read(path)
    try:
        sealed = is_encrypted(archive)
        if not sealed:
            encryption_key = None
        if sealed_only and not sealed:
            raise DecryptionError(
                f"{path} is in the clear, although a key was given for it; nothing of it was used. If you "
                "trust its author, import it without that key"
            )
        yield _open(archive, path, encryption_key)
    finally:
        archive.close()


def _open(archive: Archive, path: Path, key: EncryptionKey | None) -> SyncDatabase:
    keyring = load_or_create_keys(archive, provider_of(key), str(path))
    return make_database(archive, keyring=keyring)
