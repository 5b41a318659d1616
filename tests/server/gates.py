"""Gates at which the graphs of tests wait, in the process of the test: no test depends on how fast it is."""

from __future__ import annotations

import asyncio
import threading
from collections import defaultdict

GATES: defaultdict[str, threading.Event] = defaultdict(threading.Event)
"""Gates that tests open, by name. Who serves graphs that wait clears them first."""


async def opened(gate: str) -> None:
    """Wait until a test opens a gate. It can be cancelled, and holds no thread."""
    while not GATES[gate].is_set():  # noqa: ASYNC110 - it is opened from another thread
        await asyncio.sleep(0.01)
