"""Routes of the store: the items that graphs keep beside their threads, of the user's tenant alone.

It is the store of all graphs that were compiled without one. A ``query`` is compared by an index, which the
setting ``store.index`` describes; without one it is ignored.

Items have no metadata, so the filter of an authorization handler cannot be applied to them: such a handler
narrows ``value["namespace"]``, and one that returns a filter causes a 403 instead of being ignored. What
graphs remember of a user is that user's alone, whatever the handlers say.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Query, Response
from langgraph.store.base import NOT_PROVIDED, Item
from pydantic import Field

from perdure.langgraph.store import PerdureStore
from perdure.server.auth.identity import Refusal
from perdure.server.memories import require_own
from perdure.server.requests import Body, Mapped, Offset, Page
from perdure.server.resources import Caller, CallerNow
from perdure.server.responses import Json

router = APIRouter(tags=["store"])

T = TypeVar("T")
Labels = tuple[str, ...]


class _Put(Body):
    """An item to store; ``ttl`` is in minutes."""

    namespace: list[str]
    key: str
    value: dict[str, Any]
    index: Literal[False] | list[str] | None = None
    ttl: Annotated[float, Field(gt=0)] | None = None


class _Delete(Body):
    namespace: list[str]
    key: str


class _Search(Body):
    namespace_prefix: list[str] = Field(default_factory=list[str])
    filter: Mapped = Field(default_factory=dict)
    limit: Page = 10
    offset: Offset = 0
    query: str | None = None
    refresh_ttl: bool | None = None


class _Namespaces(Body):
    prefix: list[str] | None = None
    suffix: list[str] | None = None
    max_depth: Annotated[int, Field(ge=1)] | None = None
    limit: Page = 100
    offset: Offset = 0


@router.put("/store/items", status_code=204)
async def put(caller: CallerNow, asked: _Put) -> Response:
    """Store an item, replacing one with the same key."""
    value: dict[str, Any] = {
        "namespace": _labels(asked.namespace),
        "key": asked.key,
        "value": asked.value,
        "index": asked.index,
        "ttl": asked.ttl,
    }
    labels = await _narrowed(caller, "put", value)
    ttl = NOT_PROVIDED if value["ttl"] is None else value["ttl"]
    await _done(_store(caller).aput(labels, value["key"], value["value"], value["index"], ttl=ttl))
    return Response(status_code=204)


@router.get("/store/items")
async def get(
    caller: CallerNow,
    key: str,
    namespace: Annotated[str, Query(description="The labels, with dots between them")],
    refresh_ttl: bool | None = None,
) -> Json:
    """Return an item, or null."""
    value: dict[str, Any] = {
        "namespace": _labels(namespace.split(".")),
        "key": key,
        "refresh_ttl": refresh_ttl,
    }
    labels = await _narrowed(caller, "get", value)
    found = await _done(_store(caller).aget(labels, value["key"], refresh_ttl=value["refresh_ttl"]))
    return Json(None if found is None else _shown(found))


@router.delete("/store/items", status_code=204)
async def delete(caller: CallerNow, asked: _Delete) -> Response:
    """Remove an item, if it exists."""
    value: dict[str, Any] = {"namespace": _labels(asked.namespace), "key": asked.key}
    labels = await _narrowed(caller, "delete", value)
    await _done(_store(caller).adelete(labels, value["key"]))
    return Response(status_code=204)


@router.post("/store/items/search")
async def search(caller: CallerNow, asked: _Search) -> Json:
    """Find items by a prefix of their namespace and a filter over their values."""
    value: dict[str, Any] = {
        "namespace": _labels(asked.namespace_prefix),
        "filter": asked.filter,
        "limit": asked.limit,
        "offset": asked.offset,
        "query": asked.query,
        "refresh_ttl": asked.refresh_ttl,
    }
    labels = await _narrowed(caller, "search", value)
    found = await _done(
        _store(caller).asearch(
            labels,
            filter=value["filter"] or None,
            query=value["query"],
            limit=value["limit"],
            offset=value["offset"],
            refresh_ttl=value["refresh_ttl"],
        )
    )
    return Json({"items": [{**_shown(item), "score": item.score} for item in found]})


@router.post("/store/namespaces")
async def list_namespaces(caller: CallerNow, asked: _Namespaces) -> Json:
    """List the namespaces that have items."""
    value: dict[str, Any] = {
        "namespace": None if asked.prefix is None else _labels(asked.prefix),
        "suffix": None if asked.suffix is None else _labels(asked.suffix),
        "max_depth": asked.max_depth,
        "limit": asked.limit,
        "offset": asked.offset,
    }
    prefix = await _narrowed(caller, "list_namespaces", value)
    found = await _done(
        _store(caller).alist_namespaces(
            prefix=prefix or None,
            suffix=value["suffix"] or None,
            max_depth=value["max_depth"],
            limit=value["limit"],
            offset=value["offset"],
        )
    )
    return Json({"namespaces": [list(labels) for labels in found]})


async def _narrowed(caller: Caller, action: str, value: dict[str, Any]) -> Labels:
    """Return the namespace as the gate left it. ``Refusal`` with 403 if the gate returns a filter."""
    if await caller.may("store", action, value) is not None:
        raise Refusal(
            403,
            "The authorization handler answered with a filter, and items of the store have no metadata; "
            'narrow value["namespace"] in a handler for the store instead',
        )
    labels = _labels(value["namespace"] or ())
    require_own(caller, labels)
    return labels


def _labels(given: Sequence[str]) -> Labels:
    for label in given:
        if not label or "." in label:
            raise Refusal(422, f"a label of a namespace has at least one character and no dot, not {label!r}")
    return tuple(given)


def _store(caller: Caller) -> PerdureStore:
    return caller.runtime.store()


async def _done(work: Awaitable[T]) -> T:
    """Return the store's result; its ``ValueError`` and ``TypeError`` become a 422."""
    try:
        return await work
    except (ValueError, TypeError) as error:
        raise Refusal(422, str(error)) from error


def _shown(item: Item) -> dict[str, Any]:
    return {
        "namespace": list(item.namespace),
        "key": item.key,
        "value": item.value,
        "created_at": item.created_at.isoformat(timespec="microseconds"),
        "updated_at": item.updated_at.isoformat(timespec="microseconds"),
    }
