"""Routes of assistants: create, find, change and remove them, and describe their graphs.

The default assistants of the graphs are shared by all users. So only a user without restrictions may
change one of them, and no user may delete one.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal, TypeVar

from fastapi import Query, Response
from pydantic import Field

from perdure.errors import Conflict
from perdure.runtime.agents.run_context import is_reserved
from perdure.runtime.threads.index import contains
from perdure.server import graph_schema, responses
from perdure.server.assistants import Assistant, no_assistant_error
from perdure.server.auth.filters import Filter
from perdure.server.auth.identity import Refusal, require_stamp
from perdure.server.auth.reserved_names import remove_claims, with_verified
from perdure.server.openapi import make_router
from perdure.server.requests import Body, Config, Contents, Mapped, Names, Offset, Page
from perdure.server.resources import AssistantName, Caller, CallerNow, GatedRoute, Namespace
from perdure.server.responses import Json

router = make_router("assistants", GatedRoute)

_UNNAMED = "Untitled"


class _New(Body):
    """An assistant to create."""

    graph_id: str
    assistant_id: str | None = None
    name: str | None = None
    description: str | None = None
    config: Config = Field(default_factory=dict)
    context: Mapped = Field(default_factory=dict)
    metadata: Mapped = Field(default_factory=dict)
    if_exists: Literal["raise", "do_nothing"] | None = None


class _Patch(Body):
    """Changes of an assistant. ``metadata`` is merged, the rest replaced; ``context`` and the configurable
    values of ``config`` are one, so an empty one clears both."""

    graph_id: str | None = None
    name: str | None = None
    description: str | None = None
    config: Config | None = None
    context: dict[str, Any] | None = None
    metadata: Mapped = Field(default_factory=dict)


class _Asked(Body):
    """Conditions of a search; ``name`` is a part of an assistant's name, in any case of letters."""

    metadata: Contents = Field(default_factory=dict)
    graph_id: str | None = None
    name: str | None = None


A = TypeVar("A", bound=_Asked)


class _Search(_Asked):
    limit: Page = 10
    offset: Offset = 0
    sort_by: Literal["assistant_id", "graph_id", "name", "created_at", "updated_at"] | None = None
    sort_order: Literal["asc", "desc"] | None = None
    select: Names | None = None


class _Versions(Body):
    metadata: Contents = Field(default_factory=dict)
    limit: Page = 10
    offset: Offset = 0


class _Latest(Body):
    version: Annotated[int, Field(ge=1)]


@router.post("/assistants")
async def create(caller: CallerNow, new: _New) -> Json:
    """Create an assistant."""
    assistants, tenant = caller.host.assistants, caller.user.tenant
    assistants.check_graph(new.graph_id)
    value: dict[str, Any] = {
        "assistant_id": _parse_id(new.assistant_id),
        "graph_id": new.graph_id,
        "name": new.name or _UNNAMED,
        "config": remove_claims(caller.user, new.config),
        "context": with_verified(caller.user, new.context),
        "metadata": with_verified(caller.user, new.metadata),
        "if_exists": new.if_exists or "raise",
    }
    conditions = await caller.may("assistants", "create", value)
    metadata = value["metadata"]
    require_stamp(conditions, metadata)
    mirrored = _mirror(value["config"] or {}, value["context"] or {})
    new_assistant = Assistant(
        _parse_id(value["assistant_id"]),
        new.graph_id,
        value["name"] or _UNNAMED,
        description=new.description,
        config=mirrored["config"],
        context=mirrored["context"],
        metadata=metadata,
    )
    stored = await assistants.create(tenant, new_assistant)
    if stored is None:
        await caller.find_assistant(new_assistant.assistant_id, conditions)
        # The response contains the existing assistant, so the user has to be permitted to read it.
        existing = await caller.authorize_assistant(new_assistant.assistant_id, "read")
        if value["if_exists"] != "do_nothing":
            raise Conflict(f"Assistant {new_assistant.assistant_id} already exists.")
        stored = existing
    return Json(responses.assistant(stored))


@router.post("/assistants/search")
async def search(caller: CallerNow, asked: _Search) -> Json:
    """Find assistants, the most recently created ones first."""
    found, asked = await _find(caller, asked, ("limit", "offset"))
    by = asked.sort_by or "created_at"
    found.sort(
        key=lambda assistant: (getattr(assistant, by), assistant.assistant_id),
        reverse=asked.sort_order != "asc",
    )
    return responses.make_page(found, asked, responses.assistant)


