"""Child process of a supervisor: it has what its parent imported, and ends with it.

It is a fork where that is safe: on Linux, of a process with one OS thread. A new interpreter would spend
seconds of processor time on the imports, while the clients of the process that it replaces wait, and would
keep a copy of its own of all that is imported.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.process import BaseProcess
from types import FrameType
from typing import ParamSpec

P = ParamSpec("P")

STOPS = (signal.SIGTERM, signal.SIGINT)
"""Signals that stop a server."""

_POLL_S = 0.5


def start(target: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> BaseProcess:
    """Start a process that calls ``target``.

    The child stops as by SIGTERM when this process has ended, for whatever reason: otherwise it would go on
    serving, with nothing left that could stop or replace it.

    Args:
        target: what the process does. It and its arguments are pickled if the child is not a fork.
        args: its arguments.
        kwargs: its named arguments.
    """
    process: BaseProcess
    # Another OS thread, such as that of a tracer, may hold a lock that nothing releases in a fork. macOS's
    # own libraries do not work in a fork, and Windows cannot fork.
    if sys.platform == "linux" and threading.active_count() == 1:
        context = multiprocessing.get_context("fork")
        process = context.Process(target=_fork, args=(os.getpid(), target, args, kwargs))
        with _block_signals():
            process.start()
    else:
        process = multiprocessing.get_context("spawn").Process(
            target=_run_spawned, args=(target, args, kwargs)
        )
        process.start()
    return process


@contextmanager
def handle_stops(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Call a handler for the signals that stop a server, within the block."""
    previous_handlers = {number: signal.signal(number, handler) for number in STOPS}
    try:
        yield
    finally:
        for number, previous in previous_handlers.items():
            signal.signal(number, previous)


@contextmanager
def _block_signals() -> Iterator[None]:
    """Block signals until a fork has its own handlers: with the handlers of its parent it would not stop."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


def _fork(
    parent: int, target: Callable[..., None], args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)

    def wait_for_parent() -> None:
        # multiprocessing would wait for the end of a pipe, which siblings that were forked later hold open.
        while os.getppid() == parent:
            time.sleep(_POLL_S)

    _stop_after(wait_for_parent)
    target(*args, **kwargs)


def _run_spawned(target: Callable[..., None], args: tuple[object, ...], kwargs: dict[str, object]) -> None:
    if (parent := multiprocessing.parent_process()) is not None:
        _stop_after(parent.join)
    target(*args, **kwargs)


def _stop_after(wait: Callable[[], None]) -> None:
    """Stop this process as SIGTERM does when ``wait`` returns."""

    def watch() -> None:
        wait()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=watch, name="supervisor", daemon=True).start()
