"""The database and the partition that an error is about, for those who have to tell their own from another's.

A node may read other threads and use other databases. What their errors say of them says nothing of the
thread whose run the node is a part of.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple
from weakref import WeakKeyDictionary

from perdure.errors import PerdureError
from perdure.model.records import Partition

if TYPE_CHECKING:
    from perdure.storage.port import Driver


class Origin(NamedTuple):
    """The database whose program raised an error, and the partition of its latest request, ``None`` for a
    request that is of no partition."""

    driver: Driver
    partition: Partition | None


_origins: WeakKeyDictionary[PerdureError, Origin] = WeakKeyDictionary()
"""Beside the errors, and not in them: a driver cannot be pickled with an error for another process."""


def note_origin(error: PerdureError, driver: Driver, partition: Partition | None) -> None:
    """Note the origin of an error. The outermost program counts: a driver runs programs on the one in it."""
    _origins[error] = Origin(driver, partition)


def find_origin(error: BaseException) -> Origin | None:
    """Return the origin of an error, ``None`` if no program raised it."""
    return _origins.get(error) if isinstance(error, PerdureError) else None
