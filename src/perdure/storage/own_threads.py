"""OS threads for Perdure's own work beside an event loop.

The loop's default executor calls the nodes of graphs that are plain functions. They may occupy all of its
threads for as long as a model takes to answer. Perdure's own work must not wait for them.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")

_THREADS_MOST = 16

_pool = ThreadPoolExecutor(_THREADS_MOST, thread_name_prefix="perdure-own")


def _renew() -> None:
    """Replace the pool in a forked process, in which the threads of the parent's pool do not exist."""
    global _pool
    _pool = ThreadPoolExecutor(_THREADS_MOST, thread_name_prefix="perdure-own")


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_renew)


async def run_in_own_thread(function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function in an OS thread of the pool, in a copy of the context, and return its result."""
    call = partial(copy_context().run, function, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_pool, call)
