"""Pauses the cycle collector while many objects are made at once.

Building the state of a long conversation makes tens of thousands of containers, none of which is garbage
yet; the collector would walk all of them, and every other living object, again and again, and take more time
than the building. The pause covers only work that neither waits nor calls the user's code for long.
"""

from __future__ import annotations

import gc
from threading import Lock


class _Pause:
    """A pause that several OS threads may hold at once; the last to leave ends it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._ours = False

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._ours = gc.isenabled()
                gc.disable()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._ours:
                gc.enable()


collection_paused = _Pause()
"""``with collection_paused: …`` around building, never around anything that waits."""
