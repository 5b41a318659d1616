"""The application of langgraphjs' API suite: a few routes, what stands in front of the server's own, and the
route by which the suite empties the server before a test."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from typing import Any

from langgraph_sdk import get_client
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_RUNS = re.compile(r"/runs(/stream|/wait)?|/runs/batch|/threads/[^/]+/runs(/stream|/wait)?")
_HEADER = b"x-configurable-header"
_hooked: dict[str, Any] = {}


class Front:
    """Answers what asks to be interrupted, marks every other answer, and puts a header into the config of
    runs."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if "interrupt" in Request(scope).query_params:
            await JSONResponse({"status": "interrupted"})(scope, receive, send)
            return

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), (b"x-js-middleware", b"true")]
            await send(message)

        value = dict(scope["headers"]).get(_HEADER)
        if scope["method"] == "POST" and value is not None and _RUNS.fullmatch(scope["path"]):
            body = json.loads(await Request(scope, receive).body())
            config = body.setdefault("config", {})
            config.setdefault("configurable", {}).setdefault(_HEADER.decode(), value.decode())
            scope, receive = _with_body(scope, receive, json.dumps(body).encode())
        await self.app(scope, receive, send_marked)


def _with_body(scope: Scope, receive: Receive, body: bytes) -> tuple[Scope, Receive]:
    others = [(name, held) for name, held in scope["headers"] if name != b"content-length"]
    given = False

    async def first() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return {**scope, "headers": [*others, (b"content-length", str(len(body)).encode())]}, first


async def _client(request: Request) -> Response:
    given: dict[str, Any] = {"messages": [{"role": "human", "content": "input"}]}
    result = await get_client().runs.wait(None, "agent_simple", input=given)
    return JSONResponse({"result": result})


async def _own(request: Request) -> Response:
    return JSONResponse({"foo": "bar"}, headers={"x-custom-output": request.headers["x-custom-input"]})


async def _fake(request: Request) -> Response:
    return JSONResponse({"foo": "afakeroute"})


async def _error(request: Request) -> Response:
    raise HTTPException(400, "Bad request")


async def _stream(request: Request) -> Response:
    async def lines() -> AsyncIterator[str]:
        for number in range(4):
            yield f"Count: {number}\n"
            await asyncio.sleep(0.01)

    return StreamingResponse(lines(), media_type="text/plain")


async def _webhook(request: Request) -> Response:
    _hooked.update(await request.json())
    return JSONResponse({"status": "success"})


async def _payload(request: Request) -> Response:
    return JSONResponse(_hooked)


async def _truncate(request: Request) -> Response:
    """Take away what the body names: nothing of a server does so, and the suite counts what is there."""
    asked = await request.json()
    client = get_client()
    if asked.get("threads"):
        while found := await client.threads.search(limit=100, select=["thread_id"]):
            for thread in found:
                await client.threads.delete(thread["thread_id"])
    if asked.get("store"):
        while items := (await client.store.search_items([], limit=100))["items"]:
            for item in items:
                await client.store.delete_item(item["namespace"], item["key"])
    return JSONResponse({"ok": True})


app = Starlette(
    routes=[
        Route("/custom/client", _client),
        Route("/custom/my-route", _own),
        Route("/runs/afakeroute", _fake),
        Route("/custom/error", _error),
        Route("/custom/streaming", _stream),
        Route("/custom/webhook", _webhook, methods=["POST"]),
        Route("/custom/webhook-payload", _payload),
        Route("/internal/truncate", _truncate, methods=["POST"]),
    ],
    middleware=[Middleware(Front)],
)
