"""JSON-RPC of the protocol, in its releases 1.0 and 0.3, for one request."""

from __future__ import annotations

import logging

from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from starlette.requests import Request
from starlette.responses import Response

from perdure.server.a2a.handler import DurableTasks
from perdure.server.assistants import Assistant
from perdure.server.resources import Caller
from perdure.server.streaming.reading_rights import RunRights

# These loggers write the contents of requests.
for _name in ("a2a.server.routes.jsonrpc_dispatcher", "a2a.compat.v0_3.jsonrpc_adapter"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)


async def respond(
    caller: Caller,
    request: Request,
    assistant: Assistant,
    *,
    needs_context: bool = False,
    shares_contexts: bool = False,
) -> Response:
    """Return the response to a request of the protocol.

    Args:
        caller: the authenticated user of the request.
        request: the request.
        assistant: the assistant that it is for.
        needs_context: refuse a message without a ``contextId``.
        shares_contexts: let all agents use the one thread of a context.
    """
    rights = RunRights(request, caller)
    handler = DurableTasks(
        caller,
        request.headers,
        assistant,
        rights,
        needs_context=needs_context,
        shares_contexts=shares_contexts,
    )
    dispatcher = JsonRpcDispatcher(handler, enable_v0_3_compat=True)
    return rights.guard(await rights.enforce(dispatcher.handle_requests(request)))
