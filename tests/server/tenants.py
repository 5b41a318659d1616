"""Two tenants of one server: who they are, what keeps them apart, and what Alice has there.

Whatever is Alice's carries ``SECRET_OF_ALICE``, so that one look at an answer shows whether it leaks.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import httpx
import jwt
import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import interrupt
from langgraph_sdk import Auth

import perdure
from perdure.runtime import Runtime, Settings
from perdure.server.app import create_app
from perdure.server.auth.handlers import Handlers, Rules
from perdure.server.auth.identity import Gate
from perdure.server.auth.jwt import Jwt, JwtSettings
from perdure.server.resources import ServerState
from tests.server.acceptance.serving import eventually
from tests.server.issuer import AUDIENCE, ISSUER, OTHER_SECRET, SECRET, token
from tests.server.ports import served

SECRET_OF_ALICE = "canary-5b1d0c77"
_TIMEOUT = httpx.Timeout(60)


# Who asks


def headers_of(user: str, org: str, *, key: Any = SECRET, **claims: Any) -> dict[str, str]:
    claims = {"sub": user, "org": org, "note": SECRET_OF_ALICE if user == "alice" else "", **claims}
    return {"Authorization": f"Bearer {token(key, 'HS256', **claims)}"}


def strangers() -> dict[str, dict[str, str]]:
    """Those who are nobody, and most of whom say that they are Alice."""
    alice = {"user": "alice", "org": "acme"}
    unsigned = jwt.encode({"sub": "alice", "iss": ISSUER, "aud": AUDIENCE}, "", "none")
    return {
        "nobody": {},
        "forged": headers_of(**alice, key=OTHER_SECRET),
        "unsigned": {"Authorization": f"Bearer {unsigned}"},
        "expired": headers_of(**alice, exp=1_700_000_000),
        "wrong audience": headers_of(**alice, aud="another server"),
    }


# What keeps them apart


def owned(auth: Auth) -> Auth:
    """Handlers as tutorials have them: everything is its maker's, and each has a part of the store."""

    @auth.on
    async def own(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> dict[str, str]:
        filters = {"owner": ctx.user.identity}
        value.setdefault("metadata", {}).update(filters)
        return filters

    @auth.on.store()
    async def part(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> None:
        value["namespace"] = (ctx.user.identity, *(value["namespace"] or ()))

    return auth


def authenticating() -> Auth:
    """An ``Auth`` that verifies tokens by itself."""
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None) -> dict[str, Any]:
        scheme, _, said = (authorization or "").partition(" ")
        try:
            known = jwt.decode(said, SECRET, ["HS256"], audience=AUDIENCE, issuer=ISSUER)
        except jwt.PyJWTError:
            known = None
        if scheme != "Bearer" or known is None:
            raise Auth.exceptions.HTTPException(status_code=401, detail="Who are you?")
        return {"identity": known["sub"], "org": known["org"]}

    return auth


def by_filters() -> Gate:
    """Everybody is of one tenant, so of one storage key; filters alone keep them apart."""
    return Handlers(owned(authenticating()))


def by_keys(*claims: str, rules: Rules | None = None) -> Gate:
    """Verified claims are a part of every storage key."""
    settings = JwtSettings(
        issuer=ISSUER, audience=AUDIENCE, algorithms=["HS256"], secret=SECRET, tenant_claims=claims
    )
    return Jwt(settings, rules) if rules is not None else Jwt(settings)


class Apart(NamedTuple):
    """How tenants are kept apart: the gate, who is not Alice, and who of them has names of their own."""

    gate: Callable[[], Gate]
    others: Mapping[str, dict[str, str]]
    have_names_of_their_own: frozenset[str]


COLLEAGUE, OUTSIDER = headers_of("bob", "acme"), headers_of("carol", "umbrella")
ALICE = headers_of("alice", "acme")
WAYS = {
    "filters": Apart(by_filters, {"colleague": COLLEAGUE}, frozenset()),
    "keys": Apart(lambda: by_keys("sub"), {"outsider": OUTSIDER}, frozenset({"outsider"})),
    "both": Apart(
        lambda: by_keys("org", rules=Rules(owned(Auth()))),
        {"colleague": COLLEAGUE, "outsider": OUTSIDER},
        frozenset({"outsider"}),
    ),
}
_BOTH = pytest.param("both", marks=pytest.mark.slow)
EACH_WAY = ("filters", "keys", _BOTH)
"""The ways as parameters of tests: "both" takes as long as the others together."""
WITH_FILTERS = ("filters", _BOTH)


# The server


def _only(node: Any) -> Any:
    builder = StateGraph(MessagesState)
    builder.add_node("turn", node)
    builder.add_edge(START, "turn")
    builder.add_edge("turn", END)
    return builder.compile()


async def _echo(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"echo {state['messages'][-1].text}")]}


