"""Child process of a supervisor: it has what its parent imported, and ends with it.

It is a fork where that is safe: on Linux, of a process with one thread. A new interpreter would spend seconds
of processor time on the imports, for which the clients of the process that it replaces would wait, and keep a
copy of its own of what they load.
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
from typing import ParamSpec

P = ParamSpec("P")

STOPS = (signal.SIGTERM, signal.SIGINT)
"""Signals that stop a server."""

_POLL_S = 0.5


def start(target: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> BaseProcess:
    """Start a process that calls ``target``.

    The child stops as by SIGTERM when this process has ended, however that came about: it would go on
    serving, with nothing left that could stop or replace it.

    Args:
        target: what the process does. It and its arguments are pickled if the child is not a fork.
        args: its arguments.
        kwargs: its named arguments.
    """
    process: BaseProcess
    # Another thread, such as that of a tracer, may hold a lock which nothing releases in a fork. macOS's own
    # libraries do not work in one, and Windows has none.
    if sys.platform == "linux" and threading.active_count() == 1:
        context = multiprocessing.get_context("fork")
        process = context.Process(target=_fork, args=(os.getpid(), target, args, kwargs))
        with _hold_back():
            process.start()
    else:
        process = multiprocessing.get_context("spawn").Process(
            target=_run_spawned, args=(target, args, kwargs)
        )
        process.start()
    return process


@contextmanager
def _hold_back() -> Iterator[None]:
    """Hold signals back from a fork until it has its own handlers: with those of its parent it would ignore a
    stop."""
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

    def wait() -> None:
        # Siblings that were forked later hold the pipe open by which multiprocessing would know.
        while os.getppid() == parent:
            time.sleep(_POLL_S)

    _stop_after(wait)
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
