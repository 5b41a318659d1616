"""A module that compiles its graph with Perdure, loaded by LangGraph's own development server.

Covers perdure.config.checkpoint_lifespan.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.store.memory import InMemoryStore

import perdure
from bench.served import rooms
from bench.served.hosts import HOSTS, LANGGRAPH, Site
from bench.servers import Missing
from perdure.config import checkpoint_lifespan
from tests.conftest import missing
from tests.servers.ports import free_port

ROOT = Path(__file__).parents[2]
MODULE = """
import os
from contextlib import asynccontextmanager
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime
import perdure

def answer(state: MessagesState, runtime: Runtime):
    said = len(state["messages"])
    runtime.store.put(("seen",), "count", {"said": said})
    return {"messages": [("ai", f"{said} of {type(runtime.store).__module__}")]}

builder = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer")
URL = os.environ["DATABASE_URL"]
opened = perdure.connect_sync(URL).__enter__()
store = opened.store()
checkpointer = perdure.checkpoint_lifespan

def compiled(saver):
    return perdure.compile_graph(builder, checkpointer=saver, store=store)

if os.environ["FORM"] == "graph":
    agent = compiled(opened.checkpointer())
else:
    @asynccontextmanager
    async def agent():
        async with perdure.checkpoint_lifespan(URL) as saver:
            yield compiled(saver)
