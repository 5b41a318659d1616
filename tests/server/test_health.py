"""What a server says of itself: that it lives and can work, what it has counted, and what its routes are.

Covers perdure.server.routes.meta.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from perdure.runtime.metrics import Metrics, exposition, of_process
from perdure.server.app import create_app
from perdure.server.auth.handlers import Handlers
from perdure.server.config import Http
from tests.backends import EMPTY
from tests.server.hosting import known, run, serving
from tests.servers import postgres


@pytest.fixture
def url() -> Iterator[str]:
    with EMPTY["sqlite"]() as url:
        yield url


@pytest.mark.slow
@run
async def test_ready_while_the_database_is_there_and_again_when_it_is_back() -> None:
    database = postgres.Postgres()
    try:
        with postgres.empty(database) as url:
            async with serving(url) as server:
                http = await server.http()

                async def codes() -> list[int]:
                    paths = ("/live", "/ok", "/ready", "/ok?check_db=1")
                    return [(await http.get(path)).status_code for path in paths]

                assert await codes() == [200, 200, 200, 200]
                database.stop()
                assert await codes() == [200, 200, 503, 503]
                assert (await http.get("/ready")).json()["services"] == {"database": "unavailable"}
                database.start()
                # A failure counts for all calls of the next half second; the last one may be the worker's.
                await asyncio.sleep(0.6)
                assert await codes() == [200, 200, 200, 200]
                server.host.closing.set()
                assert await codes() == [200, 200, 503, 200]
    finally:
        database.close()


@run
async def test_monitors_may_send_head(url: str) -> None:
    async with serving(url) as server:
        http = await server.http()
        for path in ("/live", "/ok", "/ready"):
            answer = await http.head(path)
            assert answer.status_code == 200
            assert not answer.content


@run
async def test_ready_needs_the_tables() -> None:
    import psycopg

    with EMPTY["postgresql"]() as url:
        async with serving(url) as server:
            http = await server.http()
            assert (await http.get("/ready")).status_code == 200
            with psycopg.connect(postgres.shared().url(), autocommit=True) as connection:
                schema = re.search(r"schema=(\w+)", url)
                assert schema is not None
                connection.execute(f'DROP SCHEMA "{schema[1]}" CASCADE'.encode())
                connection.execute(f'CREATE SCHEMA "{schema[1]}"'.encode())
            assert (await http.get("/ready")).status_code >= 500


@run
async def test_metrics(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(url, observers=[of_process()]) as server:
        http = await server.http()
        said = {"assistant_id": "aware", "input": {"messages": [("user", "do not tell")]}}
        assert (await http.post("/runs/wait", json=said)).status_code == 200
        answer = await http.get("/metrics")
        assert answer.status_code == 200
        assert answer.headers["Content-Type"].startswith("text/plain")
        assert 'perdure_messages_total{channel="",graph="aware",outcome="accepted"}' in answer.text
        assert "do not tell" not in answer.text
        openmetrics = await http.get("/metrics", headers={"Accept": "application/openmetrics-text"})
        assert openmetrics.headers["Content-Type"].startswith("application/openmetrics-text")
        assert openmetrics.text.endswith("# EOF\n")

        monkeypatch.setitem(sys.modules, "prometheus_client", None)
        monkeypatch.delitem(sys.modules, "perdure.runtime.metrics")
        lacking = await http.get("/metrics")
        assert lacking.status_code == 501
        assert 'pip install "perdure[metrics]"' in lacking.json()["detail"]


def test_exposition_of_a_registry() -> None:
    registry = CollectorRegistry()
    Metrics(registry).event("worker.error", {})
    text, media_type = exposition(registry=registry)
    assert b"perdure_worker_errors_total 1.0" in text
    assert media_type.startswith("text/plain")


@run
async def test_what_is_disabled_is_gone(url: str) -> None:
    off = Http(disable_meta=True, disable_assistants=True, disable_store=True)
    async with serving(url, http=off) as server:
        http = await server.http()
        for path in ("/metrics", "/info", "/openapi.json", "/docs", "/assistants/aware", "/store/items"):
            answer = await http.get(path)
            assert (answer.status_code, set(answer.json())) == (404, {"detail"}), path
        assert [(await http.get(path)).status_code for path in ("/ok", "/live", "/ready")] == [200] * 3


@run
async def test_the_open_routes_ask_nobody_who_they_are(url: str) -> None:
    async with serving(url, gate=Handlers(known())) as server:
        http = await server.http()
        for path in ("/ok", "/live", "/ready", "/info", "/metrics", "/openapi.json"):
            assert (await http.get(path)).status_code == 200, path
        for method, path in (
            ("POST", "/assistants/search"),
            ("GET", "/assistants/aware"),
            ("GET", "/store/items?namespace=a&key=b"),
            ("POST", "/store/namespaces"),
            ("GET", "/threads/a/storage"),
        ):
            assert (await http.request(method, path, json={})).status_code == 401, path


def _operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in create_app().openapi()["paths"].items():
        for method, operation in item.items():
            yield path, method, operation


def test_openapi_describes_every_route() -> None:
    ids: list[str] = []
    for path, method, operation in _operations():
        where = (method, path)
        ids.append(operation["operationId"])
        assert re.fullmatch(r"[a-z0-9_]+", operation["operationId"]), where
        assert operation["tags"], where
        assert 5 < len(operation["summary"]) < 100, where
        assert "\n" not in operation["summary"], where
        for status in ("401", "403", "404", "409", "413", "422", "429", "503"):
            content = operation["responses"][status]["content"]["application/json"]
            assert content["schema"] == {"$ref": "#/components/schemas/ErrorBody"}, where
        named = {p["name"] for p in operation.get("parameters", ()) if p["in"] == "path"}
        assert named == set(re.findall(r"{(\w+)}", path)), where
        success = [status for status in operation["responses"] if status.startswith("2")]
        assert success, where
    assert len(ids) == len(set(ids))


def test_openapi_is_whole() -> None:
    document = create_app().openapi()
    assert document["openapi"].startswith("3.1")
    fault = document["components"]["schemas"]["ErrorBody"]
    assert fault["required"] == ["detail"]
    assert fault["properties"]["detail"]["type"] == "string"
    assert "HTTPValidationError" not in document["components"]["schemas"]

    def refs(part: Any) -> Iterator[str]:
        if isinstance(part, dict):
            if isinstance(part.get("$ref"), str):
                yield part["$ref"]
            for inner in part.values():
                yield from refs(inner)
        elif isinstance(part, list):
            for inner in part:
                yield from refs(inner)

    for ref in set(refs(document)):
        held: Any = document
        for part in ref.removeprefix("#/").split("/"):
            held = held[part]
        assert isinstance(held, dict)


def test_the_routes_of_the_contract_are_there() -> None:
    routes = {(method.upper(), path) for path, method, _ in _operations()}
    aid = "/assistants/{assistant_id}"
    assert routes >= {
        ("GET", "/ok"),
        ("GET", "/info"),
        ("POST", "/assistants/search"),
        ("GET", aid),
        ("GET", f"{aid}/graph"),
        ("GET", f"{aid}/schemas"),
        ("GET", f"{aid}/subgraphs"),
        ("GET", f"{aid}/subgraphs/{{namespace}}"),
        ("POST", "/assistants"),
        ("PATCH", aid),
        ("DELETE", aid),
        ("POST", "/assistants/count"),
        ("POST", f"{aid}/versions"),
        ("POST", f"{aid}/latest"),
        ("PUT", "/store/items"),
        ("GET", "/store/items"),
        ("DELETE", "/store/items"),
        ("POST", "/store/items/search"),
        ("POST", "/store/namespaces"),
        ("GET", "/threads/{thread_id}/storage"),
    }


@run
async def test_the_description_and_the_metrics_read_no_files_on_the_event_loop(
    near: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perdure.runtime import metrics
    from perdure.server import app
    from perdure.server.routes import meta

    def refuse(*_: object) -> str:
        raise AssertionError("the files of a package are read on the event loop")

    real = metrics.exposition

    def in_a_thread(*args: Any) -> Any:
        assert asyncio._get_running_loop() is None
        return real(*args)

    monkeypatch.setattr(meta, "version", refuse)
    monkeypatch.setattr(app, "version", refuse)
    monkeypatch.setattr(metrics, "exposition", in_a_thread)
    async with serving(near) as server:
        http = await server.http()
        for path in ("/info", "/metrics", "/openapi.json"):
            assert (await http.get(path)).status_code == 200
