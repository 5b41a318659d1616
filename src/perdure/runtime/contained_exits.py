"""Exits that an application's code asks for within a worker: they end that code, and not the process.

A tool that parses arguments calls ``sys.exit`` on a wrong one. asyncio lets ``SystemExit`` and
``KeyboardInterrupt`` of a task out of the event loop, so that one run would end the process with the runs of
all others, again at each attempt. In the tasks of a worker, and in those that these create, both become an
error like any other. An exit that a signal's handler asks for is the process's own, wherever it arises.
"""

from __future__ import annotations

import asyncio
import dis
import signal
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from functools import partial
from types import CodeType, TracebackType
from typing import Any, TypeVar, cast

R = TypeVar("R")

_IS_CONTAINED: ContextVar[bool] = ContextVar("exits_are_contained", default=False)
_EXITS = (SystemExit, KeyboardInterrupt)
_RAISED = ("RAISE_VARARGS", "RERAISE")


class ExitRequested(RuntimeError):
    """Raised in place of ``SystemExit`` or ``KeyboardInterrupt``, which is its cause."""


@contextmanager
def contain_exits() -> Iterator[None]:
    """Raise ``ExitRequested`` if code of the application in the block asks for an exit."""
    try:
        yield
    except _EXITS as error:
        _refuse(error)
        raise


async def contain(awaitable: Awaitable[R]) -> R:
    """Return the result of code of the application; raise ``ExitRequested`` if it asks for an exit."""
    with contain_exits():
        return await awaitable


def create_contained_task(coroutine: Coroutine[Any, Any, R], context: Context) -> asyncio.Task[R]:
    """Create a task in a context. In it, and in all tasks that it creates, exits are contained."""
    loop = asyncio.get_running_loop()
    factory = loop.get_task_factory()
    if not isinstance(factory, _TaskFactory):
        loop.set_task_factory(cast(Any, _TaskFactory(factory)))
    context.run(_IS_CONTAINED.set, True)
    return context.run(partial(loop.create_task, coroutine, context=context))


class _TaskFactory:
    """Factory of an event loop's tasks that contains the exits of those which are created in a contained
    context. All others are created as before."""

    def __init__(self, inner: Callable[..., Any] | None) -> None:
        self._inner = inner

    def __call__(
        self, loop: asyncio.AbstractEventLoop, coroutine: Coroutine[Any, Any, R], **more: Any
    ) -> asyncio.Task[R]:
        if _IS_CONTAINED.get() and asyncio.iscoroutine(coroutine):
            coroutine = _Contained(coroutine)
        if self._inner is None:
            return asyncio.Task(coroutine, loop=loop, **more)
        return cast("asyncio.Task[R]", self._inner(loop, coroutine, **more))


class _Contained(Coroutine[Any, Any, R]):
    """A task's coroutine whose exits are contained. It is not an ``async def`` around the other: a task
    that is cancelled before it begins would never await that."""

    def __init__(self, inner: Coroutine[Any, Any, R]) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def __await__(self) -> Generator[Any, Any, R]:
        return (yield from self._inner.__await__())

    def send(self, value: Any) -> Any:
        try:
            return self._inner.send(value)
        except _EXITS as error:
            _refuse(error)
            raise

    def throw(self, *args: Any) -> Any:
        with contain_exits():
            return self._inner.throw(*args)

    def close(self) -> None:
        self._inner.close()


def _refuse(error: BaseException) -> None:
    """Raise ``ExitRequested`` in place of an exit, unless a signal has asked for it."""
    if _is_by_signal(error):
        return
    named = f"{type(error).__name__}: {error}" if error.args else type(error).__name__
    raise ExitRequested(f"code of the application asked for the end of the process ({named})") from error


def _is_by_signal(error: BaseException) -> bool:
    """Return True if a signal led to an exit: its handler is among the frames, or it is Python's own, which
    interrupts the code at any place."""
    handlers = frozenset(filter(None, map(_code_of_handler, signal.valid_signals())))
    trace: TracebackType | None = error.__traceback__
    raised = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        if code in handlers:
            return True
        raised = dis.opname[code.co_code[trace.tb_lasti]]
        trace = trace.tb_next
    return isinstance(error, KeyboardInterrupt) and raised not in _RAISED


def _code_of_handler(number: int) -> CodeType | None:
    handler = signal.getsignal(number)
    while isinstance(handler, partial):
        handler = handler.func
    return getattr(getattr(handler, "__func__", handler), "__code__", None)
