"""Routes of the store: the items that graphs keep beside their threads, of the user's tenant alone.

It is the store of all graphs that were compiled without one. A ``query`` is compared by an index, which the
setting ``store.index`` describes; without an index the query is ignored.

Items have no metadata, so the filter of an authorization handler cannot be applied to them: such a handler
narrows ``value["namespace"]``, and one that returns a filter causes a 403 instead of being ignored. The
changed request is checked like the original one, before anything is read. Memories of a user are that user's
alone, whatever the handlers say.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from fastapi import Query, Response
from langgraph.store.base import NOT_PROVIDED, Item
from pydantic import BeforeValidator, Field, ValidationError

from perdure.runtime.json_encoding import to_json
from perdure.server.auth.authorized_values import fault_of, make_change_refusal
from perdure.server.auth.identity import Refusal
from perdure.server.memories import require_own
from perdure.server.openapi import make_router
from perdure.server.requests import Body, ItemFilter, Names, Offset, Page
from perdure.server.resources import Caller, CallerNow, GatedRoute
from perdure.server.responses import Json
from perdure.server.streaming.json_list import json_list

router = make_router("store", GatedRoute)

_FIRST = 32
"""Number of items that a search reads first; the length of these determines how many it reads next."""
_READ_BYTES = 2 * 1024 * 1024

T = TypeVar("T")
B = TypeVar("B", bound=Body)


def _parse_labels(given: Any) -> Any:
    """Return a namespace as a list; raise ``ValueError`` for anything else, also for text, whose letters
    would be taken for labels."""
    if not isinstance(given, list | tuple):
        raise ValueError("a namespace is a list of labels")
    for label in given:
        if not isinstance(label, str) or not label or "." in label:
            raise ValueError(
                f"a label of a namespace is text with at least one character and no dot, not {label!r}"
            )
    return list(given)


def _parse_optional_labels(given: Any) -> Any:
    if given is None:
        return None
    return _parse_labels(given)


Labels = Annotated[Names, BeforeValidator(_parse_labels)]
OptionalLabels = Annotated[Names | None, BeforeValidator(_parse_optional_labels)]


class _Put(Body):
    """An item to store; ``ttl`` is in minutes."""

    namespace: Labels
    key: str
    value: dict[str, Any]
    index: Literal[False] | Names | None = None
    ttl: Annotated[float, Field(gt=0)] | None = None


class _Get(Body):
    namespace: Labels
    key: str
    refresh_ttl: bool | None = None


class _Delete(Body):
    namespace: Labels
    key: str


class _Search(Body):
    namespace: Labels = Field(default_factory=list[str], alias="namespace_prefix")
    filter: ItemFilter = Field(default_factory=dict)
    limit: Page = 10
    offset: Offset = 0
    query: str | None = None
    refresh_ttl: bool | None = None


class _Namespaces(Body):
    namespace: OptionalLabels = Field(None, alias="prefix")
    suffix: OptionalLabels = None
    max_depth: Annotated[int, Field(ge=1)] | None = None
    limit: Page = 100
    offset: Offset = 0


@router.put("/store/items", status_code=204)
async def put(caller: CallerNow, asked: _Put) -> Response:
    """Store an item, replacing one with the same key."""
    item = await _authorize(caller, "put", asked)
    ttl = NOT_PROVIDED if item.ttl is None else item.ttl
    await _await_result(
        caller.runtime.store().aput(tuple(item.namespace), item.key, item.value, item.index, ttl=ttl)
    )
    return Response(status_code=204)


@router.get("/store/items")
async def get(
    caller: CallerNow,
    key: str,
    namespace: Annotated[str, Query(description="The labels, with dots between them")],
    refresh_ttl: bool | None = None,
) -> Json:
    """Return an item, or null."""
    item = await _authorize(
        caller,
        "get",
        _validate(_Get, {"namespace": namespace.split("."), "key": key, "refresh_ttl": refresh_ttl}),
    )
    found = await _await_result(
        caller.runtime.store().aget(tuple(item.namespace), item.key, refresh_ttl=item.refresh_ttl)
    )
    return Json(None if found is None else _show(found))


@router.delete("/store/items", status_code=204)
async def delete(caller: CallerNow, asked: _Delete) -> Response:
    """Remove an item, if it exists."""
    item = await _authorize(caller, "delete", asked)
    await _await_result(caller.runtime.store().adelete(tuple(item.namespace), item.key))
    return Response(status_code=204)


@router.post("/store/items/search")
async def search(caller: CallerNow, asked: _Search) -> Response:
    """Find items by a prefix of their namespace and a filter over their values."""
    asked = await _authorize(caller, "search", asked)
    return await json_list(_find_items(caller, asked), around=('{"items":[', "]}"))


async def _find_items(caller: Caller, asked: _Search) -> AsyncGenerator[str, None]:
    """Yield the items of a search as JSON, read in pages of about ``_READ_BYTES``."""
    sent = set[tuple[tuple[str, ...], str]]()
    offset, left, size = asked.offset, asked.limit, _FIRST
    while left > 0:
        size = min(size, left)
        found = await _await_result(
            caller.runtime.store().asearch(
                tuple(asked.namespace),
                filter=asked.filter or None,
                query=asked.query,
                limit=size,
                offset=offset,
                refresh_ttl=asked.refresh_ttl,
            )
        )
        length = 1
        for item in found:
            name = (item.namespace, item.key)
            if name not in sent:  # items written meanwhile have shifted those that were sent before
                sent.add(name)
                text = to_json({**_show(item), "score": item.score})
                length += len(text)
                yield text
        if len(found) < size:
            return
        offset += size
        left -= size
        size = max(1, _READ_BYTES * size // length)


@router.post("/store/namespaces")
async def list_namespaces(caller: CallerNow, asked: _Namespaces) -> Json:
    """List the namespaces that have items."""
    asked = await _authorize(caller, "list_namespaces", asked)
    found = await _await_result(
        caller.runtime.store().alist_namespaces(
            prefix=tuple(asked.namespace or ()) or None,
            suffix=tuple(asked.suffix or ()) or None,
            max_depth=asked.max_depth,
            limit=asked.limit,
            offset=asked.offset,
        )
    )
    return Json({"namespaces": [list(labels) for labels in found]})


class _Arguments(dict[str, Any]):
    """Arguments of an action for a handler; ``assigned`` are the names to which the handler has assigned a
    value."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__(given)
        self.assigned: set[str] = set()

    def __setitem__(self, name: str, value: Any) -> None:
        self.assigned.add(name)
        super().__setitem__(name, value)

    def update(self, *given: Any, **named: Any) -> None:
        for name, value in dict(*given, **named).items():
            self[name] = value

    def __ior__(self, given: Any) -> Self:  # type: ignore[override,misc]
        self.update(given)
        return self


