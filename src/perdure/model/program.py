"""Programs: use cases that request storage without performing it.

A program is a generator that yields effects and is sent their results. Its driver decides how an effect is
performed (blocking, awaited, recorded, made to fail); the program is the same in all cases. ``advance``
starts a program, and moves it on.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Y = TypeVar("Y")


class Effect(Generic[R_co]):
    """A request to storage whose answer has type ``R_co``."""

    __slots__ = ()


Program = Generator[Effect[Any], Any, R]


def ask(effect: Effect[R]) -> Program[R]:
    """Yield one effect and return its answer, with the answer's type: ``x = yield from ask(effect)``."""
    answer: R = yield effect
    return answer


@dataclass(frozen=True, slots=True)
class ProgramResult(Generic[R]):
    """The end of a program, with its result."""

    result: R


def advance(
    program: Generator[Y, Any, R], answer: object = None, error: BaseException | None = None
) -> Y | ProgramResult[R]:
    """Start a program, or give it the answer to its last request, or the error; return its next request, or
    its result at the end."""
    try:
        if error is None:
            return program.send(answer)
        return program.throw(error)
    except StopIteration as done:
        return ProgramResult(done.value)


def resume(
    program: Program[R],
    step: Effect[Any] | ProgramResult[R],
    perform: Callable[[Effect[Any]], Program[Any]] = ask,
) -> Program[R]:
    """Return a program that continues a started one, beginning with the request that this one waits with.

    Args:
        program: The program.
        step: The last result of ``advance``.
        perform: Performs a request of the program.
    """
    while not isinstance(step, ProgramResult):
        answer: Any = None
        error: Exception | None = None
        try:
            answer = yield from perform(step)
        except Exception as raised:
            error = raised
        step = advance(program, answer, error)
    return step.result
