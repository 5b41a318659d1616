"""Schemas and policies of conversations from the settings: what each graph gets, and what is refused.

Covers perdure.config.models.
"""

from __future__ import annotations

import asyncio
import json
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langgraph.graph import START, StateGraph
from typing_extensions import TypedDict

from perdure import connect_sync
from perdure.config.agents import AgentSettings
from perdure.config.worker import load as load_worker
from perdure.errors import BadSetting, GraphLoadError
from perdure.runtime.agents.loading import find, load_agent
from perdure.server.app import create_app
from perdure.server.config import Config, load
from perdure.server.hosting.startup import open_state
from tests.server.acceptance.serving import run

APP = """\
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from typing_extensions import TypedDict

from perdure.conversation import Conversation
from perdure.runtime import Agent
from perdure.schema import Schema, rename_channel

sent = []


def turn(state):
    sent.append([message.text for message in state["messages"]])
    return {"messages": [AIMessage("noted")]}


def summary(text, messages):
    return f"{len(messages)} messages"


def words(messages):
    return sum(len(message.text.split()) for message in messages)


class Named(TypedDict, total=False):
    subject: str


graph = StateGraph(MessagesState).add_node("turn", turn).add_edge(START, "turn").compile()
other = StateGraph(Named).add_node("n", lambda _: {}).add_edge(START, "n").compile()
schema = Schema(2, [rename_channel(2, "topic", "subject")])
plain = Schema()
agent = Agent(graph, conversation=Conversation(limit=77), schema=Schema(3))
number = 7
"""


_FRESH = count()
"""For modules of a name of their own: they stay loaded."""


def project(folder: Path, settings: dict[str, Any], name: str = "app", **graphs: str) -> Path:
    (folder / f"{name}.py").write_text(APP)
    found = {each: f"./{name}.py:{place}" for each, place in (graphs or {"talk": "graph"}).items()}
    text = json.dumps({"graphs": found, **settings}).replace("./app.py", f"./{name}.py")
    (folder / "langgraph.json").write_text(text)
    return folder / "langgraph.json"


def configuration(file: Path, **environ: str) -> Config:
    return load(file=file, db="memory://", environ=environ)


def made(file: Path, **environ: str) -> dict[str, Any]:
    """The agents of a project, as a server would make them."""
    config = configuration(file, **environ)
    found = {
        name: asyncio.run(load_agent(find(graph.place, root=config.root)))
        for name, graph in config.graphs.items()
    }
    return config.agents.apply(found, config.root)


def test_a_policy_is_for_all_graphs_but_those_with_another(tmp_path: Path) -> None:
    conversation = {
        "limit": 900,
        "summarize": "./app.py:summary",
        "counter": "./app.py:words",
        "graphs": {"short": {"limit": 100, "summary": 20, "key": "messages"}, "other": False},
    }
    file = project(
        tmp_path, {"conversation": conversation}, "of_all",
        talk="graph", short="graph", other="other", own="agent",
    )  # fmt: skip
    found = made(file)
    talk, short = found["talk"].conversation, found["short"].conversation
    assert (talk.bounds.tokens, talk.bounds.summary) == (900, 112)
    assert (short.bounds.tokens, short.bounds.summary) == (100, 20)
    assert talk.summarize("", [HumanMessage("a")]) == "1 messages"
    assert talk.counter([HumanMessage("two words")]) == 2
    assert found["other"].conversation is None
    # What an Agent was given itself is not replaced by what is said of all.
    assert found["own"].conversation.limit == 77


def test_a_variable_sets_a_policy_and_a_worker_reads_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = project(tmp_path, {"schema": {"talk": "./app.py:plain"}})
    config = configuration(file, PERDURE_CONVERSATION_LIMIT="500", PERDURE_CONVERSATION_SYSTEM="Be brief.")
    monkeypatch.chdir(tmp_path)
    worker = load_worker(
        file=None,
        db="memory://",
        environ={"PERDURE_CONVERSATION_LIMIT": "500", "PERDURE_CONVERSATION_SYSTEM": "Be brief."},
    )
    assert config.agents == worker.agents
    assert config.agents.conversations["talk"].limit == 500
    assert config.agents.schemas == {"talk": "./app.py:plain"}
    assert load(file=project(tmp_path, {}), db="memory://", environ={}).agents == AgentSettings()


