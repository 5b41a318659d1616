"""JSON-RPC of the protocol, in its releases 1.0 and 0.3, for one request."""

from __future__ import annotations

import base64
import logging
from typing import Any

from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from perdure.server.a2a.handler import DurableTasks
from perdure.server.assistants import Assistant
from perdure.server.resources import Caller
from perdure.server.responses import Json
from perdure.server.streaming.reading_rights import RunRights

# These loggers write the contents of requests.
for _name in ("a2a.server.routes.jsonrpc_dispatcher", "a2a.compat.v0_3.jsonrpc_adapter"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)

_INVALID_PARAMS = -32602
"""Code of JSON-RPC."""


async def respond(caller: Caller, request: Request, assistant: Assistant, **contexts: bool) -> Response:
    """Return the response to a request of the protocol.

    Args:
        caller: the authenticated user of the request.
        request: the request.
        assistant: the assistant that it is for.
        contexts: how contexts are used, as for ``DurableTasks``.
    """
    if (refusal := await _refuse_files(request)) is not None:
        return refusal
    rights = RunRights(request, caller)
    handler = DurableTasks(caller, request.headers, assistant, rights, **contexts)
    dispatcher = JsonRpcDispatcher(handler, enable_v0_3_compat=True)
    return rights.guard(await rights.enforce(dispatcher.handle_requests(request)))


async def _refuse_files(request: Request) -> Response | None:
    """Return the response to a message with a file whose bytes are not base64, ``None`` for any other
    request. The protocol's own reader leaves out each character that is not base64, so that the agent would
    get other bytes than the client has sent."""
    try:
        body: Any = await request.json()
    except (ValueError, RecursionError, ClientDisconnect):
        # The dispatcher refuses it.
        return None
    parts: Any = body
    for name in ("params", "message", "parts"):
        parts = parts.get(name) if isinstance(parts, dict) else None
    for number, part in enumerate(parts if isinstance(parts, list) else ()):
        if isinstance(part, dict) and not _has_base64(part):
            text = f"part {number} of the message is not base64; send the bytes of a file as base64"
            error = {"code": _INVALID_PARAMS, "message": text}
            return Json({"jsonrpc": "2.0", "id": body.get("id"), "error": error})
    return None


def _has_base64(part: dict[str, Any]) -> bool:
    """Return False for a part whose bytes are not base64. Release 1.0 takes both alphabets, with or without
    padding; 0.3 takes the standard form alone."""
    file, raw = part.get("file"), part.get("raw")
    sent = file.get("bytes") if isinstance(file, dict) else None
    if isinstance(raw, str):
        sent = raw.translate(_STANDARD).rstrip("=")
        sent += "=" * (-len("".join(sent.split())) % 4)
    if not isinstance(sent, str):
        return True
    try:
        base64.b64decode("".join(sent.split()), validate=True)
    except ValueError:
        return False
    return True


_STANDARD = str.maketrans("-_", "+/")
