"""Routes of the A2A protocol: an agent and its card for each assistant."""

from __future__ import annotations

import hashlib
from functools import cache
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from perdure.runtime.json_encoding import to_json
from perdure.server.auth.identity import Refusal
from perdure.server.openapi import make_router
from perdure.server.origins import require_own_page
from perdure.server.resources import AssistantName, Caller, CallerNow, GatedRoute
from perdure.server.responses import Json

MISSING = "A2A needs an extra on the server: pip install 'perdure[a2a]'"
"""Message for a server without the package of the protocol."""

CARD = "/.well-known/agent-card.json"
_CARD_S = 60


@cache
def router_of(*, needs_context: bool, shares_contexts: bool) -> APIRouter:
    """Return the routes. With ``needs_context`` a message without a ``contextId`` is refused; with
    ``shares_contexts`` all agents use the one thread of a context."""
    router = make_router("agents", GatedRoute)

    @router.post("/a2a/{assistant_id}")
    async def agent(caller: CallerNow, request: Request, assistant_id: AssistantName) -> Response:
        """Answer one request of the A2A protocol, JSON-RPC. A task is a run, its context a thread."""
        require_own_page(request, caller.host.gate, "talk to agents")
        try:
            from perdure.server.a2a.dispatch import respond
        except ModuleNotFoundError as error:
            raise Refusal(501, MISSING) from error
        assistant = await caller.find_assistant_to_run(assistant_id)
        return await respond(
            caller, request, assistant, needs_context=needs_context, shares_contexts=shares_contexts
        )

    # Some clients append a path to the URL in the card, and so send requests to it with a slash at the end.
    router.add_api_route("/a2a/{assistant_id}/", agent, methods=["POST"], include_in_schema=False)
    router.add_api_route(CARD, card, methods=["GET"])
    return router


async def card(
    caller: CallerNow, request: Request, assistant_id: Annotated[str | None, Query()] = None
) -> Response:
    """Return the agent card of an assistant. It needs the same credentials as the agent."""
    try:
        from perdure.server.a2a.cards import make_card_document
    except ModuleNotFoundError as error:
        raise Refusal(501, MISSING) from error
    assistant = await caller.find_assistant_to_run(assistant_id or _find_only_graph(caller))
    # The routes may be mounted or included below a prefix, which the path of this request has too.
    base = str(request.url.replace(query="")).rstrip("?").removesuffix(CARD)
    url = f"{base}/a2a/{assistant.assistant_id}"
    document = make_card_document(caller, assistant, url)
    tag = f'"{hashlib.sha256(to_json(document).encode()).hexdigest()[:32]}"'
    # Another user's credentials may lead to another card.
    headers = {"Cache-Control": f"private, max-age={_CARD_S}", "ETag": tag, "Vary": "Authorization"}
    client_tags = request.headers.get("if-none-match", "").split(",")
    if tag in (each.strip().removeprefix("W/") for each in client_tags):
        return Response(status_code=304, headers=headers)
    return Json(document, headers=headers)


def _find_only_graph(caller: Caller) -> str:
    graphs = sorted(caller.host.runtime.graphs)
    if len(graphs) != 1:
        raise Refusal(422, f"name the agent with ?assistant_id=; the graphs are {', '.join(graphs)}")
    return graphs[0]
