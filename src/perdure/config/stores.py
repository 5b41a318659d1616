"""Database of the store where it is not that of the threads, and the store that the environment describes."""

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
        key: What wraps the keys of its database.

    Raises:
        BadUrl: The URL cannot be used.
        MigrationRequired: Its schema is absent or older.
        Unavailable: It does not answer.
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
    """Yield the store that the environment describes, for a graph that is compiled without a runtime.

    ``LANGGRAPH_STORE_TYPE`` with ``LANGGRAPH_STORE_REDIS_URL`` (or ``REDIS_URL``) or
    ``LANGGRAPH_STORE_POSTGRES_DSN`` (or ``POSTGRES_DSN``) names its database; otherwise
    ``PERDURE_STORE_DATABASE_URL``, or else that of the threads. ``LANGGRAPH_STORE_TTL_MINUTES`` is the time
    after which its items expire. In development its schema is created.

    Args:
        environ: The environment; that of the process by default.
        tenant: Owner of the items.
        index: The index for ``search(query=…)``, as for ``Database.store``.
        encryption_key: What wraps the keys of stored data, as for ``connect``; by default what
            ``PERDURE_KEYS`` names.

    Raises:
        BadSetting: A variable is missing or cannot work. No other store takes the place of the one that is
            described.
    """
    given = os.environ if environ is None else environ
    settled = resolve_config(file=None, flags={}, environ=given, has_key=encryption_key is not None)
    url = settled.store_url() or settled.database_url()
    make_folder_of(url)
    migrate = bool(settled["development"]) or url.startswith("memory:")
    key = settled.key_provider() if encryption_key is None else encryption_key
    with opening.connect_sync(url, tenant=tenant, migrate=migrate, encryption_key=key) as database:
        yield database.store(ttl=settled.store_ttl(), index=index)
