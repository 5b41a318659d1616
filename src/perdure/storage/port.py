"""The narrow port that every backend implements, and the drivers of programs over it.

A driver performs six kinds of request (``perdure.model.ops``), blocking or awaited. It translates its
client's exceptions in one place and holds no policy: writes, fences and retention are decided above it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from perdure.model.ops import Commit, Committed, Fetch, Refused
from perdure.model.program import Effect, Program
from perdure.model.records import Partition, Record

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class CommitLimits:
    """The limits of one commit: ``ops`` operations and ``bytes`` of bodies."""

    ops: int
    bytes: int


class Driver(Protocol):
    """A backend. Calls may come from many threads and event loops at once."""

    @property
    def limits(self) -> CommitLimits: ...

    def perform(self, effect: Effect[R]) -> R:
        """Perform one request and block until it is answered; a commit is durable then."""
        ...

    async def aperform(self, effect: Effect[R]) -> R:
        """As ``perform``, without blocking the event loop on a commit."""
        ...

    def close(self) -> None:
        """Finish the accepted requests and release all resources; repeatable."""
        ...


class Notifier(Protocol):
    """Notifications between processes on one database, on backends that have them: a driver offers its
    notifier as ``bell``. Notifications are hints: their receivers read the database, and processes that miss
    one poll it a little later."""

    def ring(self, words: Collection[str]) -> None:
        """Notify all listeners, soon and perhaps never. Words are short and have no spaces. Never blocks and
        never raises."""
        ...

    def listen(self, heard: Callable[[str], None]) -> Callable[[], None]:
        """Call ``heard``, in a thread of the driver, for every word that is sent on this database, here or
        elsewhere, until the returned function is called. While the server is away words are lost."""
        ...


def bell_of(driver: Driver) -> Notifier | None:
    """Return the notifier of a driver, if it has one; a driver that wraps another returns that one's."""
    return getattr(driver, "bell", None)


def has_listing(driver: Driver) -> bool:
    """Return True if a driver keeps a listing of threads, which ``Find("listed")`` reads."""
    return getattr(driver, "has_listing", False)


def examine(driver: Driver, partition: Partition | None) -> list[str]:
    """Return the damage that a backend finds in its own storage, by reading all of it: in a partition, or,
    with ``None``, in the database as a whole. Empty for backends without such a check."""
    own = getattr(driver, "examine", None)
    return [] if own is None else cast("list[str]", own(partition))


NOT_LATEST = "records are missing, or are not the ones that were written last"
"""What ``examine`` returns of a partition whose records are sound one by one; ``settle`` ends it."""


def settle(driver: Driver, partition: Partition) -> bool:
    """Take the records of a partition for the ones that were written last, from now on; return True if the
    backend knew otherwise. Nothing is changed if a record is itself damaged, and by backends without such
    knowledge."""
    own = getattr(driver, "settle", None)
    return False if own is None else cast("bool", own(partition))


def searches_items(driver: Driver) -> bool:
    """Return True if a driver orders and searches the store's items itself, by ``Find("items")``."""
    return getattr(driver, "searches_items", False)


def keeps_fields(driver: Driver) -> bool:
    """Return True if a driver takes puts with ``keep``, so that their writer has to read nothing first."""
    return getattr(driver, "keeps_fields", False)


def vector_dims(driver: Driver) -> int:
    """Return the length up to which a driver compares vectors of the store's items itself, by
    ``Find("nearest")``; 0 if it does not."""
    return getattr(driver, "vector_dims", 0)


def vector_method(driver: Driver, dims: int) -> str:
    """Return in words how a driver compares vectors of a length, or why it does not."""
    own = getattr(driver, "vector_method", None)
    return "in this process" if own is None else cast("str", own(dims))


def prepare_vectors(driver: Driver, dims: int) -> int:
    """Bring what a driver derives from the entries of the search index up to date, and create its index for
    vectors of a length; return the number of items that were made anew. 0 for drivers without."""
    own = getattr(driver, "prepare_vectors", None)
    return 0 if own is None else cast("int", own(dims))


def removes_expired(driver: Driver) -> bool:
    """Return True if a service removes expired items of the store by itself, so that their entries in the
    search index are left for a search to remove."""
    return getattr(driver, "removes_expired", False)


def is_read_only(driver: Driver) -> bool:
    """Return True if a driver refuses every write."""
    return getattr(driver, "is_read_only", False)


