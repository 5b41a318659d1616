"""Archives: files that hold whole threads, used as databases."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from perdure.database.blocking import SyncDatabase
from perdure.database.opening import over
from perdure.errors import DecryptionError
from perdure.storage.archive import Archive
from perdure.storage.key_providers import EncryptionKey, provider_of
from perdure.storage.stored_keys import is_encrypted, load_or_create_keys


@contextmanager
def new_archive(path: Path, *, encryption_key: EncryptionKey | None = None) -> Iterator[SyncDatabase]:
    """Create a file to move threads into. It appears at ``path``, complete, when the block ends without an
    error. With a key everything that a user could have typed is encrypted."""
    archive = Archive.create(path)
    try:
        yield _open(archive, path, encryption_key)
        archive.finish()
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
        if sealed_only and not sealed:
            raise DecryptionError(
                f"{path} is in the clear, although a key was given for it; nothing of it was used. If you "
                "trust its author, import it without that key"
            )
        yield _open(archive, path, encryption_key if sealed else None)
    finally:
        archive.close()


def _open(archive: Archive, path: Path, key: EncryptionKey | None) -> SyncDatabase:
    keyring = load_or_create_keys(archive, None if key is None else provider_of(key), str(path))
    return over(archive, keyring=keyring)
