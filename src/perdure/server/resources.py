"""Open resources of a server, and the access of one request to them."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, TypeVar, cast
from urllib.parse import unquote

from fastapi import Depends, Path, Query, Request, Response
from fastapi.routing import APIRoute
from langgraph.pregel import Pregel
from pydantic import BaseModel
from starlette.requests import HTTPConnection

from perdure.channels.addresses import ChatAddress
from perdure.channels.chat_channel import ChatChannel
from perdure.database.base import handle_of
from perdure.errors import NotFound
from perdure.model.records import Partition
from perdure.runtime import Runtime
from perdure.runtime.agents.graph_factories import Access, Factory
from perdure.runtime.agents.run_context import is_reserved
from perdure.runtime.agents.run_user import user_of
from perdure.runtime.options import Options
from perdure.runtime.retention_loop import RetentionLoop
from perdure.runtime.tenant import TenantRuntime
from perdure.runtime.threads.rows import ThreadRow
from perdure.runtime.threads.threads import Threads, missing_error
from perdure.runtime.worker.attempt import TENANT
from perdure.runtime.worker.dispatch import copy_context_outside
from perdure.server import thread_ids
from perdure.server.assistants import NONE_TO_RUN, Assistant, Assistants, no_assistant_error
from perdure.server.auth.filters import Filter, matches
from perdure.server.auth.identity import Gate, OpenGate, Refusal, User
from perdure.server.config import RequestLimits
from perdure.server.configurable_headers import NO_HEADERS, Headers
from perdure.server.json_bodies import JsonRequest
from perdure.server.request_limits import Throttle
from perdure.server.requests import NAMES_MAX
from perdure.server.runs.outbound_policy import OutboundPolicy

S = TypeVar("S", bound=BaseModel)

_log = logging.getLogger("perdure.server")

HEARTBEAT_S = 4.0
"""Seconds between heartbeats on an idle connection. Clients give up a connection that has had no heartbeat
for three times as long."""

LOOPBACK = "perdure.loopback"
"""Key in the scope of a request that the application made in this process."""

_TEXT_MAX = 256

CALLER = "perdure.caller"
"""Key, in a request's scope, of its ``Caller``, which is set once the user is authenticated."""
RAW = "perdure.raw_path"
"""Key in the scope of a request whose path is matched before it is decoded."""


