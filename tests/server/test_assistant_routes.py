"""Assistants, driven by LangGraph's own client: their versions, their graphs, and whose they are.

Covers perdure.runtime.documents, perdure.server.graph_schema, perdure.server.routes.assistants,
perdure.server.assistants.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from langgraph.pregel.remote import RemoteGraph
from langgraph_sdk.errors import (
    ConflictError,
    NotFoundError,
    UnprocessableEntityError,
)

from perdure.runtime.agents.default_assistants import make_default_id
from tests.backends import EMPTY
from tests.server.acceptance.saying import row
from tests.server.hosting import graphs, owners, run, serving, tenants

OWN = {name: make_default_id(name) for name in graphs()}
FIELDS = {
    "assistant_id", "graph_id", "name", "description", "config", "context", "metadata", "version",
    "created_at", "updated_at",
}  # fmt: skip


@pytest.fixture(params=["sqlite"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with EMPTY[request.param]() as url:
        yield url


on_postgres_too = pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)


def said(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


@on_postgres_too
@run
async def test_t15_an_assistant_lives_through_its_versions(url: str) -> None:
    async with serving(url) as server:
        client = await server.client()
        made = await client.assistants.create(
            "aware",
            {"configurable": {"tone": "dry"}},
            metadata={"team": "a"},
            name="Sales",
            description="Sells",
        )
        assert set(made) == FIELDS
        assert (made["graph_id"], made["version"], made["name"]) == ("aware", 1, "Sales")
        assistant_id = made["assistant_id"]
        assert await client.assistants.get(assistant_id) == made

        second = await client.assistants.update(
            assistant_id, context={"mood": "calm"}, metadata={"tier": 1}, name="Sales 2"
        )
        assert second["version"] == 2
        assert second["metadata"] == {"team": "a", "tier": 1}
        # Its context and what it configures are one.
        assert second["config"] == {"configurable": {"mood": "calm"}}
        assert second["description"] == "Sells"
        assert second["created_at"] == made["created_at"]
        assert second["updated_at"] > made["updated_at"]
        emptied = await client.assistants.update(assistant_id, config={})
        assert (emptied["version"], emptied["config"]) == (3, {})

        versions = await client.assistants.get_versions(assistant_id)
        assert [one["version"] for one in versions] == [3, 2, 1]
        assert versions[-1]["config"] == {"configurable": {"tone": "dry"}}
        assert versions[0]["created_at"] > versions[1]["created_at"]
        assert [
            v["version"] for v in await client.assistants.get_versions(assistant_id, limit=1, offset=1)
        ] == [2]
        assert [
            v["version"] for v in await client.assistants.get_versions(assistant_id, metadata={"tier": 1})
        ] == [3, 2]

        again = await client.assistants.set_latest(assistant_id, 1)
        assert (again["version"], again["name"], again["context"]) == (1, "Sales", {"tone": "dry"})
        assert (await client.assistants.get(assistant_id))["version"] == 1
        assert (await client.assistants.update(assistant_id, name="Sales 4"))["version"] == 4
        with pytest.raises(NotFoundError):
            await client.assistants.set_latest(assistant_id, 9)

        await client.assistants.delete(assistant_id)
        with pytest.raises(NotFoundError):
            await client.assistants.get(assistant_id)
        with pytest.raises(NotFoundError):
            await client.assistants.delete(assistant_id)
        anew = await client.assistants.create("aware", assistant_id=assistant_id, name="Other")
        assert [v["version"] for v in await client.assistants.get_versions(assistant_id)] == [1]
        assert anew["name"] == "Other"


@on_postgres_too
@run
async def test_changes_at_once_make_a_version_each_and_another_server_sees_them(url: str) -> None:
    async with serving(url) as one, serving(url) as two:
        first, second = await one.client(), await two.client()
        assistant_id = (await first.assistants.create("aware"))["assistant_id"]
        await asyncio.gather(
            *(
                client.assistants.update(assistant_id, metadata={f"{name}{n}": n})
                for name, client in (("a", first), ("b", second))
                for n in range(4)
            )
        )
        found = await second.assistants.get(assistant_id)
        assert found["version"] == 9
        assert len(found["metadata"] or {}) == 8
        versions = await first.assistants.get_versions(assistant_id)
        assert [one["version"] for one in versions] == list(range(9, 0, -1))
        assert [len(one["metadata"] or {}) for one in versions] == list(range(8, -1, -1))


@run
async def test_what_is_there_already_and_what_cannot_be(url: str) -> None:
    async with serving(url) as server:
        client, http = await server.client(), await server.http()
        assistant_id = str(uuid.uuid4())
        made = await client.assistants.create("aware", assistant_id=assistant_id)
        assert made["name"] == "Untitled"
        with pytest.raises(ConflictError):
            await client.assistants.create("odd", assistant_id=assistant_id)
        kept = await client.assistants.create("odd", assistant_id=assistant_id, if_exists="do_nothing")
        assert kept == made
        with pytest.raises(ConflictError):
            await client.assistants.create("odd", assistant_id=OWN["odd"])
        for wrong in ({"graph_id": "none"}, {"graph_id": "odd", "assistant_id": "no-uuid"}, {}):
            answer = await http.post("/assistants", json=wrong)
            assert answer.status_code == 422
            assert isinstance(answer.json()["detail"], str)
        with pytest.raises(UnprocessableEntityError):
            await client.assistants.update(assistant_id, graph_id="none")
        for path in ("none", str(uuid.uuid4()), "a%2Fb", "%FF"):
            assert (await http.get(f"/assistants/{path}")).status_code == (422 if path == "%FF" else 404)
        upper = await client.assistants.get(assistant_id.upper())
        assert upper["assistant_id"] == assistant_id


@run
async def test_search_and_count(url: str) -> None:
    async with serving(url) as server:
        client, http = await server.client(), await server.http()
        for name, graph, metadata in (
            ("Straße", "aware", {"n": 1, "deep": {"a": 1, "b": 2}}),
            ("beta", "odd", {"n": 2}),
            ("Gamma", "odd", {"n": 3}),
        ):
            await client.assistants.create(graph, metadata=metadata, name=name)

        async def names(**asked: Any) -> list[str]:
            return [one["name"] for one in await client.assistants.search(limit=100, **asked)]

        mine = {"metadata": {"created_by": "system"}}
        assert sorted(await names(**mine)) == sorted(graphs())
        assert (await names())[:3] == ["Gamma", "beta", "Straße"]
        assert await names(graph_id="odd", sort_by="name", sort_order="asc") == ["Gamma", "beta", "odd"]
        assert await names(name="STRASSE") == ["Straße"]
        assert await names(metadata={"deep": {"b": 2}}) == ["Straße"]
        assert await names(metadata={"n": 4}) == []
        assert await client.assistants.count(graph_id="odd") == 3
        assert await client.assistants.count(name="amm") == 1
        assert (await http.post("/assistants/count", json={})).json() == 3 + len(graphs())

        seen: list[str] = []
        offset: int | None = 0
        while offset is not None:
            page = await client.assistants.search(
                limit=3, offset=offset, sort_by="assistant_id", response_format="object"
            )
            seen += [one["assistant_id"] for one in page["assistants"]]
            offset = int(page["next"]) if page["next"] else None
        assert seen == sorted(seen, reverse=True)
        assert len(set(seen)) == 3 + len(graphs())
        answer = await http.post("/assistants/search", json={"limit": 1, "select": ["name", "version"]})
        assert answer.headers["X-Pagination-Total"] == str(3 + len(graphs()))
        assert [set(one) for one in answer.json()] == [{"name", "version"}]
        for wrong in ({"limit": 0}, {"offset": -1}, {"sort_by": "secret"}, {"limit": 1001}):
            assert (await http.post("/assistants/search", json=wrong)).status_code == 422


@run
async def test_a_graph_has_an_assistant_of_its_own(url: str) -> None:
    async with serving(url) as server:
        client = await server.client()
        by_name = await client.assistants.get("aware")
        assert by_name == await client.assistants.get(OWN["aware"])
        assert (by_name["version"], by_name["name"]) == (1, "aware")
        assert by_name["metadata"] == {"created_by": "system"}
        assert [v["version"] for v in await client.assistants.get_versions("aware")] == [1]
        assert (await client.assistants.set_latest("aware", 1))["version"] == 1
        with pytest.raises(NotFoundError):
            await client.assistants.set_latest("aware", 2)
        with pytest.raises(ConflictError, match="cannot be deleted"):
            await client.assistants.delete("aware")

        changed = await client.assistants.update("aware", context={"mood": "grim"})
        assert (changed["assistant_id"], changed["version"]) == (OWN["aware"], 2)
        assert await client.assistants.count() == len(graphs())
        values: Any = await client.runs.wait(None, "aware", input=said("hi"))
        assert values["messages"][-1]["content"] == "mood=grim tone=None"
        with pytest.raises(ConflictError):
            await client.assistants.delete("aware")
        assert [v["version"] for v in await client.assistants.get_versions("aware")] == [2, 1]
        assert (await client.assistants.set_latest("aware", 1))["context"] == {}
        values = await client.runs.wait(None, OWN["aware"], input=said("hi"))
        assert values["messages"][-1]["content"] == "mood=None tone=None"


@on_postgres_too
@run
async def test_a_run_gets_its_assistants_config_and_context(url: str) -> None:
    async with serving(url) as server:
        client = await server.client()

        async def answer(assistant_id: str, **more: Any) -> str:
            values: Any = await client.runs.wait(None, assistant_id, input=said("hi"), **more)
            return str(values["messages"][-1]["content"])

        dry = await client.assistants.create("aware", {"configurable": {"tone": "dry", "mood": "calm"}})
        assistant_id = dry["assistant_id"]
        assert await answer(assistant_id) == "mood=calm tone=dry"
        assert await answer(assistant_id, context={"mood": "gay"}) == "mood=gay tone=dry"
        assert await answer(assistant_id, config={"configurable": {"tone": "loud"}}) == "mood=calm tone=loud"
        await client.assistants.update(assistant_id, context={"mood": "sad", "tone": "dry"})
        assert await answer(assistant_id) == "mood=sad tone=dry"
        await client.assistants.set_latest(assistant_id, 1)
        assert await answer(assistant_id) == "mood=calm tone=dry"

        thread_id = (await client.threads.create())["thread_id"]
        made = await client.runs.create(thread_id, assistant_id, input=said("hi"))
        assert made["assistant_id"] == assistant_id
        await client.runs.join(thread_id, made["run_id"])
        thread = await client.threads.get(thread_id)
        assert thread["metadata"] == {"graph_id": "aware", "assistant_id": assistant_id}
        await client.assistants.delete(assistant_id)
        with pytest.raises(NotFoundError, match="Thread or assistant not found"):
            await client.runs.create(None, assistant_id, input=said("hi"))
        with pytest.raises(UnprocessableEntityError):
            await client.runs.create(None, "no graph", input=said("hi"))


@run
async def test_delete_takes_its_threads_if_asked(url: str) -> None:
    async with serving(url) as server:
        client = await server.client()
        ids = [(await client.assistants.create("aware"))["assistant_id"] for _ in range(2)]
        threads: list[str] = []
        for assistant_id in (*ids, "aware"):
            thread_id = (await client.threads.create())["thread_id"]
            await client.runs.wait(thread_id, assistant_id, input=said("hi"))
            threads.append(thread_id)
        await client.assistants.delete(ids[0], delete_threads=True)
        await client.assistants.delete(ids[1])
        with pytest.raises(NotFoundError):
            await client.threads.get(threads[0])
        assert [one["thread_id"] for one in await client.threads.search()] == [threads[2], threads[1]]


@run
async def test_graph_schemas_and_subgraphs(url: str) -> None:
    async with serving(url) as server:
        client, http = await server.client(), await server.http()
        drawn = await client.assistants.get_graph("nested")
        assert {node["id"] for node in drawn["nodes"]} >= {"__start__", "__end__", "below", "beside"}
        assert {"source": "__start__", "target": "below", "conditional": True} in drawn["edges"]
        assert all(set(edge) <= {"source", "target", "data", "conditional"} for edge in drawn["edges"])

        async def ids(xray: bool | int) -> set[str]:
            return {str(n["id"]) for n in (await client.assistants.get_graph("nested", xray=xray))["nodes"]}

        assert "below:deepest" in await ids(1)
        assert any("ground" in one for one in await ids(True))
        assert not any("ground" in one for one in await ids(1))
        assert any("ground" in one for one in await ids(2))
        assert await ids(0) == await ids(False)
        for wrong in ("-1", "deep"):
            assert (await http.get("/assistants/nested/graph", params={"xray": wrong})).status_code == 422

        remote = await RemoteGraph("nested", client=client).aget_graph(xray=True)
        assert {edge.target for edge in remote.edges} <= set(remote.nodes)
        assert "below:deepest" in {one.partition(":ground")[0] for one in remote.nodes}

        schemas = row(await client.assistants.get_schemas("aware"))
        assert set(schemas) == {
            "graph_id", "input_schema", "output_schema", "state_schema", "config_schema", "context_schema",
        }  # fmt: skip
        assert schemas["context_schema"] is not None
        assert schemas["config_schema"] is not None
        assert list(schemas["context_schema"]["properties"]) == ["mood"]
        assert list(schemas["config_schema"]["properties"]["configurable"]["properties"]) == ["mood"]
        for part in ("input_schema", "output_schema", "state_schema"):
            assert "messages" in schemas[part]["properties"]
        odd = await client.assistants.get_schemas("odd")
        assert odd["input_schema"] is None
        assert odd["output_schema"] is None
        assert odd["context_schema"] is None
        assert odd["state_schema"] is not None
        assert odd["state_schema"]["properties"]["plain"]["type"] == "integer"
        assert set(odd["state_schema"]["properties"]) == {"plain", "odd"}

        assert set(await client.assistants.get_subgraphs("nested")) == {"below"}
        assert set(await client.assistants.get_subgraphs("nested", recurse=True)) == {
            "below",
            "below|deepest",
        }
        (one,) = (await client.assistants.get_subgraphs("nested", "below|deepest", recurse=True)).items()
        assert one[0] == "below|deepest"
        assert one[1]["state_schema"] is not None
        assert await client.assistants.get_subgraphs("nested", "none") == {}
        assert await client.assistants.get_subgraphs("aware") == {}


@run
async def test_anothers_assistant_is_not_there(url: str) -> None:
    async with serving(url, gate=owners()) as server:
        alice, bob = await server.client("alice"), await server.client("bob")
        http = await server.http("bob")
        mine = await alice.assistants.create("aware", context={"mood": "secret"})
        assistant_id = mine["assistant_id"]
        assert mine["metadata"] == {"owner": "alice"}
        assert (await alice.assistants.get(assistant_id)) == mine
        for method, path, body in (
            ("GET", "", None),
            ("PATCH", "", {"name": "his"}),
            ("DELETE", "", None),
            ("GET", "/graph", None),
            ("GET", "/schemas", None),
            ("GET", "/subgraphs", None),
            ("GET", "/subgraphs/below", None),
            ("POST", "/versions", {}),
            ("POST", "/latest", {"version": 1}),
        ):
            answer = await http.request(method, f"/assistants/{assistant_id}{path}", json=body)
            assert answer.status_code == 404, (method, path)
            assert set(answer.json()) == {"detail"}
        with pytest.raises(NotFoundError):
            await bob.runs.create(None, assistant_id, input=said("hi"))
        for if_exists in ("raise", "do_nothing"):
            with pytest.raises(NotFoundError):
                await bob.assistants.create("aware", assistant_id=assistant_id, if_exists=if_exists)
        # The rules hold for the graphs' own assistants, too.
        assert await bob.assistants.search(limit=100) == []
        assert await bob.assistants.count() == 0
        assert await alice.assistants.search(limit=100) == [mine]
        values: Any = await alice.runs.wait(None, assistant_id, input=said("hi"))
        assert values["messages"][-1]["content"].startswith("mood=secret")
        with pytest.raises(NotFoundError):
            await bob.assistants.update("aware", context={"mood": "mine"})
        with pytest.raises(NotFoundError):
            await bob.assistants.set_latest("aware", 1)
        root = await server.client("root")
        await root.assistants.update("aware", context={"mood": "ours"})
        assert (await root.assistants.get("aware"))["version"] == 2
        assert (await root.assistants.get(assistant_id))["assistant_id"] == assistant_id


@run
async def test_tenants_share_the_graphs_and_nothing_else(url: str) -> None:
    async with serving(url, gate=tenants()) as server:
        alice, bob = await server.client("alice"), await server.client("bob")
        assistant_id = str(uuid.uuid4())
        await alice.assistants.create("aware", assistant_id=assistant_id, name="hers")
        with pytest.raises(NotFoundError):
            await bob.assistants.get(assistant_id)
        await bob.assistants.create("odd", assistant_id=assistant_id, name="his")
        assert (await alice.assistants.get(assistant_id))["name"] == "hers"
        await alice.assistants.update("aware", context={"mood": "hers"})
        assert (await bob.assistants.get("aware"))["version"] == 1
        values: Any = await bob.runs.wait(None, "aware", input=said("hi"))
        assert values["messages"][-1]["content"] == "mood=None tone=None"


@pytest.mark.parametrize("change", [{"context": {}}, {"config": {}}, {"config": {"tags": ["a"]}}], ids=str)
@run
async def test_what_was_cleared_of_an_assistant_reaches_no_run(change: dict[str, Any]) -> None:
    async with serving("memory://") as server:
        client, http = await server.client(), await server.http()
        for given in ({"context": {"mood": "calm"}}, {"config": {"configurable": {"mood": "calm"}}}):
            assistant_id = (await http.post("/assistants", json={"graph_id": "aware", **given})).json()[
                "assistant_id"
            ]
            changed = (await http.patch(f"/assistants/{assistant_id}", json=change)).json()
            assert (changed["context"], changed["config"]) == ({}, change.get("config", {}))
            values: Any = await client.runs.wait(None, assistant_id, input=said("hi"))
            assert values["messages"][-1]["content"] == "mood=None tone=None"
            renamed = (await http.patch(f"/assistants/{assistant_id}", json={"name": "Calm"})).json()
            assert (renamed["context"], renamed["config"]) == ({}, change.get("config", {}))
