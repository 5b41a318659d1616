"""The narrow port that every backend implements, and the drivers of programs over it.

A driver performs six kinds of request (``perdure.model.ops``), blocking or awaited. It translates its
client's exceptions in one place and holds no policy: writes, fences and retention are decided above it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar, runtime_checkable

from perdure.errors import PerdureError
from perdure.model.ops import ApplicationStatement, Commit, Committed, Fetch, Refused
from perdure.model.program import Effect, Program, ProgramResult, advance
from perdure.model.records import Partition, Record
from perdure.storage.credentials import PasswordSource
from perdure.storage.error_origins import note_origin
from perdure.storage.own_threads import run_in_own_thread

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class CommitLimits:
    """The limits of one commit: ``ops`` operations and ``bytes`` of bodies.

    One body may have all of these bytes: a driver divides a body that does not fit one value of its database.
    """

    ops: int
    bytes: int


class Notifier(Protocol):
    """Notifications between processes on one database, on backends that have them. They are only hints: a
    process that receives one reads the database, and one that misses it finds the same by polling, later."""

    def notify(self, words: Collection[str]) -> None:
        """Send words to all listeners; they may arrive soon or be lost. Words are short and have no spaces.
        Never blocks and never raises."""
        ...

    def listen(self, on_word: Callable[[str], None]) -> Callable[[], None]:
        """Call ``on_word``, in an OS thread of the driver, for every word that this or another process sends
        on this database, until the returned function is called. While the server is unavailable, words are
        lost."""
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
        """Create the index for vectors of a length, and update the rows that are derived from the entries of
        the search index; return the number of items whose rows were made again."""
        ...


class Examines(Protocol):
    """A backend's check of its own storage."""

    def examine(self, partition: Partition | None) -> list[str]:
        """Read all of a partition and return the damage that is found; with ``None``, check the database as a
        whole instead."""
        ...

    def trust(self, partition: Partition) -> bool:
        """Accept the present records of a partition as the latest ones from now on; return True if the
        backend had found that they were not the latest. Nothing is changed if a record is itself damaged."""
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
            ValueError: The parameters are not those of the text, or the text does not begin as a statement
                that may stand in a transaction.
        """
        ...


NOT_LATEST = "records are missing, or are not the ones that were written last"
"""The finding of ``examine`` for a partition whose records are each sound, but not the latest; after
``trust`` it is not reported any more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """Features of a driver beyond the six requests, and their costs.

    Attributes:
        has_listing: it keeps a listing of threads, which ``FindListed`` reads.
        searches_items: it orders and searches the store's items itself, by ``FindItems``.
        keeps_fields: it takes puts with ``keep``, so that their writer has to read nothing first.
        removes_expired: the database removes expired items of the store by itself, but not their entries in
            the search index: a search has to remove these.
        reads_heads_first: it reads a thread's latest checkpoint, the writes on it and the thread's chunks by
            fewer requests once that checkpoint's id is known.
        reads_with_commits: ``acommit_and_fetch`` reads in the round trip of the commit, so that a refused
            commit costs no more than a read.
        is_local: it reads in this process, so that concurrent reads are no faster than reads one by one.
        is_kept: its data outlives the process.
        is_read_only: it refuses every write.
        is_archive: it is a file that no worker serves, so that nothing wakes the waiting threads in it.
        has_threads: False in a process that cannot start threads, as in a Worker of Cloudflare.
        bell: notifications between the processes on the database.
        vectors: comparison of vectors by the backend. If they are compared in this process instead: the
            reason, or ``None`` if there is none to name.
        examiner: the backend's check of its own storage.
        statements: statements on the application's own tables, which its commits execute; if its commits
            cannot do this, the name of the database.
        count_bytes: returns the size of the database in bytes, with indexes and free space, blocking, but
            without reading the data; ``None`` if the backend cannot tell the size.
        cut_log: empties the log in which the backend keeps former states of records, blocking; returns False
            if it could not, as others use the database. ``None`` if the backend has no such log.
        password: the source of the password, if a function or a provider returns it.
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
    count_bytes: Callable[[], int] | None = None
    cut_log: Callable[[], bool] | None = None
    password: PasswordSource | None = None

    def vector_dims(self) -> int:
        """Return the length up to which the driver compares vectors itself, 0 if it does not."""
        if self.vectors is None or isinstance(self.vectors, str):
            return 0
        return self.vectors.dims_max

    def vector_method(self, dims: int) -> str:
        """Return in words how vectors of a length are compared, and if not by the driver, why."""
        if self.vectors is None or isinstance(self.vectors, str):
            return ", ".join(filter(None, ("in this process", self.vectors)))
        return self.vectors.method(dims)


class Driver(Protocol):
    """A backend. Calls may come from many OS threads and event loops at once."""

    @property
    def limits(self) -> CommitLimits: ...

    @property
    def capabilities(self) -> Capabilities: ...

    def perform(self, effect: Effect[R]) -> R:
        """Perform one request and block until it is answered; an answered commit is durable."""
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
        The outcome, and the answer to ``fetch`` as of after the commit, even if the commit was refused; in
        place of the answer ``None`` if nothing was read. Errors of the commit are raised as by a commit
        alone.
    """
    if isinstance(driver, CommitsAndFetches):
        return await driver.acommit_and_fetch(commit, fetch)
    return await driver.aperform(commit), None