@dataclass(eq=False)
class ServerState:
    """The open resources of a server, one object for all of its requests, at ``app.state.perdure``.
    ``webhooks`` is the policy for webhooks, None if they are disabled; ``signal_secrets`` sign signals;
    ``chats`` are the chat channels; ``sweeps`` is the loop that removes expired threads."""

    runtime: Runtime
    gate: Gate
    assistants: Assistants
    limits: RequestLimits = field(default_factory=RequestLimits)
    webhooks: OutboundPolicy | None = None
    headers: Headers = NO_HEADERS
    signal_secrets: Sequence[str] = field(default=(), repr=False)
    chats: Sequence[ChatChannel] = ()
    sweeps: RetentionLoop | None = None
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    throttle: Throttle = field(init=False)
    _background: set[asyncio.Task[Any]] = field(default_factory=set[asyncio.Task[Any]])

    def __post_init__(self) -> None:
        self.throttle = Throttle(self.limits, waiting=lambda: self.runtime.waiting_runs)

    @classmethod
    def over(
        cls,
        runtime: Runtime,
        gate: Gate,
        *,
        limits: RequestLimits | None = None,
        webhooks: OutboundPolicy | None = None,
        descriptions: Mapping[str, str] | None = None,
        configs: Mapping[str, Mapping[str, Any]] | None = None,
        headers: Headers = NO_HEADERS,
    ) -> ServerState:
        """Return the resources for a runtime. From now on its threads also expire by the times to live that
        clients gave them.

        Args:
            runtime: the runtime.
            gate: authenticates and authorises requests.
            limits: limits per request and user.
            webhooks: the policy for webhooks, None to disable them.
            descriptions: descriptions of graphs, by name.
            configs: configurations of graphs, by name.
            headers: patterns of the headers that runs can read.
        """
        handle_of(runtime.database).honour_thread_ttl()
        assistants = Assistants(runtime, descriptions, configs)
        return cls(runtime, gate, assistants, limits or RequestLimits(), webhooks, headers)

    def run_in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run work of a request in a task that continues after the client disconnects."""
        task = asyncio.create_task(work, context=copy_context_outside())
        self._background.add(task)
        task.add_done_callback(self._note_background_end)

    def _note_background_end(self, task: asyncio.Task[Any]) -> None:
        self._background.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.warning("a background task of a request failed: %s", type(error).__name__)

    async def close(self) -> None:
        """End the streams, whose clients reconnect elsewhere, and wait for background tasks, at most 5
        seconds."""
        self.closing.set()
        if self._background:
            await asyncio.wait(self._background, timeout=5)


@dataclass(frozen=True, slots=True)
class Caller:
    """The authenticated user of a request, and access to that user's data."""

    host: ServerState
    user: User
    runtime: TenantRuntime
    """The runtime for the threads of the user's tenant."""
    is_program: bool = False
    """True for a request of the application itself, which no rule restricts."""

    @property
    def threads(self) -> Threads:
        """The threads of the user's tenant."""
        return self.runtime.threads

    async def may(self, resource: str, action: str, value: dict[str, Any]) -> Filter | None:
        """Authorise an action of the user.

        Args:
            resource: the kind of object, such as "threads".
            action: the action, such as "read".
            value: the request's arguments, which the gate may change in place.

        Returns:
            The filter of the objects that the user may touch; None for all of the tenant's.

        Raises:
            Refusal: the user may not do this.
        """
        if self.is_program:
            return None
        return await self.host.gate.authorize(self.user, resource, action, value)

    def sees(self, conditions: Filter | None, metadata: Mapping[str, Any]) -> bool:
        """Return True if an object with this metadata matches the user's filter."""
        return matches(conditions, metadata)

    def make_filter(self, conditions: Filter | None) -> Callable[[Mapping[str, Any]], bool] | None:
        """Return a predicate over the metadata of objects that matches the user's filter; None for all."""
        if conditions is None:
            return None
        return partial(self.sees, conditions)

    async def narrow(self, resource: str, asked: S, names: Iterable[str]) -> tuple[S, Filter | None]:
        """Authorise a search. Return it as the gate left it, and the filter of the objects that the user may
        see.

        Args:
            resource: the kind of object.
            asked: the search.
            names: the fields of the search that the gate may change.
        """
        value: dict[str, Any] = {name: getattr(asked, name) for name in names}
        conditions = await self.may(resource, "search", value)
        return asked.model_copy(update={name: value[name] for name in names}), conditions

    async def authorize_thread(self, thread_id: str, to: str, **value: Any) -> ThreadRow:
        """Return a thread on which the user may perform an action. ``NotFound`` if there is none."""
        return await self.find_visible_thread(
            thread_id, await self.may("threads", to, {"thread_id": thread_id, **value})
        )

    def refuse_to_create(self, thread_id: str) -> None:
        """Raise ``Refusal`` for a thread that the server names, and that begins with a message of its own
        user: another one who created it before would get that user's messages. The threads of chats are free
        where the server does not tell users apart, and to its own program."""
        thread_ids.refuse_to_create_of_agent(thread_id)
        if self.is_program or isinstance(self.host.gate, OpenGate):
            return
        with suppress(ValueError):
            channel = ChatAddress.of(thread_id).channel
            if channel in [chat.name for chat in self.host.chats]:
                raise Refusal(422, f"thread ids of this form are those of chats at {channel!r}; take another")

    async def find_visible_thread(self, thread_id: str, conditions: Filter | None) -> ThreadRow:
        """Return a thread that the user may see. ``NotFound`` if it does not exist or is not visible to the
        user."""
        row = await self.threads.find(thread_id)
        if row is None or not self.sees(conditions, row.metadata):
            raise missing_error(thread_id)
        return row

    async def authorize_assistant(self, named: str, to: str) -> Assistant:
        """Return an assistant with which the user may perform an action. ``NotFound`` if there is none."""
        assistant_id = self.host.assistants.id_of(named) or named
        return await self.find_assistant(
            named, await self.may("assistants", to, {"assistant_id": assistant_id})
        )

    async def find_assistant(self, named: str, conditions: Filter | None) -> Assistant:
        """Return an assistant that the user may see. ``NotFound`` if it does not exist or is not visible to
        the user."""
        assistant = await self.host.assistants.try_find(self.user.tenant, named)
        if assistant is None or not self.sees(conditions, assistant.metadata):
            raise no_assistant_error(named)
        return assistant

    async def find_assistant_to_run(self, named: str) -> Assistant:
        """Return an assistant to run: a graph's default one, or one that the user may read."""
        assistant = await self.host.assistants.find(self.user.tenant, named)
        if not self.host.assistants.is_default(assistant.assistant_id):
            conditions = await self.may("assistants", "read", {"assistant_id": assistant.assistant_id})
            if not self.sees(conditions, assistant.metadata):
                raise NotFound(NONE_TO_RUN)
        return assistant

    def partition(self, thread_id: str) -> Partition:
        """Return the partition of a thread of this user's tenant."""
        return Partition(self.user.tenant, thread_id)

    @asynccontextmanager
    async def open_graph(
        self, graph_id: str, access: Access, thread_id: str | None = None
    ) -> AsyncIterator[Pregel[Any, Any, Any, Any]]:
        """Yield a graph over the threads of this user's tenant.

        Args:
            graph_id: the graph's name.
            access: the purpose, for graphs that are made by a factory.
            thread_id: a thread whose newest run configures a graph made by a factory.
        """
        configurable: dict[str, Any] = {}
        if thread_id is not None:
            if isinstance(self.host.runtime.graphs[graph_id].graph, Factory):
                configurable |= await self._read_configurable(thread_id)
            configurable["thread_id"] = thread_id
        config = {"configurable": configurable}
        user = user_of(self.user.dict())
        async with self.runtime.open_graph(graph_id, access, user=user, config=config) as graph:
            yield graph

    async def _read_configurable(self, thread_id: str) -> dict[str, Any]:
        """Return the configurable values of a thread's newest run without the fields of its user."""
        latest = await self.runtime.messages(thread_id, limit=1)
        if not latest:
            return {}
        configurable = Options.read(latest[0].message.options).config.get("configurable") or {}
        return {name: value for name, value in configurable.items() if not is_reserved(name)}


