"""A process in which one store lives, stock or Perdure's; questions and answers as in `bench.worker`."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import resource
import sys
import time
import traceback
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from langgraph.store.base import BaseStore, GetOp, Op, PutOp

from bench.candidate import URL_VARIABLE, Place
from bench.worker import send

STOCK, OURS = "stock", "perdure"
NAMESPACES = 100
SEARCHED = ("memories",)
RARE = 1000
PUTS_AT_ONCE = 8000
"""What the stock store on PostgreSQL takes in one batch: more would need too many parameters."""


@asynccontextmanager
async def open_store(name: str, place: Place) -> AsyncIterator[BaseStore]:
    url = place.url or str(place.file)
    if name == OURS:
        perdure: Any = importlib.import_module("perdure")
        async with perdure.connect(place.url or f"sqlite:///{place.file.resolve()}", migrate=True) as db:
            yield db.store()
    else:
        module, kind = ("postgres", "AsyncPostgresStore") if place.url else ("sqlite", "AsyncSqliteStore")
        stock: Any = getattr(importlib.import_module(f"langgraph.store.{module}.aio"), kind)
        async with stock.from_conn_string(url.partition("?")[0]) as store:
            await store.setup()
            yield store


def value(number: int) -> dict[str, Any]:
    """Some 200 bytes; one in a thousand is rare."""
    kind = "rare" if number % RARE == 0 else "common"
    return {"kind": kind, "n": number, "text": f"item {number} " * 12, "tags": ["a", "b"]}


def _home(number: int) -> tuple[str, str]:
    return "users", f"u{number % NAMESPACES}"


def _put(number: int, version: int) -> PutOp:
    return PutOp(_home(number), f"k{number}", value(number + version))


class Shelf:
    """Answers what is asked of a store, in seconds."""

    def __init__(self, store: BaseStore) -> None:
        self._store = store

    async def fill(self, items: int) -> None:
        """The items that are searched, the newest last."""
        for at in range(0, items, 1000):
            ops: list[Op] = [PutOp(SEARCHED, f"k{n}", value(n)) for n in range(at, min(items, at + 1000))]
            await self._store.abatch(ops)

    async def search(self, times: int) -> None:
        """Ten of the newest: the stock stores do not order what was put in one batch."""
        for _ in range(times):
            assert len(await self._store.asearch(SEARCHED, limit=10)) == 10

    async def rare(self, items: int, times: int) -> None:
        """The newest ten, or what there is, of one in a thousand."""
        for _ in range(times):
            found = await self._store.asearch(SEARCHED, filter={"kind": "rare"}, limit=10)
            assert len(found) == min(10, -(-items // RARE))

    async def puts(self, operations: int, version: int) -> None:
        """Nothing but puts, in as many batches as the stock stores need."""
        for at in range(0, operations, PUTS_AT_ONCE):
            stop = min(operations, at + PUTS_AT_ONCE)
            await self._store.abatch([_put(n, version) for n in range(at, stop)])

    async def batch(self, operations: int, version: int) -> None:
        """One batch: puts as many as the stock stores take, at most every seventh; gets for the rest."""
        every = max(7, operations // PUTS_AT_ONCE)
        ops: list[Op] = [
            _put(n, version) if n % every == 0 else GetOp(_home(n), f"k{n}") for n in range(operations)
        ]
        found = await self._store.abatch(ops)
        assert sum(each is not None for each in found) == sum(isinstance(op, GetOp) for op in ops)


async def serve(name: str, place: Place, answers: int) -> None:
    async with open_store(name, place) as store:
        shelf = Shelf(store)
        send(answers, {"ready": True})
        for line in iter(sys.stdin.readline, ""):
            question = json.loads(line)
            try:
                started = time.perf_counter()
                await getattr(shelf, question["ask"])(**question["with"])
                seconds = time.perf_counter() - started
                answer: dict[str, Any] = {
                    "seconds": seconds,
                    "peak_kb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
                }
            except Exception as error:
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"[:500]}
            send(answers, answer)


def main() -> None:
    answers = os.dup(1)
    os.dup2(2, 1)
    name, _, folder = sys.argv[1:4]
    asyncio.run(serve(name, Place(Path(folder), os.environ.get(URL_VARIABLE, "")), answers))


if __name__ == "__main__":
    main()