@router.post("/assistants/count")
async def count(caller: CallerNow, asked: _Asked) -> Json:
    """Count assistants."""
    return Json(len((await _find(caller, asked, ()))[0]))


@router.get("/assistants/{assistant_id}")
async def get(caller: CallerNow, assistant_id: AssistantName) -> Json:
    """Return an assistant by its id, or the default one of a graph by the graph's name."""
    return Json(responses.assistant(await caller.authorize_assistant(assistant_id, "read")))


@router.patch("/assistants/{assistant_id}")
async def patch(caller: CallerNow, assistant_id: AssistantName, asked: _Patch) -> Json:
    """Store a new version of an assistant."""
    stated = asked.model_dump(exclude_none=True)
    if asked.config is not None:
        stated["config"] = remove_claims(caller.user, asked.config)
    for part in ("context", "metadata"):
        if stated.get(part):
            stated[part] = with_verified(caller.user, stated[part])
    parts_of = dict.fromkeys(("graph_id", "name", "config", "context"))
    found, conditions, value = await _find_to_change(
        caller, assistant_id, {**parts_of, "metadata": {}, **stated}
    )
    if value["graph_id"] is not None:
        caller.host.assistants.check_graph(value["graph_id"])
    parts = {
        part: value[part]
        for part in ("graph_id", "name", "description", "config", "context")
        if value.get(part) is not None
    }

    def change(before: Assistant) -> Assistant:
        if not caller.sees(conditions, before.metadata):
            raise no_assistant_error(assistant_id)
        metadata = {**before.metadata, **(value.get("metadata") or {})}
        require_stamp(conditions, metadata)
        mirrored: dict[str, dict[str, Any]] = {}
        if "config" in parts:
            mirrored = _mirror(parts["config"], parts.get("context", {}))
        elif "context" in parts:
            config = {name: part for name, part in before.config.items() if name != "configurable"}
            mirrored = _mirror(config, parts["context"])
        return replace(before, **{**parts, **mirrored}, metadata=metadata)

    made = await caller.host.assistants.change(caller.user.tenant, found.assistant_id, change)
    if made is None:
        raise no_assistant_error(assistant_id)
    return Json(responses.assistant(made))


@router.delete("/assistants/{assistant_id}", status_code=204)
async def delete(caller: CallerNow, assistant_id: AssistantName, delete_threads: bool = False) -> Response:
    """Remove an assistant with its versions; with ``delete_threads`` also the threads created with it."""
    found = await caller.authorize_assistant(assistant_id, "delete")
    if caller.host.assistants.is_default(found.assistant_id):
        raise Conflict(
            f"Assistant {found.assistant_id} is that of the graph {found.graph_id!r} itself and cannot be "
            "deleted; to undo changes of it, make version 1 the latest."
        )
    if delete_threads:
        # The threads are removed first, so that an interrupted call can be repeated.
        await _remove_threads(caller, found.assistant_id)
    await caller.host.assistants.remove(caller.user.tenant, found.assistant_id)
    return Response(status_code=204)


@router.post("/assistants/{assistant_id}/versions")
async def versions(caller: CallerNow, assistant_id: AssistantName, asked: _Versions) -> Json:
    """List the versions of an assistant, the newest first."""
    found = await caller.authorize_assistant(assistant_id, "read")
    all_versions = await caller.host.assistants.read_versions(caller.user.tenant, found.assistant_id)
    wanted = [version for version in all_versions if contains(version.metadata, asked.metadata)]
    return responses.make_page(wanted, asked, responses.show_assistant_version)


@router.post("/assistants/{assistant_id}/latest")
async def choose(caller: CallerNow, assistant_id: AssistantName, asked: _Latest) -> Json:
    """Make a version of an assistant the current one. A later change creates a version with the next
    unused number."""
    found, conditions, _ = await _find_to_change(caller, assistant_id, {"version": asked.version})
    assistants, tenant = caller.host.assistants, caller.user.tenant
    current = None
    for version in await assistants.read_versions(tenant, found.assistant_id):
        if version.version == asked.version:
            if not assistants.is_default(found.assistant_id):
                require_stamp(conditions, version.metadata)
            current = await assistants.choose(tenant, found.assistant_id, asked.version)
    if current is None:
        raise no_assistant_error(f"{assistant_id} version {asked.version}")
    return Json(responses.assistant(current))


