"""Opening of a database by URL."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial

from perdure.database.asynchronous import Database
from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.database.handle import DatabaseHandle
from perdure.database.unopened import Unopened, UnopenedSync
from perdure.model.arguments import require_text
from perdure.model.retention_policy import Retention, RetentionRules
from perdure.model.values.chunks import Digester
from perdure.retention.expiring_driver import ExpiringDriver
from perdure.storage.credentials import Password
from perdure.storage.encryption import EncryptedDriver, Keyring
from perdure.storage.key_providers import EncryptionKey, KeyProvider, provider_of
from perdure.storage.own_threads import run_in_own_thread
from perdure.storage.port import Driver
from perdure.storage.read_only import open_read_only
from perdure.storage.stored_keys import StoredKeys, load_or_create_keys
from perdure.storage.url import has_one_thread, open_driver, redact


def open_database(
    url: str,
    *,
    migrate: bool = False,
    tenant: str = "",
    encryption_key: EncryptionKey | None = None,
    retention: Retention | RetentionRules | None = None,
    password: Password | None = None,
    wrap: Callable[[Driver], Driver] = lambda driver: driver,
) -> SyncDatabase:
    """Open a database; the caller closes it. Prefer ``connect`` and ``connect_sync``.

    Arguments are those of ``connect``; ``wrap`` may return another driver around that of the URL, e.g. one
    that fails on purpose.
    """
    require_text("tenant", tenant)
    provider = provider_of(encryption_key)
    driver = open_driver(url, migrate=migrate, password=password)
    keyring = _load_keyring(driver, provider, url)
    return make_database(
        driver, tenant=tenant, keyring=keyring, retention=RetentionRules.of(retention), wrap=wrap
    )


def open_for_reading(
    url: str, *, tenant: str = "", encryption_key: EncryptionKey | None = None
) -> SyncDatabase:
    """Open a database that is only read, e.g. a copied file; the caller closes it.

    Arguments and errors are those of ``connect``. A write raises ``NotAllowed``. A read of an item of the
    store does not postpone its expiry.
    """
    require_text("tenant", tenant)
    provider = provider_of(encryption_key)
    driver = open_read_only(url)
    return make_database(driver, tenant=tenant, keyring=_load_keyring(driver, provider, url))


def _load_keyring(driver: Driver, provider: KeyProvider | None, url: str) -> StoredKeys | None:
    """Return the keys of a database that was just opened; close its driver if they cannot be used."""
    try:
        return load_or_create_keys(driver, provider, redact(url))
    except BaseException:
        driver.close()
        raise


def make_database(
    driver: Driver,
    *,
    tenant: str = "",
    keyring: Keyring | None = None,
    retention: RetentionRules | None = None,
    wrap: Callable[[Driver], Driver] = lambda driver: driver,
) -> SyncDatabase:
    """Return an open driver as a database. Closing it closes the driver.

    Args:
        driver: The driver.
        tenant: As for ``connect``.
        keyring: The keys of the database, from ``load_or_create_keys``.
        retention: The retention policies of the threads; everything is kept by default.
        wrap: As for ``open_database``: a driver around the encrypting one.
    """
    digest = Digester() if keyring is None else Digester(keyring.digest_key)
    # The encrypting driver is used without keys, too: it also checks names.
    wrapped = wrap(EncryptedDriver(driver, keyring))
    exposed = wrapped
    if retention is not None and retention.expires:
        exposed = ExpiringDriver(wrapped, retention)
    keys = keyring if isinstance(keyring, StoredKeys) else None
    handle = DatabaseHandle(exposed, tenant=tenant, digest=digest, retention=retention, keys=keys)
    return SyncDatabase(handle)


def connect_sync(
    url: str,
    *,
    migrate: bool = False,
    tenant: str = "",
    encryption_key: EncryptionKey | None = None,
    retention: Retention | RetentionRules | None = None,
    password: Password | None = None,
) -> AbstractContextManager[SyncDatabase, None]:
    """Open a database for the length of a ``with`` block, for programs without an event loop.

    Arguments and errors are those of ``connect``.
    """
    open_blocking = partial(
        open_database,
        url,
        migrate=migrate,
        tenant=tenant,
        encryption_key=encryption_key,
        retention=retention,
        password=password,
    )
    return UnopenedSync(open_blocking)


def connect(
    url: str,
    *,
    migrate: bool = False,
    tenant: str = "",
    encryption_key: EncryptionKey | None = None,
    retention: Retention | RetentionRules | None = None,
    password: Password | None = None,
) -> Unopened:
    """Open a database for the length of an ``async with`` block, or from an ``await`` until its ``close()``.

    Args:
        url: ``sqlite:///relative/path.db``, ``sqlite:////absolute/path.db``, ``memory://`` or a server's URL.
        migrate: Create or upgrade the schema.
        tenant: Separates threads of equal names.
        encryption_key: A provider that wraps the keys of the database, such as ``perdure.keys.FileKeys``, or
            a wrapping key of 32 bytes, or several such keys, the first of which wraps and all of which
            unwrap.
        retention: The retention policies of the threads; everything is kept by default.
        password: The password of PostgreSQL or Redis, or a function without arguments that returns it, or
            the password and the time at which it expires (a ``datetime``, or seconds since 1970), at once or
            awaited. It is called in another OS thread, for each renewal and when the server refuses a
            password. A credential provider of redis-py is taken, too.

    Raises:
        BadUrl: The URL cannot be used.
        Unavailable: The database does not answer.
        MigrationRequired: The schema is not this release's, and ``migrate`` is false.
        DecryptionError: The database is encrypted with other keys (``KeyMissing``), or not at all.
    """
    open_blocking = partial(
        open_database,
        url,
        migrate=migrate,
        tenant=tenant,
        encryption_key=encryption_key,
        retention=retention,
        password=password,
    )
    if has_one_thread(url):
        return Unopened(partial(_open_here, open_blocking), _close_here)
    return Unopened(partial(_open_in_thread, open_blocking), Database.close)


async def _open_here(open_blocking: Callable[[], SyncDatabase]) -> Database:
    return Database(handle_of(open_blocking()))


async def _close_here(database: Database) -> None:
    handle_of(database).close()


async def _open_in_thread(open_blocking: Callable[[], SyncDatabase]) -> Database:
    opening = asyncio.create_task(run_in_own_thread(open_blocking))
    try:
        opened = await asyncio.shield(opening)
    except asyncio.CancelledError:
        # The OS thread cannot be stopped, and no other code would close the database that it opens.
        await asyncio.wait([opening])
        if opening.exception() is None:
            await run_in_own_thread(opening.result().close)
        raise
    return Database(handle_of(opened))
