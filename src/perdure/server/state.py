"""What a server has open, and what one request may touch of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, cast
from urllib.parse import unquote

from fastapi import Depends, Path, Request
from langgraph.pregel import Pregel

from perdure.database import Database
from perdure.engine import inbox
from perdure.errors import NotFound
from perdure.model.records import Partition
from perdure.runtime import Runtime
from perdure.runtime.graph_factories import Access, Factory
from perdure.runtime.options import Options
from perdure.runtime.run_context import is_reserved
from perdure.runtime.users import user_of
from perdure.runtime.worker.attempt import TENANT
from perdure.server import thread_ids
from perdure.server.assistants import NONE_TO_RUN, Assistant, Assistants, no_assistant
from perdure.server.auth.filters import Filter, matches
from perdure.server.auth.identity import Gate, Refusal, User
from perdure.server.config import RequestLimits, ThreadTtl
from perdure.server.headers import NO_HEADERS, Headers
from perdure.server.limits import Throttle
from perdure.server.outbound_policy import OutboundPolicy
from perdure.server.thread_index import ThreadIndex, missing
from perdure.server.thread_rows import ThreadRow

_log = logging.getLogger("perdure.server")

HEARTBEAT_S = 4.0
"""How often something is sent on a connection on which nothing else is: clients take three times as long a
silence for a dead one."""

LOOPBACK = "perdure.loopback"
"""Set in the scope of a request that was made in this process, by the program itself."""

RAW = "perdure.raw_path"
"""Set in the scope of a request whose path is matched as it came, before it is decoded."""


@dataclass(eq=False)
class ServerState:
    """The open parts of a server, one object for all of its requests. It is ``app.state.perdure``.
    ``webhooks`` is where the ends of runs may be told, ``None`` where they may not."""

    runtime: Runtime
    gate: Gate
    assistants: Assistants
    catalogue: ThreadIndex
    limits: RequestLimits = field(default_factory=RequestLimits)
    webhooks: OutboundPolicy | None = None
    headers: Headers = NO_HEADERS
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    throttle: Throttle = field(init=False)
    _apart: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])

    def __post_init__(self) -> None:
        self.throttle = Throttle(self.limits)

    @classmethod
    def over(
        cls,
        runtime: Runtime,
        gate: Gate,
        limits: RequestLimits | None = None,
        webhooks: OutboundPolicy | None = None,
        ttl: ThreadTtl | None = None,
        descriptions: Mapping[str, str] | None = None,
        configs: Mapping[str, Mapping[str, Any]] | None = None,
        headers: Headers = NO_HEADERS,
    ) -> ServerState:
        """The parts for a runtime. ``ttl`` is that of threads that are made without one, ``descriptions`` and
        ``configs`` are those of graphs, by name, and ``headers`` those that runs can read."""
        catalogue = ThreadIndex(runtime, ttl)
        assistants = Assistants(runtime, descriptions, configs)
        return cls(runtime, gate, assistants, catalogue, limits or RequestLimits(), webhooks, headers)

    @property
    def database(self) -> Database:
        """Where everything is stored."""
        return self.runtime.database

    def apart(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something that a request began and that goes on when its client is gone."""
        task = asyncio.create_task(work)
        self._apart.add(task)
        task.add_done_callback(self._left)

    def _left(self, task: asyncio.Task[Any]) -> None:
        self._apart.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("what a request left to be done was not: %s", type(error).__name__)

    async def close(self) -> None:
        """End the streams, whose clients come back elsewhere, and finish what requests left behind."""
        self.closing.set()
        if self._apart:
            await asyncio.wait(self._apart, timeout=5)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a request, and the way to what is that user's."""

    host: ServerState
    user: User
    is_program: bool = False
    """Whether it is the program itself, which no rule restricts."""

    async def may(self, resource: str, action: str, value: dict[str, Any]) -> Filter | None:
        """Ask the gate. ``value`` may be changed by it; the answer is what the user is restricted to."""
        if self.is_program:
            return None
        return await self.host.gate.authorize(self.user, resource, action, value)

    def sees(self, conditions: Filter | None, metadata: Mapping[str, Any]) -> bool:
        """Whether what has this metadata is within what the user is restricted to."""
        return conditions is None or matches(conditions, metadata)

    async def thread(self, thread_id: str, to: str, **value: Any) -> ThreadRow:
        """A thread on which the user may do something."""
        return await self.visible(thread_id, await self.may("threads", to, {"thread_id": thread_id, **value}))

    async def visible(self, thread_id: str, conditions: Filter | None) -> ThreadRow:
        """A thread that the user may see; another's is not there."""
        row = await self.host.catalogue.look(self.partition(thread_id))
        if row is None or not self.sees(conditions, row.metadata):
            raise missing(thread_id)
        return row

    async def assistant(self, named: str, to: str) -> Assistant:
        """An assistant with which the user may do something."""
        assistant_id = self.host.assistants.id_of(named) or named
        return await self.assistant_within(
            named, await self.may("assistants", to, {"assistant_id": assistant_id})
        )

    async def assistant_within(self, named: str, conditions: Filter | None) -> Assistant:
        """An assistant that the user may see; another's is not there."""
        found = await self.host.assistants.look(self.user.tenant, named)
        if found is None or not self.sees(conditions, found.metadata):
            raise no_assistant(named)
        return found

    async def assistant_to_run(self, named: str) -> Assistant:
        """An assistant to run: a graph's own, or one that the user may read."""
        found = await self.host.assistants.find(self.user.tenant, named)
        if not self.host.assistants.is_own(found.assistant_id):
            conditions = await self.may("assistants", "read", {"assistant_id": found.assistant_id})
            if not self.sees(conditions, found.metadata):
                raise NotFound(NONE_TO_RUN)
        return found

    def partition(self, thread_id: str) -> Partition:
        """Where a thread of this user's tenant is."""
        return Partition(self.user.tenant, thread_id)

    @asynccontextmanager
    async def graph(
        self, graph_id: str, access: Access, thread_id: str | None = None
    ) -> AsyncIterator[Pregel[Any, Any, Any, Any]]:
        """A graph over the threads of this user's tenant, for as long as the block lasts. One that a function
        makes is made for a thread as it was for the thread's newest run."""
        runtime = self.host.runtime
        configurable: dict[str, Any] = {}
        if thread_id is not None:
            if isinstance(runtime.graphs[graph_id].graph, Factory):
                configurable |= await self._configurable(thread_id)
            configurable["thread_id"] = thread_id
        config = {"configurable": configurable}
        user = user_of(self.user.dict())
        async with runtime.opened(
            graph_id, access, tenant=self.user.tenant, user=user, config=config
        ) as graph:
            yield graph

    async def _configurable(self, thread_id: str) -> dict[str, Any]:
        """What the newest run of a thread was configured with, but for the fields of its user."""
        latest = await self.host.database.arun(inbox.latest(self.partition(thread_id), 1))
        if not latest:
            return {}
        configurable = Options.read(latest[0].message.options).config.get("configurable") or {}
        return {name: held for name, held in configurable.items() if not is_reserved(name)}


