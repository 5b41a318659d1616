"""The other ways in which programs come: RemoteGraph, the client without coroutines, and pages of another
origin."""

from __future__ import annotations

import re
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.pregel.remote import RemoteException, RemoteGraph
from langgraph.types import Command

from tests.server.acceptance.saying import heard, names, questions, said
from tests.server.acceptance.serving import Server, eventually, near, run


@asynccontextmanager
async def remote(server: Server, *names: str) -> AsyncIterator[list[RemoteGraph]]:
    """Graphs of the server, as LangGraph has them in a program."""
    async with server.client() as client:
        yield [RemoteGraph(name, client=client) for name in names]


def on(thread_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id}}


@run
async def test_t18_a_remote_graph_is_invoked_streamed_read_and_edited(server: Server) -> None:
    config = on(str(uuid.uuid4()))
    async with remote(server, "chat", "boom") as (graph, failing):
        await _is_used(graph, config)
        with pytest.raises(RemoteException, match="it broke"):
            await failing.ainvoke(said("x"), on(str(uuid.uuid4())))
        assert heard(await graph.ainvoke(said("alone"))) == ["alone", "echo alone"]


async def _is_used(graph: RemoteGraph, config: RunnableConfig) -> None:
    values = await graph.ainvoke({"messages": [HumanMessage("one")]}, config)
    assert heard(values) == ["one", "echo one"]
    told = [part async for part in graph.astream(said("two"), config, stream_mode=["updates", "messages"])]
    assert [name for name, *_ in told] == [*["messages"] * 3, "updates"]
    state = await graph.aget_state(config)
    assert heard(state.values) == ["one", "echo one", "two", "echo two"]
    assert state.next == ()
    assert state.metadata is not None
    assert state.metadata["source"] == "loop"
    history = [s async for s in graph.aget_state_history(config, limit=20)]
    assert len(history) == 6
    assert history[0].config == state.config
    assert history[0].parent_config == history[1].config
    old = next(s for s in history if heard(s.values) == ["one", "echo one"] and not s.next)
    assert (await graph.aget_state(old.config)).values == old.values
    before = [s async for s in graph.aget_state_history(config, before=old.config)]
    assert [s.config for s in before] == [s.config for s in history[history.index(old) + 1 :]]
    loops = [s async for s in graph.aget_state_history(config, filter={"source": "loop"})]
    assert len(loops) == 4
    edited = await graph.aupdate_state(old.config, said("instead"), as_node="__start__")
    assert (await graph.aget_state(edited)).next == ("talk",)


@run
async def test_t18_a_remote_graph_asks_and_has_subgraphs(server: Server) -> None:
    config = on(str(uuid.uuid4()))
    async with remote(server, "nested") as (graph,):
        told: list[Any] = [
            part async for part in graph.astream(said("x"), config, stream_mode="updates", subgraphs=True)
        ]
        assert any(namespace and namespace[0].startswith("inner:") for namespace, _ in told)
        assert told[-1][0] == ()
        assert told[-1][1]["__interrupt__"][0]["value"] == "deep?"
        state = await graph.aget_state(config, subgraphs=True)
        (task,) = state.tasks
        assert task.interrupts[0].value == "deep?"
        assert task.state is not None
        assert heard(task.state.values) == ["x", "echo x"]
        values = await graph.ainvoke(Command(resume="yes"), config)
        assert heard(values) == ["x", "echo x", "within: yes", "outside"]


@run
async def test_t18_a_remote_graph_is_answered_in_the_newest_form_of_its_events(server: Server) -> None:
    config = on(str(uuid.uuid4()))
    async with remote(server, "ask") as (graph,):
        async with await graph.astream_events(said("hello"), config, version="v3") as first:
            # Its output comes with the end of a run, and this one waits.
            await eventually(first.interrupted)
        async with await graph.astream_events(Command(resume="yes"), config, version="v3") as second:
            values: Any = await second.output()
        assert heard(values) == ["hello", "you said yes"]


@run
async def test_t18_a_remote_graph_is_a_node_of_a_graph_here(server: Server) -> None:
    builder = StateGraph(MessagesState)
    async with remote(server, "chat") as (graph,):
        builder.add_node("far", graph)
        builder.add_edge(START, "far")
        values = await builder.compile().ainvoke({"messages": [HumanMessage("from afar")]})
    assert [message.text for message in values["messages"]] == ["from afar", "echo from afar"]


def test_t18_a_remote_graph_without_coroutines(server: Server) -> None:
    config = on(str(uuid.uuid4()))
    with server.sync_client() as client:
        graph = RemoteGraph("walk", sync_client=client)
        assert graph.invoke({"steps": 2}, config)["trail"] == [0, 1]
        assert list(graph.stream({"steps": 3}, config, stream_mode="custom")) == [{"step": 2}]
        assert graph.get_state(config).values["trail"] == [0, 1, 2]
        assert len(list(graph.get_state_history(config))) == 7
        edited = graph.update_state(config, {"trail": [9]}, as_node="step")
        assert graph.get_state(edited).values["trail"] == [0, 1, 2, 9]