async def _authorize(caller: Caller, action: str, asked: B) -> B:
    """Return a request as the authorization handler left it, checked like a client's request.

    Raises:
        Refusal: with 403 if the handler returns a filter, or the namespace is another user's memory; with 422
            if the changed request is not valid, or its namespace or suffix covers more than the client's.
    """
    before = {name: getattr(asked, name) for name in type(asked).model_fields}
    for name in _NAMESPACES & before.keys():
        if before[name] is not None:
            before[name] = tuple(before[name])
    value = _Arguments(before)
    if await caller.may("store", action, value) is not None:
        raise Refusal(
            403,
            "The authorization handler answered with a filter, and items of the store have no metadata; "
            'narrow value["namespace"] in a handler for the store instead',
        )
    names = type(asked).model_fields
    if missing := names - value.keys():
        description = f"no {min(missing)!r}; a handler may change a value, but not remove it"
        raise make_change_refusal("store", action, description)
    try:
        asked = _validate(type(asked), {name: value[name] for name in names})
    except Refusal as error:
        raise make_change_refusal("store", action, f"what cannot be used: {error.detail}") from None
    for name in _NAMESPACES & value.assigned:
        labels, original = value[name], before[name] or ()
        if labels is None or (original and not labels):
            raise make_change_refusal(
                "store",
                action,
                f"no {name}, which covers the items of all users; assign at least one label",
            )
        if labels.count(_ANY) > original.count(_ANY):
            description = f"a {name} with the label {_ANY!r}, which covers the items of all users"
            raise make_change_refusal("store", action, description)
    require_own(caller, tuple(value["namespace"] or ()))
    return asked


_ANY = "*"
"""Label with which the listing of namespaces matches every label."""

_NAMESPACES = {"namespace", "suffix"}


def _validate(kind: type[B], given: Mapping[str, Any]) -> B:
    """Return a request made of these fields. ``Refusal`` with 422 if it is not valid."""
    try:
        return kind.model_validate(given, by_name=True)
    except ValidationError as error:
        raise Refusal(422, fault_of(error)) from None


async def _await_result(work: Awaitable[T]) -> T:
    """Return the store's result; its ``ValueError`` and ``TypeError`` become a 422."""
    try:
        return await work
    except (ValueError, TypeError) as error:
        raise Refusal(422, str(error)) from error


def _show(item: Item) -> dict[str, Any]:
    return {
        "namespace": list(item.namespace),
        "key": item.key,
        "value": item.value,
        "created_at": item.created_at.isoformat(timespec="microseconds"),
        "updated_at": item.updated_at.isoformat(timespec="microseconds"),
    }