"""


@contextmanager
def langgraph_dev(
    folder: Path, form: str, *, config: dict[str, Any] | None = None, **environ: str
) -> Iterator[str]:
    """Run `langgraph dev` over the module; yield its URL, or its log if it does not start."""
    host, port = HOSTS[LANGGRAPH], free_port()
    try:
        programs = rooms.programs(host)
    except Missing as error:
        missing("LangGraph's development server", str(error))
    (folder / "app.py").write_text(MODULE)
    described = {"dependencies": ["."], "graphs": {"agent": "./app.py:agent"}, **(config or {})}
    (folder / "langgraph.json").write_text(json.dumps(described))
    start = host.start(Site(programs, folder, port, {}))
    # Its environment has no Perdure: this one's packages come after its own.
    paths = [str(ROOT / "src"), sysconfig.get_path("purelib")]
    program = f"import sys; sys.path += {paths!r}; from langgraph_cli.cli import cli; cli()"
    command = [str(programs / "python"), "-c", program, *start.command[1:]]
    given = {name: value for name, value in os.environ.items() if name not in ("LANGGRAPH_DEV", "PERDURE_DB")}
    given |= {**start.environment, "FORM": form, "DATABASE_URL": url_of(folder), **environ}
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=given, stdout=log, stderr=subprocess.STDOUT)
    try:
        deadline = time.monotonic() + 90
        base = f"http://127.0.0.1:{port}"
        while process.poll() is None and time.monotonic() < deadline:
            try:
                if httpx.get(f"{base}/ok").is_success:
                    yield base
                    return
            except httpx.TransportError:
                time.sleep(0.2)
        yield (folder / "log").read_text()
    finally:
        process.terminate()
        process.wait(30)


def url_of(folder: Path) -> str:
    return f"sqlite:///{folder / 'threads.db'}"


def talk(base: str) -> tuple[str, list[str]]:
    """Two turns of a thread; the answers."""
    with httpx.Client(base_url=base, timeout=60) as http:
        thread: str = http.post("/threads", json={}).json()["thread_id"]
        run = {"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": "hi"}]}}
        answers = [http.post(f"/threads/{thread}/runs/wait", json=run).json() for _ in range(2)]
        return thread, [answer["messages"][-1]["content"] for answer in answers]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with perdure.connect_sync(url_of(tmp_path), migrate=True):
        return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("form", ["graph", "function"])
def test_langgraph_dev_keeps_the_threads_and_perdure_the_store(folder: Path, form: str) -> None:
    with langgraph_dev(folder, form, LANGGRAPH_DEV="studio") as base:
        assert base.startswith("http://"), base
        _, answers = talk(base)
        assert answers == ["1 of perdure.langgraph.store", "3 of perdure.langgraph.store"]
    assert (folder / "log").read_text().count("has no checkpointer of Perdure's") == 1
    with perdure.connect_sync(url_of(folder)) as db:
        assert list(db.threads()) == []
        item = db.store().get(("seen",), "count")
        assert item is not None
        assert item.value == {"said": 3}


@pytest.mark.slow
def test_perdure_keeps_the_threads_of_langgraph_dev_where_its_file_says_so(folder: Path) -> None:
    config = {"checkpointer": {"path": "./app.py:checkpointer"}}
    with langgraph_dev(folder, "graph", config=config, LANGGRAPH_DEV="1") as base:
        assert base.startswith("http://"), base
        thread, answers = talk(base)
        assert answers == ["1 of perdure.langgraph.store", "3 of perdure.langgraph.store"]
    with perdure.connect_sync(url_of(folder)) as db:
        assert [each.thread_id for each in db.threads()] == [thread]


@pytest.mark.slow
def test_without_the_variable_langgraph_dev_refuses_the_graph_and_nothing_is_left_out(folder: Path) -> None:
    with langgraph_dev(folder, "graph") as log:
        assert "includes a custom checkpointer" in log


# Which store a node has, and which checkpointer a graph, beside the names of that server's modules.


def stores(state: MessagesState, runtime: Runtime[None]) -> dict[str, Any]:
    return {"messages": [AIMessage(type(runtime.store).__name__)]}


BUILDER = StateGraph(MessagesState).add_node(stores).add_edge(START, "stores")


def in_server(monkeypatch: pytest.MonkeyPatch, variant: str) -> None:
    module = ModuleType("langgraph_api.config")
    module.__dict__["API_VARIANT"] = variant
    monkeypatch.setitem(sys.modules, "langgraph_api.config", module)


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    checkpoint_lifespan._tell_of_langgraph_dev.cache_clear()
    caplog.set_level(logging.WARNING, "perdure.server")
    return caplog


@pytest.mark.parametrize("is_compiled", [False, True])
def test_there_a_graph_has_no_checkpointer_and_its_nodes_have_the_store(
    monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture, *, is_compiled: bool
) -> None:
    in_server(monkeypatch, "local_dev")
    monkeypatch.setenv("LANGGRAPH_DEV", "1")
    with perdure.connect_sync("memory://") as db:
        builder: Any = BUILDER.compile(store=db.store()) if is_compiled else BUILDER
        given: dict[str, Any] = {} if is_compiled else {"store": db.store()}
        for _ in range(2):
            graph = perdure.compile_graph(builder, checkpointer=db.checkpointer(), **given)
        assert (graph.checkpointer, graph.store) == (None, None)
        served = graph.copy({"checkpointer": None, "store": InMemoryStore()})
        assert served.invoke({"messages": []})["messages"][-1].content == type(db.store()).__name__
    assert [record.getMessage().partition(" within")[0] for record in logged.records] == [
        "DEVELOPMENT: graph LangGraph has no checkpointer of Perdure's"
    ]


@pytest.mark.parametrize(
    ("variant", "environ"),
    [("local_dev", "0"), ("local_dev", ""), ("licensed", "1"), ("", "1"), (None, "1")],
)
def test_elsewhere_nothing_is_left_out(
    monkeypatch: pytest.MonkeyPatch, logged: pytest.LogCaptureFixture, variant: str | None, environ: str
) -> None:
    if variant is not None:
        in_server(monkeypatch, variant)
    monkeypatch.setenv("LANGGRAPH_DEV", environ)
    with perdure.connect_sync("memory://") as db:
        saver, store = db.checkpointer(), db.store()
        graph = perdure.compile_graph(BUILDER, checkpointer=saver, store=store, allow_in_memory=True)
        assert (graph.checkpointer, graph.store) == (saver, store)
    assert logged.records == []
