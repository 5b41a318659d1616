"""Route of signals, which end the waits of a thread's graph: for users, and for programs that sign."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from perdure.model.runs.waits import NAME_MAX
from perdure.server.auth.identity import Refusal, User
from perdure.server.openapi import make_router
from perdure.server.requests import Body
from perdure.server.resources import (
    CALLER,
    Caller,
    CallerNow,
    GatedRoute,
    TagName,
    ThreadId,
    get_server_state,
)
from perdure.server.responses import Json
from perdure.server.runs.run_terms import idempotency_key
from perdure.server.runs.webhook_signature import ID, SIGNATURE, is_signed

_SIGNER = "signal"


class _SignedRoute(GatedRoute):
    """A route that also admits a request without a token, if it is signed with a secret of the server. The
    body of such a request names the tenant, because only the body is signed."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        gated, plain = super().get_route_handler(), APIRoute.get_route_handler(self)

        async def admit(request: Request) -> Response:
            if not _relies_on_signature(request):
                return await gated(request)
            request.scope[CALLER] = await _find_signer(request)
            return await plain(request)

        return admit


def _relies_on_signature(request: Request) -> bool:
    """Return True for a request that is admitted by its signature or not at all."""
    is_token = "authorization" in request.headers
    return SIGNATURE in request.headers and not is_token and bool(get_server_state(request).signal_secrets)


async def _find_signer(request: Request) -> Caller:
    host = get_server_state(request)
    # The signature's time is compared with this host's clock, because its sender does not use the database's.
    if not is_signed(host.signal_secrets, request.headers, time.time(), await request.body()):
        raise Refusal(
            401, "the signature is not that of a secret in http.signal_secrets, or it is older than 5 minutes"
        )
    try:
        given = json.loads(await request.body())
    except ValueError:
        given = None
    tenant = ""
    if isinstance(given, dict):
        tenant = given.get("tenant", "")
    if not isinstance(tenant, str):
        raise Refusal(422, "tenant is the name of a tenant")
    user = User(_SIGNER, tenant)
    host.throttle.admit(user, request.scope)
    return Caller(host, user, host.runtime.for_tenant(tenant), is_program=True)


class _Signal(Body):
    value: Any = None
    to_all: bool = True
    tenant: str | None = None


router = make_router("threads", _SignedRoute)


@router.post("/threads/{thread_id}/signals/{name}")
async def signal(
    caller: CallerNow, request: Request, thread_id: ThreadId, name: TagName, given: _Signal
) -> Json:
    """Give a signal to a thread, whose graph goes on where it waits for one of this name."""
    if given.tenant is not None and not caller.is_program:
        raise Refusal(422, "tenant is for signed requests; a token has its own")
    if len(name) > NAME_MAX:
        raise Refusal(422, f"the name in the path has 1 to {NAME_MAX} characters")
    await caller.authorize_thread(thread_id, "create_run", signal=name)
    # The key of a signed request is the id in its signature: an Idempotency-Key would not be signed.
    if _relies_on_signature(request):
        key = request.headers.get(ID)
    else:
        key = idempotency_key(request.headers, 0)
    if key is not None:
        # Keys are scoped per user, as for runs.
        key = f"{caller.user.identity}\n{key}"
    receipt = await caller.runtime.signal(thread_id, name, given.value, key=key, to_all=given.to_all)
    status = "kept" if receipt.run_id is None else "delivered"
    return Json({**receipt._asdict(), "status": status})
