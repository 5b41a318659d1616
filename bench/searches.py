"""A process in which one store with a vector index lives, or a bare table of sqlite-vec; questions and
answers as in `bench.worker`.

A text is a number, and its vector is made from that: near those of a few topics, as those of a language are.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
import time
import traceback
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from langgraph.store.base import BaseStore, Op, PutOp

from bench.candidate import URL_VARIABLE, Place
from bench.figures import median
from bench.stores import OURS
from bench.worker import send

SCAN = "scan"
"""The bare table of vectors."""

NAMESPACES = 100
ROOT = "users"
BEST = 10
AT_ONCE = 1000
BATCH = 50
_TOPICS = 24
_SEED = 11
_QUERIES = 10_000_000
"""The number of the first query."""

Answer = dict[str, Any]


@dataclass
class Vectors:
    """The embedding model, asynchronous as those of most providers; ``seconds`` is what it took."""

    dims: int
    seconds: float = 0.0
    _topics: Any = field(init=False)

    def __post_init__(self) -> None:
        self._topics = np.random.default_rng(_SEED).normal(size=(_TOPICS, self.dims))

    def of(self, numbers: Sequence[int]) -> Any:
        rows = []
        for number in numbers:
            chance = np.random.default_rng(number)
            rows.append(chance.normal(size=_TOPICS) @ self._topics + 0.5 * chance.normal(size=self.dims))
        return np.asarray(rows, dtype=np.float32)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        started = time.perf_counter()
        vectors: list[list[float]] = self.of([int(text) for text in texts]).tolist()
        self.seconds += time.perf_counter() - started
        return vectors


def home(number: int) -> tuple[str, str]:
    return ROOT, f"u{number % NAMESPACES}"


def exact(vectors: Vectors, items: int, queries: Sequence[int]) -> list[set[str]]:
    """The keys of the best items of each query, by comparison of all."""
    best: list[list[tuple[float, str]]] = [[] for _ in queries]
    asked = _of_length_1(vectors.of(queries))
    for at in range(0, items, AT_ONCE):
        numbers = range(at, min(items, at + AT_ONCE))
        scores = _of_length_1(vectors.of(numbers)) @ asked.T
        for place in range(len(queries)):
            found = zip(scores[:, place].tolist(), map(str, numbers), strict=True)
            best[place] = sorted([*best[place], *found], reverse=True)[:BEST]
    return [{key for _, key in found} for found in best]


def _of_length_1(rows: Any) -> Any:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


class Searched(Protocol):
    """What is measured: it is filled with the items from 0 on, and asked for the keys of the best ones."""

    async def fill(self, items: int) -> None: ...

    async def search(self, query: int) -> list[str]: ...


class Table:
    """Vectors in a table of sqlite-vec, which has nothing else."""

    def __init__(self, place: Place, vectors: Vectors) -> None:
        import apsw
        import sqlite_vec

        self._vectors = vectors
        self._connection = apsw.Connection(str(place.file))
        self._connection.enable_load_extension(True)
        self._connection.load_extension(sqlite_vec.loadable_path())
        self._connection.execute(
            f"CREATE VIRTUAL TABLE v USING vec0(e float[{vectors.dims}] distance_metric=cosine)"
        )

    async def fill(self, items: int) -> None:
        for at in range(0, items, AT_ONCE):
            numbers = range(at, min(items, at + AT_ONCE))
            rows = zip(numbers, self._vectors.of(numbers), strict=True)
            with self._connection:
                self._connection.executemany(
                    "INSERT INTO v (rowid, e) VALUES (?, ?)", ((n, row.tobytes()) for n, row in rows)
                )

    async def search(self, query: int) -> list[str]:
        (vector,) = self._vectors.of([query])
        found = self._connection.execute(
            "SELECT rowid FROM v WHERE e MATCH ? AND k = ? ORDER BY distance", (vector.tobytes(), BEST)
        )
        return [str(number) for (number,) in found]


class Shelf:
    """A store with an index, and the same database's store without."""

    def __init__(self, indexed: BaseStore, plain: BaseStore, vectors: Vectors) -> None:
        self._indexed = indexed
        self._plain = plain
        self._vectors = vectors

    async def fill(self, items: int) -> None:
        for at in range(0, items, AT_ONCE):
            ops: list[Op] = [_put(home(n), n) for n in range(at, min(items, at + AT_ONCE))]
            await self._indexed.abatch(ops)

    async def search(self, query: int) -> list[str]:
        return [hit.key for hit in await self._indexed.asearch((ROOT,), query=str(query), limit=BEST)]

    async def put(self, number: int) -> None:
        await self._indexed.abatch([_put(home(number), number)])

    async def puts(self, count: int, at_once: int) -> Answer:
        """Seconds of batches with the index, embedding excluded, and without: in turns, in namespaces of
        their own, which are removed again."""
        seen: dict[str, list[float]] = {"indexed": [], "plain": []}
        for at in range(0, count, at_once):
            for name, store in (("indexed", self._indexed), ("plain", self._plain)):
                ops: list[Op] = [_put(("puts", name), n) for n in range(at, at + at_once)]
                embedded, started = self._vectors.seconds, time.perf_counter()
                await store.abatch(ops)
                took = time.perf_counter() - started
                seen[name].append(took - (self._vectors.seconds - embedded))
        for name, store in (("indexed", self._indexed), ("plain", self._plain)):
            for at in range(0, count, AT_ONCE):
                await store.abatch(
                    [PutOp(("puts", name), str(n), None) for n in range(at, min(count, at + AT_ONCE))]
                )
        return {name: median(found) for name, found in seen.items()}


