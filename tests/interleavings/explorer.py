"""Explorer of interleavings: one operation as a whole before each storage request of another one.

Whatever two processes do at once has to come out as one after the other: what both return, and what a
reader sees afterwards, is compared with both orders. A database is set up anew for each interleaving, in an
unused place, so the same worlds are explored on every backend.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import count, product
from random import Random
from typing import Any, Generic, NamedTuple, TypeVar

from perdure.errors import Corrupt, PerdureError
from perdure.model.program import Effect, Program
from perdure.model.records import Partition
from perdure.storage.memory import MemoryDriver
from perdure.storage.port import Driver, WrappingDriver, run

R = TypeVar("R")
W = TypeVar("W", bound="World")

_PLACES = count(1)


class World:
    """A place of a database as one process sees it. A set-up adds what its operations need."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.tenant = f"interleaving-{next(_PLACES)}"
        self.here = Partition(self.tenant, "ada")

    def run(self, program: Program[R]) -> R:
        return run(program, self.driver)

    def over(self: W, driver: Driver) -> W:
        """Return the same world over another driver, as another process sees it."""
        world = copy.copy(self)
        world.driver = driver
        return world


@dataclass(frozen=True)
class Case(Generic[W]):
    """Operations of one set-up.

    Attributes:
        new: The set-up, in an unused place of a database.
        operations: Operations by name. Each may be the one that is interrupted, and the other one.
        read: What a reader sees.
        sequences: Several operations, one after the other, of another process: they are done as a whole, and
            are not interrupted.
        excused: Pairs that may come out differently, each with the reason that is documented for it.
    """

    new: Callable[[Driver], W]
    operations: Mapping[str, Callable[[W], Any]]
    read: Callable[[W], Any]
    excused: Mapping[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    sequences: Mapping[str, Callable[[W], Any]] = field(default_factory=dict[str, Any])

    def pairs(self) -> Iterator[tuple[str, str]]:
        return product(self.operations, (*self.operations, *self.sequences))

    def sample(self, seed: str, size: int) -> list[tuple[str, str]]:
        return Random(seed).sample(list(self.pairs()), size)

    def act(self, name: str) -> Callable[[W], Any]:
        return self.operations[name] if name in self.operations else self.sequences[name]


class Fault(str):
    """An error that no operation may end with, whatever comes in between."""


class Outcome(NamedTuple):
    """What the interrupted operation returned or raised, what the other one did, and what is seen then."""

    returned: Any
    other: Any
    seen: Any


class Disagreement(NamedTuple):
    """An interleaving that came out as neither order.

    ``at`` is the number of the request of ``name`` before which ``other`` was done."""

    name: str
    other: str
    at: int
    found: Outcome
    orders: tuple[Outcome, Outcome]

    def __str__(self) -> str:
        after, before = self.orders
        return (
            f"{self.other!r} before request {self.at} of {self.name!r}\n  came out as {self.found}\n"
            f"  {self.name!r} first:  {after}\n  {self.other!r} first: {before}"
        )


@dataclass
class Explored:
    """Counts of what was explored, and everything that came out as neither order."""

    pairs: int = 0
    interleavings: int = 0
    found: list[Disagreement] = field(default_factory=list[Disagreement])

    def __str__(self) -> str:
        counts = f"{self.pairs} pairs, {self.interleavings} interleavings"
        return f"{counts}, {len(self.found)} of them as neither order"


class Interrupted(WrappingDriver):
    """A driver that does something as a whole before its ``at``-th request, counted from 1."""

    def __init__(self, inner: Driver, at: int, act: Callable[[], object]) -> None:
        super().__init__(inner)
        self._left = at
        self._act = act

    @property
    def has_acted(self) -> bool:
        return self._left <= 0

    def _count(self) -> None:
        self._left -= 1
        if self._left == 0:
            self._act()

    def perform(self, effect: Effect[R]) -> R:
        self._count()
        return self._inner.perform(effect)

    async def aperform(self, effect: Effect[R]) -> R:
        self._count()
        return await self._inner.aperform(effect)


def explore(
    case: Case[W],
    driver: Driver | None = None,
    pairs: Collection[tuple[str, str]] | None = None,
) -> Explored:
    """Do every interleaving of pairs of operations.

    Args:
        case: The set-up and its operations.
        driver: The database. The set-up is repeated in it for each interleaving; by default it is done once,
            in memory, and copied.
        pairs: Names of operations: the one that is interrupted, and the other one; by default all pairs.
    """
    new = _copies(case) if driver is None else partial(case.new, driver)
    explored = Explored()
    known: dict[tuple[str, str], Outcome] = {}

    def in_order(first: str, second: str) -> Outcome:
        if (first, second) not in known:
            known[first, second] = _in_order(case, new(), first, second)
        return known[first, second]

    for name, other in case.pairs() if pairs is None else pairs:
        explored.pairs += 1
        after, before = in_order(name, other), in_order(other, name)
        orders = after, Outcome(before.other, before.returned, before.seen)
        for at in count(1):
            found = _interrupted(case, new(), name, other, at)
            if found is None:
                break
            explored.interleavings += 1
            is_faulty = isinstance(found.returned, Fault) or isinstance(found.other, Fault)
            if is_faulty or (found not in orders and (name, other) not in case.excused):
                explored.found.append(Disagreement(name, other, at, found, orders))
    return explored


def check(
    setting: str,
    case: Case[W],
    driver: Driver | None = None,
    *,
    size: int | None = None,
    pairs: Collection[tuple[str, str]] | None = None,
) -> None:
    """Explore pairs of a set-up, print their counts, and fail with what came out as neither order.

    Args:
        setting: The name of the set-up, by which a sample is always the same.
        case: The set-up.
        driver: The database, as for ``explore``.
        size: The number of pairs of a sample; by default ``pairs``, or all, are explored.
        pairs: Names of operations, as for ``explore``.
    """
    explored = explore(case, driver, pairs if size is None else case.sample(setting, size))
    print(f"{setting}: {explored}")
    assert not explored.found, "\n".join(map(str, explored.found))
    assert explored.interleavings >= explored.pairs


def _copies(case: Case[W]) -> Callable[[], W]:
    """Return a function that returns the world of a set-up over a copy of its database; it is set up once."""
    model = MemoryDriver()
    world = case.new(model)

    def new() -> W:
        driver = MemoryDriver()
        driver._partitions = {
            partition: {kind: dict(table) for kind, table in tables.items()}
            for partition, tables in model._partitions.items()
        }
        return world.over(driver)

    return new


def _in_order(case: Case[W], world: W, first: str, second: str) -> Outcome:
    returned, other = (_result(case.act(name), world.over(world.driver)) for name in (first, second))
    return Outcome(returned, other, case.read(world))


def _interrupted(case: Case[W], world: W, name: str, other: str, at: int) -> Outcome | None:
    """Return how an interleaving came out, ``None`` if the operation has fewer requests."""
    results: list[Any] = []
    act = case.act(other)
    driver = Interrupted(world.driver, at, lambda: results.append(_result(act, world.over(world.driver))))
    returned = _result(case.operations[name], world.over(driver))
    return Outcome(returned, results[0], case.read(world)) if driver.has_acted else None


def _result(operation: Callable[[W], Any], world: W) -> Any:
    """Return what an operation returned, or the error with which it was refused, by name."""
    try:
        return operation(world)
    except Corrupt as error:
        return Fault(f"Corrupt: {error}")
    except PerdureError as error:
        return type(error).__name__
    except Exception as error:
        return Fault(f"{type(error).__name__}: {error}")