def server_state(request: Request) -> ServerState:
    """The host of the application that a request came to."""
    held = getattr(request.app.state, "perdure", None)
    # What ``checkpoint_lifespan`` opened has a host if it is to serve.
    host = getattr(held, "host", held)
    if held is not None and host is None:
        raise Refusal(503, "The application serves no graphs: its checkpoint_lifespan needs serve=True.")
    if not isinstance(host, ServerState):
        raise Refusal(503, "The server is starting or stopping; try again.", {"Retry-After": "1"})
    return host


async def _caller(request: Request) -> Caller:
    host = server_state(request)
    if request.scope.get(LOOPBACK):
        return Caller(host, User("", TENANT.get("")), is_program=True)
    user = await host.gate.authenticate(request)
    host.throttle.admit(user, request.scope)
    return Caller(host, user)


CallerNow = Annotated[Caller, Depends(_caller)]
"""Who makes the request; refused when nobody may be that."""


def _segment(request: Request, name: str) -> str:
    value = cast(str, request.path_params[name])
    return unquote(value, errors="strict") if request.scope.get(RAW) else value


async def _thread_id(request: Request, thread_id: Annotated[str, Path()]) -> str:
    try:
        in_path = thread_ids.thread_id_of(_segment(request, "thread_id"))
    except UnicodeDecodeError:
        raise Refusal(422, "the thread id in the path is not UTF-8") from None
    thread_ids.only([in_path, *await thread_ids.in_request(request)])
    return in_path


ThreadId = Annotated[str, Depends(_thread_id)]
"""The thread that a path names, decoded after it was matched, so that it may have any character. 422 when the
query or the body names another one."""


async def _assistant_name(request: Request, assistant_id: Annotated[str, Path()]) -> str:
    return _text(request, "assistant_id")


async def _namespace(request: Request, namespace: Annotated[str, Path()]) -> str:
    return _text(request, "namespace")


def _text(request: Request, name: str) -> str:
    try:
        return _segment(request, name)
    except UnicodeDecodeError:
        raise Refusal(422, f"the {name} in the path is not UTF-8") from None


AssistantName = Annotated[str, Depends(_assistant_name)]
"""The assistant that a path names, by its id or its graph's name."""

Namespace = Annotated[str, Depends(_namespace)]
"""The namespace of a subgraph that a path names."""