async def _boom(state: MessagesState) -> dict[str, Any]:
    raise ValueError(state["messages"][-1].text)


async def _ask(state: MessagesState) -> dict[str, Any]:
    return {"messages": [AIMessage(f"heard {interrupt(state['messages'][-1].text)}")]}


async def _rest(state: MessagesState) -> dict[str, Any]:
    await asyncio.sleep(600)
    return {}


def graphs() -> dict[str, Any]:
    return {"chat": _only(_echo), "boom": _only(_boom), "ask": _only(_ask), "rest": _only(_rest)}


class Served(NamedTuple):
    url: str
    host: ServerState
    app: Any

    def http(self, headers: Mapping[str, str]) -> httpx.AsyncClient:
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=_TIMEOUT, trust_env=False)


@asynccontextmanager
async def serving(url: str, gate: Gate, *, serves: Any = None) -> AsyncIterator[Served]:
    """A server over a database, for as long as the block lasts. What still runs then is left behind."""
    async with (
        perdure.connect(url, migrate=True) as db,
        Runtime(
            db,
            serves or graphs(),
            settings=Settings(poll=0.1, drain=0.1, shared_threads=True),
            all_tenants=True,
        ) as runtime,
    ):
        app, host = create_app(None), ServerState.over(runtime, gate)
        async with served(app, host) as address:
            yield Served(address, host, app)


# What is Alice's


@dataclass(frozen=True)
class Names:
    """The ids of what is somebody's: of threads at rest, that ask, that failed, at work, and spoken to by
    commands; of their runs; and of the rest. The label and the key are of an item of the store."""

    idle: str
    asks: str
    failed: str
    busy: str
    live: str
    idle_run: str
    asks_run: str
    failed_run: str
    running: str
    pending: str
    live_run: str
    checkpoint: str
    question: str
    assistant: str
    label: str
    key: str
    cron: str

    def all(self) -> frozenset[str]:
        return frozenset(asdict(self).values())


def names_of_nothing() -> Names:
    """Names as Alice's are, under which there is nothing."""
    return Names(**{name: str(uuid.uuid4()) for name in Names.__dataclass_fields__})


