"""Separate database of the store, and the store that the environment configures."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager

from langgraph.store.base import IndexConfig

from perdure.config.resolve import make_folder_of, resolve_config
from perdure.database import opening
from perdure.database.asynchronous import Database
from perdure.langgraph.search.index import SearchConfig, SearchIndex
from perdure.langgraph.store import PerdureStore
from perdure.storage.key_providers import EncryptionKey


async def store_database(
    stack: AsyncExitStack, url: str | None, *, development: bool, key: EncryptionKey | None
) -> Database | None:
    """Open the store's own database, if it has one; ``stack`` closes it.

    Args:
        stack: Closes the database.
        url: The URL, or ``None`` if the store is kept with the threads.
        development: True to create or upgrade its schema.
        key: The wrapping key of the database, or its provider.

    Raises:
        BadUrl: The URL cannot be used.
        MigrationRequired: The database's schema is absent or older.
        Unavailable: The database does not answer.
    """
    if url is None:
        return None
    migrate = development or url.startswith("memory:")
    return await stack.enter_async_context(opening.connect(url, migrate=migrate, encryption_key=key))


@contextmanager
def store_of_environment(
    environ: Mapping[str, str] | None = None,
    *,
    tenant: str = "",
    index: SearchIndex | SearchConfig | IndexConfig | None = None,
    encryption_key: EncryptionKey | None = None,
) -> Iterator[PerdureStore]:
    """Yield the store that the environment configures, for a graph that is compiled without a runtime.

    Its database is named by ``LANGGRAPH_STORE_TYPE`` with ``LANGGRAPH_STORE_REDIS_URL`` (or ``REDIS_URL``) or
    ``LANGGRAPH_STORE_POSTGRES_DSN`` (or ``POSTGRES_DSN``), otherwise by ``PERDURE_STORE_DATABASE_URL``; by
    default it is the database of the threads. ``LANGGRAPH_STORE_TTL_MINUTES`` is the time after which items
    expire. In development the schema is created.

    Args:
        environ: The environment; by default that of the process.
        tenant: Owner of the items.
        index: The index for ``search(query=…)``, as for ``Database.store``.
        encryption_key: The wrapping key or its provider, as for ``connect``; by default the one that
            ``PERDURE_KEYS`` names.

    Raises:
        BadSetting: A variable is missing or cannot be used. No other store is used instead.
    """
    variables = os.environ if environ is None else environ
    configuration = resolve_config(file=None, flags={}, environ=variables, has_key=encryption_key is not None)
    url = configuration.store_url() or configuration.database_url()
    make_folder_of(url)
    migrate = bool(configuration["development"]) or url.startswith("memory:")
    key = configuration.key_provider() if encryption_key is None else encryption_key
    with opening.connect_sync(url, tenant=tenant, migrate=migrate, encryption_key=key) as database:
        yield database.store(ttl=configuration.store_ttl(), index=index)
