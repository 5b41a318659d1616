"""Replay through the inspector: under its permission, a part at a time, by one graph or by two."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure import admin
from perdure.database.base import handle_of
from perdure.inspector import replaying
from perdure.inspector.access import LocalAccess, LocalReplays
from perdure.inspector.web import create_app
from perdure.model.records import Partition
from perdure.replay import record_calls
from perdure.runtime import Agent
from tests.inspector.staging import HOSTILE
from tests.replay.agents import Counted

BASE = "http://127.0.0.1:8770"
THREAD = "t"


def chat(prompt: str, model: Counted | None = None, *, shouts: bool = False) -> Any:
    """A graph with one call of a model for each message, compiled without a checkpointer."""
    used = model or Counted()

    def answer(state: MessagesState) -> dict[str, Any]:
        found = used.invoke([("system", prompt), *state["messages"]])
        return {"messages": [found.model_copy(update={"content": found.text.upper()}) if shouts else found]}

    builder = StateGraph(MessagesState)
    builder.add_node("answer", answer)
    builder.add_edge(START, "answer")
    return builder


@pytest.fixture(scope="module")
def lived() -> Iterator[perdure.SyncDatabase]:
    with perdure.connect_sync("memory://") as database:
        graph = record_calls(chat("Be kind.").compile(checkpointer=database.checkpointer()))
        for text in ("tides", "the moon", "cats"):
            graph.invoke({"messages": [("user", text)]}, {"configurable": {"thread_id": THREAD}})
        yield database


class Site:
    """An inspector whose graphs are the recorded one, one with another prompt, and one that shouts."""

    def __init__(
        self, database: perdure.SyncDatabase, allowed: frozenset[str] = frozenset({"replay"})
    ) -> None:
        self.models = [Counted(), Counted(), Counted()]
        graphs = {
            "same": chat("Be kind.", self.models[0]),
            "rude": chat("Be rude.", self.models[1]),
            "loud": chat("Be kind.", self.models[2], shouts=True),
        }
        replays = LocalReplays(database, {name: Agent(each.compile()) for name, each in graphs.items()})
        self.app = create_app(LocalAccess(handle_of(database), "", replays=replays, allowed=allowed))

    def post(self, expected: int = 200, /, **given: Any) -> Any:
        response = self.send(json={"id": THREAD, **given})
        assert response.status_code == expected, response.text
        return response.json()

    def send(self, **how: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url=BASE) as client:
                return await client.post("/inspect/api/replay", **how)

        return asyncio.run(send())

    def parts(self, **given: Any) -> list[Any]:
        found = [self.post(**given)]
        while (cursor := found[-1]["cursor"]) is not None:
            found.append(self.post(cursor=cursor, **given))
        return found


def test_an_unchanged_graph_replays_without_a_call_and_nothing_is_written(
    lived: perdure.SyncDatabase, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, place = Site(lived), Partition("", THREAD)
    before = admin.digest_of(lived, place)
    (whole,) = site.parts(graphs=["same"])
    assert [each["nodes"] for each in whole["steps"] if each["nodes"]] == [["__start__"], ["answer"]] * 3
    assert {len(each["differences"][0]) for each in whole["steps"]} == {0}
    monkeypatch.setattr(replaying, "_SECONDS", -1.0)
    parts = site.parts(graphs=["same"])
    assert [each["done"] for each in parts] == list(range(1, whole["total"] + 1))
    assert [step for part in parts for step in part["steps"]] == whole["steps"]
    assert [each.calls for each in site.models] == [[], [], []]
    assert admin.digest_of(lived, place) == before
    assert [each.thread for each in admin.partitions(lived, "")] == [THREAD]


def test_a_part_ends_at_a_step_that_differs_and_the_next_goes_on(lived: perdure.SyncDatabase) -> None:
    differing = [
        part["steps"][-1]
        for part in Site(lived).parts(graphs=["rude"])
        if part["steps"][-1]["differences"][0]
    ]
    assert [each["step"] for each in differing] == [1, 4, 7]
    assert {one["detail"] for each in differing for one in each["differences"][0]} == {
        "what is sent to the model 'Counted' differs: system"
    }
    assert Site(lived).post(graphs=["rude"], last=1)["total"] == 2


def test_two_versions_are_replayed_beside_one_another(lived: perdure.SyncDatabase) -> None:
    steps = [step for part in Site(lived).parts(graphs=["same", "loud"]) for step in part["steps"]]
    first = next(step for step in steps if not step["is_alike"])
    same, loud = first["differences"]
    assert (first["step"], same) == (1, [])
    assert [each["kind"] for each in loud] == ["write"]
    (edited,) = loud[0]["changes"]["messages"]["edited"]
    assert edited["before"]["content"] == "answer 1 to tides"
    assert edited["after"]["content"] == "ANSWER 1 TO TIDES"
    ignored = Site(lived).parts(graphs=["loud"], ignore=["messages"])
    assert {len(step["differences"][0]) for part in ignored for step in part["steps"]} == {0}


@pytest.mark.parametrize(
    ("given", "status", "detail"),
    [
        ({"graphs": ["none"]}, 404, "there is no graph 'none'"),
        ({"graphs": []}, 422, "one graph, or of two"),
        ({"graphs": ["same", "rude", "loud"]}, 422, "one graph, or of two"),
        ({"graphs": "same"}, 422, "list of names"),
        ({"graphs": ["same"], "id": "none"}, 404, "no thread 'none'"),
        ({"graphs": ["same"], "cursor": "none"}, 422, "begin again"),
        ({"graphs": ["same"], "last": 0}, 422, "at least 1"),
        ({"graphs": ["same"], "last": "1"}, 422, "number of checkpoints"),
        ({"graphs": ["same"], "ignore": "messages"}, 422, "list of channels"),
        ({"graphs": ["same"], "context": "ada"}, 422, "JSON object"),
    ],
)
def test_what_cannot_be_replayed_is_refused(
    lived: perdure.SyncDatabase, given: dict[str, Any], status: int, detail: str
) -> None:
    assert detail in Site(lived).post(status, **given)["detail"]


def test_a_replay_needs_its_permission(lived: perdure.SyncDatabase) -> None:
    site = Site(lived, frozenset())
    assert "may not replay" in site.post(403, graphs=["same"])["detail"]
    assert site.models[0].calls == []


JSON = {"content-type": "application/json"}
BODY = {"id": THREAD, "graphs": ["same"]}


@pytest.mark.parametrize(
    ("status", "how"),
    [
        (422, {"content": json.dumps(BODY)}),
        (422, {"data": {"id": THREAD, "graphs": "same"}}),
        (422, {"content": json.dumps(BODY), "headers": {"content-type": "text/plain"}}),
        (403, {"json": BODY, "headers": {"origin": "http://elsewhere.example"}}),
        (403, {"json": BODY, "headers": {"host": "rebound.example"}}),
        (403, {"json": BODY, "headers": {"sec-fetch-site": "cross-site"}}),
        (422, {"content": "[" * 100_000, "headers": JSON}),
        (422, {"content": json.dumps({**BODY, "context": {"x": "y" * 5_000_000}}), "headers": JSON}),
        (422, {"json": {**BODY, "last": 0}}),
        (422, {"json": {**BODY, "last": -(10**30)}}),
        (422, {"json": {**BODY, "last": True}}),
        (422, {"json": {**BODY, "last": 1.5}}),
        (422, {"json": {**BODY, "cursor": "' OR 1=1 --"}}),
        (422, {"json": {**BODY, "cursor": "\x00"}}),
        (422, {"json": {**BODY, "cursor": ["x"]}}),
        (422, {"json": {**BODY, "id": ["t"]}}),
        (422, {"json": {**BODY, "id": ""}}),
        (404, {"json": {**BODY, "id": "../t"}}),
        (404, {"json": {**BODY, "id": HOSTILE}}),
        (404, {"json": {**BODY, "graphs": ["os.system"]}}),
        (404, {"json": {**BODY, "graphs": ["__class__"]}}),
        (404, {"json": {**BODY, "graphs": ["tests/replay/agents.py:graph"]}}),
        (422, {"json": {**BODY, "graphs": ["same", "same"]}}),
        (422, {"json": {**BODY, "graphs": [{"same": 1}]}}),
        (422, {"json": {**BODY, "ignore": {"messages": 1}}}),
        (404, {"json": {**BODY, "tenant": "other"}}),
    ],
)
def test_an_attack_on_a_replay_is_refused_and_runs_nothing(
    lived: perdure.SyncDatabase, status: int, how: dict[str, Any]
) -> None:
    site, before = Site(lived), admin.digest_of(lived, Partition("", THREAD))
    response = site.send(**how)
    assert response.status_code == status, response.text
    assert len(response.content) < 1000
    assert "Traceback" not in response.text
    assert [each.calls for each in site.models] == [[], [], []]
    assert admin.digest_of(lived, Partition("", THREAD)) == before


@pytest.mark.parametrize("text", ["\ud800", "a\x00b", "x" * 100_000])
def test_a_name_that_cannot_be_stored_is_refused(lived: perdure.SyncDatabase, text: str) -> None:
    site = Site(lived)
    for given in ({"id": text}, {"graphs": [text]}, {"cursor": text}, {"tenant": text}):
        response = site.send(content=json.dumps({**BODY, **given}), headers=JSON)
        assert response.status_code in (404, 422), f"{list(given)}: {response.status_code} {response.text}"


def test_a_cursor_of_another_thread_is_none_of_this_one(lived: perdure.SyncDatabase) -> None:
    with perdure.connect_sync("memory://") as database:
        graph = record_calls(chat("Be kind.").compile(checkpointer=database.checkpointer()))
        for name in (THREAD, "other"):
            graph.invoke({"messages": [("user", name)]}, {"configurable": {"thread_id": name}})
        (newest, *_) = graph.get_state_history({"configurable": {"thread_id": "other"}})
        cursor = newest.config["configurable"]["checkpoint_id"]
        assert "begin again" in Site(database).post(422, graphs=["same"], cursor=cursor)["detail"]