def get_server_state(request: HTTPConnection) -> ServerState:
    """Return the server state of the application that received a request. ``Refusal`` with 503 if it is
    not open."""
    state = getattr(request.app.state, "perdure", None)
    # With ``checkpoint_lifespan`` it is an ``Opened``, which has a host only with ``serve=True``.
    host = getattr(state, "host", state)
    if state is not None and host is None:
        raise Refusal(503, "The application serves no graphs: its checkpoint_lifespan needs serve=True.")
    if not isinstance(host, ServerState):
        raise Refusal(503, "The server is starting or stopping; try again.", {"Retry-After": "1"})
    return host


async def caller_of(connection: HTTPConnection) -> Caller:
    """Return the user of a request or of a WebSocket. ``Refusal`` if not authenticated."""
    host = get_server_state(connection)
    if connection.scope.get(LOOPBACK):
        user = User("", TENANT.get(""))
        return Caller(host, user, host.runtime.for_tenant(user.tenant), is_program=True)
    user = await host.gate.authenticate(connection)
    host.throttle.admit(user, connection.scope)
    return Caller(host, user, host.runtime.for_tenant(user.tenant))


async def _find_caller(request: Request) -> Caller:
    known: Caller | None = request.scope.get(CALLER)
    return known or await caller_of(request)


CallerNow = Annotated[Caller, Depends(_find_caller)]
"""The user of a request, as the type of an endpoint's parameter; refused if not authenticated."""


QueriedNames = Annotated[list[str] | None, Query(max_length=NAMES_MAX)]
"""Names in the query, as the type of an endpoint's parameter."""


class GatedRoute(APIRoute):
    """A route that authenticates the user before it reads the body, so that a request that is refused costs
    no more than its headers. Its body is read as a ``JsonRequest``."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        is_gated = any(part.call is _find_caller for part in self.dependant.dependencies)

        async def authenticate_first(given: Request) -> Response:
            request = JsonRequest(given.scope, given.receive)
            if is_gated:
                request.scope[CALLER] = await caller_of(request)
            return await handle(request)

        return authenticate_first


def _read_segment(request: HTTPConnection, name: str) -> str:
    value = cast(str, request.path_params[name])
    if request.scope.get(RAW):
        return unquote(value, errors="strict")
    return value


def read_thread_in_path(connection: HTTPConnection) -> str:
    """Return the id of the thread in a path. ``Refusal`` if it cannot be one."""
    try:
        return thread_ids.thread_id_of(_read_segment(connection, "thread_id"))
    except UnicodeDecodeError:
        raise Refusal(422, "the thread id in the path is not UTF-8") from None


async def _read_thread_id(request: Request, thread_id: Annotated[str, Path()]) -> str:
    in_path = read_thread_in_path(request)
    thread_ids.require_same_thread([in_path, *await thread_ids.read_from_request(request)])
    return in_path


ThreadId = Annotated[str, Depends(_read_thread_id)]
"""The thread in a path, decoded after the path was matched, so that it may have any character. 422 if the
query or the body names another one."""


def _reader_of(name: str, most: float = math.inf) -> Any:
    """Return the dependency that reads a text in the path, of 1 to ``most`` characters."""

    async def read(request: Request, _: str = Path(alias=name)) -> str:
        try:
            value = _read_segment(request, name)
        except UnicodeDecodeError:
            raise Refusal(422, f"the {name} in the path is not UTF-8") from None
        if not 0 < len(value) <= most:
            raise Refusal(422, f"the {name} in the path has 1 to {most} characters")
        return value

    return Depends(read)


AssistantName = Annotated[str, _reader_of("assistant_id")]
"""The assistant in a path, by its id or its graph's name."""

Namespace = Annotated[str, _reader_of("namespace")]
"""The namespace of a subgraph in a path."""

TagName = Annotated[str, _reader_of("name", _TEXT_MAX)]
"""The name of a tag in a path, which may have any character."""

EntryId = Annotated[str, _reader_of("entry_id", _TEXT_MAX)]
"""The id of a fact, or the thread of a summary, in a path; it may have any character."""
