"""What one request may ask of a server: lists have maxima, and a body is read when its user is known."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from fastapi.routing import APIRoute

from perdure.server.app import create_app, routers
from perdure.server.requests import ITEMS_MAX, NAMES_MAX
from perdure.server.resources import GatedRoute
from perdure.server.routes import threads
from tests.backends import EMPTY
from tests.server.acceptance.saying import detail
from tests.server.hosting import run, serving, tenants

DATA = {("post", "/threads/{thread_id}/state", "StateUpdate", "values")}
"""Lists that are values of a graph, which the size of a body bounds."""


@pytest.fixture
def url() -> Iterator[str]:
    with EMPTY["sqlite"]() as url:
        yield url


def _lists(schema: Any, parts: Any, at: tuple[str, ...], seen: frozenset[str]) -> Iterator[tuple[str, ...]]:
    """Yield the places of lists without a maximum in a schema."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        if name not in seen:
            yield from _lists(parts[name], parts, (*at, name), seen | {name})
        return
    if schema.get("type") == "array" and "maxItems" not in schema:
        yield at
    for key in ("anyOf", "allOf", "oneOf"):
        for part in schema.get(key, ()):
            yield from _lists(part, parts, at, seen)
    for name, part in schema.get("properties", {}).items():
        yield from _lists(part, parts, (*at, name), seen)
    if isinstance(schema.get("items"), dict):
        yield from _lists(schema["items"], parts, at, seen)


def test_every_list_of_a_request_has_a_maximum() -> None:
    described = create_app().openapi()
    parts, found, looked_at = described["components"]["schemas"], set[tuple[str, ...]](), 0
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            schemas = [part["schema"] for part in operation.get("parameters", ())]
            schemas += [
                part["schema"] for part in operation.get("requestBody", {}).get("content", {}).values()
            ]
            for schema in schemas:
                looked_at += 1
                found.update(_lists(schema, parts, (method, path), frozenset()))
    assert looked_at > 100
    assert found == DATA


MANY = [f"t{number}" for number in range(ITEMS_MAX + 1)]
TOO_MANY: tuple[tuple[str, str, dict[str, Any], str], ...] = (
    ("POST", "/threads/prune", {"thread_ids": MANY}, "thread_ids"),
    ("POST", "/threads/search", {"ids": MANY}, "ids"),
    ("POST", "/threads/count", {"ids": MANY}, "ids"),
    ("POST", "/runs/cancel", {"thread_id": "t1", "run_ids": MANY}, "run_ids"),
    ("POST", "/threads/search", {"metadata": dict.fromkeys(MANY, 1)}, "metadata"),
    ("POST", "/threads/search", {"metadata": {"tags": MANY}}, "metadata"),
    ("POST", "/threads/count", {"values": {"a": [{"b": MANY}]}}, "values"),
    ("POST", "/assistants/search", {"metadata": {"tags": MANY}}, "metadata"),
    ("POST", "/runs/crons/search", {"metadata": {"tags": MANY}}, "metadata"),
    ("POST", "/threads/search", {"select": MANY}, "select"),
    ("POST", "/store/items/search", {"filter": dict.fromkeys(MANY, 1)}, "filter"),
    ("POST", "/store/items/search", {"filter": {"a": {"$in": MANY}}}, "filter"),
    ("POST", "/store/items/search", {"namespace_prefix": MANY}, "namespace_prefix"),
    ("POST", "/threads/t1/runs", {"assistant_id": "aware", "command": {"goto": MANY}}, "goto"),
    ("POST", "/threads/t1/runs", {"assistant_id": "aware", "interrupt_before": MANY}, "interrupt_before"),
    (
        "POST",
        "/threads",
        {"thread_id": "t2", "metadata": {"graph_id": "aware"}, "supersteps": [{"updates": [{}]}] * len(MANY)},
        "supersteps",
    ),
    (
        "POST",
        "/threads",
        {"thread_id": "t2", "metadata": {"graph_id": "aware"}, "supersteps": [{"updates": [{}] * len(MANY)}]},
        "supersteps",
    ),
)


@run
async def test_a_request_with_too_many_entries_changes_nothing_and_says_how_many_it_may_have(
    url: str,
) -> None:
    async with serving(url) as server:
        http = await server.http()
        assert (await http.post("/threads", json={"thread_id": "t1"})).status_code == 200
        for method, path, body, name in TOO_MANY:
            answer = await http.request(method, path, json=body)
            assert answer.status_code == 422, (path, name, answer.text)
            assert name in detail(answer)
            assert str(ITEMS_MAX + 1) in detail(answer), answer.text
            assert f"at most {ITEMS_MAX}" in detail(answer) or f"at most {NAMES_MAX}" in detail(answer)
        left = await http.post("/threads/search", json={"ids": MANY[:ITEMS_MAX]})
        assert [thread["thread_id"] for thread in left.json()] == ["t1"]


@run
async def test_a_filter_of_items_has_a_bounded_number_of_conditions_in_all(url: str) -> None:
    async with serving(url) as server:
        http = await server.http()
        item = {"namespace": ["n"], "key": "k", "value": {"a": "t7"}}
        assert (await http.put("/store/items", json=item)).status_code == 204
        values = {"a": {"$in": MANY[:NAMES_MAX]}}
        wide = {"filter": {"$and": [values] * (ITEMS_MAX // (NAMES_MAX + 3))}}
        answer = await http.post("/store/items/search", json=wide)
        assert [found["key"] for found in answer.json()["items"]] == ["k"]
        answer = await http.post("/store/items/search", json={"filter": {"$or": [values] * 10}})
        assert answer.status_code == 422
        assert f"a filter has at most {ITEMS_MAX} conditions and values in all" in detail(answer)


@run
async def test_a_refused_request_is_answered_before_its_body_has_come(url: str) -> None:
    async with serving(url, gate=tenants()) as server:
        parts = urlsplit(server.url)
        for path in (
            "/threads/search",
            "/runs/wait",
            "/threads/t/runs/stream",
            "/store/items/search",
            "/mcp/",
        ):
            reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
            head = f"POST {path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: 4000000\r\n\r\n".encode())
            async with asyncio.timeout(30):
                assert (await reader.readline()).split()[1] == b"401", path
            writer.close()
            await writer.wait_closed()


def test_every_route_of_a_user_reads_its_body_after_the_gate() -> None:
    routes = [
        route
        for router in routers()
        for route in router.routes
        if isinstance(route, APIRoute) and route.body_field is not None
    ]
    assert len(routes) > 20
    assert [route.path for route in routes if not isinstance(route, GatedRoute)] == []


@run
async def test_a_search_that_takes_long_is_refused_and_says_how_to_narrow_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A condition on values reads the state of each thread, of however many there are."""

    async def state(caller: Any, row: Any, *, is_scan: bool) -> Any:
        await asyncio.sleep(60)

    async with serving(url) as server:
        http = await server.http()
        for n in range(3):
            row = {"thread_id": f"t{n}", "metadata": {"n": n}}
            assert (await http.post("/threads", json=row)).status_code == 200
        asked = {"values": {"messages": []}, "metadata": {"n": 1}}
        with monkeypatch.context() as slow:
            slow.setattr(threads, "SEARCH_S", 0.5)
            slow.setattr(threads, "_state", state)
            for path in ("/threads/search", "/threads/count"):
                refused = await http.post(path, json=asked)
                assert refused.status_code == 422, refused.text
                assert "by ids, status or metadata" in detail(refused)
        assert (await http.post("/threads/search", json=asked)).json() == []
        assert (await http.post("/threads/count", json={"metadata": {"n": 1}})).json() == 1