class WrappingDriver:
    """Base of drivers that wrap another one: they have its limits and its capabilities, except for
    ``reads_with_commits``, which each has to declare itself, and pass requests on to it."""

    def __init__(self, inner: Driver) -> None:
        self._inner = inner
        self.capabilities = replace(inner.capabilities, reads_with_commits=False)

    @property
    def limits(self) -> CommitLimits:
        return self._inner.limits

    def perform(self, effect: Effect[R]) -> R:
        self._check_request(effect)
        return self._inner.perform(effect)

    async def aperform(self, effect: Effect[R]) -> R:
        self._check_request(effect)
        return await self._inner.aperform(effect)

    def _check_request(self, effect: Effect[Any]) -> None:
        """Raise an error for a request that is not to be passed on."""

    def close(self) -> None:
        self._inner.close()


def run(program: Program[R], driver: Driver) -> R:
    """Drive a program to its result, blocking."""
    step = advance(program)
    try:
        while not isinstance(step, ProgramResult):
            answer: Any = None
            error: Exception | None = None
            try:
                answer = driver.perform(step)
            except Exception as raised:
                error = raised
            step = advance(program, answer, error)
    except PerdureError as raised:
        note_origin(raised, driver, getattr(step, "partition", None))
        raise
    return step.result


async def arun(program: Program[R], driver: Driver, *, in_threads: bool = False, thread_bytes: int = 0) -> R:
    """Drive a program to its result, awaiting each request.

    With ``in_threads``, the program computes in an OS thread after each answer whose bodies have at least
    ``thread_bytes`` together, so that it does not block the event loop.
    """

    async def continue_with(
        answer: Any = None, error: Exception | None = None
    ) -> Effect[Any] | ProgramResult[R]:
        if in_threads and _bytes_of(answer) >= thread_bytes:
            return await run_in_own_thread(advance, program, answer, error)
        return advance(program, answer, error)

    step = await continue_with()
    try:
        while not isinstance(step, ProgramResult):
            answer: Any = None
            error: Exception | None = None
            try:
                answer = await driver.aperform(step)
            except Exception as raised:
                error = raised
            step = await continue_with(answer, error)
    except PerdureError as raised:
        note_origin(raised, driver, getattr(step, "partition", None))
        raise
    return step.result


def _bytes_of(answer: Any) -> int:
    """Return the size of the bodies of the records in an answer to a fetch, 0 for another answer."""
    if not isinstance(answer, tuple):
        return 0
    records = (record for part in answer if type(part) is tuple for record in part)
    return sum(len(record.body) for record in records if isinstance(record, Record))
