"""Recorded threads: an export of real ones as the fixture of a test, in a database in memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from perdure import admin
from perdure.database.blocking import SyncDatabase
from perdure.database.opening import connect_sync
from perdure.model.records import THREADS
from perdure.storage.key_providers import EncryptionKey


@contextmanager
def from_export(path: str | Path, *, encryption_key: EncryptionKey | None = None) -> Iterator[SyncDatabase]:
    """Open a database in memory with the threads of a file, each under its id.

    The file is one that ``perdure export --output`` wrote. It is checked as a whole before it is
    read, and never changed: each call starts from the recorded state.

    Args:
        path: The file.
        encryption_key: The wrapping key of the file or its provider, if it is encrypted, as for ``connect``.

    Yields:
        The database. It belongs to the threads' tenant if all have the same, and is closed at the end.

    Raises:
        BadArchive: The file is not an export, or is incomplete.
        DecryptionError: The key is not the file's.
    """
    with admin.open_archive(Path(path), encryption_key=encryption_key) as archive:
        threads = [each for each in admin.partitions(archive, None) if each.space == THREADS]
        tenants = {each.tenant for each in threads}
        tenant = tenants.pop() if len(tenants) == 1 else ""
        with connect_sync("memory://", tenant=tenant) as database:
            for each in threads:
                admin.move(archive, each, database)
            yield database
