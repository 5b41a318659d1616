"""Limits over all processes over HTTP: what is used, for those who may search threads.

Covers perdure.server.routes.limits.
"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from langgraph.graph import START, MessagesState, StateGraph
from starlette.requests import HTTPConnection

import perdure
from perdure.database.base import handle_of
from perdure.limits import SharedLimit
from perdure.runtime import Runtime
from perdure.runtime.limits.limiter import CallTurn, limiter_of
from perdure.server.app import create_app
from perdure.server.auth.identity import OpenGate, Refusal, User
from perdure.server.resources import ServerState


class ByHeader(OpenGate):
    """A gate that takes the names in headers for verified: a ``guest`` may search nothing, a ``user`` finds
    own threads."""

    async def authenticate(self, request: HTTPConnection) -> User:
        return User(request.headers["x-user"], request.headers.get("x-tenant", ""))

    async def authorize(self, user: User, resource: str, action: str, value: Any) -> Any:
        if user.identity == "guest":
            raise Refusal(403, "guests see nothing")
        return {"owner": user.identity} if user.identity == "user" else None


def test_limits_are_shown_by_tenant_and_the_keys_of_users_to_who_sees_all_threads() -> None:
    async def node(state: MessagesState) -> dict[str, Any]:
        return {}

    async def main() -> None:
        graph = StateGraph(MessagesState).add_node(node).add_edge(START, "node").compile()
        async with perdure.connect("memory://") as db, Runtime(db, graph, all_tenants=True) as runtime:
            limiter = limiter_of(handle_of(db))
            limiter.declare({"each": SharedLimit(by=("user",), rate=60), "all": SharedLimit(concurrency=1)})
            await limiter.acquire(CallTurn([("each", {"user": "ada"}, "")]), "", 20)
            await limiter.acquire(CallTurn([("all", {}, "")]), "", 20)
            host = ServerState.over(runtime, ByHeader())
            app = create_app()
            app.state.perdure = host
            transport = httpx.ASGITransport(app)

            async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:

                async def get(user: str, tenant: str = "", **query: str) -> httpx.Response:
                    headers = {"x-user": user, "x-tenant": tenant}
                    return await http.get("/limits", headers=headers, params=query)

                def names(answer: httpx.Response) -> set[str]:
                    assert answer.status_code == 200, answer.text
                    return {each["limit"] for each in answer.json()["limits"]}

                assert names(await get("admin")) == {"each", "all"}
                assert names(await get("user")) == {"all"}
                assert names(await get("admin", "other")) == set()
                assert names(await get("admin", limit="each")) == {"each"}
                (whole,) = (await get("admin", limit="all")).json()["limits"]
                assert whole["concurrency"] == {"most": 1, "used": 1}
                assert (await get("guest")).status_code == 403
                assert (await get("admin", limit="x" * 5000)).status_code == 422
            await host.close()

    asyncio.run(main())
