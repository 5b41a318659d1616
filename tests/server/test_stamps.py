"""Whose something is: nobody can say so but the handlers, and what they answer holds on every way to it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from langgraph_sdk import Auth

from perdure.server.auth.handlers import Handlers
from tests.backends import EMPTY
from tests.server.acceptance.serving import run
from tests.server.hosting import known
from tests.server.tenants import ALICE, COLLEAGUE, SECRET_OF_ALICE, WAYS, said, serving

A, B = {"Authorization": "Bearer alice"}, {"Authorization": "Bearer bob"}


@pytest.fixture
def url() -> Iterator[str]:
    with EMPTY["sqlite"]() as url:
        yield url


def filtering(auth: Auth, *actions: str) -> None:
    """Handlers that restrict and stamp nothing by themselves."""

    @auth.on(resources="threads", actions=list(actions))
    async def own(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> dict[str, str]:
        return {"owner": ctx.user.identity}


@pytest.mark.parametrize("way", ["filters", "both"])
@run
async def test_a_stamp_cannot_be_forged(url: str, way: str) -> None:
    fake = {"owner": "alice"}
    async with (
        serving(url, WAYS[way].gate()) as server,
        server.http(ALICE) as alice,
        server.http(COLLEAGUE) as bob,
    ):
        made = (await bob.post("/threads", json={"metadata": fake})).json()
        assert made["metadata"] == {"owner": "bob"}
        path = f"/threads/{made['thread_id']}"
        assert (await bob.patch(path, json={"metadata": fake})).json()["metadata"]["owner"] == "bob"
        new = {"assistant_id": "chat", "input": said("x"), "metadata": fake, "config": {"metadata": fake}}
        ran = (await bob.post(f"{path}/runs", json=new)).json()
        assert ran["metadata"]["owner"] == "bob"
        lazy = {**new, "if_not_exists": "create"}
        (await bob.post("/threads/lazy/runs/wait", json=lazy)).raise_for_status()
        assert (await bob.get("/threads/lazy")).json()["metadata"]["owner"] == "bob"
        copied = (await bob.post("/threads/lazy/copy")).json()
        assert copied["metadata"]["owner"] == "bob"
        body = {"graph_id": "chat", "metadata": fake}
        assistant = (await bob.post("/assistants", json=body)).json()
        assert assistant["metadata"]["owner"] == "bob"
        path = f"/assistants/{assistant['assistant_id']}"
        assert (await bob.patch(path, json={"metadata": fake})).json()["metadata"]["owner"] == "bob"
        assert (await alice.post("/threads/search", json={})).json() == []
        assert (await alice.post("/threads/count", json={})).json() == 0
        # A rule that wants an owner holds for the graphs' own assistants, which have none.
        assert (await alice.post("/assistants/search", json={})).json() == []


@run
async def test_what_would_be_anothers_is_refused_where_a_handler_stamps_nothing(url: str) -> None:
    auth = known()
    filtering(auth, "create", "read", "update", "create_run")
    async with serving(url, Handlers(auth)) as server, server.http(A) as alice, server.http(B) as bob:
        for metadata in ({}, {"owner": "alice"}):
            answer = await bob.post("/threads", json={"thread_id": "t", "metadata": metadata})
            assert answer.status_code == 403, "it would be somebody else's, or nobody's"
        made = await bob.post("/threads", json={"thread_id": "t", "metadata": {"owner": "bob"}})
        assert made.status_code == 200
        given = await bob.patch("/threads/t", json={"metadata": {"owner": "alice"}})
        assert given.status_code == 403, "given away"
        assert (await alice.get("/threads/t")).status_code == 404
        new = {"assistant_id": "chat", "input": said("x")}
        assert (await alice.post("/threads/t/runs/wait", json=new)).status_code == 404
        for owner, status in ({}, 403), ({"owner": "bob"}, 403), ({"owner": "alice"}, 200):
            lazy = {**new, "if_not_exists": "create", "metadata": owner}
            assert (await alice.post("/threads/new/runs/wait", json=lazy)).status_code == status
        assert (await bob.get("/threads/new")).status_code == 404
        assert (await bob.post("/threads/t/runs/wait", json=new)).status_code == 200


@run
async def test_a_filter_for_runs_alone_holds_for_runs(url: str) -> None:
    """Whoever may read is not therefore one who may run."""
    auth = known()
    filtering(auth, "create_run")
    async with serving(url, Handlers(auth)) as server, server.http(A) as alice, server.http(B) as bob:
        (
            await alice.post("/threads", json={"thread_id": "t", "metadata": {"owner": "alice"}})
        ).raise_for_status()
        new = {"assistant_id": "chat", "input": said("x")}
        for how in ("", "/stream", "/wait"):
            answer = await bob.post(f"/threads/t/runs{how}", json=new)
            assert answer.status_code == 404, answer.text
        start = {"id": 1, "method": "run.start", "params": new}
        assert (await bob.post("/threads/t/commands", json=start)).json()["type"] == "error"
        assert (await bob.get("/threads/t")).json()["values"] is None
        assert (await alice.post("/threads/t/runs/wait", json=new)).status_code == 200
        assert len((await bob.get("/threads/t/state")).json()["values"]["messages"]) == 2


@run
async def test_who_may_make_threads_may_not_therefore_read_them(url: str) -> None:
    """Everybody makes, under any name, and reads what is theirs: a name that is taken opens nothing."""
    auth = known()

    @auth.on(actions="create")
    async def stamp(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> None:
        value.setdefault("metadata", {})["owner"] = ctx.user.identity

    @auth.on
    async def own(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> dict[str, str]:
        return {"owner": ctx.user.identity}

    thread = {"thread_id": "t", "metadata": {"title": SECRET_OF_ALICE}}
    assistant = {"graph_id": "chat", "assistant_id": "0" * 32, "name": SECRET_OF_ALICE}
    async with serving(url, Handlers(auth)) as server, server.http(A) as alice, server.http(B) as bob:
        for path, body in (("/threads", thread), ("/assistants", assistant)):
            (await alice.post(path, json=body)).raise_for_status()
            for if_exists in ("raise", "do_nothing"):
                answer = await bob.post(
                    path, json={**body, "if_exists": if_exists, "name": "b", "metadata": {}}
                )
                assert SECRET_OF_ALICE not in answer.text
                assert answer.status_code == 404
            again = await alice.post(path, json={**body, "if_exists": "do_nothing"})
            assert SECRET_OF_ALICE in again.text


@pytest.mark.parametrize("denied", ["create", "read", "update", "delete", "search", "create_run"])
@run
async def test_who_is_denied_is_told_so(url: str, denied: str) -> None:
    auth = known()

    @auth.on(resources="threads", actions=denied)
    async def deny(ctx: Auth.types.AuthContext, value: dict[str, Any]) -> bool:
        return ctx.user.identity == "alice"

    run_it = {"assistant_id": "chat", "input": said("x")}
    tries: dict[str, list[tuple[str, str, Any]]] = {
        "create": [
            ("POST", "/threads", {}),
            ("POST", "/threads/t/copy", None),
            ("POST", "/runs/wait", run_it),
        ],
        "read": [
            ("GET", "/threads/t", None),
            ("GET", "/threads/t/state", None),
            ("POST", "/threads/t/history", {}),
            ("GET", "/threads/t/runs", None),
            ("GET", "/threads/t/stream", None),
            ("GET", "/threads/t/storage", None),
            ("POST", "/threads/t/stream/events", {"channels": ["values"]}),
        ],
        "update": [
            ("PATCH", "/threads/t", {"metadata": {}}),
            ("POST", "/threads/t/state", {"values": said("x")}),
            ("POST", "/threads/t/runs/x/cancel", None),
            ("POST", "/runs/cancel", {"status": "all"}),
        ],
        "delete": [
            ("DELETE", "/threads/t", None),
            ("DELETE", "/threads/t/runs/x", None),
            ("POST", "/threads/prune", {"thread_ids": ["t"]}),
        ],
        "search": [("POST", "/threads/search", {}), ("POST", "/threads/count", {})],
        "create_run": [
            ("POST", "/threads/t/runs", run_it),
            ("POST", "/threads/t/runs/stream", run_it),
            ("POST", "/threads/t/runs/wait", run_it),
            ("POST", "/runs", run_it),
            ("POST", "/runs/batch", [run_it]),
        ],
    }
    async with serving(url, Handlers(auth)) as server, server.http(A) as alice, server.http(B) as bob:
        (await alice.post("/threads", json={"thread_id": "t"})).raise_for_status()
        for method, path, body in tries[denied]:
            answer = await bob.request(method, path, json=body)
            assert (answer.status_code, list(answer.json())) == (403, ["detail"]), (path, answer.text)
            assert (await alice.get("/threads/t")).status_code == 200


@run
async def test_a_namespace_is_what_a_handler_made_of_it(url: str) -> None:
    async with (
        serving(url, WAYS["filters"].gate()) as server,
        server.http(ALICE) as alice,
        server.http(COLLEAGUE) as bob,
    ):
        for http, value in ((alice, SECRET_OF_ALICE), (bob, "mine")):
            item = {"namespace": ["notes"], "key": "k", "value": {"said": value}}
            (await http.put("/store/items", json=item)).raise_for_status()
        for http, value, user in ((alice, SECRET_OF_ALICE, "alice"), (bob, "mine", "bob")):
            got = (await http.get("/store/items?namespace=notes&key=k")).json()
            assert (got["value"], got["namespace"]) == ({"said": value}, [user, "notes"])
            found = (await http.post("/store/items/search", json={})).json()["items"]
            assert [one["value"]["said"] for one in found] == [value]
            listed = (await http.post("/store/namespaces", json={})).json()["namespaces"]
            assert listed == [[user, "notes"]]


@run
async def test_a_key_of_one_is_not_that_of_another(url: str) -> None:
    """A run on a thread of its own, which two users happen to give the same key."""
    new = {"assistant_id": "chat", "input": said("x"), "on_completion": "keep"}
    async with (
        serving(url, WAYS["filters"].gate()) as server,
        server.http(ALICE) as alice,
        server.http(COLLEAGUE) as bob,
    ):
        made = []
        for http in (alice, bob, alice):
            answer = await http.post("/runs", json=new, headers={"Idempotency-Key": "turn-1"})
            assert answer.status_code == 200, answer.text
            made.append(answer.json()["run_id"])
        assert made[0] == made[2] != made[1]
