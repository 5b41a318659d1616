"""What an authorization handler leaves of an action's arguments, on every route that asks one.

Covers perdure.server.auth.authorized_values.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from langgraph_sdk import Auth

from perdure.server.auth.handlers import Handlers
from tests.server.hosting import known, run, serving

ITEM = {"namespace": ["ann"], "key": "k", "value": {"v": 1}}
STORE: dict[str, tuple[str, str, dict[str, Any]]] = {
    "put": ("PUT", "/store/items", {"json": {"namespace": ["notes"], "key": "k", "value": {"v": 2}}}),
    "get": ("GET", "/store/items", {"params": {"namespace": "notes", "key": "k"}}),
    "delete": ("DELETE", "/store/items", {"json": {"namespace": ["notes"], "key": "k"}}),
    "search": ("POST", "/store/items/search", {"json": {"namespace_prefix": ["notes"]}}),
    "list_namespaces": ("POST", "/store/namespaces", {"json": {"prefix": ["notes"]}}),
}
WRONG: list[Any] = [
    "ann", "", 7, None, 1.5, b"ann", {"ann": 1}, {"ann"}, ("ann", 7), ("",), ("a.n",), (None,), [["ann"]], (),
]  # fmt: skip


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'threads.db'}"


def changing(change: Callable[[str, str, Any], None]) -> Handlers:
    """A gate that leaves ``root``'s requests unchanged, and those of others as ``change`` leaves them."""
    auth = known()

    @auth.on
    async def rule(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> None:
        if ctx.user.identity != "root":
            change(ctx.resource, ctx.action, value)

    return Handlers(auth)


@run
async def test_a_namespace_that_a_handler_left_is_a_list_of_labels(url: str) -> None:
    left: list[Any] = [None]

    def change(resource: str, action: str, value: Any) -> None:
        value["namespace"] = left[0]

    async with serving(url, gate=changing(change)) as served:
        root, an = await served.http("root"), await served.http("an")
        for labels in (["ann"], ["a", "n", "n"], ["7"], ["notes"]):
            (await root.put("/store/items", json={**ITEM, "namespace": labels})).raise_for_status()
        before = (await root.post("/store/items/search", json={})).json()
        for wrong in WRONG:
            left[0] = wrong
            for action, (method, path, body) in STORE.items():
                answer = await an.request(method, path, **body)
                assert answer.status_code == 422, (wrong, action, answer.text)
                assert "handler" in answer.json()["detail"]
        left[0] = None
        answer = await an.post("/store/namespaces", json={})
        assert answer.status_code == 422, "nobody's part is not everybody's"
        assert (await root.post("/store/items/search", json={})).json() == before
        left[0] = ("ann",)
        found = (await an.post("/store/items/search", json={})).json()["items"]
        assert [item["namespace"] for item in found] == [["ann"]]


@pytest.mark.parametrize(
    ("action", "name", "wrong"),
    [
        *(("list_namespaces", "suffix", wrong) for wrong in ("n", 7, {"n"}, ("",), ("a.n",), None)),
        ("list_namespaces", "max_depth", "x"),
        ("list_namespaces", "max_depth", 0),
        ("list_namespaces", "namespace", ("*",)),
        *((action, "limit", wrong) for action in ("search", "list_namespaces") for wrong in (None, "x", 0)),
        *((action, "offset", wrong) for action in ("search", "list_namespaces") for wrong in (None, -1)),
        ("search", "filter", "owner"),
        ("search", "filter", ["owner"]),
        ("search", "query", 7),
        *((action, "key", wrong) for action in ("get", "put", "delete") for wrong in (None, 7, ["k"])),
        ("put", "value", None),
        ("put", "value", ["v"]),
        ("put", "ttl", "soon"),
        ("put", "ttl", -1),
        ("put", "index", "name"),
    ],
)
@run
async def test_every_argument_of_the_store_that_a_handler_left_is_checked(
    url: str, action: str, name: str, wrong: Any
) -> None:
    def change(resource: str, named: str, value: Any) -> None:
        if named == action:
            value[name] = wrong

    method, path, body = STORE[action]
    if name == "suffix":
        body = {"json": {"suffix": ["notes"]}}
    async with serving(url, gate=changing(change)) as served:
        an = await served.http("an")
        answer = await an.request(method, path, **body)
        assert answer.status_code == 422, answer.text


@run
async def test_an_argument_of_the_store_that_a_handler_removed_is_missed(url: str) -> None:
    def change(resource: str, action: str, value: Any) -> None:
        del value["namespace"]

    async with serving(url, gate=changing(change)) as served:
        an = await served.http("an")
        for action, (method, path, body) in STORE.items():
            assert (await an.request(method, path, **body)).status_code == 422, action


NEW_RUN = {"assistant_id": "aware", "input": {"messages": [("user", "hi")]}, "if_not_exists": "create"}
NEW_CRON = {"assistant_id": "aware", "schedule": "0 9 * * *", "input": {"messages": []}}
OTHERS: list[tuple[str, str, str, str, Any]] = [
    ("threads", "create", "POST", "/threads", {}),
    ("threads", "update", "PATCH", "/threads/t", {"metadata": {"a": 1}}),
    ("threads", "search", "POST", "/threads/search", {}),
    ("threads", "search", "POST", "/threads/count", {}),
    ("threads", "create", "POST", "/threads/t/copy", None),
    ("threads", "create_run", "POST", "/threads/t/runs", NEW_RUN),
    ("threads", "create_run", "POST", "/runs/wait", NEW_RUN),
    ("threads", "create", "POST", "/threads/new/runs/wait", NEW_RUN),
    ("assistants", "create", "POST", "/assistants", {"graph_id": "aware"}),
    ("assistants", "search", "POST", "/assistants/search", {}),
    ("assistants", "search", "POST", "/assistants/count", {}),
    ("crons", "create", "POST", "/runs/crons", NEW_CRON),
    ("crons", "search", "POST", "/runs/crons/search", {}),
    ("crons", "search", "POST", "/runs/crons/count", {}),
]


@pytest.mark.parametrize(
    "wrong",
    ["ann", 7, ["owner"], {7: "x"}, {"owner": object()}],
    ids=["text", "number", "list", "keys", "object"],
)
@run
async def test_metadata_that_a_handler_left_are_an_object(url: str, wrong: Any) -> None:
    target: list[tuple[str, str]] = [("", "")]

    def change(resource: str, action: str, value: Any) -> None:
        if (resource, action) == target[0]:
            value["metadata"] = wrong

    async with serving(url, gate=changing(change)) as served:
        root, an = await served.http("root"), await served.http("an")
        (await root.post("/threads", json={"thread_id": "t"})).raise_for_status()
        for resource, action, method, path, body in OTHERS:
            target[0] = (resource, action)
            answer = await an.request(method, path, json=body)
            assert answer.status_code == 422, (path, answer.status_code, answer.text)
            assert f"{resource}.{action}" in answer.json()["detail"]
        assert len((await root.post("/threads/search", json={})).json()) == 1
        assert (await root.post("/runs/crons/search", json={})).json() == []


@pytest.mark.parametrize(
    ("resource", "action", "path", "body", "changed"),
    [
        ("threads", "search", "/threads/search", {}, {"limit": "x"}),
        ("threads", "search", "/threads/search", {}, {"limit": 0}),
        ("threads", "search", "/threads/search", {}, {"offset": -1}),
        ("threads", "search", "/threads/search", {}, {"status": "asleep"}),
        ("threads", "search", "/threads/search", {}, {"values": "x"}),
        ("threads", "create", "/threads", {}, {"thread_id": 7}),
        ("threads", "create", "/threads", {}, {"thread_id": "perdure.memory:ann"}),
        ("threads", "create", "/threads", {}, {"ttl": "soon"}),
        ("threads", "create", "/threads/t/copy", None, {"thread_id": None}),
        ("threads", "create_run", "/runs/wait", NEW_RUN, {"assistant_id": "slow"}),
        ("threads", "create_run", "/threads/t/runs", NEW_RUN, {"thread_id": "other"}),
        ("threads", "create_run", "/threads/t/runs", NEW_RUN, {"multitask_strategy": "reject"}),
        ("assistants", "create", "/assistants", {"graph_id": "aware"}, {"assistant_id": "x"}),
        ("assistants", "create", "/assistants", {"graph_id": "aware"}, {"config": "x"}),
        ("assistants", "create", "/assistants", {"graph_id": "aware"}, {"context": 7}),
        ("assistants", "create", "/assistants", {"graph_id": "aware"}, {"name": 7}),
        ("assistants", "create", "/assistants", {"graph_id": "aware"}, {"graph_id": "slow"}),
        ("crons", "create", "/runs/crons", NEW_CRON, {"thread_id": "t"}),
        ("crons", "create", "/runs/crons", NEW_CRON, {"schedule": "* * * * *"}),
        ("crons", "search", "/runs/crons/search", {}, {"limit": None}),
    ],
)
@run
async def test_a_change_by_a_handler_that_cannot_be_made_is_refused(
    url: str, resource: str, action: str, path: str, body: Any, changed: dict[str, Any]
) -> None:
    def change(of: str, named: str, value: Any) -> None:
        if (of, named) == (resource, action):
            value.update(changed)

    async with serving(url, gate=changing(change)) as served:
        root, an = await served.http("root"), await served.http("an")
        (await root.post("/threads", json={"thread_id": "t"})).raise_for_status()
        answer = await an.post(path, json=body)
        assert answer.status_code == 422, answer.text
        assert len((await root.post("/threads/search", json={})).json()) == 1


@run
async def test_a_search_is_as_narrow_as_a_handler_left_it(url: str) -> None:
    changed: dict[str, Any] = {}

    def change(resource: str, action: str, value: Any) -> None:
        if action == "search":
            value.update({name: held for name, held in changed.items() if name in value})

    async with serving(url, gate=changing(change)) as served:
        root, an = await served.http("root"), await served.http("an")
        for number in range(3):
            body: Any = {"thread_id": f"t{number}", "metadata": {"n": number}}
            (await root.post("/threads", json=body)).raise_for_status()
            (await root.post("/assistants", json={"graph_id": "aware", "metadata": {"n": number}}))
            (await root.post("/runs/crons", json={**NEW_CRON, "metadata": {"n": number}})).raise_for_status()
        paths = ("/threads", "/assistants", "/runs/crons")
        for narrowed, count in (({"limit": 2}, 2), ({"metadata": {"n": 1}}, 1), ({"status": "busy"}, 0)):
            changed.clear()
            changed.update(narrowed)
            for path in paths if "status" not in narrowed else paths[:1]:
                found = (await an.post(f"{path}/search", json={"metadata": {}})).raise_for_status().json()
                assert len(found) == count, (path, narrowed)
        changed.clear()
        changed["values"] = {"owner": "an"}
        assert (await an.post("/threads/search", json={})).json() == []
        assert (await an.post("/threads/count", json={})).json() == 0


@run
async def test_a_handler_sees_the_strategy_that_a_header_asks_for(url: str) -> None:
    seen: list[Any] = []

    def change(resource: str, action: str, value: Any) -> None:
        if action == "create_run":
            seen.append((value["multitask_strategy"], value["prevent_insert_if_inflight"]))

    async with serving(url, gate=changing(change)) as served:
        an = await served.http("an")
        for headers in ({}, {"X-Multitask-Strategy": "reject"}):
            (await an.post("/threads/t/runs/wait", json=NEW_RUN, headers=headers)).raise_for_status()
        assert seen == [("enqueue", False), ("reject", True)]