def reads_heads_first(driver: Driver) -> bool:
    """Return True if a driver reads a thread's latest checkpoint, the writes on it and the thread's chunks by
    fewer requests once that checkpoint's id is known."""
    return getattr(driver, "reads_heads_first", False)


def is_local(driver: Driver) -> bool:
    """Return True if a driver reads in this process: several reads at once end no sooner than one by one."""
    return getattr(driver, "is_local", False)


def has_threads(driver: Driver) -> bool:
    """Return False if a driver is of a process that cannot start threads, as in a Worker of Cloudflare."""
    return getattr(driver, "has_threads", True)


Answers = tuple[tuple[Record, ...], ...]
"""Answer to a ``Fetch``."""


async def acommit_and_fetch(
    driver: Driver, commit: Commit, fetch: Fetch
) -> tuple[Committed | Refused, Answers | None]:
    """Commit, and read afterwards in the same round trip where a driver can.

    Returns:
        The outcome, and the answer to ``fetch`` from after the commit, also if that was refused; ``None`` if
        it was not read. It says nothing about the commit: that raises as it does alone.
    """
    own = getattr(driver, "acommit_and_fetch", None)
    if own is None:
        return await driver.aperform(commit), None
    return cast("tuple[Committed | Refused, Answers | None]", await own(commit, fetch))


def reads_with_commits(driver: Driver) -> bool:
    """Return True if ``acommit_and_fetch`` reads in the round trip of the commit, so that a refused commit
    costs no more than a read."""
    return getattr(driver, "reads_with_commits", False)


def is_kept(driver: Driver) -> bool:
    """Return True if the data of a driver outlives the process."""
    return getattr(driver, "is_kept", True)


class WrappingDriver:
    """Base of drivers that wrap another one: they have its limits and its optional capabilities."""

    def __init__(self, inner: Driver) -> None:
        self._inner = inner

    @property
    def limits(self) -> CommitLimits:
        return self._inner.limits

    @property
    def bell(self) -> Notifier | None:
        return bell_of(self._inner)

    @property
    def has_threads(self) -> bool:
        return has_threads(self._inner)

    @property
    def reads_heads_first(self) -> bool:
        return reads_heads_first(self._inner)

    @property
    def is_local(self) -> bool:
        return is_local(self._inner)

    @property
    def has_listing(self) -> bool:
        return has_listing(self._inner)

    @property
    def searches_items(self) -> bool:
        return searches_items(self._inner)

    @property
    def keeps_fields(self) -> bool:
        return keeps_fields(self._inner)

    @property
    def vector_dims(self) -> int:
        return vector_dims(self._inner)

    @property
    def removes_expired(self) -> bool:
        return removes_expired(self._inner)

    @property
    def is_read_only(self) -> bool:
        return is_read_only(self._inner)

    def vector_method(self, dims: int) -> str:
        return vector_method(self._inner, dims)

    def prepare_vectors(self, dims: int) -> int:
        return prepare_vectors(self._inner, dims)

    @property
    def is_kept(self) -> bool:
        return is_kept(self._inner)

    def examine(self, partition: Partition | None) -> list[str]:
        return examine(self._inner, partition)

    def settle(self, partition: Partition) -> bool:
        return settle(self._inner, partition)

    def close(self) -> None:
        self._inner.close()


def run(program: Program[R], driver: Driver) -> R:
    """Drive a program to its result, blocking."""
    answer: Any = None
    error: BaseException | None = None
    while True:
        try:
            effect = program.send(answer) if error is None else program.throw(error)
        except StopIteration as done:
            return done.value  # type: ignore[no-any-return]
        try:
            answer, error = driver.perform(effect), None
        except Exception as raised:
            answer, error = None, raised


async def arun(
    program: Program[R], driver: Driver, effect: Effect[Any] | None = None, answer: Any = None
) -> R:
    """Drive a program to its result, awaiting each request.

    Args:
        program: The program.
        driver: The backend.
        effect: The program's first request, if the program has been started.
        answer: Without ``effect``, the answer to the first request of a program that has been started.
    """
    error: BaseException | None = None
    while True:
        if effect is None:
            try:
                effect = program.send(answer) if error is None else program.throw(error)
            except StopIteration as done:
                return done.value  # type: ignore[no-any-return]
        try:
            answer, error = await driver.aperform(effect), None
        except Exception as raised:
            answer, error = None, raised
        effect = None
