"""A stand-in for a Worker's D1 binding over D1's own engine: the same calls and the same answers, without
JavaScript's promises."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx

from perdure.storage.d1.binding import open_binding
from tests.servers import d1


class Promise:
    """An answer that is there when it is waited for."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Prepared:
    def __init__(self, sql: str, values: tuple[Any, ...] = ()) -> None:
        self.sql, self.values = sql, values

    def bind(self, *values: Any) -> Prepared:
        return Prepared(self.sql, values)


class StandIn:
    """``lose`` makes the answers to the next batches disappear after they were carried out. With
    ``one_thread`` calls from other threads fail, as a Worker has none."""

    def __init__(self, database: str, *, one_thread: bool) -> None:
        server = d1.started()
        self._url = f"{server.endpoint}/accounts/{d1.ACCOUNT}/d1/database/{database}/query"
        # Idle connections are dropped before the engine closes them.
        self._client = httpx.Client(
            headers={"Authorization": f"Bearer {server.token}"},
            trust_env=False,
            timeout=60,
            limits=httpx.Limits(keepalive_expiry=1),
        )
        self._thread = threading.get_ident() if one_thread else None
        self.null: Any = None
        self.lose = 0
        self.batches = 0

    def prepare(self, sql: str) -> Prepared:
        return Prepared(sql)

    def batch(self, statements: Sequence[Prepared]) -> Promise:
        assert self._thread in (None, threading.get_ident()), "a Worker has one thread"
        self.batches += 1
        given = [[None if value is self.null else value for value in one.values] for one in statements]
        if self.null is not None:
            assert not any(value is None for one in statements for value in one.values), (
                "D1 takes no undefined"
            )
        body = {
            "batch": [{"sql": one.sql, "params": each} for one, each in zip(statements, given, strict=True)]
        }
        answer = self._client.post(self._url, json=body).json()
        if not answer["success"]:
            raise RuntimeError(f"D1_ERROR: {answer['errors'][0]['message']}")
        if self.lose:
            self.lose -= 1
            raise RuntimeError("Network connection lost.")
        for result in answer["result"] if self.null is not None else ():
            result["results"] = [
                {name: self.null if value is None else value for name, value in row.items()}
                for row in result["results"]
            ]
        return Promise(answer["result"])

    def close(self) -> None:
        self._client.close()


@contextmanager
def empty(*, one_thread: bool = True) -> Iterator[tuple[str, StandIn]]:
    """The URL of a binding to a database without tables, and the binding."""
    with d1.database() as database:
        binding = StandIn(database, one_thread=one_thread)
        try:
            with open_binding(binding, lambda promise: promise.value) as url:
                yield url, binding
        finally:
            binding.close()
