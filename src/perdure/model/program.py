"""Programs: use cases that request storage without performing it.

A program is a generator that yields effects and is sent their results. Its driver decides how an effect is
performed (blocking, awaited, recorded, made to fail); the program is the same in all cases.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Generic, TypeVar

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Effect(Generic[R_co]):
    """A request to storage whose answer has type ``R_co``."""

    __slots__ = ()


Program = Generator[Effect[Any], Any, R]


def ask(effect: Effect[R]) -> Program[R]:
    """Yield one effect and return its answer, with the answer's type: ``x = yield from ask(effect)``."""
    answer: R = yield effect
    return answer
