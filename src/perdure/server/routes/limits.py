"""Route of limits over all processes, as operators see them."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query, Request

from perdure.errors import BadSetting
from perdure.inspector import overview
from perdure.server.auth.identity import Refusal
from perdure.server.openapi import make_router
from perdure.server.requests import NAMES_MAX
from perdure.server.resources import CallerNow, GatedRoute
from perdure.server.responses import Json
from perdure.server.routes.inspector import ServerAccess

router = make_router("limits", GatedRoute)


@router.get("/limits")
async def limits(
    caller: CallerNow,
    request: Request,
    limit: Annotated[str | None, Query(max_length=NAMES_MAX)] = None,
    cursor: Annotated[str | None, Query(max_length=NAMES_MAX)] = None,
) -> Json:
    """Return the usage of the tenant's limits, by key: 100 keys after ``cursor``. It takes the right to
    search threads; keys of users are shown to a user who may see all threads."""
    asked = {name: value for name, value in (("limit", limit), ("cursor", cursor)) if value}
    try:
        return Json(await overview.limits(ServerAccess(caller, request), asked))
    except BadSetting as error:
        raise Refusal(422, str(error)) from error
