"""Waits that a new archive takes along.

They stay at their sources until the archive is complete, so that a thread goes on there if no file comes of
it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from perdure.database.base import handle_of
from perdure.database.blocking import SyncDatabase
from perdure.database.handle import DatabaseHandle
from perdure.engine.transfer import waiting_runs
from perdure.engine.transfer.transfer_terms import LeavingWaits
from perdure.errors import Conflict, PerdureError, Unavailable
from perdure.model.ops import Now
from perdure.model.program import ask

_OPEN: WeakKeyDictionary[DatabaseHandle, HandOvers] = WeakKeyDictionary()
"""The waits of each archive that is being written, by its handle."""


class HandOvers:
    """Waits that are taken from their sources together, when ``take`` is called, or given back."""

    def __init__(self) -> None:
        self._left: list[tuple[DatabaseHandle, LeavingWaits]] = []
        self._taken: list[tuple[DatabaseHandle, LeavingWaits]] = []

    def add(self, source: DatabaseHandle, leaving: LeavingWaits) -> None:
        """Note the waits of a thread that is in the archive."""
        self._left.append((source, leaving))

    def take(self) -> None:
        """Take all waits from their sources.

        Raises:
            Conflict: A thread was written to since it was read.
        """
        for source, leaving in self._left:
            # Noted before, as the program can be interrupted between the commit and its answer.
            self._taken.append((source, leaving))
            fresh = source.draw_version()
            if not source.run(
                waiting_runs.take_from_unchanged(leaving.partition, leaving.waiting, leaving.pulse, fresh)
            ):
                self._taken.pop()
                raise Conflict(
                    f"thread {leaving.partition.thread!r} was written to while the file was; no file was "
                    "written, and no thread handed over. Write the file again"
                )

    def give_back(self) -> None:
        """Give back what was taken.

        Raises:
            Unavailable: Some could not be given back.
        """
        failed: dict[str, PerdureError] = {}
        for source, leaving in self._taken:
            try:
                now, fresh = source.run(ask(Now())), source.draw_version()
                source.run(waiting_runs.give_back(leaving.partition, now, fresh))
            except PerdureError as error:
                failed[leaving.partition.thread] = error
        if failed:
            raise Unavailable(
                f"no file was written, and nothing wakes {', '.join(map(repr, failed))} at the source: write "
                f"the file again with --hand-over ({next(iter(failed.values()))})"
            )


@contextmanager
def collect_hand_overs(archive: SyncDatabase) -> Iterator[HandOvers]:
    """Collect the waits of the threads that are moved to an archive while the block runs."""
    handle = handle_of(archive)
    _OPEN[handle] = HandOvers()
    try:
        yield _OPEN[handle]
    finally:
        del _OPEN[handle]


def find_hand_overs(target: DatabaseHandle) -> HandOvers | None:
    """Return the waits of an archive that is being written, ``None`` for any other database."""
    return _OPEN.get(target)
