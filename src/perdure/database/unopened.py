"""Results of ``connect`` and ``connect_sync``: databases that are open within a block; the result of
``connect`` can be awaited instead.

They are classes and not generators: a generator ends when the context manager is garbage-collected or the
event loop that entered it is closed, and would then close the database before its block has ended.

A database that is used before it is open, or with the wrong kind of block, raises an error with the line to
write. Type checkers see only the ways to open it, so they report the same mistakes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from perdure.database.asynchronous import Database
    from perdure.database.blocking import SyncDatabase

_ASYNC = "perdure.connect opens a database with `async with perdure.connect(url) as db:`"
_AWAITED = f"{_ASYNC}, or `db = await perdure.connect(url)`"
_SYNC = "perdure.connect_sync opens a database with `with perdure.connect_sync(url) as db:`"


class Unopened(AbstractAsyncContextManager["Database", None], Awaitable["Database"]):
    """Database of an ``async with`` block, or of ``db = await perdure.connect(url)``, whose caller closes it
    by ``await db.close()``: a notebook has no block that lasts for several cells.

    Args:
        opener: Opens the database.
        closer: Closes it.
    """

    def __init__(
        self, opener: Callable[[], Awaitable[Database]], closer: Callable[[Database], Awaitable[None]]
    ) -> None:
        self._opener = opener
        self._closer = closer
        self._databases: list[Database] = []

    def __await__(self) -> Generator[Any, None, Database]:
        return self._open().__await__()

    async def __aenter__(self) -> Database:
        self._databases.append(await self._open())
        return self._databases[-1]

    async def __aexit__(self, *error: object) -> None:
        await self._closer(self._databases.pop())

    async def _open(self) -> Database:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            raise RuntimeError(
                "perdure.connect needs asyncio, as LangGraph does; under another library such as trio, use "
                "perdure.connect_sync and LangGraph's blocking calls in a thread"
            ) from None
        return await self._opener()

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            raise TypeError(
                f"{_ASYNC}; in a program without an event loop write `with perdure.connect_sync(url) as db:`"
            )

        def __exit__(self, *error: object) -> None:
            """Do nothing: the block is never entered."""

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"the database is not open, so it has no {name!r}: {_AWAITED}")


class UnopenedSync(AbstractContextManager["SyncDatabase", None]):
    """Database of a ``with`` block.

    Args:
        opener: Opens the database.
    """

    def __init__(self, opener: Callable[[], SyncDatabase]) -> None:
        self._opener = opener
        self._databases: list[SyncDatabase] = []

    def __enter__(self) -> SyncDatabase:
        self._databases.append(self._opener())
        return self._databases[-1]

    def __exit__(self, *error: object) -> None:
        self._databases.pop().close()

    if not TYPE_CHECKING:

        async def __aenter__(self) -> NoReturn:
            raise TypeError(f"{_SYNC}; for `async with` write `async with perdure.connect(url) as db:`")

        async def __aexit__(self, *error: object) -> None:
            """Do nothing: the block is never entered."""

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"the database is not open, so it has no {name!r}: {_SYNC}")
