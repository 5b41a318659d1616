"""Child process of a supervisor: it has what its parent imported, and ends with it.

On Linux it is a fork. A new interpreter would spend seconds of processor time on the imports, for which the
clients of the process that it replaces would wait, and keep a copy of its own of what they load.
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

FORKS = sys.platform == "linux"
"""Whether a child is a fork. macOS's own libraries do not work in one, and Windows has none."""

_LOOK_S = 0.5


def start(target: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> BaseProcess:
    """Start a process that calls ``target``; call it while this process has one thread.

    The child stops as by SIGTERM when this process has ended, however that came about: it would go on
    serving, with nothing left that could stop or replace it.

    Args:
        target: what the process does. It and its arguments are pickled where a child is not a fork.
        args: its arguments.
        kwargs: its named arguments.
    """
    # One call for each method, as their classes of processes have no type in common.
    started = (os.getpid(), target, args, kwargs)
    process: BaseProcess
    if FORKS:
        process = multiprocessing.get_context("fork").Process(target=_child, args=started)
    else:
        process = multiprocessing.get_context("spawn").Process(target=_child, args=started)
    with _held_back():
        process.start()
    return process


@contextmanager
def _held_back() -> Iterator[None]:
    """Hold signals back from a fork until it has its own handlers: with those of its parent it would ignore
    that it is stopped."""
    if not FORKS:
        yield
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)


def _child(
    parent: int, target: Callable[..., None], args: tuple[object, ...], kwargs: dict[str, object]
) -> None:
    if FORKS:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    threading.Thread(target=_end_with, args=(parent,), name="supervisor", daemon=True).start()
    target(*args, **kwargs)


def _end_with(parent: int) -> None:
    if FORKS:
        # Siblings that were forked later hold the pipe open by which multiprocessing would know.
        while os.getppid() == parent:
            time.sleep(_LOOK_S)
    elif (process := multiprocessing.parent_process()) is not None:
        process.join()
    os.kill(os.getpid(), signal.SIGTERM)