def said(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


async def estate(http: httpx.AsyncClient) -> Names:
    """Make what is Alice's, over HTTP as she would."""
    secret = said(f"my secret is {SECRET_OF_ALICE}")

    async def post(path: str, **body: Any) -> Any:
        answer = await http.post(path, json=body)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    async def thread() -> str:
        return str((await post("/threads", metadata={"title": SECRET_OF_ALICE}))["thread_id"])

    async def run(thread_id: str, graph: str, *, wait: bool = True) -> str:
        made = await post(
            f"/threads/{thread_id}/runs",
            assistant_id=graph,
            input=secret,
            stream_mode=["values", "messages-tuple", "updates"],
            stream_resumable=True,
            metadata={"note": SECRET_OF_ALICE},
        )
        if wait:
            (await http.get(f"/threads/{thread_id}/runs/{made['run_id']}/join")).raise_for_status()
        return str(made["run_id"])

    idle, asks, failed, busy = [await thread() for _ in range(4)]
    await run(idle, "chat")
    idle_run, asks_run, failed_run = (
        await run(idle, "chat"),
        await run(asks, "ask"),
        await run(failed, "boom"),
    )
    running = await run(busy, "rest", wait=False)

    async def is_at_work() -> bool:
        found = await http.get(f"/threads/{busy}/runs/{running}")
        return bool(found.json()["status"] == "running")

    await eventually(is_at_work)
    pending = await run(busy, "chat", wait=False)
    live = str(uuid.uuid4())
    started = await post(
        f"/threads/{live}/commands",
        id=1,
        method="run.start",
        params={"assistant_id": "ask", "input": secret, "metadata": {"note": SECRET_OF_ALICE}},
    )
    live_run = started["result"]["run_id"]
    (await http.get(f"/threads/{live}/runs/{live_run}/join")).raise_for_status()
    state = (await http.get(f"/threads/{asks}/state")).json()
    checkpoint = (await http.get(f"/threads/{idle}/state")).json()["checkpoint"]["checkpoint_id"]
    kept = {"configurable": {"said": SECRET_OF_ALICE}}
    assistant = await post(
        "/assistants",
        graph_id="chat",
        name=SECRET_OF_ALICE,
        description=SECRET_OF_ALICE,
        config=kept,
        metadata={"title": SECRET_OF_ALICE},
    )
    path = f"/assistants/{assistant['assistant_id']}"
    (await http.patch(path, json={"context": {"said": SECRET_OF_ALICE}})).raise_for_status()
    label, key = "notes-7", "key-7"
    for namespace, name in (([label], key), ([label, SECRET_OF_ALICE], f"{key}-{SECRET_OF_ALICE}")):
        item = {"namespace": namespace, "key": name, "value": {"said": SECRET_OF_ALICE}}
        (await http.put("/store/items", json=item)).raise_for_status()
    cron = await post(
        "/runs/crons",
        assistant_id="chat",
        schedule="0 9 * * *",
        input=secret,
        metadata={"note": SECRET_OF_ALICE},
    )
    return Names(
        idle,
        asks,
        failed,
        busy,
        live,
        idle_run,
        asks_run,
        failed_run,
        running,
        pending,
        live_run,
        checkpoint,
        state["interrupts"][0]["id"],
        assistant["assistant_id"],
        label,
        key,
        str(cron["cron_id"]),
    )


async def held(http: httpx.AsyncClient, names: Names) -> dict[str, Any]:
    """All that Alice has, as she sees it."""
    seen: dict[str, Any] = {}

    async def look(method: str, path: str, body: Any = None) -> None:
        answer = await http.request(method, path, json=body)
        assert answer.is_success, answer.text
        seen[f"{method} {path}"] = answer.json()

    for thread_id in (names.idle, names.asks, names.failed, names.busy, names.live):
        await look("GET", f"/threads/{thread_id}")
        await look("GET", f"/threads/{thread_id}/state")
        await look("GET", f"/threads/{thread_id}/history?limit=100")
        await look("GET", f"/threads/{thread_id}/runs?limit=100")
        if thread_id != names.busy:
            await look("GET", f"/threads/{thread_id}/storage")
    await look("GET", f"/assistants/{names.assistant}")
    await look("POST", f"/assistants/{names.assistant}/versions", {})
    await look("POST", "/threads/count", {})
    await look("POST", "/assistants/count", {})
    await look("POST", "/store/items/search", {"namespace_prefix": []})
    await look("POST", "/store/namespaces", {})
    for run in seen[f"GET /threads/{names.busy}/runs?limit=100"]:
        # A lease that is renewed.
        del run["updated_at"]
    del seen[f"GET /threads/{names.busy}"]["updated_at"]
    return seen
