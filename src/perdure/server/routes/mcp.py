"""Route of the Model Context Protocol: assistants as tools, over streamable HTTP without sessions."""

from __future__ import annotations

from importlib.metadata import version

from fastapi import Request, Response

from perdure.server.auth.identity import Refusal
from perdure.server.openapi import make_router
from perdure.server.origins import require_own_page
from perdure.server.resources import CallerNow, GatedRoute
from perdure.server.streaming.reading_rights import RunRights

router = make_router("agents", GatedRoute)

MISSING = "MCP needs an extra on the server: pip install 'perdure[mcp]'"
"""Message for a server without the packages of the protocol."""


@router.post("/mcp")
async def exchange(caller: CallerNow, request: Request) -> Response:
    """Answer one request of the Model Context Protocol. There are no sessions, and no stream to listen on."""
    require_own_page(request, caller.host.gate, "call tools")
    try:
        from perdure.server.mcp.exchange import McpResponse
    except ModuleNotFoundError as error:
        raise Refusal(501, MISSING) from error
    return RunRights(request, caller).guard(McpResponse(caller, request, version("perdure")))


router.add_api_route("/mcp/", exchange, methods=["POST"], include_in_schema=False)
