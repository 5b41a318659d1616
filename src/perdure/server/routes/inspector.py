"""The inspector of a server: its pages, and its API under the rights of the request's user.

The files of the pages are public. Their data needs the same rights as the routes of threads: lists need the
right to search, a thread the right to read it, and actions the right to update, to delete or to create a run.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from perdure.database.base import handle_of
from perdure.database.handle import DatabaseHandle
from perdure.errors import BadSetting, NotAllowed, NotFound
from perdure.inspector import api
from perdure.inspector.access import (
    PERMISSIONS,
    DataRight,
    ReplayGraphs,
    ReplaySource,
    RunStart,
    Sees,
    UserDataNames,
    describe_tenant_refusal,
)
from perdure.inspector.pages import PATH, make_inspector_pages
from perdure.inspector.web import json_response, read_body
from perdure.langgraph.reading.readable_states import Graph
from perdure.model.model_calls import NO_PRICES, Prices
from perdure.runtime.agents.agent import Agent
from perdure.runtime.tenant import TenantRuntime
from perdure.runtime.threads.index import contains
from perdure.runtime.threads.rows import ThreadRow
from perdure.server.auth.authorized_values import require_unnarrowed
from perdure.server.auth.identity import Refusal
from perdure.server.requests import Command, NewRun
from perdure.server.resources import Caller, CallerNow
from perdure.server.runs.run_creation import submit
from perdure.server.thread_ids import thread_id_of

_NEEDS = {
    "tag": "update",
    "edit": "update",
    "run": "read",
    "answer": "read",
    "cancel": "update",
    "retry": "update",
    "delete": "delete",
    "export": "read",
    "replay": "read",
}
"""The right to a thread that each permission needs. The creation of a run is authorised separately."""


class ServerAccess:
    """Rights of the user of a request, as the server's gate grants them."""

    def __init__(self, caller: Caller, request: Request, prices: Prices = NO_PRICES) -> None:
        self._caller = caller
        self._request = request
        self.prices = prices

    @property
    def handle(self) -> DatabaseHandle:
        return handle_of(self._caller.host.runtime.database)

    @property
    def tenant(self) -> str:
        return self._caller.user.tenant

    @property
    def all_tenants(self) -> bool:
        return False

    def require_all_tenants(self) -> None:
        raise NotAllowed("a server shows its users the threads of their own tenant only")

    def of_tenant(self, tenant: str) -> ServerAccess:
        if tenant != self.tenant:
            raise NotFound(describe_tenant_refusal(tenant))
        return self

    @property
    def url(self) -> str | None:
        # The URL may name the database's user and host.
        return None

    @property
    def runtime(self) -> TenantRuntime:
        return self._caller.runtime

    @property
    def who(self) -> str:
        return self._caller.user.identity or "anyone"

    async def permissions(self) -> frozenset[str]:
        return frozenset(PERMISSIONS)

    async def authorize_listing(self) -> Sees | None:
        return await self._authorize_search("threads", {"values": {}, "status": None})

    async def authorize_crons(self) -> Sees | None:
        try:
            return await self._authorize_search("crons", {"assistant_id": None, "thread_id": None})
        except Refusal as refused:
            if refused.status != HTTPStatus.FORBIDDEN:
                raise
            raise NotAllowed(refused.detail) from refused

    async def _authorize_search(self, resource: str, fixed: Mapping[str, Any]) -> Sees | None:
        """Return a predicate over the metadata of what the viewer may find. A handler that narrows the search
        by a ``fixed`` argument refuses it."""
        value: dict[str, Any] = {"metadata": {}, **fixed, "limit": 10, "offset": 0}
        conditions = await self._caller.may(resource, "search", value)
        require_unnarrowed(value, *fixed)
        narrowed = value["metadata"]
        if conditions is None and not narrowed:
            return None
        return lambda metadata: self._caller.sees(conditions, metadata) and contains(metadata, narrowed)

    async def find_thread(self, thread_id: str) -> ThreadRow:
        return await self._caller.authorize_thread(thread_id_of(thread_id), "read")

    @property
    def agents(self) -> Iterable[Agent]:
        return self._caller.host.runtime.graphs.values()

    async def authorize_user_data(self, right: DataRight, names: UserDataNames) -> None:
        wanted: list[tuple[str, dict[str, Any]]] = [("crons", {"cron_id": name}) for name in names.crons]
        wanted += (("assistants", {"assistant_id": name}) for name in names.assistants)
        wanted += (("store", {"namespace": namespace, "key": ""}) for namespace in names.namespaces)
        for resource, value in wanted:
            before = dict(value)
            action: str = right
            if (resource, right) == ("store", "read"):
                # Handlers have no right to read an item of the store, but one to get it.
                action = "get"
            try:
                conditions = await self._caller.may(resource, action, value)
            except Refusal as refused:
                if refused.status != HTTPStatus.FORBIDDEN:
                    raise
                raise NotAllowed(refused.detail) from refused
            if conditions is not None or value != before:
                raise NotAllowed(f"what is stored of this user in {resource} is not yours to {right}")

    async def authorize(self, permission: str, thread_id: str, right: str = "") -> ThreadRow:
        await self.find_thread(thread_id)
        try:
            row = await self._caller.authorize_thread(thread_id, _NEEDS[permission])
            if right:
                return await self._caller.authorize_thread(thread_id, right)
            return row
        except Refusal as refused:
            if refused.status != HTTPStatus.FORBIDDEN:
                raise
            # An action on many threads continues with the others after this error.
            raise NotAllowed(refused.detail) from refused

    def open_graph(self, name: str | None, thread_id: str) -> AbstractAsyncContextManager[Graph]:
        return self._caller.open_graph(self._find_graph(name), "threads.update", thread_id)

    @asynccontextmanager
    async def open_to_draw(self, name: str | None, thread_id: str) -> AsyncIterator[Graph]:
        found = await self._caller.authorize_assistant(self._find_graph(name), "read")
        async with self._caller.open_graph(found.graph_id, "assistants.read", thread_id) as graph:
            yield graph

    @property
    def replay_graphs(self) -> ReplayGraphs:
        return ReplayGraphs(tuple(self._caller.host.runtime.graphs))

    @asynccontextmanager
    async def open_to_replay(self, graphs: Sequence[str], thread_id: str) -> AsyncIterator[ReplaySource]:
        host = self._caller.host
        async with AsyncExitStack() as stack:
            agents: list[Agent] = []
            for name in map(self._find_graph, graphs):
                # A replay executes the graph's code, so it needs the right to create a run.
                value = {"thread_id": thread_id, "assistant_id": name, "metadata": {}, "kwargs": {}}
                await self._caller.find_visible_thread(
                    thread_id, await self._caller.may("threads", "create_run", value)
                )
                graph = await stack.enter_async_context(
                    self._caller.open_graph(name, "threads.read", thread_id)
                )
                agents.append(replace(host.runtime.graphs[name], graph=graph))
            yield ReplaySource(host.runtime.database, agents)

    async def start(self, thread_id: str, start: RunStart) -> str:
        command = None
        if start.answer is not None:
            value, interrupt_id = start.answer
            command = Command(resume=value if interrupt_id is None else {interrupt_id: value})
        new = NewRun(
            assistant_id=self._find_graph(start.graph),
            command=command,
            checkpoint_id=start.checkpoint_id,
            multitask_strategy="reject" if command is None else None,
        )
        accepted = await submit(self._caller, self._request.headers, thread_id, new, modes=(), is_kept=False)
        return accepted.run_id

    def _find_graph(self, name: str | None) -> str:
        graphs = self._caller.host.runtime.graphs
        if name is None and len(graphs) == 1:
            return next(iter(graphs))
        if name is None or name not in graphs:
            raise NotFound(f"name one of the graphs: {sorted(graphs)}")
        return name


def serve_inspector(app: FastAPI, prices: Prices = NO_PRICES) -> None:
    """Serve the inspector at ``PATH``; costs are computed from ``prices``."""

    @app.get(f"{PATH}/api/{{name}}", include_in_schema=False)
    async def view(caller: CallerNow, request: Request, name: str) -> Response:
        with _refuse_bad_settings():
            access = ServerAccess(caller, request, prices)
            return json_response(await api.view(access, name, request.query_params))

    @app.post(f"{PATH}/api/actions/{{name}}", include_in_schema=False)
    async def act(caller: CallerNow, request: Request, name: str) -> Response:
        with _refuse_bad_settings():
            access = ServerAccess(caller, request, prices)
            return json_response(await api.act(access, name, await read_body(request)))

    @app.post(f"{PATH}/api/replay", include_in_schema=False)
    async def replay(caller: CallerNow, request: Request) -> Response:
        with _refuse_bad_settings():
            access = ServerAccess(caller, request, prices)
            return json_response(await api.replay(access, await read_body(request)))

    app.mount(PATH, make_inspector_pages(), name="inspector")


@contextmanager
def _refuse_bad_settings() -> Iterator[None]:
    try:
        yield
    except BadSetting as error:
        raise Refusal(422, str(error)) from error