@router.get("/assistants/{assistant_id}/graph")
async def graph(
    caller: CallerNow,
    assistant_id: AssistantName,
    xray: Annotated[int | bool, Query(union_mode="left_to_right")] = False,
) -> Json:
    """Return the nodes and edges of an assistant's graph; ``xray`` includes its subgraphs, down to that
    depth."""
    if xray < 0:
        raise Refusal(422, "xray is true, false or a depth of at least 0")
    found = await caller.authorize_assistant(assistant_id, "read")
    async with caller.open_graph(found.graph_id, "assistants.read") as made:
        return Json(await graph_schema.draw(made, xray))


@router.get("/assistants/{assistant_id}/schemas")
async def schemas(caller: CallerNow, assistant_id: AssistantName) -> Json:
    """Return the JSON schemas of an assistant's graph; null where there is none."""
    found = await caller.authorize_assistant(assistant_id, "read")
    async with caller.open_graph(found.graph_id, "assistants.read") as made:
        return Json(graph_schema.schemas(found.graph_id, made))


@router.get("/assistants/{assistant_id}/subgraphs")
async def subgraphs(caller: CallerNow, assistant_id: AssistantName, recurse: bool = False) -> Json:
    """Return the JSON schemas of the subgraphs of an assistant's graph, with ``recurse`` at all depths."""
    found = await caller.authorize_assistant(assistant_id, "read")
    async with caller.open_graph(found.graph_id, "assistants.read") as made:
        return Json(await graph_schema.subgraphs(made, None, recurse=recurse))


@router.get("/assistants/{assistant_id}/subgraphs/{namespace}")
async def subgraph(
    caller: CallerNow, assistant_id: AssistantName, namespace: Namespace, recurse: bool = False
) -> Json:
    """Return the JSON schemas of the subgraph of a namespace."""
    found = await caller.authorize_assistant(assistant_id, "read")
    async with caller.open_graph(found.graph_id, "assistants.read") as made:
        return Json(await graph_schema.subgraphs(made, namespace, recurse=recurse))


def _mirror(config: dict[str, Any], context: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the config and the context of an assistant: values given in one of them are readable in the
    other."""
    configurable = config.get("configurable")
    if configurable and context:
        raise Refusal(400, "config.configurable and context exclude each other; send one of them")
    if configurable:
        context = {name: value for name, value in configurable.items() if not is_reserved(name)}
    elif context:
        mirrored = {name: value for name, value in context.items() if not is_reserved(name)}
        config = {**config, "configurable": mirrored}
    return {"config": config, "context": context}


def _parse_id(given: str | None) -> str:
    if given is None:
        return str(uuid.uuid4())
    try:
        return str(uuid.UUID(given))
    except ValueError:
        raise Refusal(422, "an assistant_id is a UUID; leave it out to be given one") from None


async def _find_to_change(
    caller: Caller, named: str, asked: Mapping[str, Any]
) -> tuple[Assistant, Filter | None, dict[str, Any]]:
    """Return an assistant that the user may change, the filter of the user, and the changes as the gate
    left them."""
    assistants = caller.host.assistants
    value: dict[str, Any] = {**asked, "assistant_id": assistants.id_of(named) or named}
    conditions = await caller.may("assistants", "update", value)
    found = await caller.find_assistant(named, conditions)
    return found, conditions, value


async def _find(caller: Caller, asked: A, page: Sequence[str]) -> tuple[list[Assistant], A]:
    """Return the assistants that a search finds, and the search as the gate left it. ``page`` has the names
    of the fields that choose a page."""
    asked, conditions = await caller.narrow("assistants", asked, ("metadata", "graph_id", *page))
    part = (asked.name or "").casefold()
    found = [
        assistant
        for assistant in await caller.host.assistants.read_all(caller.user.tenant)
        if contains(assistant.metadata, asked.metadata)
        and caller.sees(conditions, assistant.metadata)
        and asked.graph_id in (None, assistant.graph_id)
        and part in assistant.name.casefold()
    ]
    return found, asked


async def _remove_threads(caller: Caller, assistant_id: str) -> None:
    search = caller.threads.index.search(metadata={"assistant_id": assistant_id})
    rows = [row async for row in search]
    for row in rows:
        conditions = await caller.may("threads", "delete", {"thread_id": row.thread_id})
        if caller.sees(conditions, row.metadata):
            await caller.threads.remove(row.thread_id)
