"""How a use case asks for storage without touching it.

A program is a generator that yields effects and is sent their results. Whoever drives it decides how an
effect is performed (blocking, awaited, recorded, made to fail); the program cannot tell.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Generic, TypeVar

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class Effect(Generic[R_co]):
    """One request to storage whose answer has type ``R_co``."""

    __slots__ = ()


Program = Generator[Effect[Any], Any, R]


def ask(effect: Effect[R]) -> Program[R]:
    """Yield one effect and return its answer, with the answer's type: ``x = yield from ask(effect)``."""
    answer: R = yield effect
    return answer