def test_t25_the_client_without_coroutines_waits_and_streams_and_answers(server: Server) -> None:
    with server.sync_client() as client:
        thread_id = client.threads.create(metadata={"who": "sync"})["thread_id"]
        assert heard(client.runs.wait(thread_id, "chat", input=said("one"))) == ["one", "echo one"]
        values = client.runs.wait(thread_id, "chat", input=said("two"))
        assert heard(values) == ["one", "echo one", "two", "echo two"]
        expected: dict[Any, list[str]] = {
            "values": ["values", "values"],
            "updates": ["updates"],
            "messages-tuple": ["messages"] * 3,
            "messages": ["messages/metadata", *["messages/partial"] * 3],
            "tasks": ["tasks", "tasks"],
            "debug": ["debug"] * 5,
        }
        for mode, told in expected.items():
            stream = client.runs.stream(thread_id, "chat", input=said("x"), stream_mode=mode)
            assert names(list(stream)) == ["metadata", *told, "end"]
        thread_id = client.threads.create()["thread_id"]
        values = client.runs.wait(thread_id, "ask", input=said("hello"))
        assert questions(values)[0]["value"] == {"question": "really?"}
        assert client.threads.get(thread_id)["status"] == "interrupted"
        assert heard(client.runs.wait(thread_id, "ask", command={"resume": "yes"}))[-1] == "you said yes"
        assert client.threads.get(thread_id)["status"] == "idle"
        told_ids: list[Any] = []
        list(
            client.runs.stream(
                thread_id,
                "walk",
                input={"steps": 3},
                stream_mode="custom",
                stream_resumable=True,
                on_run_created=told_ids.append,
            )
        )
        run_id = told_ids[0]["run_id"]
        again = list(client.runs.join_stream(thread_id, run_id, last_event_id="-1"))
        assert names(again) == ["metadata", *["custom"] * 3, "end"]
        with pytest.raises(Exception, match="it broke"):
            client.runs.wait(thread_id, "boom", input=said("x"))
        assert len(client.runs.list(thread_id)) == 4


PAGE = "https://pages.example"
READ = ("content-location", "location", "x-pagination-total", "x-pagination-next", "x-request-id")


@near
@run
async def test_t22_pages_of_another_origin_may_ask_and_read_the_headers(server: Server) -> None:
    async with server.http() as http:
        asked = "content-type, x-api-key, authorization, last-event-id, x-auth-scheme, idempotency-key"
        for path, method in (
            ("/threads", "POST"),
            ("/threads/x", "PATCH"),
            ("/threads/x", "DELETE"),
            ("/threads/x/runs/stream", "POST"),
            ("/threads/x/state", "GET"),
        ):
            preflight = await http.options(
                path,
                headers={
                    "Origin": PAGE,
                    "Access-Control-Request-Method": method,
                    "Access-Control-Request-Headers": asked,
                    "Access-Control-Request-Private-Network": "true",
                },
            )
            assert preflight.status_code == 200, preflight.text
            assert preflight.headers["Access-Control-Allow-Origin"] in ("*", PAGE)
            assert method in preflight.headers["Access-Control-Allow-Methods"]
            allowed = preflight.headers["Access-Control-Allow-Headers"].lower()
            assert allowed == "*" or set(asked.split(", ")) <= set(allowed.split(", "))
            assert preflight.headers["Access-Control-Allow-Private-Network"] == "true"


@near
@run
async def test_q07_every_answer_shows_its_headers_to_pages(server: Server) -> None:
    async with server.client() as client, server.http() as http:
        thread_id = (await client.threads.create())["thread_id"]
        body = {"assistant_id": "chat", "input": said("x")}
        answers = [
            await http.post(f"/threads/{thread_id}/runs/stream", json=body, headers={"Origin": PAGE}),
            await http.post(f"/threads/{thread_id}/runs", json=body, headers={"Origin": PAGE}),
            await http.post("/threads/search", json={}, headers={"Origin": PAGE}),
            await http.get("/threads/nowhere", headers={"Origin": PAGE}),
            await http.post("/threads", json={"metadata": 7}, headers={"Origin": PAGE}),
            await http.get("/ok", headers={"Origin": PAGE}),
        ]
        assert [a.status_code for a in answers] == [200, 200, 200, 404, 422, 200]
        ids: set[str] = set()
        for answer in answers:
            assert answer.headers["Access-Control-Allow-Origin"] in ("*", PAGE)
            exposed = answer.headers["Access-Control-Expose-Headers"].lower().split(", ")
            assert set(READ) <= set(exposed)
            assert re.fullmatch(r"[A-Za-z0-9_.:-]+", answer.headers["X-Request-Id"])
            ids.add(answer.headers["X-Request-Id"])
        assert len(ids) == len(answers)
        named = await http.get("/ok", headers={"X-Request-Id": "mine-1"})
        assert named.headers["X-Request-Id"] == "mine-1"
        await client.runs.join(thread_id, answers[1].json()["run_id"])


@near
@run
async def test_t22_ok_and_info_are_there(server: Server) -> None:
    async with server.http() as http:
        assert (await http.get("/ok")).json() == {"ok": True}
        assert (await http.get("/ok?check_db=1")).json()["ok"] is True
        info = (await http.get("/info")).json()
        assert re.fullmatch(r"\d+\.\d+\.\d+", info["version"])
        assert {"version", "langgraph_py_version", "flags", "host"} <= set(info)
        assert info["host"]["kind"] == "perdure"
        assert info["flags"]["strict_resume"] is True
