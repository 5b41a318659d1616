"""The store over HTTP, driven by LangGraph's own client.

Covers perdure.server.routes.store.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from langgraph_sdk import Auth

from perdure.langgraph.store import Clock, PerdureStore
from perdure.server.auth.handlers import Handlers
from tests.backends import EMPTY
from tests.server.hosting import known, owners, run, serving, tenants

_MINUTE_US = 60_000_000


@pytest.fixture(params=["sqlite"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with EMPTY[request.param]() as url:
        yield url


@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
@run
async def test_t14_items_are_kept_found_and_removed(url: str) -> None:
    async with serving(url) as server:
        client, http = await server.client(), await server.http()
        await client.store.put_item(["users", "ada"], "tea", {"likes": True, "cups": 3})
        await client.store.put_item(["users", "ada"], "milk", {"likes": False, "cups": 1})
        await client.store.put_item(["users", "bob"], "tea", {"likes": True, "cups": 5}, index=["likes"])
        item = await client.store.get_item(["users", "ada"], "tea")
        assert set(item) == {"namespace", "key", "value", "created_at", "updated_at"}
        assert (item["namespace"], item["key"], item["value"]) == (
            ["users", "ada"], "tea", {"likes": True, "cups": 3},
        )  # fmt: skip
        await client.store.put_item(["users", "ada"], "tea", {"likes": True, "cups": 4}, index=False)
        again = await client.store.get_item(["users", "ada"], "tea")
        assert again["value"]["cups"] == 4
        assert again["created_at"] == item["created_at"]
        assert again["updated_at"] > item["updated_at"]

        async def found(*prefix: str, **asked: Any) -> set[tuple[str, str]]:
            answer = await client.store.search_items(list(prefix), **asked)
            return {(one["namespace"][-1], one["key"]) for one in answer["items"]}

        assert await found("users") == {("ada", "tea"), ("ada", "milk"), ("bob", "tea")}
        assert await found() == await found("users")
        assert await found("users", "bob") == {("bob", "tea")}
        assert await found("users", filter={"likes": True}) == {("ada", "tea"), ("bob", "tea")}
        assert await found("users", filter={"cups": {"$gt": 4}}) == {("bob", "tea")}
        either: dict[str, Any] = {"$or": [{"cups": {"$in": [1, 2]}}, {"$not": {"cups": {"$lt": 5}}}]}
        assert await found("users", filter=either) == {("ada", "milk"), ("bob", "tea")}
        assert await found("users", filter={"likes": True, **either}) == {("bob", "tea")}
        unsound: list[dict[str, Any]] = [
            {"$gt": 0},
            {"$or": []},
            {"$nor": [{"cups": 1}]},
            {"cups": {"$in": 1}},
            {"$not": [1]},
        ]
        for wrong in unsound:
            asked = {"namespace_prefix": ["users"], "filter": wrong}
            refused = await http.post("/store/items/search", json=asked)
            assert refused.status_code == 422, wrong
            assert "$" in refused.json()["detail"]
        assert await found("users", query="what is liked?") == await found("users")
        pages = [await found("users", limit=1, offset=n) for n in range(4)]
        assert [len(page) for page in pages] == [1, 1, 1, 0]
        assert set().union(*pages) == await found("users")

        listed = await client.store.list_namespaces()
        assert sorted(listed["namespaces"]) == [["users", "ada"], ["users", "bob"]]
        assert (await client.store.list_namespaces(suffix=["bob"]))["namespaces"] == [["users", "bob"]]
        assert (await client.store.list_namespaces(["users"], max_depth=1))["namespaces"] == [["users"]]
        assert len((await client.store.list_namespaces(limit=1, offset=1))["namespaces"]) == 1
        assert (await client.store.list_namespaces(["none"]))["namespaces"] == []

        gone = {"namespace": ["users", "ada"], "key": "tea"}
        answer = await http.request("DELETE", "/store/items", json=gone)
        assert (answer.status_code, answer.content) == (204, b"")
        await client.store.delete_item(["users", "ada"], "tea")
        missing = await http.get("/store/items", params={"namespace": "users.ada", "key": "tea"})
        assert (missing.status_code, missing.text) == (200, "null")
        assert await client.store.get_item(["users", "ada"], "tea") is None


@run
async def test_a_search_reads_as_many_items_at_a_time_as_are_a_few_megabytes(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    asearch = PerdureStore.asearch

    async def note(self: Any, prefix: Any, /, **more: Any) -> Any:
        asked.append(more["limit"])
        if len(asked) == 2:  # one that was sent is written again, and comes first now
            await self.aput(("large",), "79", {"text": "new"})
        return await asearch(self, prefix, **more)

    async with serving(url) as server:
        http = await server.http()
        for number in range(80):
            item = {"namespace": ["large"], "key": str(number), "value": {"text": "x" * 100_000, "n": number}}
            assert (await http.put("/store/items", json=item)).status_code == 204
            small = {**item, "namespace": ["small"], "value": {"n": number}}
            assert (await http.put("/store/items", json=small)).status_code == 204
        for body in (
            {"limit": 1000},
            {"limit": 40},
            {"offset": 50},
            {"filter": {"n": {"$gt": 30}}, "limit": 40},
        ):
            few = await http.post("/store/items/search", json={"namespace_prefix": ["small"], **body})
            many = await http.post("/store/items/search", json={"namespace_prefix": ["large"], **body})
            keys = [item["key"] for item in few.json()["items"]]
            assert [item["key"] for item in many.json()["items"]] == keys, body
            assert len(keys) == {1000: 80, 40: 40}.get(body.get("limit", 0), 10)  # type: ignore[call-overload]
        monkeypatch.setattr(PerdureStore, "asearch", note)
        answer = await http.post("/store/items/search", json={"namespace_prefix": ["large"], "limit": 1000})
        found = [item["key"] for item in answer.json()["items"]]
        assert found == [str(number) for number in reversed(range(80))]
        assert asked == [32, 20, 20, 20]


@run
async def test_it_is_the_store_of_the_graphs(url: str) -> None:
    async with serving(url) as server:
        client = await server.client()
        await client.store.put_item(["notes", "ada"], "tea", {"says": "she likes it"})
        given: dict[str, Any] = {"messages": [("user", "hi")]}
        values: Any = await client.runs.wait(None, "remembers", input=given)
        assert values["messages"][-1]["content"] == "she likes it"
        assert (await client.store.get_item(["notes", "graph"], "wrote"))["value"] == {"by": "graph"}


@run
async def test_an_item_lives_as_long_as_it_was_told(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now = time.time_ns() // 1000
    defaults = PerdureStore.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "clock", Clock(lambda: now))
    async with serving(url) as server:
        client, http = await server.client(), await server.http()
        for key in ("short", "long", "read"):
            ttl = 60 if key == "long" else 1.5
            body = {"namespace": ["a"], "key": key, "value": {"v": 1}, "ttl": ttl}
            assert (await http.put("/store/items", json=body)).status_code == 204
        for _ in range(4):
            now += _MINUTE_US // 2
            assert await client.store.get_item(["a"], "read", refresh_ttl=True) is not None
        left = (await client.store.search_items(["a"], refresh_ttl=False))["items"]
        assert {one["key"] for one in left} == {"long", "read"}
        now += _MINUTE_US * 8 // 5
        assert await client.store.get_item(["a"], "read", refresh_ttl=False) is None


@run
async def test_what_cannot_be_stored_is_told_in_a_sentence(url: str) -> None:
    async with serving(url) as server:
        http = await server.http()
        item = {"namespace": ["a"], "key": "k", "value": {"v": 1}}
        wrongs: list[dict[str, Any]] = [
            {"namespace": []},
            {"namespace": ["a", ""]},
            {"namespace": ["a.b"]},
            {"namespace": ["langgraph"]},
            {"namespace": "a"},
            {"namespace": ["\ud800"]},
            {"key": 3},
            {"value": [1]},
            {"value": None},
            {"ttl": 0},
            {"ttl": -1},
            {"index": True},
        ]
        for wrong in wrongs:
            answer = await http.put("/store/items", content=json.dumps({**item, **wrong}))
            assert answer.status_code == 422, (wrong, answer.text)
            assert isinstance(answer.json()["detail"], str)
        for query in ({"key": "k"}, {"namespace": "a..b", "key": "k"}, {"namespace": "", "key": "k"}):
            assert (await http.get("/store/items", params=query)).status_code == 422, query
        for path, body in (
            ("search", {"limit": 0}),
            ("search", {"namespace_prefix": ["a", ""]}),
            ("search", {"filter": {"v": {"$near": 1}}}),
        ):
            answer = await http.post(f"/store/items/{path}", json=body)
            assert answer.status_code == 422, (body, answer.text)
        assert (await http.post("/store/namespaces", json={"prefix": ["a.b"]})).status_code == 422
        assert (await http.post("/store/namespaces", json={"max_depth": 0})).status_code == 422
        assert (await http.get("/store/items", params={"namespace": "a", "key": "k"})).text == "null"


@run
async def test_tenants_and_users_see_their_own(url: str) -> None:
    async with serving(url, gate=tenants()) as server:
        alice, bob = await server.client("alice"), await server.client("bob")
        await alice.store.put_item(["a"], "k", {"v": 1})
        assert await bob.store.get_item(["a"], "k") is None
        assert (await bob.store.search_items([]))["items"] == []
        assert (await bob.store.list_namespaces())["namespaces"] == []
        await bob.store.delete_item(["a"], "k")
        assert await alice.store.get_item(["a"], "k") is not None


@run
async def test_a_handler_narrows_the_namespace(url: str) -> None:
    async with serving(url, gate=owners()) as server:
        alice, bob, root = [await server.client(name) for name in ("alice", "bob", "root")]
        await alice.store.put_item(["a"], "k", {"v": 1})
        assert (await alice.store.get_item(["a"], "k"))["namespace"] == ["alice", "a"]
        assert await bob.store.get_item(["a"], "k") is None
        assert await bob.store.get_item(["alice", "a"], "k") is None
        assert (await bob.store.search_items([]))["items"] == []
        assert (await bob.store.list_namespaces())["namespaces"] == []
        assert (await alice.store.list_namespaces())["namespaces"] == [["alice", "a"]]
        await bob.store.delete_item(["a"], "k")
        assert len((await alice.store.search_items(["a"]))["items"]) == 1
        assert (await root.store.list_namespaces())["namespaces"] == []


@run
async def test_a_filter_for_items_is_not_passed_over(url: str) -> None:
    auth = known()

    @auth.on
    async def own(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> dict[str, str]:
        return {"owner": ctx.user.identity}

    async with serving(url, gate=Handlers(auth)) as server:
        http = await server.http("alice")
        answer = await http.post("/store/items/search", json={})
        assert answer.status_code == 403
        assert "namespace" in answer.json()["detail"]
        item = {"namespace": ["a"], "key": "k", "value": {}}
        assert (await http.put("/store/items", json=item)).status_code == 403
