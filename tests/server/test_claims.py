"""Who a client states to be: nothing of it reaches a graph or the database, whatever the route and the place.

Each request states a different user at every place that it has, so that a leak names its place.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import interrupt
from langgraph_sdk import Auth
from pydantic import AliasChoices, AliasPath, BaseModel, Field

from perdure.server.auth.handlers import Handlers
from perdure.server.auth.identity import User
from perdure.server.auth.reserved_names import list_verified_names, with_verified, without_claims
from perdure.server.configurable_headers import Headers
from perdure.storage.memory import MemoryDriver
from tests.server.hosting import Served, run, serving

NAMES = ("user_id", "user_email")
HARMLESS = "harmless"
INPUT = {"messages": [{"role": "user", "content": "hi"}]}
VERIFIED = {"user_id": "ada", "user_email": "ada@verified"}

RUNS = (
    "/threads/{thread}/runs",
    "/threads/{thread}/runs/wait",
    "/threads/{thread}/runs/stream",
    "/runs",
    "/runs/wait",
    "/runs/stream",
    "/runs/batch",
    "commands:run.start",
    "commands:state.fork",
    "commands:input.respond",
    "resume",
)
"""Ways to make a run."""

PLACES = (
    "body",
    "config",
    "config.configurable",
    "config.metadata",
    "context",
    "metadata",
    "headers",
    "query",
    "config.configurable.langgraph_auth_user",
)
"""Places of a request for a run where a user can be stated."""

IN_A_MESSAGE = (
    "params",
    "params.metadata",
    "params.configuration",
    "message",
    "message.metadata",
    "part",
    "part.metadata",
    "part.data",
    "headers",
    "query",
)
IN_A_CALL = ("params", "params._meta", "arguments", "headers", "query")
AGENTS = {
    "message/send": IN_A_MESSAGE,
    "message/stream": IN_A_MESSAGE,
    "SendMessage": IN_A_MESSAGE,
    "answer": IN_A_MESSAGE,
    "tools/call": IN_A_CALL,
}
"""Ways to make a run through the protocols between agents, and their places."""

WAYS = [
    *((route, place, name) for route in RUNS for place in PLACES for name in NAMES),
    *((route, place, name) for route, places in AGENTS.items() for place in places for name in NAMES),
]


@dataclass(frozen=True)
class Stated:
    """A request that states other users, at all places that go together."""

    body: dict[str, Any]
    headers: dict[str, str]
    query: dict[str, str]


def others(way: str) -> dict[str, str]:
    return {name: f"root {way} {name}" for name in NAMES}


def stated(by: str) -> Stated:
    """State another user in the body, with those of ``by`` that exclude each other."""
    body: dict[str, Any] = {
        **others("body"),
        "metadata": {**others("metadata"), "note": HARMLESS},
        "config": {**others("config"), "metadata": others("config.metadata")},
    }
    if by == "context":
        body["context"] = others("context")
    else:
        nested = {"langgraph_auth_user": {"identity": "root langgraph_auth_user", **others("user")}}
        body["config"]["configurable"] = {**others("config.configurable"), **nested}
    return Stated(body, others("headers"), others("query"))


def gate() -> Handlers:
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None) -> Any:
        return {"identity": "ada", "email": "ada@verified"}

    return Handlers(auth)


def seen(state: MessagesState, runtime: Runtime[Any], config: RunnableConfig) -> dict[str, Any]:
    configurable = config.get("configurable", {})
    who = {name: configurable.get(name) for name in NAMES}
    user = dict(configurable["langgraph_auth_user"])
    told = {"configurable": who, "context": dict(runtime.context or {}), "user": user, "config": str(config)}
    return {"messages": [AIMessage(json.dumps(told))]}


def asking(state: MessagesState, runtime: Runtime[Any], config: RunnableConfig) -> dict[str, Any]:
    interrupt("go on?")
    return seen(state, runtime, config)


def graph(node: Any) -> Any:
    builder: Any = StateGraph(MessagesState)
    return builder.add_node("node", node).add_edge(START, "node").compile()


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """All that the database is asked to store, as text."""
    texts: list[str] = []
    perform = MemoryDriver.perform

    def recorded(self: MemoryDriver, effect: Any) -> Any:
        texts.append(repr(effect))
        return perform(self, effect)

    monkeypatch.setattr(MemoryDriver, "perform", recorded)
    return texts


@asynccontextmanager
async def server() -> AsyncIterator[tuple[Served, httpx.AsyncClient]]:
    served_graphs = {"seen": graph(seen), "asking": graph(asking)}
    async with serving("memory://", of=served_graphs, gate=gate()) as served:
        served.host.headers = Headers(includes=("*",))
        yield served, await served.http("ada")


async def started(http: httpx.AsyncClient, graph_id: str) -> str:
    thread = (await http.post("/threads", json={})).json()["thread_id"]
    body = {"assistant_id": graph_id, "input": INPUT}
    (await http.post(f"/threads/{thread}/runs/wait", json=body)).raise_for_status()
    return str(thread)


async def ask(http: httpx.AsyncClient, route: str, given: Stated) -> str:
    """Make a run by this route, and return its thread."""
    body: Any = {"assistant_id": "seen", "input": INPUT, **given.body}
    thread = await started(http, "asking" if route in ("resume", "commands:input.respond") else "seen")
    path = route
    if route == "resume":
        path, body = "/threads/{thread}/runs/wait", {**given.body, "assistant_id": "asking"}
        body["command"] = {"resume": "yes"}
    elif route.startswith("/runs"):
        # With its thread in the body, so that it can be read.
        body["thread_id"] = thread
        body = [body] if route == "/runs/batch" else body
    elif route.startswith("commands:"):
        path = "/threads/{thread}/commands"
        params = dict(body)
        if route == "commands:state.fork":
            held = (await http.get(f"/threads/{thread}/state")).json()
            params["checkpoint_id"] = held["checkpoint"]["checkpoint_id"]
        if route == "commands:input.respond":
            held = (await http.get(f"/threads/{thread}")).json()
            (asked,) = next(iter(held["interrupts"].values()))
            params |= {"interrupt_id": asked["id"], "response": "yes"}
        body = {"id": 1, "method": route.partition(":")[2], "params": params}
    path = path.format(thread=thread)
    answer = await http.post(path, json=body, headers=given.headers, params=given.query)
    answer.raise_for_status()
    assert '"type":"error"' not in answer.text, answer.text
    for _ in range(1000):
        runs = (await http.get(f"/threads/{thread}/runs")).json()
        if len(runs) == 2 and all(one["status"] in ("success", "interrupted") for one in runs):
            break
        await http.get(f"/threads/{thread}/runs/{runs[0]['run_id']}/join")
    return thread


def clean(texts: Mapping[str, str]) -> None:
    for where, text in texts.items():
        assert "root " not in text, f"{where}: {text[max(0, text.index('root ') - 80) :][:200]}"


def test_the_ways_are_many() -> None:
    in_messages = sum(map(len, AGENTS.values()))
    assert len(WAYS) == (len(RUNS) * len(PLACES) + in_messages) * len(NAMES) >= 280


@run
@pytest.mark.parametrize("by", [pytest.param("context", marks=pytest.mark.slow), "configurable"])
@pytest.mark.parametrize("route", RUNS)
async def test_a_run_knows_and_stores_the_verified_user_alone(route: str, by: str, stored: list[str]) -> None:
    async with server() as (_, http):
        thread = await ask(http, route, stated(by))
        values = (await http.get(f"/threads/{thread}/state")).json()["values"]
        told = json.loads(values["messages"][-1]["content"])
        paths = ("", "/state", "/history", "/runs")
        shown = {path: (await http.get(f"/threads/{thread}{path}")).text for path in paths}
    assert told["configurable"] == VERIFIED
    assert told["user"]["identity"] == "ada"
    assert set(told["context"]) & set(NAMES) <= set(VERIFIED)
    clean({"graph": json.dumps(told), **shown})
    clean({"stored": " ".join(stored)})
    assert "Bearer" not in " ".join([json.dumps(told), *stored]), "a token went further than to its check"
    if route not in ("/runs/batch",):
        assert HARMLESS in " ".join(stored), "the other values are stored, and can be read here"
    assert "ada@verified" in " ".join(stored)


def message(parts: list[Any], **more: Any) -> dict[str, Any]:
    """Parameters of a message that states other users at all of its places."""
    ours = {
        "messageId": str(uuid.uuid4()),
        "role": "ROLE_USER",
        "parts": parts,
        "metadata": {**others("message.metadata"), "note": HARMLESS},
        **others("message"),
        **more,
    }
    return {
        "message": ours,
        "metadata": others("params.metadata"),
        "configuration": others("params.configuration"),
        **others("params"),
    }


async def talk(http: httpx.AsyncClient, route: str) -> str:
    """Make a run through a protocol between agents, and return the text of its result."""
    given = {"headers": others("headers"), "params": others("query")}

    async def call(path: str, method: str, params: Any, **headers: str) -> str:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer = await http.post(
            path, json=body, params=given["params"], headers={**given["headers"], **headers}
        )
        assert answer.status_code == 200, answer.text
        assert '"error"' not in answer.text, answer.text
        return answer.text

    if route == "tools/call":
        arguments = {**INPUT, **others("arguments")}
        params = {"name": "seen", "arguments": arguments, "_meta": others("params._meta"), **others("params")}
        return await call("/mcp", route, params, Accept="application/json, text/event-stream")
    data = {"data": others("part.data"), "metadata": others("part.metadata"), **others("part")}
    text: dict[str, Any] = {"text": "hi"}
    if route == "SendMessage":
        return await call("/a2a/seen", route, message([text, data]), **{"A2A-Version": "1.0"})
    data, text = {**data, "kind": "data"}, {**text, "kind": "text"}
    if route != "answer":
        params = message([text, data], role="user", kind="message")
        return await call("/a2a/seen", route, params)
    asked = await call("/a2a/asking", "message/send", message([text], role="user", kind="message"))
    task = json.loads(asked)["result"]["id"]
    params = message([data], role="user", kind="message", taskId=task)
    return await call("/a2a/asking", "message/send", params)


@pytest.mark.slow
@run
@pytest.mark.parametrize("route", AGENTS)
async def test_agents_and_tools_know_and_store_the_verified_user_alone(route: str, stored: list[str]) -> None:
    async with server() as (_, http):
        result = await talk(http, route)
    clean({"result": result})
    clean({"stored": " ".join(stored)})
    assert "ada@verified" in result, "the agent knows who the user is"
    if route != "tools/call":
        assert HARMLESS in " ".join(stored), "the other values are stored, and can be read here"


@run
async def test_threads_and_assistants_store_the_verified_user_alone(stored: list[str]) -> None:
    async with server() as (_, http):

        async def send(method: str, path: str, body: Any) -> Any:
            answer = await http.request(
                method, path, json=body, headers=others("headers"), params=others("q")
            )
            assert answer.status_code < 300, answer.text
            assert "root " not in answer.text, (method, path, answer.text)
            return answer.json()

        def named(way: str) -> dict[str, str]:
            return {**others(way), "note": HARMLESS}

        thread = (await send("POST", "/threads", {**others("body"), "metadata": named("new")}))["thread_id"]
        found = await send("PATCH", f"/threads/{thread}", {"metadata": named("patch"), **others("body")})
        assert found["metadata"] == {**VERIFIED, "note": HARMLESS}
        steps = [{"updates": [{"values": INPUT, "as_node": "__input__", **others("step")}]}]
        body = {"metadata": {**named("steps"), "graph_id": "seen"}, "supersteps": steps}
        made = (await send("POST", "/threads", body))["thread_id"]
        update = {"values": INPUT, "as_node": "node", "checkpoint": others("ref"), "metadata": others("meta")}
        await send("POST", f"/threads/{made}/state", {**update, "config": {"configurable": others("config")}})
        copy = await send("POST", f"/threads/{thread}/copy", {"metadata": others("copy"), **others("body")})
        assert copy["metadata"] == found["metadata"]
        for part in ("context", "configurable"):
            config: dict[str, Any] = {**others("config"), "metadata": others("config.metadata")}
            said: dict[str, Any] = {"graph_id": "seen", "metadata": named("assistant"), **others("body")}
            if part == "configurable":
                config["configurable"] = {**others("configurable"), "color": "red"}
            else:
                said["context"] = others("context")
            assistant = (await send("POST", "/assistants", {**said, "config": config}))["assistant_id"]
            await send("PATCH", f"/assistants/{assistant}", {**said, "config": config})
            await send("GET", f"/assistants/{assistant}", None)
            await send("POST", f"/assistants/{assistant}/versions", {})
            answer = await http.post("/runs/wait", json={"assistant_id": assistant, "input": INPUT})
            told = json.loads(answer.json()["messages"][-1]["content"])
            assert told["configurable"] == VERIFIED
            assert "root " not in str(told)
    clean({"stored": " ".join(stored)})
    assert HARMLESS in " ".join(stored)


def test_an_email_that_its_issuer_did_not_verify_is_no_email() -> None:
    def names(**fields: Any) -> dict[str, Any]:
        return list_verified_names(User("ada", "", fields=fields))

    assert names(email="a@b") == {"user_id": "ada", "user_email": "a@b"}
    assert names(email="a@b", email_verified=True)["user_email"] == "a@b"
    for given in ({"email": "a@b", "email_verified": False}, {"email": ""}, {"email": 7}, {}):
        assert names(**given) == {"user_id": "ada"}


def test_without_authentication_the_values_are_the_client_s_own() -> None:
    nobody, ada = User("", ""), User("ada", "")
    assert (
        without_claims(nobody, {"user_id": "x"})
        == with_verified(nobody, {"user_id": "x"})
        == {"user_id": "x"}
    )
    assert without_claims(ada, {"User_ID": "x", "a": 1}) == {"a": 1}
    assert with_verified(ada, {"user_id": "x", "user_email": "y"}) == {"user_id": "ada"}
    assert list_verified_names(nobody) == {}


class Aliased(BaseModel):
    user_id: str | None = Field(None, validation_alias=AliasChoices("user_id", "userId"))
    user_email: str | None = Field(None, alias="userEmail")
    owner: str | None = Field(None, validation_alias=AliasChoices(AliasPath("who", "id"), "User_Id"))
    tone: str | None = Field(None, alias="voice")


def aliased(state: MessagesState, runtime: Runtime[Aliased], config: RunnableConfig) -> dict[str, Any]:
    here = {**runtime.context.model_dump(), "config": str(config["configurable"])}
    return {"messages": [AIMessage(json.dumps(here))]}


@pytest.mark.parametrize(
    "context",
    [
        {"userId": "root", "userEmail": "root", "who": {"id": "root"}, "voice": "calm"},
        {"user_id": "root", "user_email": "root", "userEmail": "root", "User_Id": "root", "voice": "calm"},
    ],
)
@run
async def test_no_alias_of_the_graphs_context_states_a_user(context: dict[str, Any]) -> None:
    builder: Any = StateGraph(MessagesState, context_schema=Aliased)
    made = builder.add_node("node", aliased).add_edge(START, "node").compile()
    async with serving("memory://", of={"aliased": made}, gate=gate()) as served:
        http = await served.http("ada")
        body = {"assistant_id": "aliased", "input": INPUT, "context": context}
        values = (await http.post("/runs/wait", json=body)).json()
        found = json.loads(values["messages"][-1]["content"])
        assert "root" not in str(found)
        assert (found["user_id"], found["user_email"], found["tone"]) == ("ada", "ada@verified", "calm")
    async with serving("memory://", of={"aliased": made}) as open_to_all:
        http = await open_to_all.http()
        values = (await http.post("/runs/wait", json=body)).json()
        assert json.loads(values["messages"][-1]["content"])["user_email"] == "root", "the client's own data"


@run
async def test_a_cron_states_no_user_and_its_runs_have_the_verified_email() -> None:
    async with server() as (_, http):
        thread = await started(http, "seen")
        body = {
            "assistant_id": "seen",
            "schedule": "* * * * * *",
            "input": INPUT,
            "metadata": {**others("metadata"), "note": HARMLESS},
        }
        cron = (await http.post(f"/threads/{thread}/runs/crons", json=body)).json()
        assert cron["metadata"] == {"note": HARMLESS}
        path = f"/runs/crons/{cron['cron_id']}"
        changed = (await http.patch(path, json={"metadata": {**others("patch"), "more": 1}})).json()
        assert changed["metadata"] == {"note": HARMLESS, "more": 1}
        while len((await http.get(f"/threads/{thread}/state")).json()["values"]["messages"]) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        last = (await http.get(f"/threads/{thread}/state")).json()["values"]["messages"][3]
        assert json.loads(last["content"])["configurable"] == VERIFIED
