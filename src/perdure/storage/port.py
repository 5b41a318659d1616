"""The narrow port that every backend implements, and how a program is driven over it.

A driver performs six kinds of request (``perdure.model.ops``), blocking or awaited. It translates its
client's exceptions in one place and holds no policy: what to write, whom to fence and what to keep is
decided above it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, cast

from perdure.model.program import Effect, Program
from perdure.model.records import Partition

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class CommitLimits:
    """What one commit may carry: ``ops`` operations and ``bytes`` of bodies."""

    ops: int
    bytes: int


class Driver(Protocol):
    """A backend. Calls may come from many threads and event loops at once."""

    @property
    def limits(self) -> CommitLimits: ...

    def perform(self, effect: Effect[R]) -> R:
        """Perform one request and block until its answer is there; a commit is durable by then."""
        ...

    async def aperform(self, effect: Effect[R]) -> R:
        """As ``perform``, without blocking the event loop on a commit."""
        ...

    def close(self) -> None:
        """Finish what was accepted and release everything; repeatable."""
        ...


class Notifier(Protocol):
    """How processes on one database tell each other that something changed, where the backend can: a driver
    that has one offers it as ``bell``. It carries hints. Whoever is told looks, and whoever is not told looks
    a little later."""

    def ring(self, words: Collection[str]) -> None:
        """Tell whoever listens, soon and perhaps never. Words are short and have no spaces. Blocks for
        nothing and never raises."""
        ...

    def listen(self, heard: Callable[[str], None]) -> Callable[[], None]:
        """Call ``heard``, from a thread of the driver's, for every word that is rung on this database, here
        or elsewhere; returns what stops it. While the server is away words are lost."""
        ...


def bell_of(driver: Driver) -> Notifier | None:
    """The bell of a driver that has one. One that stands around another driver passes on that one's."""
    return getattr(driver, "bell", None)


def has_listing(driver: Driver) -> bool:
    """Whether a driver keeps a listing of threads, which ``Find("listed")`` reads."""
    return getattr(driver, "has_listing", False)


def examine(driver: Driver, partition: Partition | None) -> list[str]:
    """What is wrong with the storage itself, by a backend that can tell: with what it has of a partition, or,
    with ``None``, with the database as a whole. All of it is read for this."""
    own = getattr(driver, "examine", None)
    return [] if own is None else cast("list[str]", own(partition))


def searches_items(driver: Driver) -> bool:
    """Whether a driver orders and searches the store's items itself, by ``Find("items")``."""
    return getattr(driver, "searches_items", False)


def is_kept(driver: Driver) -> bool:
    """Whether what a driver stores outlives the process."""
    return getattr(driver, "is_kept", True)


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


async def arun(program: Program[R], driver: Driver, effect: Effect[Any] | None = None) -> R:
    """Drive a program to its result, awaiting each request. ``effect`` is the one that it has asked for, if
    it has been begun."""
    answer: Any = None
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
