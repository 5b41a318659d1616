"""Routes of a server: a request is meant for those of one router, so that their order decides on speed alone.

Covers perdure.server.app.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from fastapi.routing import APIRoute
from starlette.routing import Match

from perdure.server.app import routers

ALL = [(number, route) for number, router in enumerate(routers()) for route in router.routes]


def requests() -> Iterator[tuple[str, str]]:
    """Yield a method and a path for each route, with each word that any path has for its parameters."""
    parts = {part for _, route in ALL for part in path_of(route).split("/")}
    spelt = sorted(part for part in parts if part and part[0] != "{")
    for _, route in ALL:
        path = path_of(route)
        for value in ("x", *spelt):
            for method in getattr(route, "methods", None) or ():
                yield method, re.sub(r"\{\w+\}", value, path)


def path_of(route: object) -> str:
    path = getattr(route, "path", "")
    assert isinstance(path, str)
    return path


def matching(method: str, path: str) -> list[int]:
    """Return the numbers of the routers that have a route for a request."""
    scope = {"type": "http", "method": method, "path": path, "headers": []}
    return [number for number, route in ALL if route.matches(scope)[0] is Match.FULL]


def test_no_request_is_meant_for_two_routers() -> None:
    asked = set(requests())
    assert len(asked) > 1000
    for method, path in asked:
        assert len(set(matching(method, path))) == 1, (method, path)


def test_no_route_is_hidden_by_an_earlier_one_of_its_router() -> None:
    for number, route in ALL:
        path = re.sub(r"\{\w+(:path)?\}", "x", path_of(route))
        for method in getattr(route, "methods", None) or ():
            scope = {"type": "http", "method": method, "path": path, "headers": []}
            first = next(each for at, each in ALL if at == number and each.matches(scope)[0] is Match.FULL)
            assert first is route, f"{path_of(first)} takes requests for {path_of(route)}: put it behind that"


@pytest.mark.parametrize("path", ["/threads/x/runs/wait", "/threads/x/runs/stream"])
def test_few_routes_are_tried_for_what_is_requested_most(path: str) -> None:
    scope = {"type": "http", "method": "POST", "path": path, "headers": []}
    tried = next(at for at, (_, route) in enumerate(ALL) if route.matches(scope)[0] is Match.FULL)
    assert isinstance(ALL[tried][1], APIRoute)
    assert tried < 10
