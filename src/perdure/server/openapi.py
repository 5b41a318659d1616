"""How the routes describe themselves in ``/openapi.json``: a name each, a line of text, and how they fail."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel


class Fault(BaseModel):
    """What is answered when something is wrong."""

    detail: str


_FAILURES = {
    401: "Nobody is known by these credentials",
    403: "This user may not do that",
    404: "There is no such thing, or it is another's",
    409: "It is there already, or busy",
    413: "The body is too large",
    422: "The request cannot be understood",
    429: "Too many requests, streams or messages that wait; see Retry-After",
    503: "The database does not answer, or the server starts or stops; try again",
}

RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": Fault, "description": text} for status, text in _FAILURES.items()
}
"""How every route may fail."""


def operation_id(route: APIRoute) -> str:
    """A route's name in generated clients: its file's and its function's, which no other route has."""
    return f"{route.endpoint.__module__.rpartition('.')[2]}_{route.endpoint.__name__}"


def summarise(routers: Sequence[APIRouter]) -> None:
    """Give each route the beginning of its docstring for a summary."""
    for router in routers:
        for route in router.routes:
            if isinstance(route, APIRoute) and route.summary is None:
                text = " ".join((route.endpoint.__doc__ or route.name).split())
                route.summary = re.split(r"[.;:](?: |$)", text, maxsplit=1)[0]
