"""Joins the batches that are requested in one turn of an event loop, so that many small calls cost about as
much as one large one.

LangGraph's own asynchronous stores join batches, too, and graphs rely on it: a node that awaits a thousand
``aput`` with ``asyncio.gather`` would otherwise make a thousand commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple

from langgraph.store.base import Op, Result

from perdure.errors import Unavailable


class _Call(NamedTuple):
    ops: list[Op]
    answer: asyncio.Future[list[Result]]


class CallBatcher:
    """Passes batches to ``run``, those of one turn of an event loop as one. Many event loops and OS threads
    may use it at once.

    ``run`` may be called again with the same operations. An error is raised by the call whose operations
    cause it: a joint batch that fails is run again in halves. ``Unavailable`` is raised by all calls at once.
    """

    def __init__(self, run: Callable[[list[Op]], Awaitable[list[Result]]]) -> None:
        self._run = run
        self._joining: dict[asyncio.AbstractEventLoop, list[_Call]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def __call__(self, ops: list[Op]) -> list[Result]:
        """Return the results of some operations; errors of ``run`` are raised."""
        loop = asyncio.get_running_loop()
        joining = self._joining.get(loop)
        if joining is not None:
            call = _Call(ops, loop.create_future())
            joining.append(call)
            return await call.answer
        self._joining[loop] = joining = []
        try:
            # Tasks that are ready to run now may join before this continues.
            await asyncio.sleep(0)
        except BaseException:
            del self._joining[loop]
            self._begin(joining)
            raise
        del self._joining[loop]
        if not joining:
            return await self._run(ops)
        call = _Call(ops, loop.create_future())
        self._begin([call, *joining])
        return await call.answer

    def _begin(self, calls: list[_Call]) -> None:
        """Answer some calls in a task of their own, so that cancelling one caller leaves the others alone."""
        if calls:
            task = asyncio.get_running_loop().create_task(self._answer(calls))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _answer(self, calls: Sequence[_Call]) -> None:
        calls = [call for call in calls if not call.answer.done()]
        if not calls:
            return
        try:
            results: list[Any] = await self._run([op for call in calls for op in call.ops])
        except BaseException as error:
            if len(calls) > 1 and isinstance(error, Exception) and not isinstance(error, Unavailable):
                middle = len(calls) // 2
                await self._answer(calls[:middle])
                await self._answer(calls[middle:])
                return
            for call in calls:
                if not call.answer.done():
                    call.answer.set_exception(error)
            if not isinstance(error, Exception):
                raise
        else:
            begin = 0
            for call in calls:
                end = begin + len(call.ops)
                if not call.answer.done():
                    call.answer.set_result(results[begin:end])
                begin = end
