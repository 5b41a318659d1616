"""Parts that the operations on a user's memory share: their steps, the place of the items that they read and
write, and the fence between a removal of the user and extractions from earlier messages.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4

from langgraph.store.base import GetOp, Item, Op, PutOp

from perdure.errors import Contention, Forgotten
from perdure.memory.facts import make_mark, read_time
from perdure.memory.users import FACTS, REMOVALS, SUMMARIES

R = TypeVar("R")


class FactChange(NamedTuple):
    """Puts of one namespace that are made together, if the items in ``seen`` still have these values.
    ``seen`` has the values by key, ``None`` for an item that was absent. The answer is True if the puts were
    made."""

    puts: Sequence[PutOp]
    seen: Mapping[str, Mapping[str, Any] | None]


Steps = Generator["list[Op] | FactChange", Any, R]
"""Yields batches for a store, each answered by its results, and changes."""

TRIES = 32
"""Times that a change is planned again after others have changed what it read."""
_FENCE = "0d7d1a0e-5a64-4c1f-8f0a-93f1f7a3a5c6"
"""Key of an item that extractions require, and that the removal of a user deletes, so that an extraction from
earlier messages stores nothing after it."""


@dataclass(frozen=True, slots=True)
class Place:
    """Namespace of a user, and the clock."""

    namespace: tuple[str, ...]
    now: Callable[[], datetime]

    @property
    def facts(self) -> tuple[str, ...]:
        return (*self.namespace, FACTS)

    @property
    def summaries(self) -> tuple[str, ...]:
        return (*self.namespace, SUMMARIES)

    @property
    def removal(self) -> tuple[str, tuple[str, ...]]:
        """Key and namespace of the time at which the user was forgotten; the key does not show the user."""
        return sha256(self.namespace[-1].encode("utf-8", "surrogatepass")).hexdigest(), (
            *self.namespace[:-1],
            REMOVALS,
        )


def read_removal_time(place: Place) -> Steps[datetime | None]:
    """Return the time of the latest removal of all that was known of the user, if there was one."""
    key, namespace = place.removal
    (item,) = yield [GetOp(namespace, key, refresh_ttl=False)]
    if item is None:
        return None
    return read_time(item.value["at"])


def value_of(item: Item | None) -> Mapping[str, Any] | None:
    """Return the value of an item, ``None`` if there is none."""
    if item is None:
        return None
    return item.value


def make_fence(
    place: Place, namespace: tuple[str, ...], heard_at: datetime
) -> Steps[dict[str, Mapping[str, Any] | None]]:
    """Return the items that a commit has to require, so that it stores nothing after the user was forgotten.

    The fence is read before the time of the latest removal: a removal that comes too late to be seen there
    deletes this fence afterwards. A fence has no text of the user, and another value each time that it is
    made.

    Raises:
        Forgotten: The user was forgotten after ``heard_at``.
    """
    is_new = False
    for _ in range(TRIES):
        (item,) = yield [GetOp(namespace, _FENCE, refresh_ttl=False)]
        forgotten_at = yield from read_removal_time(place)
        if forgotten_at is not None and heard_at <= forgotten_at:
            if is_new and item is not None:
                yield FactChange([PutOp(namespace, _FENCE, None)], {_FENCE: item.value})
            raise Forgotten("the user was forgotten after these messages were written; nothing was stored")
        if item is not None:
            return {_FENCE: item.value}
        new_fence = {**make_mark(place.now()), "fence": uuid4().hex}
        is_new = yield FactChange([PutOp(namespace, _FENCE, new_fence, index=False)], {_FENCE: None})
    raise contention_error()


def contention_error() -> Contention:
    """Return the error for a change of which every try was overtaken by others."""
    return Contention("others keep changing this memory; nothing was changed, try again")
