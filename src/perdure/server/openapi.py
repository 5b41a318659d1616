"""How the routes describe themselves in ``/openapi.json``: a name each, a line of text, and how they fail."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel


class ErrorBody(BaseModel):
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
    status: {"model": ErrorBody, "description": text} for status, text in _FAILURES.items()
}
"""How every route may fail."""


def joined(ours: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """A description of the API with what a user's own application beside it says of its routes. The API is
    asked first and keeps its paths; a schema of a name that it has, too, gets another one."""
    taken = ours.get("components", {}).get("schemas", {})
    schemas = own.get("components", {}).get("schemas", {})
    renamed = {
        name: _free(name, {*taken, *schemas})
        for name in schemas
        if taken.get(name, schemas[name]) != schemas[name]
    }
    own = _referring(own, {f"{_SCHEMAS}{name}": f"{_SCHEMAS}{other}" for name, other in renamed.items()})
    components = dict(ours.get("components", {}))
    for kind, held in own.get("components", {}).items():
        named = {renamed.get(name, name): each for name, each in held.items()} if kind == "schemas" else held
        components[kind] = {**named, **components.get(kind, {})}
    tags = [*ours.get("tags", []), *own.get("tags", [])]
    return {
        **ours,
        "paths": {**own.get("paths", {}), **ours.get("paths", {})},
        **({"components": components} if components else {}),
        **({"tags": tags} if tags else {}),
    }


_SCHEMAS = "#/components/schemas/"


def _free(name: str, taken: set[str]) -> str:
    return next(other for n in itertools.count(2) if (other := f"{name}{n}") not in taken)


def _referring(held: Any, renamed: Mapping[str, str]) -> Any:
    if isinstance(held, dict):
        return {key: _referring(each, renamed) for key, each in held.items()}
    if isinstance(held, list):
        return [_referring(each, renamed) for each in held]
    return renamed.get(held, held) if isinstance(held, str) else held


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
