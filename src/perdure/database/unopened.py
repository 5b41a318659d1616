"""Context managers that ``connect`` and ``connect_sync`` return: databases that are open within their block.

A database that is used without the block, or with the wrong kind of block, raises an error with the line to
write. Type checkers see the protocol of a context manager alone, and report the same mistakes.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from perdure.database.asynchronous import Database
    from perdure.database.blocking import SyncDatabase

_ASYNC = "perdure.connect opens a database with `async with perdure.connect(url) as db:`"
_SYNC = "perdure.connect_sync opens a database with `with perdure.connect_sync(url) as db:`"


class Unopened(AbstractAsyncContextManager["Database", None]):
    """Database of an ``async with`` block."""

    def __init__(self, block: AbstractAsyncContextManager[Database]) -> None:
        self._block = block

    async def __aenter__(self) -> Database:
        return await self._block.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._block.__aexit__(kind, error, traceback)

    if not TYPE_CHECKING:

        def __enter__(self) -> NoReturn:
            raise TypeError(
                f"{_ASYNC}; in a program without an event loop write `with perdure.connect_sync(url) as db:`"
            )

        def __exit__(self, *error: object) -> None:
            """Do nothing: the block is never entered."""

        def __await__(self) -> NoReturn:
            raise TypeError(f"{_ASYNC}, without await")

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"the database is not open, so it has no {name!r}: {_ASYNC}")


class UnopenedSync(AbstractContextManager["SyncDatabase", None]):
    """Database of a ``with`` block."""

    def __init__(self, block: AbstractContextManager[SyncDatabase]) -> None:
        self._block = block

    def __enter__(self) -> SyncDatabase:
        return self._block.__enter__()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._block.__exit__(kind, error, traceback)

    if not TYPE_CHECKING:

        async def __aenter__(self) -> NoReturn:
            raise TypeError(f"{_SYNC}; for `async with` write `async with perdure.connect(url) as db:`")

        async def __aexit__(self, *error: object) -> None:
            """Do nothing: the block is never entered."""

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(f"the database is not open, so it has no {name!r}: {_SYNC}")
