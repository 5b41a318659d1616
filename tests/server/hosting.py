"""Servers in the test's own event loop, with the gate and the limits that a test is about."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from types import MappingProxyType
from typing import Annotated, Any, ParamSpec

import httpx
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.pregel import Pregel
from langgraph.runtime import Runtime as GraphRuntime
from langgraph_sdk import Auth, get_client
from langgraph_sdk.client import LangGraphClient
from typing_extensions import TypedDict

import perdure
from perdure.runtime import Runtime, Settings
from perdure.server.app import create_app
from perdure.server.auth.handlers import Handlers
from perdure.server.auth.identity import Gate, OpenGate
from perdure.server.config import Http, RequestLimits
from perdure.server.resources import ServerState
from perdure.server.runs.crons import CronStarter
from tests.server.ports import served

P = ParamSpec("P")
_TIMEOUT: Any = httpx.Timeout(60)


class Mood(TypedDict, total=False):
    mood: str


class Odd:
    """A type that has no JSON schema."""


class Mixed(TypedDict, total=False):
    plain: int
    odd: Annotated[Odd, "nobody describes it"]


async def _aware(state: MessagesState, config: RunnableConfig, runtime: GraphRuntime[Mood]) -> dict[str, Any]:
    context = runtime.context or {}
    said = f"mood={context.get('mood')} tone={config['configurable'].get('tone')}"
    return {"messages": [AIMessage(said)]}


async def _remembers(state: MessagesState, runtime: GraphRuntime[None]) -> dict[str, Any]:
    store = runtime.store
    assert store is not None
    held = await store.aget(("notes", "ada"), "tea")
    await store.aput(("notes", "graph"), "wrote", {"by": "graph"})
    return {"messages": [AIMessage("nothing" if held is None else held.value["says"])]}


async def _slow(state: MessagesState) -> dict[str, Any]:
    await asyncio.sleep(float(state["messages"][-1].text))
    return {"messages": [AIMessage("rested")]}


def _one(name: str, node: Any, **more: Any) -> Pregel[Any, Any, Any, Any]:
    builder = StateGraph(MessagesState, **more)
    builder.add_node(name, node)
    builder.add_edge(START, name)
    builder.add_edge(name, END)
    return builder.compile()


def _nested() -> Pregel[Any, Any, Any, Any]:
    """Three levels, and an edge that depends."""
    inner = StateGraph(MessagesState)
    inner.add_node("deepest", _one("ground", lambda state: {"messages": []}))
    inner.add_edge(START, "deepest")
    outer = StateGraph(MessagesState)
    outer.add_node("below", inner.compile())
    outer.add_node("beside", lambda state: {"messages": []})
    outer.add_conditional_edges(START, lambda state: "below", ["below", "beside"])
    return outer.compile()


def _odd() -> Pregel[Any, Any, Any, Any]:
    builder = StateGraph(Mixed)
    builder.add_node("turn", lambda state: {"plain": 1})
    builder.add_edge(START, "turn")
    return builder.compile()


@functools.cache
def graphs() -> Mapping[str, Pregel[Any, Any, Any, Any]]:
    """Compiled once: a server binds copies of them to its database."""
    return MappingProxyType(
        {
            "aware": _one("answer", _aware, context_schema=Mood),
            "nested": _nested(),
            "odd": _odd(),
            "remembers": _one("recall", _remembers),
            "slow": _one("rest", _slow),
        }
    )


def run(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test that is a coroutine, and is not waited for for ever."""

    async def bounded(*args: P.args, **given: P.kwargs) -> None:
        async with asyncio.timeout(90):
            await test(*args, **given)

    @functools.wraps(test)
    def sync(*args: P.args, **given: P.kwargs) -> None:
        asyncio.run(bounded(*args, **given))

    return sync


class Served:
    """A server that listens, and clients of it. A user's token is the user's name."""

    def __init__(self, url: str, host: ServerState, stack: AsyncExitStack) -> None:
        self.url, self.host = url, host
        self._stack = stack

    async def client(self, user: str | None = None) -> LangGraphClient:
        headers = {} if user is None else {"Authorization": f"Bearer {user}"}
        client = get_client(url=self.url, api_key=None, headers=headers, timeout=_TIMEOUT)
        return await self._stack.enter_async_context(client)

    async def http(self, user: str | None = None) -> httpx.AsyncClient:
        headers = {} if user is None else {"Authorization": f"Bearer {user}"}
        client = httpx.AsyncClient(base_url=self.url, headers=headers, timeout=_TIMEOUT)
        return await self._stack.enter_async_context(client)


@asynccontextmanager
async def serving(
    url: str,
    *,
    gate: Gate | None = None,
    limits: RequestLimits | None = None,
    http: Http | None = None,
    observers: Any = None,
    of: Mapping[str, Any] | None = None,
    **changed: Any,
) -> AsyncIterator[Served]:
    """A server over a database, for as long as the block lasts, of these graphs or those above."""
    settings = Settings(**{"poll": 0.2, "shared_threads": True, **changed})
    async with AsyncExitStack() as clients, perdure.connect(url, migrate=True) as db:
        runtime = Runtime(db, of or graphs(), settings=settings, all_tenants=True, observers=observers)
        host = ServerState.over(runtime, gate or OpenGate(), limits=limits)
        CronStarter(host).serve()
        async with runtime, served(create_app(None, http), host) as address:
            yield Served(address, host, clients)


def known() -> Auth:
    """An ``Auth`` that knows everybody by the name they give."""
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None) -> dict[str, Any]:
        if not authorization:
            raise Auth.exceptions.HTTPException(status_code=401, detail="Who are you?")
        return {"identity": authorization.removeprefix("Bearer ")}

    return auth


def owners() -> Handlers:
    """One tenant, in which everything but the store is its maker's, and each has a part of the store. The
    user ``root`` is restricted to nothing."""
    auth = known()

    @auth.on
    async def own(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> dict[str, str] | None:
        if ctx.user.identity == "root":
            return None
        filters = {"owner": ctx.user.identity}
        value.setdefault("metadata", {}).update(filters)
        return filters

    @auth.on.store()
    async def part(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> None:
        value["namespace"] = (ctx.user.identity, *(value["namespace"] or ()))

    return Handlers(auth)


def tenants() -> Handlers:
    """Everybody is a tenant."""
    return Handlers(known(), ["identity"])
