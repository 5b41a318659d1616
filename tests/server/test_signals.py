"""Signals over HTTP: with a token, with a signature, once for each key; and waits as clients see them.

Covers perdure.server.routes.signals.
"""

from __future__ import annotations

import base64
import json
import time
from typing import Any, TypedDict

from langgraph.graph import START, StateGraph
from langgraph.pregel import Pregel

from perdure.runtime import ask, wait_for
from perdure.server.runs.webhook_signature import ID, SIGNATURE, TIMESTAMP, is_signed, sign
from tests.server.hosting import Served, run, serving, tenants

SECRET = "whsec_" + base64.b64encode(b"s" * 24).decode()
OTHER = "whsec_" + base64.b64encode(b"o" * 24).decode()


class Paid(TypedDict, total=False):
    paid: Any
    answer: Any


async def pay(state: Paid) -> Paid:
    paid = await wait_for("payment/ü", within=3600, default=None)
    return {"paid": paid, "answer": ask("sure?", within=3600, default=False)}


def paying() -> Pregel[Any, Any, Any, Any]:
    return StateGraph(Paid).add_node("pay", pay).add_edge(START, "pay").compile()


JSON = {"Content-Type": "application/json"}
PATH = "payment%2F%C3%BC"


async def waiting(server: Served, user: str | None = None) -> str:
    client = await server.client(user)
    thread_id = (await client.threads.create())["thread_id"]
    await client.runs.wait(thread_id, "pays", input={})
    return str(thread_id)


@run
async def test_a_signal_goes_on_once_for_each_key_and_waits_are_shown(near: str) -> None:
    async with serving(near, of={"pays": paying()}) as server:
        http, thread_id = await server.http(), await waiting(server)
        shown = (await http.get(f"/threads/{thread_id}")).json()
        (asked,) = shown["waits"]
        assert (asked["kind"], asked["signal"]) == ("signal", "payment/ü")
        state = (await http.get(f"/threads/{thread_id}/state")).json()
        assert (state["waits"], state["interrupts"]) == ([asked], [])
        at = f"/threads/{thread_id}/signals/{PATH}"
        keyed = {"Idempotency-Key": "k"}
        first = (await http.post(at, json={"value": 7}, headers=keyed)).json()
        assert (first["status"], first["is_duplicate"], first["name"]) == ("delivered", False, "payment/ü")
        again = (await http.post(at, json={"value": 7}, headers=keyed)).json()
        assert (again["run_id"], again["is_duplicate"]) == (first["run_id"], True)
        client = await server.client()
        await client.runs.join(thread_id, first["run_id"])
        question = (await http.get(f"/threads/{thread_id}/state")).json()["interrupts"][0]
        assert (question["value"], question["wait"]["kind"]) == ("sure?", "question")
        assert question["wait"]["until"] > shown["updated_at"]
        early = (await http.post(f"/threads/{thread_id}/signals/other", json={})).json()
        assert (early["status"], early["run_id"]) == ("kept", None)
        await client.runs.wait(thread_id, "pays", command={"resume": True})
        done = (await http.get(f"/threads/{thread_id}/state")).json()
        assert done["values"] == {"paid": 7, "answer": True}


@run
async def test_what_cannot_be_signalled_is_refused(near: str) -> None:
    async with serving(near, of={"pays": paying()}) as server:
        http, thread_id = await server.http(), await waiting(server)
        at = f"/threads/{thread_id}/signals"
        for path, body, status in (
            ("/threads/00000000-0000-4000-8000-000000000000/signals/n", {}, 404),
            (f"{at}/{'n' * 201}", {}, 422),
            (f"{at}/n", {"to_all": "maybe"}, 422),
            (f"{at}/n", {"tenant": "acme"}, 422),
            (f"{at}/n", {"value": "x" * 300_000}, 413),
        ):
            answer = await http.post(path, json=body)
            assert answer.status_code == status, answer.text


@run
async def test_a_user_signals_its_own_threads_only(near: str) -> None:
    async with serving(near, gate=tenants(), of={"pays": paying()}) as server:
        thread_id = await waiting(server, "ada")
        for user, status in (("bob", 404), (None, 401), ("ada", 200)):
            answer = await (await server.http(user)).post(f"/threads/{thread_id}/signals/n", json={})
            assert answer.status_code == status, answer.text


@run
async def test_a_program_without_a_token_signs(near: str) -> None:
    async with serving(near, gate=tenants(), of={"pays": paying()}) as server:
        thread_id = await waiting(server, "ada")
        tenant = (await server.host.gate.authenticate(_request("ada"))).tenant
        http, at = await server.http(), f"/threads/{thread_id}/signals/{PATH}"
        body = json.dumps({"value": 7, "tenant": tenant}).encode()

        async def post(headers: dict[str, str], content: bytes = body) -> Any:
            return await http.post(
                at, content=content, headers={"Content-Type": "application/json", **headers}
            )

        now = round(time.time())
        assert (await post(sign([SECRET], "m1", now, body))).status_code == 401, "no secret is set"
        server.host.signal_secrets = (OTHER, SECRET)
        assert (await post(sign([SECRET], "m1", now - 400, body))).status_code == 401
        assert (await post(sign([SECRET], "m1", now, body), body + b" ")).status_code == 401
        other = sign([SECRET], "m1", now, elsewhere := json.dumps({"value": 7}).encode())
        assert (await post(other, elsewhere)).status_code == 404, "the tenant is what the body names"
        first = (await post(sign([SECRET], "m1", now, body))).json()
        assert (first["status"], first["is_duplicate"]) == ("delivered", False)
        again = {**sign([SECRET], "m1", now, body), "Idempotency-Key": "another"}
        assert (await post(again)).json()["is_duplicate"], "who has recorded it cannot send it again"


def test_a_signature_is_of_one_id_one_time_and_one_body() -> None:
    headers = sign([OTHER, SECRET], "m1", 1000, b"body")
    assert is_signed([SECRET], headers, 1200.5, b"body")
    assert is_signed([OTHER], headers, 900, b"body")
    assert not is_signed([SECRET], headers, 1301, b"body")
    assert not is_signed([SECRET], headers, 1000, b"other")
    assert not is_signed([], headers, 1000, b"body")
    for name, value in ((ID, "m2"), (ID, ""), (TIMESTAMP, "1001"), (TIMESTAMP, "x"), (SIGNATURE, "v1,é")):
        assert not is_signed([SECRET], {**headers, name: value}, 1000, b"body")


def _request(user: str) -> Any:
    from starlette.requests import Request

    return Request({"type": "http", "headers": [(b"authorization", f"Bearer {user}".encode())]})
