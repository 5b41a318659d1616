"""The narrow port that every backend implements, and how a program is driven over it.

A driver performs six kinds of request (``perdure.model.ops``), blocking or awaited. It translates its
client's exceptions in one place and holds no policy: what to write, whom to fence and what to keep is
decided above it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from perdure.model.program import Effect, Program

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Limits:
    """What one commit may carry: ``ops`` operations and ``bytes`` of bodies."""

    ops: int
    bytes: int


class Driver(Protocol):
    """A backend. Calls may come from many threads and event loops at once."""

    @property
    def limits(self) -> Limits: ...

    def perform(self, effect: Effect[R]) -> R:
        """Perform one request and block until its answer is there; a commit is durable by then."""
        ...

    async def aperform(self, effect: Effect[R]) -> R:
        """As ``perform``, without blocking the event loop on a commit."""
        ...

    def close(self) -> None:
        """Finish what was accepted and release everything; repeatable."""
        ...


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
