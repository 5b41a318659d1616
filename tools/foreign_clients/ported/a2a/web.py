"""The application beside the kit's agent: it passes a message's id on to the graph, which decides by it."""

from __future__ import annotations

import json
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class WithMessageIds:
    """Adds the id of a message to its metadata, which become those of the run."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not scope["path"].startswith("/a2a/"):
            await self._app(scope, receive, send)
            return
        body = b""
        while True:
            part = await receive()
            body += part.get("body", b"")
            if not part.get("more_body"):
                break
        changed = _with_id(body)
        length = str(len(changed)).encode()
        headers = [(name, length if name == b"content-length" else held) for name, held in scope["headers"]]
        given: list[Message] = [{"type": "http.request", "body": changed, "more_body": False}]

        async def receive_given() -> Message:
            return given.pop() if given else await receive()

        await self._app({**scope, "headers": headers}, receive_given, send)


def _with_id(body: bytes) -> bytes:
    """Return the body with the id, or as it is if it has no message with one."""
    try:
        request: Any = json.loads(body)
        message = request["params"]["message"]
        message["metadata"] = {**message.get("metadata", {}), "tck_message_id": message["messageId"]}
    except (ValueError, KeyError, TypeError, AttributeError):
        return body
    return json.dumps(request).encode()


app = Starlette(middleware=[Middleware(WithMessageIds)])
