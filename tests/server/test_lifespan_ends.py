"""An application with Perdure in it stops, or does not come to start: nothing stays open."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from fastapi import FastAPI
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure.database.handle import DatabaseHandle
from perdure.errors import BadSetting, GraphLoadError, PerdureError, Unavailable
from perdure.runtime import Runtime, Settings
from perdure.server import compile_graph, perdure_app
from perdure.server.resources import ServerState
from tests.server.applications import (
    QUICK,
    Place,
    app_with,
    at_rest,
    client_of,
    left_over,
    postgresql,
    run,
    started,
    turn,
)
from tests.servers import postgres

pytestmark = pytest.mark.usefixtures("nothing_is_set")

STARTS = 20


def _broken_factory(app_of: Callable[..., FastAPI], place: Place, monkeypatch: Any) -> tuple[FastAPI, type]:
    def factory() -> Any:
        raise RuntimeError("it broke")

    return app_of(place.migrated().url, graphs={"chat": factory}, serve=True), GraphLoadError


def _unmigrated(app_of: Callable[..., FastAPI], place: Place, monkeypatch: Any) -> tuple[FastAPI, type]:
    return app_of(place.url, serve=True), PerdureError


def _refusing_runtime(app_of: Callable[..., FastAPI], place: Place, monkeypatch: Any) -> tuple[FastAPI, type]:
    def refuses(*_: Any, **__: Any) -> Any:
        raise ValueError("the lease is too short")

    monkeypatch.setattr("perdure.server.hosting.lifespan.Runtime", refuses)
    return app_of(place.migrated().url, serve=True), BadSetting


def _late_failure(app_of: Callable[..., FastAPI], place: Place, monkeypatch: Any) -> tuple[FastAPI, type]:
    """The last thing that can go wrong: the runtime works already."""

    def fails(*_: Any) -> Any:
        raise Unavailable("the database went away")

    monkeypatch.setattr("perdure.server.hosting.lifespan.compile_graph", fails)
    monkeypatch.setattr("perdure.server.hosting.lifespan._open", fails)
    return app_of(place.migrated().url, serve=True), Unavailable


FAILURES = [_broken_factory, _unmigrated, _refusing_runtime, _late_failure]


@pytest.mark.parametrize("failure", FAILURES, ids=lambda failure: failure.__name__.strip("_"))
def test_a_failed_start_leaves_nothing_open(
    failure: Callable[..., tuple[FastAPI, type]], place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, kind = failure(app_with, place, monkeypatch)

    async def work() -> None:
        before = await at_rest(place)
        for _ in range(3):
            with pytest.raises(kind):
                async with started(app):
                    raise AssertionError("it started")
        assert await left_over(place, before) == {}

    run(work())
    assert not hasattr(app.state, "perdure")


def test_a_wrong_password_leaves_nothing_open() -> None:
    import psycopg

    server = postgres.shared()
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute("DROP ROLE IF EXISTS lodger")
        connection.execute("CREATE ROLE lodger LOGIN PASSWORD 'right'")
    server.demand_password("lodger")
    with postgresql() as found:
        wrong = found.migrated().url.replace("postgres@", "lodger:Xq7guess@")

        async def work() -> None:
            before = await at_rest(found)
            with pytest.raises(perdure.PerdureError) as caught:
                async with started(app_with(wrong, serve=True)):
                    raise AssertionError("it started")
            assert "Xq7guess" not in str(caught.value)
            assert await left_over(found, before) == {}

        run(work())


def test_a_start_that_is_cancelled_leaves_nothing_open(place: Place) -> None:
    app = app_with(place.migrated().url, serve=True)

    async def work() -> None:
        before = await at_rest(place)

        async def start() -> None:
            async with started(app):
                await asyncio.sleep(60)

        for pause in (0.0, 0.005, 0.02, 0.1):
            starting = asyncio.create_task(start())
            await asyncio.sleep(pause)
            starting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await starting
        assert await left_over(place, before) == {}

    run(work())


@pytest.mark.slow
def test_twenty_starts_and_stops_leave_nothing(place: Place) -> None:
    app = app_with(place.migrated().url, serve=True, settings=QUICK)
    app.mount("/agents", perdure_app(app))
    said = {"assistant_id": "chat", "input": {"messages": ["hi"]}}

    async def once(number: int) -> object:
        async with started(app), client_of(app) as http:
            opened = app.state.perdure
            assert opened.graph is app.state.perdure.graph
            assert await turn(opened, "direct", "hi") == f"{number}: hi"
            await http.post("/agents/threads", json={"thread_id": "served", "if_exists": "do_nothing"})
            ran = await http.post("/agents/threads/served/runs/wait", json=said)
            assert ran.json()["messages"][-1]["content"] == f"{number}: hi"
            assert place.connections() > 0 or place.url.startswith("sqlite")
            return opened.graph

    async def work() -> None:
        graphs = [await once(1)]
        before = await at_rest(place)
        graphs += [await once(number) for number in range(2, STARTS + 1)]
        assert await left_over(place, before) == {}
        assert len({id(graph) for graph in graphs}) == STARTS

    run(work())


def test_it_stops_in_order_and_goes_on_when_a_step_fails(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    app = app_with(place.migrated().url, serve=True)

    def noted(owner: type, method: str, name: str) -> None:
        whole = getattr(owner, method)

        async def stopped(self: Any, *given: Any) -> Any:
            order.append(name)
            await whole(self, *given)
            raise RuntimeError(f"{name} failed")

        monkeypatch.setattr(owner, method, stopped)

    noted(ServerState, "close", "streams")
    noted(Runtime, "__aexit__", "runtime")
    close = DatabaseHandle.close

    def closed(self: DatabaseHandle) -> None:
        order.append("database")
        close(self)

    monkeypatch.setattr(DatabaseHandle, "close", closed)

    async def work() -> None:
        before = await at_rest(place)
        with pytest.raises(RuntimeError, match="failed"):
            async with started(app):
                pass
        assert order == ["streams", "runtime", "database"]
        assert not hasattr(app.state, "perdure")
        assert await left_over(place, before) == {}

    run(work())


def test_a_run_under_way_is_finished_and_its_stream_told_to_end(near: str) -> None:
    begun = asyncio.Event()

    async def slowly(state: MessagesState) -> dict[str, Any]:
        begun.set()
        await app.state.perdure.host.closing.wait()
        return {"messages": [AIMessage("slow")]}

    slow = StateGraph(MessagesState).add_node("slow", slowly).add_edge(START, "slow")
    app = app_with(near, graphs={"slow": slow}, serve=True, settings=Settings(poll=0.2, drain=60))

    async def work() -> None:
        async with started(app):
            opened = app.state.perdure
            assert opened.host is not None
            await opened.host.runtime.submit("t", {"messages": ["hi"]})
            await asyncio.wait_for(begun.wait(), 60)
            closing = opened.host.closing
        assert closing.is_set()
        async with perdure.connect(near) as db:
            graph = compile_graph(slow, checkpointer=db.checkpointer())
            state = await graph.aget_state({"configurable": {"thread_id": "t"}})
            assert state.values["messages"][-1].text == "slow"

    run(work())
