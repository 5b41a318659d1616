"""Somebody else's application starts with Perdure in it: which database, which graphs, and what is open."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import StateGraph

import perdure
from examples.fastapi_app import builder as chat
from perdure.errors import BadSetting, MissingExtra, NotFound, SchemaTooNew
from perdure.model.runs.messages import DONE
from perdure.runtime import Agent, Runtime
from perdure.runtime.retention_loop import RetentionLoop
from perdure.schema import Schema
from perdure.server import checkpoint_lifespan, compile_graph, perdure_app
from perdure.server.auth.identity import OpenGate, User
from tests.langgraph import graphs as made
from tests.runtime.graphs import eventually_stored
from tests.server.applications import (
    PLACES,
    QUICK,
    VARIABLES,
    Place,
    answers,
    app_with,
    client_of,
    postgresql,
    run,
    sqlite,
    started,
    turn,
)

pytestmark = pytest.mark.usefixtures("nothing_is_set")

ROOT = Path(__file__).resolve().parent.parent.parent

# Imports


def _python(code: str, **env: str) -> str:
    own = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT, env={**own, **env}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.stdout + done.stderr


def test_the_package_does_without_fastapi() -> None:
    assert _python("import sys, perdure; print('fastapi' in sys.modules)") == "False\n"
    absent = (
        "import sys; sys.modules['fastapi'] = None; import perdure; print('there'); import perdure.server"
    )
    told = _python(absent)
    assert told.startswith("there\n")
    assert f"{MissingExtra.__name__}: perdure.server needs an extra: pip install 'perdure[server]'" in told


def test_importing_opens_nothing_and_asks_for_nothing(tmp_path: Path) -> None:
    code = "import threading, examples.fastapi_app; print(threading.active_count())"
    assert _python(code, DATABASE_URL=f"sqlite:///{tmp_path}/a.db") == "1\n"
    assert list(tmp_path.iterdir()) == []


def test_every_public_name_is_there() -> None:
    import perdure.server as public

    assert all(getattr(public, name) is not None for name in public.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = public.nothing


# Compiling


def test_a_builder_and_a_compiled_graph_get_the_checkpointer(near: str) -> None:
    compiled = chat.compile(InMemorySaver())
    with perdure.connect_sync(near) as db:
        saver, store = db.checkpointer(), db.store()
        for graph in (
            compile_graph(chat, checkpointer=saver, store=store, name="mine"),
            compile_graph(compiled, checkpointer=saver, store=store),
        ):
            assert graph.checkpointer is saver
            assert graph.store is store
        assert compile_graph(chat, checkpointer=saver, name="mine").get_name() == "mine"
        own = chat.compile(store=store)
        assert compile_graph(own, checkpointer=saver).store is store
        with pytest.raises(TypeError, match="name: options are for a builder"):
            compile_graph(compiled, checkpointer=saver, name="mine")
    assert isinstance(compiled.checkpointer, InMemorySaver)


@pytest.mark.parametrize("missing", [None, False, True])
def test_a_graph_without_a_checkpointer_is_refused(missing: Any) -> None:
    with pytest.raises(BadSetting, match=f"needs a checkpointer, not {missing}: .*db.checkpointer"):
        compile_graph(chat, checkpointer=missing)


@pytest.mark.parametrize("kind", ["LangGraph's", "memory://"])
def test_a_checkpointer_in_memory_is_there_on_request_alone(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with perdure.connect_sync("memory://") as db:
        saver: BaseCheckpointSaver[Any] = InMemorySaver() if kind == "LangGraph's" else db.checkpointer()
        with pytest.raises(BadSetting, match=r"keeps threads in memory: .*allow_in_memory=True"):
            compile_graph(chat, checkpointer=saver)
        assert compile_graph(chat, checkpointer=saver, allow_in_memory=True).checkpointer is saver
        monkeypatch.setenv("LANGGRAPH_DEV", "0")
        with pytest.raises(BadSetting):
            compile_graph(chat, checkpointer=saver)
        monkeypatch.setenv("LANGGRAPH_DEV", "1")
        assert compile_graph(chat, checkpointer=saver).checkpointer is saver


def test_an_injected_checkpointer_is_left_open(near: str) -> None:
    async def work() -> None:
        async with perdure.connect(near) as db:
            graph = compile_graph(chat, checkpointer=db.checkpointer())
            app = app_with(near, graphs={"chat": graph}, serve=True)
            async with started(app):
                assert app.state.perdure.graph.checkpointer is not graph.checkpointer
            del app
            gc.collect()
            state = await graph.ainvoke({"messages": ["hi"]}, {"configurable": {"thread_id": "t"}})
            assert state["messages"][-1].text == "1: hi"

    run(work())


# Which database


def test_the_url_is_read_at_the_start(near: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app = app_with(None)
    monkeypatch.setenv("DATABASE_URL", near)

    run(answers(app, "1: hi"))
    monkeypatch.setenv("DATABASE_URL", "gopher://nowhere")
    monkeypatch.setenv("PERDURE_DB", near)
    run(answers(app, "2: hi"))


def _refused(app: FastAPI) -> BaseException:
    async def start() -> None:
        async with started(app):
            raise AssertionError("it started")

    with pytest.raises(perdure.PerdureError) as caught:
        run(start())
    assert not hasattr(app.state, "perdure")
    return caught.value


@pytest.mark.parametrize("environ", [{}, {"DATABASE_URL": ""}, {"LANGGRAPH_DEV": "false"}])
def test_without_a_url_it_does_not_start(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    error = _refused(app_with(None))
    assert isinstance(error, BadSetting)
    assert str(error).startswith("which database? DATABASE_URL is not set; set it to e.g. postgresql://")


def test_in_development_it_is_a_file_and_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LANGGRAPH_DEV", "true")
    app = app_with(None)
    run(answers(app, "1: hi"))
    (warned,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert warned.startswith(
        "DEVELOPMENT: DATABASE_URL is not set, so threads are kept in sqlite:///.perdure/"
    )
    run(answers(app, "2: hi"))
    assert (tmp_path / ".perdure" / ".gitignore").read_text() == "*\n"


def test_memory_on_request_is_said(caplog: pytest.LogCaptureFixture) -> None:
    app = app_with("memory://")
    run(answers(app, "1: hi"))
    assert "a restart loses them" in caplog.text
    run(answers(app, "1: hi"))


def test_the_keys_of_the_environment_are_used(
    near: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "key").write_bytes(b"k" * 32)
    monkeypatch.setenv("PERDURE_KEYS", str(tmp_path / "nowhere"))
    assert "nowhere cannot be read" in str(_refused(app_with(near)))
    monkeypatch.setenv("PERDURE_KEYS", str(tmp_path / "key"))
    with sqlite() as fresh:
        run(answers(app_with(fresh.url, migrate=True), "1: hi"))
        monkeypatch.delenv("PERDURE_KEYS")
        assert "is encrypted" in str(_refused(app_with(fresh.url)))
        run(answers(app_with(fresh.url, encryption_key=b"k" * 32), "2: hi"))


def test_sqlalchemy_s_form_of_a_url_is_understood() -> None:
    with postgresql() as found:
        url = found.migrated().url.replace("postgresql://", "postgresql+asyncpg://")
        run(answers(app_with(url), "1: hi"))


def test_an_unmigrated_database_is_refused_with_the_command(place: Place, monkeypatch: Any) -> None:
    assert "run `perdure migrate" in str(_refused(app_with(place.url)))
    monkeypatch.setenv("LANGGRAPH_DEV", "1")
    assert "run `perdure migrate" in str(_refused(app_with(place.url, migrate=False)))
    run(answers(app_with(place.url), "1: hi"))
    monkeypatch.delenv("LANGGRAPH_DEV")
    with PLACES["sqlite"]() as other:
        run(answers(app_with(other.url, migrate=True), "1: hi"))


def test_what_cannot_go_together_is_refused_at_once() -> None:
    empty: list[Any] = [None, {}]
    for graphs in empty:
        with pytest.raises(BadSetting, match="serve=True needs graphs"):
            checkpoint_lifespan(graphs=graphs, serve=True)
    with pytest.raises(BadSetting, match="pass serve=True as well"):
        checkpoint_lifespan(graphs=chat, gate=OpenGate())
    with pytest.raises(BadSetting, match="pass serve=True as well"):
        checkpoint_lifespan(graphs=chat, settings=QUICK)


# What is open


def test_there_is_one_of_each_and_every_form_of_a_graph(near: str) -> None:
    made: list[int] = []

    async def factory() -> StateGraph[Any, Any, Any, Any]:
        made.append(1)
        return chat

    graphs = {
        "a": chat,
        "b": chat.compile(),
        "c": factory,
        "d": Agent(chat.compile(), config={"tags": ["d"], "recursion_limit": 7}),
    }
    app = app_with(near, graphs=graphs)

    async def work() -> None:
        async with started(app):
            opened = app.state.perdure
            assert set(opened.graphs) == set(graphs)
            assert {id(graph.checkpointer) for graph in opened.graphs.values()} == {id(opened.checkpointer)}
            assert set(opened.checkpointers) == set(graphs)
            assert {id(graph.store) for graph in opened.graphs.values()} == {id(opened.store)}
            assert (opened.graphs["d"].config or {})["recursion_limit"] == 7
            with pytest.raises(NotFound, match=r"one of \['a', 'b', 'c', 'd'\]"):
                _ = opened.graph
        async with started(app_without := app_with(near, graphs=None)):
            with pytest.raises(NotFound, match="there is no graph"):
                _ = app_without.state.perdure.graph
        async with started(single := app_with(near, graphs=chat)):
            assert list(single.state.perdure.graphs) == ["agent"]

    run(work())
    assert made == [1]


def test_graphs_of_different_schemas_have_a_checkpointer_each(near: str) -> None:
    first, again, second = Schema(2), Schema(2), Schema(3)
    graphs = {
        "a": Agent(chat.compile(), schema=first),
        "b": Agent(chat.compile(), schema=again),
        "c": Agent(chat.compile(), schema=second),
        "d": chat,
    }
    app = app_with(near, graphs=graphs)

    async def work() -> None:
        async with started(app):
            opened = app.state.perdure
            versions = {name: graph.checkpointer.schema.version for name, graph in opened.graphs.items()}
            assert versions == {"a": 2, "b": 2, "c": 3, "d": 1}
            assert opened.checkpointers["a"] is opened.checkpointers["b"]
            with pytest.raises(NotFound, match=r"use checkpointers\[…\] with one of 'a', 'b', 'c', 'd'"):
                _ = opened.checkpointer
            # A thread of the newer version is served by its own graph, and refused by another.
            config = {"configurable": {"thread_id": "t"}}
            await opened.graphs["c"].ainvoke({"messages": [("user", "hi")]}, config)
            with pytest.raises(SchemaTooNew):
                await opened.graphs["a"].aget_state(config)

    run(work())


def test_a_graph_s_own_store_stays(near: str) -> None:
    async def work() -> None:
        async with perdure.connect(near) as db:
            own = db.store()
            app = app_with(near, graphs=chat.compile(store=own))
            async with started(app):
                assert app.state.perdure.graph.store is own

    run(work())


def test_tenants_share_neither_threads_nor_a_store(near: str) -> None:
    class ByHeader(OpenGate):
        async def authenticate(self, request: Any) -> User:
            return User(request.headers["x-org"], request.headers["x-org"])

    app = app_with(near, serve=True, gate=ByHeader(), settings=QUICK)
    app.mount("/agents", perdure_app(app))

    async def work() -> None:
        async with started(app), client_of(app) as http:
            made = await http.post("/agents/threads", json={"thread_id": "t"}, headers={"x-org": "a"})
            assert made.status_code == 200
            assert (await http.get("/agents/threads/t", headers={"x-org": "a"})).status_code == 200
            assert (await http.get("/agents/threads/t", headers={"x-org": "b"})).status_code == 404
            runtime = app.state.perdure.host.runtime
            stores = {id(runtime.for_tenant(tenant).graph("chat").store) for tenant in ("a", "b")}
            assert len({*stores, id(app.state.perdure.store)}) == 3
            said = {"assistant_id": "chat", "input": {"messages": ["hi"]}}
            ran = await http.post("/agents/threads/t/runs/wait", json=said, headers={"x-org": "a"})
            assert ran.json()["messages"][-1]["content"] == "1: hi"
            # What another process accepted is worked on here, whoever's it is.
            async with (
                perdure.connect(near) as db,
                Runtime(db, {"chat": chat.compile()}, works=False) as elsewhere,
            ):
                ticket = await elsewhere.for_tenant("a").submit("u", {"messages": ["hi"]})
                assert (await elsewhere.wait(ticket, timeout=30)).state == DONE

    run(work())


def test_one_tenant_of_the_application_is_the_routes_tenant_too(near: str) -> None:
    app = app_with(near, serve=True, tenant="acme", settings=QUICK)
    app.mount("/agents", perdure_app(app))

    async def work() -> None:
        async with started(app), client_of(app) as http:
            assert await turn(app.state.perdure, "t", "hi") == "1: hi"
            said = {"assistant_id": "chat", "input": {"messages": ["hi"]}}
            ran = await http.post("/agents/threads/t/runs/wait", json=said)
            assert ran.json()["messages"][-1]["content"] == "2: hi"

    run(work())
    with perdure.connect_sync(near) as db:
        assert [thread.thread_id for thread in db.threads()] == []


def test_two_applications_share_nothing(near: str) -> None:
    async def work() -> None:
        with sqlite() as other:
            compiled = chat.compile()
            one = app_with(near, graphs=compiled, serve=True)
            two = app_with(other.migrated().url, graphs=compiled, serve=True)
            for app in (one, two):
                app.mount("/agents", perdure_app(app))
            async with started(one), started(two), client_of(one) as at_one, client_of(two) as at_two:
                a, b = one.state.perdure, two.state.perdure
                assert len({id(a.graph), id(b.graph), id(compiled)}) == 3
                assert await turn(a, "t", "hi") == "1: hi"
                assert await turn(b, "t", "hi") == "1: hi"
                await at_one.post("/agents/threads", json={"thread_id": "first"})
                assert (await at_two.get("/agents/threads/first")).status_code == 404
            assert compiled.checkpointer is None

    run(work())


def test_it_composes_with_an_application_s_own_lifespan(near: str) -> None:
    order: list[str] = []
    perdure_lifespan = checkpoint_lifespan(near, graphs=chat)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[dict[str, int]]:
        async with perdure_lifespan(app):
            order.append(await turn(app.state.perdure, "t", "hi"))
            yield {"own": 1}
            order.append(await turn(app.state.perdure, "t", "bye"))

    app = FastAPI(lifespan=lifespan)

    async def work() -> None:
        async with started(app) as state:
            assert state == {"own": 1}

    run(work())
    assert order == ["1: hi", "2: bye"]


def test_one_application_has_one_lifespan(near: str) -> None:
    async def work() -> None:
        app = app_with(near)
        async with started(app):
            before = app.state.perdure
            with pytest.raises(BadSetting, match=r"app\.state\.perdure is taken"):
                async with checkpoint_lifespan(near, graphs=chat)(app):
                    raise AssertionError
            assert app.state.perdure is before

    run(work())


def test_a_policy_is_applied_to_the_threads(near: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perdure.runtime.retention_loop._POLL_S", 0.05)
    with perdure.connect_sync(near, migrate=True) as db:
        graph = made.chat(db.checkpointer())
        for n in range(3):
            graph.invoke(made.message(n), {"configurable": {"thread_id": "ada"}})
        before = len(db.timeline("ada"))

    async def work() -> None:
        policy = perdure.Retention(keep_last=1)
        app = FastAPI(lifespan=checkpoint_lifespan(near, retention=policy))
        async with app.router.lifespan_context(app):
            database = app.state.perdure.database
            assert database.retention.default == policy
            assert before > 2

            async def is_pruned() -> bool:
                return len(await database.timeline("ada")) == 1

            await eventually_stored(is_pruned)

    asyncio.run(work())


def test_a_thread_expires_by_its_own_time_to_live_without_a_policy_or_a_sweep(
    near: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = time.time_ns
    monkeypatch.setattr("langgraph.checkpoint.base.id._last_v6_timestamp", None)

    async def wait_only(loop: RetentionLoop) -> float:
        return 3600.0

    monkeypatch.setattr(RetentionLoop, "sweep_if_due", wait_only)

    async def work() -> None:
        app = app_with(near, serve=True, settings=QUICK)
        app.mount("/agents", perdure_app(app))
        async with started(app), client_of(app) as client:
            made_thread = {"thread_id": "ada", "ttl": {"ttl": 0.001}}
            (await client.post("/agents/threads", json=made_thread)).raise_for_status()
            (await client.post("/agents/threads", json={"thread_id": "bob"})).raise_for_status()
            said = {"assistant_id": "chat", "input": {"messages": ["hi"]}}
            ran = await client.post("/agents/threads/ada/runs/wait", json=said)
            assert ran.json()["messages"][-1]["content"] == "1: hi"
            # This process does not look again for ten seconds at a thread that it has seen alive.
            monkeypatch.setattr(time, "time_ns", lambda: real() + 20_000_000_000)

            async def is_absent() -> bool:
                return (await client.get("/agents/threads/ada")).status_code == 404

            await eventually_stored(is_absent)
            found = (await client.post("/agents/threads/search", json={})).json()
            assert [each["thread_id"] for each in found] == ["bob"]
            assert (await client.post("/agents/threads/count", json={})).json() == 1
            assert await turn(app.state.perdure, "ada", "hi") == "1: hi"

    run(work())
