"""Projects with a ``langgraph.json`` as LangGraph's documentation has them: graphs that are made for each
use, an application beside the API, headers, and clients without a URL.

Covers perdure.server.hosting.loopback, perdure.server.hosting.mounting.
"""

from __future__ import annotations

import json
import sys
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

from perdure.errors import BadSetting
from perdure.server.config import load
from perdure.server.hosting.process import application
from perdure.server.hosting.startup import open_state
from tests.server.acceptance.serving import run

GRAPHS = """\
from __future__ import annotations
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from langgraph_sdk import get_client

if TYPE_CHECKING:
    from langgraph_sdk.runtime import ServerRuntime

used = []


def saying(text):
    def turn(state):
        return {"messages": [AIMessage(text if isinstance(text, str) else text())]}
    return StateGraph(MessagesState).add_node("turn", turn).add_edge(START, "turn")


def of_config(config: RunnableConfig):
    return saying("model=" + str(config["configurable"].get("model"))).compile()


def named(config: RunnableConfig):
    def turn(state):
        return {"messages": [AIMessage("done")]}
    name = config["configurable"].get("node", "usual")
    return StateGraph(MessagesState).add_node(name, turn).add_edge(START, name)


async def of_runtime(runtime: ServerRuntime):
    used.append(runtime.access_context)
    user = runtime.user.org if runtime.user else None
    context = runtime.execution_runtime.context if runtime.execution_runtime else None
    return saying(f"{runtime.access_context} {user} {context} {type(runtime.store).__name__}")


async def of_both(runtime: ServerRuntime[Any], config: RunnableConfig):
    return saying(f"{runtime.access_context} {config['configurable']['thread_id']}")


def of_any(settings):
    return saying(sorted(key for key in settings["configurable"] if key.startswith("__")).__repr__())


@asynccontextmanager
async def within(config: RunnableConfig):
    used.append("open")
    try:
        yield saying(lambda: used[-1])
    finally:
        used.append("closed")


@asynccontextmanager
async def bare():
    yield saying("bare")


@contextmanager
def plain_context(config):
    yield saying("plain")


def broken(config: RunnableConfig):
    raise ValueError("no such model")


def wrong(config: RunnableConfig):
    return 7


def configured(state, config: RunnableConfig):
    found = {k: v for k, v in config["configurable"].items() if k.startswith("x-") or k == "model"}
    return {"messages": [AIMessage(repr(found))]}


headers = StateGraph(MessagesState).add_node("turn", configured).add_edge(START, "turn").compile()
early = get_client()


async def calls(state, config: RunnableConfig):
    mine = config["configurable"]["thread_id"]
    found = [await client.threads.get(mine) for client in (early, get_client())]
    return {"messages": [AIMessage(str([one["thread_id"] == mine for one in found]))]}


calling = StateGraph(MessagesState).add_node("turn", calls).add_edge(START, "turn").compile()
"""

NAMES = ("of_config", "of_runtime", "of_both", "of_any", "within", "bare", "plain_context", "broken", "wrong")

AUTH = """\
from langgraph_sdk import Auth

auth = Auth()


@auth.authenticate
async def authenticate(authorization: str | None):
    if not authorization:
        raise Auth.exceptions.HTTPException(status_code=401, detail="Who are you?")
    return {"identity": authorization.removeprefix("Bearer "), "org": "acme", "role": {"name": "lead"}}


@auth.on
async def own(ctx, value):
    filters = {"owner": ctx.user.identity}
    value.setdefault("metadata", {}).update(filters)
    return filters
"""

WEB = """\
from contextlib import asynccontextmanager

from fastapi import FastAPI, Request
from langgraph_sdk import get_client
from pydantic import BaseModel

lived = []


@asynccontextmanager
async def lifespan(app):
    lived.append(await get_client().assistants.count())
    yield {"pool": "a pool"}
    lived.append("over")


app = FastAPI(lifespan=lifespan)


@app.middleware("http")
async def mark(request, call_next):
    answer = await call_next(request)
    answer.headers["X-Marked"] = str(int(answer.headers.get("X-Marked", 0)) + 1)
    return answer


@app.get("/mine")
async def mine(request: Request):
    user = request.scope.get("user")
    return {"pool": request.state.pool, "user": getattr(user, "identity", None), "lived": lived}


class ErrorBody(BaseModel):
    code: int


@app.post("/ok")
@app.post("/mine")
async def made(fault: ErrorBody) -> ErrorBody:
    return fault
"""

INPUT = {"messages": [{"role": "user", "content": "hi"}]}