def test_each_graph_gets_its_schema(tmp_path: Path) -> None:
    schemas = {"other": "./app.py:schema"}
    found = made(project(tmp_path, {"schema": schemas}, "by_graph", talk="graph", other="other"))
    assert found["talk"].schema is None
    assert found["other"].schema.version == 2
    found = made(project(tmp_path, {"schema": "./app.py:schema"}, "for_all", talk="graph", other="other"))
    assert {agent.schema.version for agent in found.values()} == {2}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"schema": {"tlak": "./app.py:schema"}}, "schema in .* names 'tlak', which is not a graph"),
        ({"schema": 7}, "it has to be a place, e.g. './agent.py:schema'"),
        ({"conversation": {"limit": 0}}, "conversation.limit in .* a whole number of at least 1"),
        ({"conversation": {"system": "Be brief."}}, "conversation has no limit"),
        ({"conversation": {"limit": 10, "summary": 10}}, "leave none of 10 for messages"),
        ({"conversation": {"limit": 9, "graphs": {"tlak": {"limit": 9}}}}, "'tlak', which is not a graph"),
        (
            {"conversation": {"graphs": {"talk": {"limt": 9}}}},
            "'limt', which is not a setting of conversation",
        ),
        ({"conversation": {"graphs": {"talk": {"limit": "9"}}}}, "talk.limit has to be a whole number"),
        ({"conversation": {"graphs": {"talk": 9}}}, "talk has to be a table"),
    ],
)
def test_what_cannot_be_followed_is_refused_before_anything_is_imported(
    tmp_path: Path, settings: dict[str, Any], why: str
) -> None:
    with pytest.raises(BadSetting, match=why):
        configuration(project(tmp_path, settings))


@pytest.mark.parametrize(
    ("settings", "place", "error", "why"),
    [
        ({"schema": "./app.py:number"}, "graph", GraphLoadError, "not a Schema of perdure.schema, but int"),
        ({"schema": "./app.py:none"}, "graph", GraphLoadError, "has no 'none'"),
        ({"schema": "./app.py:schema"}, "agent", BadSetting, "another schema=… of its own"),
        ({"conversation": {"graphs": {"talk": {"limit": 9}}}}, "agent", BadSetting, "conversation=… of its"),
        ({"conversation": {"limit": 9}}, "other", BadSetting, "needs 'messages'.*graphs.talk = false"),
        ({"conversation": {"limit": 9, "counter": "./app.py:number"}}, "graph", BadSetting, "not a function"),
        (
            {"conversation": {"limit": 9, "summarize": "nobody:model"}}, "graph",
            BadSetting, "conversation.summarize is 'nobody:model', .*no provider 'nobody'",
        ),
    ],
)  # fmt: skip
def test_what_does_not_fit_an_agent_stops_the_start(
    tmp_path: Path, settings: dict[str, Any], place: str, error: type[Exception], why: str
) -> None:
    file = project(tmp_path, settings, f"unfit_{next(_FRESH)}", talk=place)
    with pytest.raises(error, match=why):
        made(file)


@run
async def test_runs_over_http_obey_the_policy_and_the_schema(tmp_path: Path) -> None:
    conversation = {"limit": 40, "summary": 12, "counter": "./app.py:words", "graphs": {"other": False}}
    settings = {"conversation": conversation, "schema": {"other": "./app.py:schema"}}
    file = project(tmp_path, settings, "over_http", talk="graph", other="other")
    url = f"sqlite:///{tmp_path / 'threads.db'}"
    with connect_sync(url, migrate=True) as db:
        thread = {"configurable": {"thread_id": "old", "checkpoint_ns": ""}}

        class Before(TypedDict, total=False):
            topic: str

        before = StateGraph(Before).add_node("n", lambda _: {}).add_edge(START, "n")
        before.compile(checkpointer=db.checkpointer()).invoke({"topic": "tea"}, thread)  # type: ignore[call-overload]
    config = load(file=file, db=url, development=True, environ={})
    async with open_state(config) as host:
        app = create_app(None, config.http)
        app.state.perdure = host
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://here") as http:
            thread_id = (await http.post("/threads", json={})).json()["thread_id"]
            for number in range(12):
                words = f"note {number} of a long list of notes"
                body = {"assistant_id": "talk", "input": {"messages": [{"role": "user", "content": words}]}}
                answer = await http.post(f"/threads/{thread_id}/runs/wait", json=body)
                assert answer.status_code == 200, answer.text
            held = answer.json()["messages"]
            body = {"assistant_id": "other", "input": {}}
            ended = await http.post("/threads/old/runs/wait", json=body)
            assert ended.json() == {"subject": "tea"}
            assert (await http.get("/threads/old/state")).json()["values"] == {"subject": "tea"}
    assert held[-1]["content"] == AIMessage("noted").content
    assert sum(len(each["content"].split()) for each in held) <= 40
    assert len(held) < 24
