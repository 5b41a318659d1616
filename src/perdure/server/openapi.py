"""OpenAPI description of the routes: an operation id and a summary each, and their errors."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from fastapi import APIRouter
from fastapi.routing import APIRoute
from pydantic import BaseModel


class ErrorBody(BaseModel):
    """Body of an error response."""

    detail: str


_FAILURES = {
    401: "The credentials are missing or not valid",
    403: "This user may not do that",
    404: "There is no such thing, or it is another's",
    409: "It is there already, or busy",
    413: "The body is too large",
    422: "The request cannot be understood",
    429: "Too many requests, streams or messages that wait; see Retry-After",
    503: "The database does not answer, or the server starts, stops or is full; try again",
}

_SCHEMAS = "#/components/schemas/"
_ERROR = {"application/json": {"schema": {"$ref": f"{_SCHEMAS}{ErrorBody.__name__}"}}}

# FastAPI makes a field for each model of each route before a server's first response, which took most of the
# time until then. So only the response of 422 has the model, and the others refer to the schema made from it.
RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"description": text, **({"model": ErrorBody} if status == 422 else {"content": _ERROR})}
    for status, text in _FAILURES.items()
}
"""Error responses of every route."""


def merge_descriptions(ours: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return the description of the API merged with that of a custom application. The API's methods
    take precedence, as in routing; a schema of the application whose name the API uses for another schema is
    renamed."""
    taken = ours.get("components", {}).get("schemas", {})
    schemas = own.get("components", {}).get("schemas", {})
    names = {*taken, *schemas}
    renamed = {
        name: next(other for n in itertools.count(2) if (other := f"{name}{n}") not in names)
        for name in schemas
        if taken.get(name, schemas[name]) != schemas[name]
    }
    own = _rename_references(
        own, {f"{_SCHEMAS}{name}": f"{_SCHEMAS}{other}" for name, other in renamed.items()}
    )
    components = dict(ours.get("components", {}))
    for kind, parts in own.get("components", {}).items():
        if kind == "schemas":
            parts = {renamed.get(name, name): schema for name, schema in parts.items()}
        components[kind] = {**parts, **components.get(kind, {})}
    paths = dict(ours.get("paths", {}))
    for path, methods in own.get("paths", {}).items():
        paths[path] = {**methods, **paths.get(path, {})}
    merged = {**ours, "paths": paths}
    if components:
        merged["components"] = components
    if tags := [*ours.get("tags", []), *own.get("tags", [])]:
        merged["tags"] = tags
    return merged


def _rename_references(node: Any, renamed: Mapping[str, str]) -> Any:
    if isinstance(node, dict):
        return {key: _rename_references(part, renamed) for key, part in node.items()}
    if isinstance(node, list):
        return [_rename_references(part, renamed) for part in node]
    if isinstance(node, str):
        return renamed.get(node, node)
    return node


def name_operation(route: APIRoute) -> str:
    """Return a route's unique name in generated clients: the names of its module and its function."""
    return f"{route.endpoint.__module__.rpartition('.')[2]}_{route.endpoint.__name__}"


def make_router(tag: str, route_class: type[APIRoute] = APIRoute) -> APIRouter:
    """Return a router whose routes are described completely, so that an application can take them over
    unchanged: for a router that is included, FastAPI would make all routes anew in each application."""
    return APIRouter(
        tags=[tag],
        route_class=route_class,
        responses=RESPONSES,
        generate_unique_id_function=name_operation,
    )


def summarise(routers: Sequence[APIRouter]) -> None:
    """Set each route's summary to the beginning of its docstring."""
    for router in routers:
        for route in router.routes:
            if isinstance(route, APIRoute) and route.summary is None:
                text = " ".join((route.endpoint.__doc__ or route.name).split())
                route.summary = re.split(r"[.;:](?: |$)", text, maxsplit=1)[0]
