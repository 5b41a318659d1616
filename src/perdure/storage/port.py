"""The narrow port that every backend implements, and the drivers of programs over it.

A driver performs six kinds of request (``perdure.model.ops``), blocking or awaited. It translates its
client's exceptions in one place and holds no policy: writes, fences and retention are decided above it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

from perdure.model.ops import ApplicationStatement, Commit, Committed, Fetch, Refused
from perdure.model.program import Effect, Program, ProgramResult, advance
from perdure.model.records import Partition, Record

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class CommitLimits:
    """The limits of one commit: ``ops`` operations and ``bytes`` of bodies."""

    ops: int
    bytes: int


class Notifier(Protocol):
    """Notifications between processes on one database, on backends that have them. They are hints: their
    receivers read the database, and processes that miss one poll it a little later."""

    def notify(self, words: Collection[str]) -> None:
        """Notify all listeners, soon and perhaps never. Words are short and have no spaces. Never blocks and
        never raises."""
        ...

    def listen(self, heard: Callable[[str], None]) -> Callable[[], None]:
        """Call ``heard``, in a thread of the driver, for every word that is sent on this database, here or
        elsewhere, until the returned function is called. While the server is unavailable words are lost."""
        ...


class ComparesVectors(Protocol):
    """Comparison of vectors of the store's items by a backend, through ``FindNearest``.

    Attributes:
        dims_max: the length up to which vectors are compared.
    """

    @property
    def dims_max(self) -> int: ...

    def method(self, dims: int) -> str:
        """Return in words how vectors of a length are compared."""
        ...

    def prepare(self, dims: int) -> int:
        """Bring what is derived from the entries of the search index up to date, and create the index for
        vectors of a length; return the number of items that were made anew."""
        ...


class Examines(Protocol):
    """A backend's check of its own storage."""

    def examine(self, partition: Partition | None) -> list[str]:
        """Return the damage that is found by reading all of a partition, or, with ``None``, of the database
        as a whole."""
        ...

    def trust(self, partition: Partition) -> bool:
        """Take the records of a partition for the ones that were written last, from now on; return True if
        the backend knew otherwise. Nothing is changed if a record is itself damaged."""
        ...


class MakesStatements(Protocol):
    """Statements on the application's own tables in a driver's commits.

    Attributes:
        dialect: SQLAlchemy's name of the database.
    """

    @property
    def dialect(self) -> str: ...

    def make(self, text: str, parameters: Mapping[str, object]) -> ApplicationStatement:
        """Return a statement for a commit, given its text with a parameter as ``:name``. Nothing is sent.

        Raises:
            TypeError: The value of a parameter has a type that the database does not take.
            ValueError: The parameters are not those of the text, or the text begins no statement that may
                stand in a transaction.
        """
        ...


NOT_LATEST = "records are missing, or are not the ones that were written last"
"""What ``examine`` returns of a partition whose records are sound one by one; ``trust`` ends it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a driver offers beside the six requests, and what it costs.

    Attributes:
        has_listing: it keeps a listing of threads, which ``FindListed`` reads.
        searches_items: it orders and searches the store's items itself, by ``FindItems``.
        keeps_fields: it takes puts with ``keep``, so that their writer has to read nothing first.
        removes_expired: a service removes expired items of the store by itself, so that their entries in the
            search index are left for a search to remove.
        reads_heads_first: it reads a thread's latest checkpoint, the writes on it and the thread's chunks by
            fewer requests once that checkpoint's id is known.
        reads_with_commits: ``acommit_and_fetch`` reads in the round trip of the commit, so that a refused
            commit costs no more than a read.
        is_local: it reads in this process, so that several reads at once end no sooner than one by one.
        is_kept: its data outlives the process.
        is_read_only: it refuses every write.
        is_archive: it is a file, of which nothing wakes the threads that wait.
        has_threads: False in a process that cannot start threads, as in a Worker of Cloudflare.
        bell: notifications between the processes on the database.
        vectors: comparison of vectors; a reason if they are compared in this process, or ``None``.
        examiner: the backend's check of its own storage.
        statements: statements on the application's own tables, which its commits execute; the name of
            a database of which they do not.
    """

    has_listing: bool = False
    searches_items: bool = False
    keeps_fields: bool = False
    removes_expired: bool = False
    reads_heads_first: bool = False
    reads_with_commits: bool = False
    is_local: bool = False
    is_kept: bool = True
    is_read_only: bool = False
    is_archive: bool = False
    has_threads: bool = True
    bell: Notifier | None = None
    vectors: ComparesVectors | str | None = None
    examiner: Examines | None = None
    statements: MakesStatements | str = "this database"

    def vector_dims(self) -> int:
        """Return the length up to which the driver compares vectors itself, 0 if it does not."""
        return 0 if self.vectors is None or isinstance(self.vectors, str) else self.vectors.dims_max

    def vector_method(self, dims: int) -> str:
        """Return in words how vectors of a length are compared, or why not by the driver."""
        if self.vectors is None or isinstance(self.vectors, str):
            return ", ".join(filter(None, ("in this process", self.vectors)))
        return self.vectors.method(dims)


