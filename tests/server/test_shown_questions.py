"""Every view of a thread shows all of its questions, also those that LangGraph's own state leaves out.

Covers perdure.langgraph.reading.shown_questions.
"""

from __future__ import annotations

import operator
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypedDict

import httpx
import pytest
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph
from langgraph.types import Send, interrupt

import perdure
from perdure.runtime import Runtime, Settings
from perdure.server.app import create_app
from perdure.server.auth.identity import OpenGate
from perdure.server.resources import ServerState
from tests.server.acceptance.serving import run


class State(TypedDict):
    log: Annotated[list[str], operator.add]
    once: str


def _ask(state: State) -> dict[str, Any]:
    return {"log": [interrupt("send?"), interrupt("pay?")]}


def _plain(state: State) -> dict[str, Any]:
    return {"log": ["begun"]}


@task
async def _question(text: str) -> str:
    answer: str = interrupt(text)
    return answer


@entrypoint()
async def _functional(given: Any) -> dict[str, Any]:
    asked = [_question(text) for text in ("send?", "pay?")]
    return {"log": [await each for each in asked]}


async def _calls(state: State) -> dict[str, Any]:
    asked = [_question(text) for text in ("send?", "pay?")]
    return {"log": [await each for each in asked]}


def _with_goto() -> Any:
    builder = StateGraph(State).add_node("plain", _plain).add_node("ask", _ask).add_node("other", _plain)
    return builder.add_edge(START, "plain").compile()


def _sent() -> Any:
    def ask(state: State) -> dict[str, Any]:
        return {"log": [interrupt(state["once"])]}

    builder = StateGraph(State).add_node("ask", ask)
    each = [Send("ask", {"log": [], "once": text}) for text in ("send?", "pay?")]
    return builder.add_conditional_edges(START, lambda state: each, ["ask"]).compile()


async def _views(http: httpx.AsyncClient, runtime: Runtime) -> dict[str, str]:
    """The questions by their ids, which all views have to agree on."""
    state = (await http.get("/threads/ada/state")).json()
    thread = (await http.get("/threads/ada")).json()
    (listed,) = (await http.post("/threads/search", json={"ids": ["ada"]})).json()
    views = {
        "state": state["interrupts"],
        "tasks": [each for task in state["tasks"] for each in task["interrupts"]],
        "thread": [each for asked in thread["interrupts"].values() for each in asked],
        "listing": [each for asked in listed["interrupts"].values() for each in asked],
    }
    shown = {name: {each["id"]: each["value"] for each in asked} for name, asked in views.items()}
    question = await runtime.question("ada")
    ids = set() if question is None else set(question.interrupts)
    assert {name: set(asked) for name, asked in shown.items()} == dict.fromkeys(shown, ids)
    return shown["state"]


@asynccontextmanager
async def _serving(graph: Any) -> AsyncIterator[tuple[httpx.AsyncClient, Runtime]]:
    app = create_app()
    transport = httpx.ASGITransport(app=app, client=("127.0.0.1", 1))
    async with (
        perdure.connect("memory://") as database,
        Runtime(database, graph, settings=Settings(poll=0.05)) as runtime,
        httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http,
    ):
        app.state.perdure = ServerState.over(runtime, OpenGate())
        yield http, runtime


async def _run(http: httpx.AsyncClient, **run: Any) -> set[str]:
    """Return the ids of the questions in the outcome of a run, which is the same when it is joined."""
    answer = await http.post(
        "/threads/ada/runs/wait", json={"assistant_id": "agent", "if_not_exists": "create", **run}
    )
    assert answer.status_code == 200, answer.text
    (latest,) = (await http.get("/threads/ada/runs", params={"limit": 1})).json()
    joined = (await http.get(f"/threads/ada/runs/{latest['run_id']}/join")).json()
    assert joined == answer.json()
    return {each["id"] for each in joined.get("__interrupt__", ())}


@pytest.mark.parametrize(
    ("graph", "begin"),
    [
        (_with_goto(), {"goto": "ask"}),
        (_with_goto(), {"goto": ["other", "ask"], "update": {"log": ["noted"]}}),
        (_functional, None),
        (StateGraph(State).add_node("calls", _calls).add_edge(START, "calls").compile(), None),
        (_sent(), None),
    ],
    ids=["goto", "goto two", "functional", "node that calls tasks", "sent"],
)
@run
async def test_all_views_show_all_questions_and_each_is_answered(graph: Any, begin: Any) -> None:
    async with _serving(graph) as (http, runtime):
        left = await _run(http, input={"log": []})
        if begin is not None:
            left = await _run(http, command=begin)
        seen: set[str] = set()
        while asked := await _views(http, runtime):
            seen.update(asked.values())
            assert left == set(asked)
            if len(asked) == 1:
                left = await _run(http, command={"resume": f"to {next(iter(asked.values()))}"})
            else:
                answers = {name: f"to {text}" for name, text in asked.items()}
                left = await _run(http, command={"resume": answers})
        assert seen == {"send?", "pay?"}
        values = (await http.get("/threads/ada/state")).json()["values"]
        assert {"to send?", "to pay?"} <= set(values["log"])


@run
async def test_a_question_that_was_answered_before_a_refused_update_is_not_shown() -> None:
    def ask(state: State) -> dict[str, Any]:
        return {"once": interrupt("send?")}

    def other(state: State) -> dict[str, Any]:
        return {"once": interrupt("pay?")}

    builder = StateGraph(State).add_node("ask", ask).add_node("other", other)
    graph = builder.add_edge(START, "ask").add_edge(START, "other").compile()
    async with _serving(graph) as (http, runtime):
        await _run(http, input={"log": []})
        asked = await _views(http, runtime)
        await _run(http, command={"resume": dict.fromkeys(asked, "yes")})
        # The two nodes may not write one key in one step.
        assert (await http.get("/threads/ada")).json()["status"] == "error"
        assert (await http.get("/threads/ada/state")).json()["metadata"]["refused"]
        assert await _views(http, runtime) == {}
