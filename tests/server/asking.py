"""Requests as a server sees them, without a server."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest
from starlette.requests import HTTPConnection, Request

from perdure.server.auth.identity import Refusal

T = TypeVar("T")


def request(
    *headers: tuple[str, str | bytes],
    method: str = "GET",
    path: str = "/threads/t1",
    query: str = "",
    **more: Any,
) -> Request:
    return Request(_scope("http", headers, path, query) | {"method": method} | more)


def websocket(*headers: tuple[str, str | bytes]) -> HTTPConnection:
    return HTTPConnection(_scope("websocket", headers, "/threads/t1/stream", ""))


def bearer(token: str) -> Request:
    return request(("authorization", f"Bearer {token}"))


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def refused(work: Coroutine[Any, Any, Any]) -> Refusal:
    with pytest.raises(Refusal) as caught:
        asyncio.run(work)
    return caught.value


def _scope(kind: str, headers: tuple[tuple[str, str | bytes], ...], path: str, query: str) -> dict[str, Any]:
    raw = [
        (name.lower().encode(), value if isinstance(value, bytes) else value.encode())
        for name, value in headers
    ]
    return {"type": kind, "path": path, "query_string": query.encode(), "headers": raw, "path_params": {}}
