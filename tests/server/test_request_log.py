"""Log of requests: one line each, without what users wrote."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, StreamingResponse
from starlette.routing import Mount, Route, WebSocketRoute
from starlette.testclient import TestClient
from starlette.websockets import WebSocket

from perdure.server import request_log
from perdure.server.request_log import RequestLog
from perdure.web.pages import Pages


async def answer(request: Request) -> PlainTextResponse:
    await request.body()
    return PlainTextResponse("12345", 201, {"X-Request-Id": "r-1"})


async def fail(request: Request) -> PlainTextResponse:
    raise LookupError("a secret")


async def stream(request: Request) -> StreamingResponse:
    async def parts() -> AsyncIterator[str]:
        yield "123"
        yield "4567"

    return StreamingResponse(parts())


async def talk(socket: WebSocket) -> None:
    await socket.accept()
    await socket.send_text("hello")
    await socket.close()


APP = Starlette(
    routes=[
        Route("/threads/{thread}", answer, methods=["POST"]),
        Route("/fail", fail),
        Route("/stream", stream),
        Route("/ok", lambda request: PlainTextResponse("ok")),
        WebSocketRoute("/socket", talk),
    ]
)


def lines(caplog: pytest.LogCaptureFixture, *asked: tuple[str, str], prefix: str | None = None) -> list[str]:
    async def ask() -> None:
        transport = httpx.ASGITransport(RequestLog(APP, prefix), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as client:
            for method, path in asked:
                content = b"the text" if method == "POST" else None
                await client.request(method, path, content=content, headers={"Authorization": "Bearer token"})

    with caplog.at_level(logging.INFO, "perdure.requests"):
        asyncio.run(ask())
    records = [record for record in caplog.records if record.name == "perdure.requests"]
    return [f"{record.levelname} {record.getMessage()}" for record in records]


def test_a_line_has_method_path_status_time_size_and_id(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = lines(caplog, ("POST", "/threads/ada?token=abc&q=words"))
    before, after = line.split(" in ")
    assert before == "INFO POST /threads/ada 201"
    took, rest = after.split(", ", 1)
    assert took.endswith("ms")
    assert float(took.removesuffix("ms")) > 0
    assert rest == "5 bytes, request r-1"
    assert not any(word in caplog.text for word in ("abc", "words", "the text", "Bearer"))


def test_streams_are_logged_at_their_end_and_failures_as_warnings(caplog: pytest.LogCaptureFixture) -> None:
    streamed, failed, missing = lines(caplog, ("GET", "/stream"), ("GET", "/fail"), ("GET", "/no"))
    assert streamed.startswith("INFO GET /stream 200 in ")
    assert streamed.endswith(", 7 bytes")
    assert failed.startswith("WARNING GET /fail 500 in ")
    assert missing.startswith("INFO GET /no 404 in ")
    assert "a secret" not in caplog.text


def test_answered_probes_are_logged_for_debugging_only(caplog: pytest.LogCaptureFixture) -> None:
    assert lines(caplog, ("GET", "/ok")) == []
    (line,) = lines(caplog, ("GET", "/pre/ok"))
    assert "404" in line
    caplog.clear()
    assert lines(caplog, ("GET", "/pre/ok"), prefix="/pre") == []
    with caplog.at_level(logging.DEBUG, "perdure.requests"):
        TestClient(RequestLog(APP)).get("/ok")
    assert "GET /ok 200 in" in caplog.text


def test_a_path_cannot_pass_for_another_line(caplog: pytest.LogCaptureFixture) -> None:
    (line,) = lines(caplog, ("POST", "/threads/a%0AINFO%20b"))
    assert '"/threads/a\\nINFO b" 201' in line
    caplog.clear()
    (line,) = lines(caplog, ("POST", f"/threads/{'x' * 5000}"))
    assert len(line) < 300


def test_a_websocket_is_logged_at_its_end(caplog: pytest.LogCaptureFixture) -> None:
    opening = TestClient(RequestLog(APP)).websocket_connect("/socket?token=abc")
    with caplog.at_level(logging.INFO, "perdure.requests"), opening as socket:
        assert socket.receive_text() == "hello"
    assert "WEBSOCKET /socket 101 in " in caplog.text
    assert ", 5 bytes" in caplog.text
    assert "abc" not in caplog.text


def test_nothing_is_counted_where_nothing_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.CRITICAL, "perdure.requests"):
        TestClient(RequestLog(APP)).post("/threads/ada")
    assert caplog.records == [] or all(record.name != "perdure.requests" for record in caplog.records)


async def search(request: Request) -> PlainTextResponse:
    return PlainTextResponse("[]")


def test_polls_and_files_of_pages_are_logged_for_debugging_only(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "index.html").write_text("<!doctype html>")
    (tmp_path / "page.js").write_text("")
    routes = [
        Route("/inspect/api/{view}", lambda request: PlainTextResponse("{}")),
        Route("/threads/search", search, methods=["POST"]),
        Route("/threads/{thread}", answer, methods=["GET", "POST"]),
        Mount("/chat", Pages(tmp_path, {}), name="chat"),
    ]
    monkeypatch.setattr("tests.server.test_request_log.APP", Starlette(routes=routes))
    polled = [("POST", "/threads/search"), ("GET", "/threads/a"), ("GET", "/threads/b")]
    of_page = [
        ("GET", "/inspect/api/overview"),
        ("GET", "/chat/"),
        ("GET", "/chat/page.js"),
        ("GET", "/chat/none.js"),
    ]
    written = [("POST", "/threads/a"), ("POST", "/threads/a"), ("GET", "/none"), ("GET", "/none")]
    found = [line.split()[1:4] for line in lines(caplog, *polled, *polled, *of_page, *written, *polled)]
    assert found == [
        ["POST", "/threads/search", "200"],
        ["GET", "/threads/a", "201"],
        ["GET", "/threads/b", "201"],
        ["GET", "/inspect/api/overview", "200"],
        ["GET", "/chat/", "200"],
        ["GET", "/chat/none.js", "404"],
        ["POST", "/threads/a", "201"],
        ["POST", "/threads/a", "201"],
        ["GET", "/none", "404"],
        ["GET", "/none", "404"],
    ]
    caplog.clear()
    monkeypatch.setattr(request_log, "_SLOW_S", 0.0)
    assert len(lines(caplog, *polled, *polled)) == 6
    caplog.clear()
    monkeypatch.setattr(request_log, "_SLOW_S", 1.0)
    monkeypatch.setattr(request_log, "_REPEATED_S", 0.0)
    assert len(lines(caplog, *polled, *polled)) == 6
