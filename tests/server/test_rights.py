"""Rights that handlers of an ``Auth`` give for each action, and what they change in a request's arguments.

Covers perdure.server.routes.runs, perdure.server.routes.store, perdure.server.routes.crons,
perdure.server.runs.run_arguments.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import httpx
import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from langgraph_sdk import Auth
from langgraph_sdk.auth import types
from langgraph_sdk.errors import UnprocessableEntityError

from perdure.server.auth.handlers import Handlers
from perdure.server.config import Http
from perdure.server.runs.outbound_policy import OutboundPolicy
from tests.server.acceptance.saying import said
from tests.server.acceptance.serving import eventually
from tests.server.graphs import graphs as fails
from tests.server.hosting import Served, graphs, known, run, serving

SAYS = said("hello")


def _told(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
    said = state["messages"][-1].text
    return {"messages": [AIMessage(f"{said} for {config['configurable'].get('org')}")]}


TELLS = StateGraph(MessagesState).add_node("tell", _told).add_edge(START, "tell").compile()
OF = {**graphs(), "tells": TELLS}


def except_for(*forbidden: str) -> Handlers:
    """Everybody may do everything, but ``reader`` not what is forbidden."""
    auth = known()

    @auth.on
    async def rule(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> bool:
        return ctx.user.identity != "reader" or f"{ctx.resource}.{ctx.action}" not in forbidden

    return Handlers(auth)


def changing(resource: str, action: str, change: Any) -> Handlers:
    """A handler that changes the arguments of one action, and what an application may do freely."""
    auth = known()

    @auth.on
    async def rule(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> None:
        if (ctx.resource, ctx.action) == (resource, action):
            change(value)

    return Handlers(auth)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'threads.db'}"


async def _running(served: Served) -> tuple[str, str]:
    """Start a run that takes long, and return its path and the path of its thread."""
    client = await served.client("owner")
    thread_id = (await client.threads.create())["thread_id"]
    made = await client.runs.create(thread_id, "slow", input=said("30"), stream_resumable=True)

    async def runs() -> bool:
        return (await client.runs.get(thread_id, made["run_id"]))["status"] == "running"

    await eventually(runs)
    return f"/threads/{thread_id}", f"/threads/{thread_id}/runs/{made['run_id']}"


@pytest.mark.parametrize("way", ["join", "stream"])
@run
async def test_who_may_only_read_a_run_does_not_end_it_by_leaving(url: str, way: str) -> None:
    async with serving(url, gate=except_for("threads.update")) as served:
        _, path = await _running(served)
        reader, owner = await served.http("reader"), await served.http("owner")
        assert (await reader.post(f"{path}/cancel")).status_code == 403
        query = {"cancel_on_disconnect": "true"}
        assert (await reader.get(f"{path}/{way}", params=query)).status_code == 403
        assert (await owner.get(path)).json()["status"] == "running"
        async with reader.stream("GET", f"{path}/{way}", params={"cancel_on_disconnect": "false"}) as answer:
            assert answer.status_code == 200
        async with owner.stream("GET", f"{path}/{way}", params=query) as answer:
            assert answer.status_code == 200

        async def is_over() -> bool:
            return bool((await owner.get(path)).json()["status"] == "interrupted")

        await eventually(is_over)


def _injects(value: dict[str, Any]) -> None:
    value["kwargs"]["config"].setdefault("configurable", {})["org"] = "acme"
    value["kwargs"]["input"]["messages"][0]["content"] = "good day"


@pytest.mark.parametrize("way", ["wait", "alone", "repeated", "with a context"])
@run
async def test_a_run_has_the_arguments_that_a_handler_left(url: str, way: str) -> None:
    async with serving(url, gate=changing("threads", "create_run", _injects), of=OF) as served:
        http = await served.http("ada")
        body: dict[str, Any] = {"assistant_id": "tells", "input": SAYS, "if_not_exists": "create"}
        if way == "with a context":
            body |= {"context": {"tone": "kind"}}
        path = "/runs/wait" if way == "alone" else "/threads/t/runs/wait"
        for _ in range(2 if way == "repeated" else 1):
            answer = await http.post(path, json=body, headers={"Idempotency-Key": "one"})
            assert answer.status_code == 200, answer.text
        assert [each["content"] for each in answer.json()["messages"]] == ["good day", "good day for acme"]


@pytest.mark.parametrize(
    ("change", "refused"),
    [
        (lambda value: value.update(kwargs=None), 500),
        (lambda value: value["kwargs"].pop("config"), 500),
        (lambda value: value["kwargs"].update(config="acme"), 500),
        (lambda value: value["kwargs"].update(webhook="http://127.0.0.1:1/"), 422),
    ],
)
@run
async def test_a_run_that_a_handler_left_without_sense_is_not_stored(
    url: str, change: Any, refused: int
) -> None:
    async with serving(url, gate=changing("threads", "create_run", change), of=OF) as served:
        served.host.webhooks = OutboundPolicy()
        http = await served.http("ada")
        (await http.post("/threads", json={"thread_id": "t"})).raise_for_status()
        answer = await http.post("/threads/t/runs", json={"assistant_id": "tells", "input": SAYS})
        assert answer.status_code == refused, answer.text
        assert (await http.get("/threads/t/runs")).json() == []


@run
async def test_a_cron_has_the_run_that_a_handler_left(url: str) -> None:
    def injects(value: dict[str, Any]) -> None:
        value["payload"].setdefault("config", {})["configurable"] = {"org": "acme"}
        value["payload"]["input"] = {
            "messages": [{"role": "user", "content": value["payload"]["assistant_id"]}]
        }

    async with serving(url, gate=changing("crons", "create", injects), of=OF) as served:
        http = await served.http("ada")
        new = {"assistant_id": "tells", "schedule": "0 9 * * *", "input": SAYS}
        made = (await http.post("/runs/crons", json=new)).raise_for_status().json()
        assert made["payload"]["config"] == {"configurable": {"org": "acme"}}
        assert made["payload"]["input"]["messages"][0]["content"] == "tells"


@run
async def test_a_changed_cron_has_the_run_that_a_handler_left(url: str) -> None:
    def injects(value: dict[str, Any]) -> None:
        value["payload"]["config"] = {"configurable": {"org": "acme"}}

    async with serving(url, gate=changing("crons", "update", injects), of=OF) as served:
        http = await served.http("ada")
        new = {"assistant_id": "tells", "schedule": "0 9 * * *", "input": SAYS}
        made = (await http.post("/runs/crons", json=new)).raise_for_status().json()
        path = f"/runs/crons/{made['cron_id']}"
        changed = (await http.patch(path, json={"enabled": False})).raise_for_status().json()
        assert changed["payload"]["config"] == {"configurable": {"org": "acme"}}
        assert changed["payload"]["input"] == SAYS


async def _stored(http: httpx.AsyncClient) -> None:
    for number in range(5):
        item = {"namespace": ["notes", f"n{number}"], "key": "k", "value": {"number": number}}
        (await http.put("/store/items", json=item)).raise_for_status()


@pytest.mark.parametrize(
    ("action", "path", "change", "held"),
    [
        ("search", "/store/items/search", {"limit": 2}, "items"),
        ("search", "/store/items/search", {"offset": 3}, "items"),
        ("search", "/store/items/search", {"filter": {"number": {"$gte": 3}}}, "items"),
        ("list_namespaces", "/store/namespaces", {"limit": 2}, "namespaces"),
        ("list_namespaces", "/store/namespaces", {"offset": 3}, "namespaces"),
    ],
)
@run
async def test_a_search_of_the_store_has_the_arguments_that_a_handler_left(
    url: str, action: str, path: str, change: dict[str, Any], held: str
) -> None:
    async with serving(url, gate=changing("store", action, lambda value: value.update(change))) as served:
        http = await served.http("ada")
        await _stored(http)
        assert len((await http.post(path, json={})).json()[held]) == 2


VALUES = {
    ("threads", "create_run"): (types.RunsCreate, {"action"}),
    ("crons", "create"): (types.CronsCreate, set[str]()),
    ("crons", "update"): (types.CronsUpdate, set[str]()),
    ("assistants", "create"): (types.AssistantsCreate, set[str]()),
    # Given when a version is chosen.
    ("assistants", "update"): (types.AssistantsUpdate, {"version"}),
    ("store", "put"): (types.StorePut, set[str]()),
    ("store", "search"): (types.StoreSearch, set[str]()),
    ("store", "list_namespaces"): (types.StoreListNamespaces, set[str]()),
}
"""The type of the arguments of an action, and the names in it that not every request has."""


@run
async def test_a_handler_finds_the_arguments_that_their_types_name(url: str) -> None:
    auth, came = known(), dict[tuple[str, str], set[str]]()

    @auth.on
    async def rule(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> None:
        came.setdefault((ctx.resource, ctx.action), set(value))

    async with serving(url, gate=Handlers(auth), of=OF) as served:
        http = await served.http("ada")
        run = {"assistant_id": "tells", "input": SAYS}
        (await http.post("/runs/wait", json=run)).raise_for_status()
        cron = (await http.post("/runs/crons", json={**run, "schedule": "0 9 * * *"})).json()
        (await http.patch(f"/runs/crons/{cron['cron_id']}", json={})).raise_for_status()
        made = (await http.post("/assistants", json={"graph_id": "tells"})).json()
        (await http.patch(f"/assistants/{made['assistant_id']}", json={})).raise_for_status()
        await _stored(http)
        for path in ("/store/items/search", "/store/namespaces"):
            (await http.post(path, json={})).raise_for_status()
    for action, (kind, absent) in VALUES.items():
        assert set(get_type_hints(kind)) - came[action] == absent, action


@pytest.mark.parametrize("way", ["threads/t/runs", "runs"])
@run
async def test_a_thread_has_the_metadata_of_the_run_that_creates_it(url: str, way: str) -> None:
    def stamps(value: dict[str, Any]) -> None:
        value["metadata"]["team"] = "red"

    async with serving(url, gate=changing("threads", "create_run", stamps), of=OF) as served:
        http = await served.http("ada")
        body = {
            "assistant_id": "tells",
            "input": SAYS,
            "if_not_exists": "create",
            "on_completion": "keep",
            "metadata": {"topic": "tea", "graph_id": "other", "user_id": "bob", "debounce_ms": 1},
            "config": {"metadata": {"source": "web", "topic": "coffee"}},
        }
        made = (await http.post(f"/{way}", json=body)).raise_for_status().json()
        thread = (await http.get(f"/threads/{made['thread_id']}")).raise_for_status().json()
        its = {"graph_id": "tells", "assistant_id": made["assistant_id"]}
        assert thread["metadata"] == {"topic": "tea", "source": "web", "team": "red", **its}
        found = await http.post("/threads/search", json={"metadata": {"topic": "tea"}})
        assert [one["thread_id"] for one in found.json()] == [made["thread_id"]]
        # A later run leaves the metadata as they are.
        later = {"assistant_id": "tells", "input": SAYS, "metadata": {"topic": "milk"}}
        (await http.post(f"/threads/{made['thread_id']}/runs/wait", json=later)).raise_for_status()
        assert (await http.get(f"/threads/{made['thread_id']}")).json()["metadata"] == thread["metadata"]


@pytest.mark.parametrize(
    ("action", "right"), [("rerun", "threads.create_run"), ("discard", "threads.delete")]
)
@run
async def test_the_inspector_needs_the_right_that_the_route_needs(url: str, action: str, right: str) -> None:
    """To run a failed run again creates one, and to discard one deletes it."""
    of, http_of = {"boom": fails()["boom"]}, Http(inspector=True)
    async with serving(url, gate=except_for(right), of=of, http=http_of) as server:
        client = await server.client("owner")
        thread_id = (await client.threads.create())["thread_id"]
        await client.runs.wait(thread_id, "boom", input=SAYS, raise_error=False)
        (failed,) = await client.runs.list(thread_id)
        path, body = f"/inspect/api/actions/{action}", {"id": thread_id, "run_id": failed["run_id"]}
        refused = await (await server.http("reader")).post(path, json=body)
        assert refused.status_code == 403, refused.text
        assert [one["run_id"] for one in await client.runs.list(thread_id)] == [failed["run_id"]]
        done = await (await server.http("owner")).post(path, json=body)
        assert done.status_code == 200, done.text


@run
async def test_no_user_creates_the_thread_of_a_chat_before_its_first_message() -> None:
    async with serving("memory://", of=OF, gate=except_for()) as served:
        served.host.chats = (SimpleNamespace(name="telegram"),)  # type: ignore[assignment]
        client = await served.client("reader")
        for refused in ("telegram:4711::", "telegram:-1:7:x"):
            with pytest.raises(UnprocessableEntityError, match="those of chats at 'telegram'"):
                await client.threads.create(thread_id=refused)
            with pytest.raises(UnprocessableEntityError, match="those of chats at 'telegram'"):
                await client.runs.create(refused, "tells", input=SAYS, if_not_exists="create")
        for free in ("telegram:4711", "slack:4711::"):
            assert (await client.threads.create(thread_id=free))["thread_id"] == free