class Driver(Protocol):
    """A backend. Calls may come from many threads and event loops at once."""

    @property
    def limits(self) -> CommitLimits: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def perform(self, effect: Effect[R]) -> R:
        """Perform one request and block until it is answered; a commit is durable then."""
        ...

    async def aperform(self, effect: Effect[R]) -> R:
        """As ``perform``, without blocking the event loop on a commit."""
        ...

    def close(self) -> None:
        """Finish the accepted requests and release all resources; repeatable."""
        ...


Answers = tuple[tuple[Record, ...], ...]
"""Answer to a ``Fetch``."""


@runtime_checkable
class CommitsAndFetches(Protocol):
    """A driver that may read after a commit in the same round trip."""

    async def acommit_and_fetch(
        self, commit: Commit, fetch: Fetch
    ) -> tuple[Committed | Refused, Answers | None]:
        """See ``acommit_and_fetch``."""
        ...


async def acommit_and_fetch(
    driver: Driver, commit: Commit, fetch: Fetch
) -> tuple[Committed | Refused, Answers | None]:
    """Commit, and read afterwards in the same round trip where a driver can.

    Returns:
        The outcome, and the answer to ``fetch`` from after the commit, also if that was refused; ``None`` if
        it was not read. It says nothing about the commit: that raises as it does alone.
    """
    if isinstance(driver, CommitsAndFetches):
        return await driver.acommit_and_fetch(commit, fetch)
    return await driver.aperform(commit), None


class WrappingDriver:
    """Base of drivers that wrap another one: they have its limits and its capabilities, except that none of
    them reads with commits unless it says so."""

    def __init__(self, inner: Driver) -> None:
        self._inner = inner
        self.capabilities = replace(inner.capabilities, reads_with_commits=False)

    @property
    def limits(self) -> CommitLimits:
        return self._inner.limits

    def close(self) -> None:
        self._inner.close()


def run(program: Program[R], driver: Driver) -> R:
    """Drive a program to its result, blocking."""
    step = advance(program)
    while not isinstance(step, ProgramResult):
        answer: Any = None
        error: Exception | None = None
        try:
            answer = driver.perform(step)
        except Exception as raised:
            error = raised
        step = advance(program, answer, error)
    return step.result


async def arun(program: Program[R], driver: Driver, *, in_threads: bool = False) -> R:
    """Drive a program to its result, awaiting each request; with ``in_threads`` the program itself
    computes in threads, so that the event loop does not wait for it."""
    step = await asyncio.to_thread(advance, program) if in_threads else advance(program)
    while not isinstance(step, ProgramResult):
        answer: Any = None
        error: Exception | None = None
        try:
            answer = await driver.aperform(step)
        except Exception as raised:
            error = raised
        if in_threads:
            step = await asyncio.to_thread(advance, program, answer, error)
        else:
            step = advance(program, answer, error)
    return step.result
