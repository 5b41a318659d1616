"""Pauses a server with all its processes: its connections stay open, and nothing answers."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def paused(pid: int) -> Iterator[None]:
    """Stop a process and its descendants for as long as the block lasts."""
    stopped = _stop_all(pid)
    try:
        yield
    finally:
        for each in stopped:
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGCONT)


def _stop_all(pid: int) -> list[int]:
    os.kill(pid, signal.SIGSTOP)  # It starts no other process from here on.
    stopped = [pid]
    for child in _children(pid):
        with suppress(ProcessLookupError):
            stopped += _stop_all(child)
    return stopped


def _children(pid: int) -> list[int]:
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for thread in threads for child in thread.read_text().split()]
