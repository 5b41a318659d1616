"""A driver that only reads: every write is refused before it reaches the backend."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from perdure.errors import NotAllowed
from perdure.model.ops import Fetch, Find, Now
from perdure.model.program import Effect
from perdure.storage.port import Driver, WrappingDriver
from perdure.storage.url import backend_of, open_driver


class ReadOnlyDriver(WrappingDriver):
    """Passes reads on and raises ``NotAllowed`` for writes."""

    def __init__(self, inner: Driver) -> None:
        super().__init__(inner)
        # A search that removes expired records would write.
        self.capabilities = replace(self.capabilities, is_read_only=True, removes_expired=False)

    def _check_request(self, effect: Effect[Any]) -> None:
        if not isinstance(effect, Fetch | Find | Now):
            raise NotAllowed("this database is open for reading only; nothing was written")


def open_read_only(url: str) -> Driver:
    """Open the backend of a URL to read from it; it must have this release's layout.

    A SQLite file is opened without changing a byte of it, so it may be a read-only copy.
    """
    open_backend = getattr(backend_of(url), "open_read_only", open_driver)
    return ReadOnlyDriver(open_backend(url))