def _put(namespace: tuple[str, ...], number: int) -> PutOp:
    more = {"kind": "fact", "said": f"what was said the {number}th time " * 5}
    return PutOp(namespace, str(number), {"text": str(number), **more})


@asynccontextmanager
async def open_shelf(
    name: str, scenario: str, place: Place, vectors: Vectors
) -> AsyncIterator[tuple[Any, Any]]:
    """What is searched, and what prepares it for searches once it is filled."""
    config: Any = {"dims": vectors.dims, "embed": vectors.embed, "fields": ["text"]}
    if name == OURS:
        perdure: Any = importlib.import_module("perdure")
        base: Any = importlib.import_module("perdure.database.base")
        module: Any = importlib.import_module("perdure.langgraph.search.index")
        index = module.SearchIndex({**config, "name": "topics"})
        async with perdure.connect(place.url or f"sqlite:///{place.file.resolve()}", migrate=True) as db:
            driver = base.handle_of(db).driver
            yield Shelf(db.store(index=index), db.store(), vectors), lambda: index.prepare(driver)
    elif scenario == SCAN:
        yield Table(place, vectors), lambda: None
    else:
        stock: Any = importlib.import_module("langgraph.store.postgres.aio").AsyncPostgresStore
        url = place.url.partition("?")[0]
        async with (
            stock.from_conn_string(url, index=config) as indexed,
            stock.from_conn_string(url) as plain,
        ):
            await indexed.setup()
            yield Shelf(indexed, plain, vectors), lambda: None


class Desk:
    """Answers what is asked of it, in seconds."""

    def __init__(self, searched: Any, prepare: Any, vectors: Vectors) -> None:
        self._searched = searched
        self._prepare = prepare
        self._vectors = vectors
        self._expected: list[set[str]] = []
        self._queries: list[int] = []

    async def fill(self, items: int, queries: int) -> Answer:
        self._queries = [_QUERIES + n for n in range(queries)]
        self._expected = exact(self._vectors, items, self._queries)
        await self._searched.fill(items)
        self._prepare()
        return {}

    async def first(self) -> Answer:
        """The first search of the process, which reads whatever it holds."""
        return {"seconds": await self._search(self._queries[0])}

    async def searches(self) -> Answer:
        """Seconds of each search, and how many of the best items are found."""
        seconds: list[float] = []
        hits = 0
        for query, expected in zip(self._queries, self._expected, strict=True):
            seconds.append(await self._search(query))
            hits += len(expected.intersection(self._found))
        return {"seconds": seconds, "recall": hits / (BEST * len(self._queries))}

    async def after_puts(self, items: int, times: int) -> Answer:
        """Seconds of searches that each follow a put of an item which is there already."""
        seconds: list[float] = []
        for number in range(times):
            await self._searched.put(number * 7 % items)
            seconds.append(await self._search(self._queries[number % len(self._queries)]))
        return {"seconds": seconds}

    async def puts(self, count: int, at_once: int) -> Answer:
        found: Answer = await self._searched.puts(count, at_once)
        return found

    async def _search(self, query: int) -> float:
        embedded, started = self._vectors.seconds, time.perf_counter()
        self._found = await self._searched.search(query)
        return time.perf_counter() - started - (self._vectors.seconds - embedded)


async def serve(name: str, scenario: str, place: Place, answers: int) -> None:
    kind, _, dims = scenario.partition("-")
    vectors = Vectors(int(dims))
    async with open_shelf(name, kind, place, vectors) as (searched, prepare):
        desk = Desk(searched, prepare, vectors)
        send(answers, {"ready": True})
        for line in iter(sys.stdin.readline, ""):
            question = json.loads(line)
            try:
                answer = await getattr(desk, question["ask"])(**question["with"])
            except Exception as error:
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"[:500]}
            send(answers, answer)


def main() -> None:
    answers = os.dup(1)
    os.dup2(2, 1)
    name, scenario, folder = sys.argv[1:4]
    asyncio.run(serve(name, scenario, Place(Path(folder), os.environ.get(URL_VARIABLE, "")), answers))


if __name__ == "__main__":
    main()