class Project:
    """A folder with a ``langgraph.json``, served."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # Modules stay loaded: each test has its own.
        self.name = f"project_{uuid.uuid4().hex[:8]}"
        for part, text in (("graphs", GRAPHS), ("auth", AUTH), ("web", WEB)):
            (folder / f"{self.name}_{part}.py").write_text(text)

    def place(self, part: str, name: str) -> str:
        return f"./{self.name}_{part}.py:{name}"

    @asynccontextmanager
    async def served(
        self, graphs: tuple[str, ...], environ: dict[str, str] | None = None, **more: Any
    ) -> AsyncIterator[httpx.AsyncClient]:
        file = self.folder / "langgraph.json"
        file.write_text(json.dumps({"graphs": {name: self.place("graphs", name) for name in graphs}, **more}))
        database = f"sqlite:///{self.folder / 'threads.db'}"
        config = load(file=file, db=database, development=True, environ=environ or {})
        async with open_state(config) as host, application(config, host) as app:
            transport = httpx.ASGITransport(app)
            async with httpx.AsyncClient(transport=transport, base_url="http://here", timeout=60) as http:
                yield http


@pytest.fixture
def project(tmp_path: Path, nothing_is_set: None) -> Project:
    return Project(tmp_path)


async def answer(http: httpx.AsyncClient, graph: str, headers: Any = None, **more: Any) -> str:
    body = {"assistant_id": graph, "input": INPUT, "if_not_exists": "create", **more}
    found = await http.post("/runs/wait", json=body, headers=headers)
    values = found.json()
    if "__error__" in values:
        return f"{values['__error__']['error']}: {values['__error__']['message']}"
    return str(values["messages"][-1]["content"])


@run
async def test_a_graph_is_made_for_each_use_by_a_function_of_its_config_and_runtime(project: Project) -> None:
    async with project.served(NAMES, auth={"path": project.place("auth", "auth")}) as http:
        http.headers["Authorization"] = "Bearer ada"
        for model in ("small", "large"):
            configurable = {"model": model}
            told = await answer(http, "of_config", config={"configurable": configurable})
            assert told == f"model={model}"
        told = await answer(http, "of_runtime", context={"a": 1})
        assert told == "threads.create_run acme {'a': 1} AsyncPerdureStore"
        assert await answer(http, "of_both", thread_id="t/1") == "threads.create_run t/1"
        assert await answer(http, "of_any") == "[]"
        assert await answer(http, "within") == "open"
        assert await answer(http, "within") == "open", "it was closed after the first"
        assert await answer(http, "bare") == "bare"
        assert await answer(http, "plain_context") == "plain"
        # Whatever a function raises is its run's error; the others are served.
        assert await answer(http, "broken") == "ValueError: no such model"
        assert (await answer(http, "wrong")).startswith("GraphLoadError: ")


@run
async def test_a_graph_made_for_each_use_is_looked_at_and_edited_as_others_are(project: Project) -> None:
    async with project.served(("of_runtime", "within")) as http:
        await answer(http, "of_runtime", thread_id="t1")
        found = await http.get("/threads/t1/state")
        assert found.json()["values"]["messages"][-1]["content"].startswith("threads.create_run None")
        said = {"messages": [{"role": "user", "content": "more"}]}
        assert (await http.post("/threads/t1/state", json={"values": said})).status_code == 200
        assert len((await http.post("/threads/t1/history", json={})).json()) == 4
        assert (await http.get("/assistants/of_runtime/schemas")).json()["state_schema"] is not None
        assert (await http.get("/assistants/of_runtime/graph")).status_code == 200
        used = __import__("sys").modules[f"{project.name}_graphs"].used
        assert set(used) == {"threads.create_run", "threads.read", "threads.update", "assistants.read"}
        await answer(http, "within", thread_id="t2")
        assert used.count("open") == used.count("closed") > 0


@run
async def test_a_thread_is_edited_with_the_graph_that_its_newest_run_was_made_for(project: Project) -> None:
    async with project.served(("named",)) as http:
        assert (
            await answer(http, "named", thread_id="t1", config={"configurable": {"node": "other"}}) == "done"
        )
        said = {"messages": [{"role": "user", "content": "more"}]}
        edited = await http.post("/threads/t1/state", json={"values": said, "as_node": "other"})
        assert (edited.status_code, edited.json().get("detail")) == (200, None)
        assert len((await http.get("/threads/t1/state")).json()["values"]["messages"]) == 3


@run
async def test_an_application_beside_the_api_has_its_lifespan_and_middleware(project: Project) -> None:
    web = project.place("web", "app")
    async with project.served(("headers",), http={"app": web}) as http:
        told = await http.get("/mine")
        assert told.json() == {"pool": "a pool", "user": None, "lived": [1]}
        # Its middleware is around the routes of the API, once.
        assert told.headers["X-Marked"] == (await http.get("/ok")).headers["X-Marked"] == "1"
        assert (await http.get("/nothing")).status_code == 404
    auth = {"path": project.place("auth", "auth")}
    async with project.served(("headers",), http={"app": web}, auth=auth) as http:
        assert (await http.get("/mine")).json()["lived"] == [1, "over", 1]
    behind = {"app": web, "enable_custom_route_auth": True}
    async with project.served(("headers",), http=behind, auth=auth) as http:
        refused = await http.get("/mine")
        assert (refused.status_code, refused.json()) == (401, {"detail": "Who are you?"})
        told = await http.get("/mine", headers={"Authorization": "Bearer ada"})
        assert told.json()["user"] == "ada"


@run
async def test_an_application_beside_the_api_is_described_with_it(project: Project) -> None:
    web = {"app": project.place("web", "app")}
    async with project.served(("headers",)) as http:
        alone = (await http.get("/openapi.json")).json()
    async with project.served(("headers",), http=web) as http:
        described = (await http.get("/openapi.json")).json()
        assert (await http.get("/openapi.json")).json() == described
        assert (await http.post("/ok", json={"code": 1})).json() == {"code": 1}
    assert set(described["paths"]["/mine"]) == {"get", "post"}
    # What the API says of itself stays, also where both have a schema of one name.
    told = described["paths"].pop("/ok")
    assert told == {"get": alone["paths"].pop("/ok")["get"], "post": told["post"]}
    assert {path: described["paths"][path] for path in alone["paths"]} == alone["paths"]
    schemas = described["components"]["schemas"]
    assert {name: schemas[name] for name in alone["components"]["schemas"]} == alone["components"]["schemas"]
    body = described["paths"]["/mine"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert set(schemas[body["$ref"].rpartition("/")[2]]["properties"]) == {"code"}
    assert set(schemas["ErrorBody"]["properties"]) == {"detail"}


@run
async def test_runs_read_the_headers_that_the_configuration_names_and_no_secret(project: Project) -> None:
    taken = {"includes": ["x-*", "authorization"], "excludes": ["x-hidden-*"]}
    headers = {"X-Org": "acme", "X-Hidden-One": "no", "X-Api-Key": "secret", "Authorization": "Bearer secret"}
    async with project.served(("headers",), http={"configurable_headers": taken}) as http:
        assert await answer(http, "headers", headers) == "{'x-org': 'acme'}"
    async with project.served(("headers",)) as http:
        assert await answer(http, "headers", headers) == "{}"


@run
async def test_the_environment_configures_the_assistants_of_graphs(project: Project) -> None:
    configs = {"headers": {"configurable": {"model": "from outside"}}}
    environ = {"LANGGRAPH_CONFIG": json.dumps(configs)}
    async with project.served(("headers",), environ) as http:
        assert await answer(http, "headers") == "{'model': 'from outside'}"
        assert (await http.get("/assistants/headers")).json()["context"] == {"model": "from outside"}
    for wrong in ("{", "[]", '{"headers": 7}', '{"nobody": {}}'):
        with pytest.raises(BadSetting, match="LANGGRAPH_CONFIG"):
            async with project.served(("headers",), {"LANGGRAPH_CONFIG": wrong}):
                raise AssertionError("it was taken")


@run
async def test_a_client_without_a_url_reaches_the_server_that_it_runs_in(project: Project) -> None:
    auth = {"path": project.place("auth", "auth")}
    async with project.served(("calling",), auth=auth) as http:
        http.headers["Authorization"] = "Bearer ada"
        assert await answer(http, "calling") == "[True, True]"
        del http.headers["Authorization"]
        outside = await http.get("/threads/t1", headers={"root_path": "/noauth"})
        assert outside.status_code == 401, "only the program itself comes in without a name"


@run
async def test_a_client_without_a_url_does_so_beside_an_installed_server_of_langgraphs(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Elsewhere(httpx.ASGITransport):
        async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
            raise RuntimeError("it works in the process of that server only")

    server, transport = ModuleType("langgraph_api.server"), ModuleType("langgraph_api.asgi_transport")
    server.__dict__["app"] = object()
    transport.__dict__["ASGITransport"] = Elsewhere
    package = ModuleType("langgraph_api")
    package.__dict__["asgi_transport"] = transport
    for module in (package, server, transport):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    async with project.served(("calling",)) as http:
        assert await answer(http, "calling") == "[True, True]"


@run
async def test_the_store_of_a_project_is_searched_by_meaning(project: Project) -> None:
    index = {"dims": 16, "embed": project.place("embedding", "embed"), "fields": ["text"]}
    source = "from perdure.testing.conformance.meaning import embed\n"
    (project.folder / f"{project.name}_embedding.py").write_text(source)
    async with project.served(("bare",), store={"index": index}) as http:
        for key, text, more in (("a", "likes tea", {}), ("b", "bridge", {}), ("c", "tea", {"index": False})):
            item = {"namespace": ["users", "ada"], "key": key, "value": {"text": text}, **more}
            assert (await http.put("/store/items", json=item)).status_code == 204
        asked = {"namespace_prefix": ["users"], "query": "likes tea"}
        found = (await http.post("/store/items/search", json=asked)).json()["items"]
        assert [item["key"] for item in found] == ["a", "b"]
        assert found[0]["score"] > found[1]["score"]


@pytest.mark.parametrize(
    ("index", "advice"),
    [
        ({"dims": 16}, r"store\.index\.embed"),
        ({"embed": "openai:text-embedding-3-small"}, r"store\.index\.dims"),
        ({"dims": 16, "embed": "nowhere:model"}, r"store\.index cannot be used: embed is 'nowhere:model'"),
    ],
)
@run
async def test_an_index_that_cannot_be_made_stops_the_start(
    project: Project, index: Any, advice: str
) -> None:
    with pytest.raises(BadSetting, match=advice):
        async with project.served(("bare",), store={"index": index}):
            pass
