"""A checkpoint that a request names has to be there: otherwise nothing is accepted, and nothing changes.

Covers perdure.server.runs.checkpoint_references.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx
import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import NotFoundError
from langgraph_sdk.schema import Config

from tests.server.acceptance.saying import detail, heard, new, row, rows, said
from tests.server.acceptance.serving import Server, near, run
from tests.server.listening import command


class Talk(NamedTuple):
    """A thread on which something was said twice, and what another thread has."""

    client: LangGraphClient
    http: httpx.AsyncClient
    thread: str
    old: str
    elsewhere: str

    async def everything(self) -> tuple[Any, ...]:
        """All that there is of the thread."""
        client, thread = self.client, self.thread
        history = await client.threads.get_history(thread, limit=100)
        return history, await client.runs.list(thread), await client.threads.get(thread)

    def absent(self) -> list[dict[str, Any]]:
        """Ways to name a checkpoint that the thread does not have."""
        unknown = str(uuid.uuid4())
        return [
            {"checkpoint_id": unknown},
            {"checkpoint_id": self.elsewhere},
            {"checkpoint": {"checkpoint_id": unknown, "checkpoint_ns": ""}},
            {"checkpoint": {"checkpoint_id": self.elsewhere}},
        ]

    def contradictory(self) -> list[dict[str, Any]]:
        """Ways to name another thread beside that of the request, or two checkpoints."""
        return [
            {"checkpoint": {"thread_id": "another"}},
            {"checkpoint": {"checkpoint_id": self.old, "thread_id": "another"}},
            {"checkpoint": {"checkpoint_id": self.elsewhere, "thread_id": "another"}},
            {"checkpoint": {"checkpoint_id": self.old}, "checkpoint_id": self.elsewhere},
        ]


@asynccontextmanager
async def talk(server: Server) -> AsyncIterator[Talk]:
    async with server.client() as client, server.http() as http:
        thread, other = await new(client), await new(client)
        for text in ("one", "two"):
            await client.runs.wait(thread, "chat", input=said(text))
        await client.runs.wait(other, "chat", input=said("elsewhere"))
        history = rows(await client.threads.get_history(thread, limit=50))
        old = next(s for s in history if heard(s["values"]) == ["one", "echo one"] and not s["next"])
        elsewhere = row(await client.threads.get_state(other))
        yield Talk(client, http, thread, old["checkpoint_id"] or "", elsewhere["checkpoint_id"] or "")


@run
async def test_no_run_starts_from_what_is_not_there(server: Server) -> None:
    async with talk(server) as here:
        before = await here.everything()
        body = {"assistant_id": "chat", "input": said("never")}
        configured = {"config": {"configurable": {"checkpoint_id": here.elsewhere}}}
        for named in (*here.absent(), configured):
            for how in ("", "/wait", "/stream"):
                answer = await here.http.post(f"/threads/{here.thread}/runs{how}", json={**body, **named})
                assert answer.status_code == 404, (how, named, answer.text)
                assert "has no checkpoint" in detail(answer)
                # A thread that would be made for the run is not made.
                away = str(uuid.uuid4())
                made = {**body, **named, "if_not_exists": "create"}
                answer = await here.http.post(f"/threads/{away}/runs{how}", json=made)
                assert (answer.status_code, "checkpoint" in detail(answer)) == (404, True)
                assert (await here.http.get(f"/threads/{away}")).status_code == 404
                # A thread of its own has no past.
                answer = await here.http.post(f"/runs{how}", json={**body, **named})
                assert (answer.status_code, "checkpoint" in detail(answer)) == (404, True)
        assert await here.everything() == before


@run
async def test_no_state_is_edited_where_there_is_none(server: Server) -> None:
    async with talk(server) as here:
        before = await here.everything()
        below = {"checkpoint": {"checkpoint_id": here.old, "checkpoint_ns": "talk:1"}}
        for named in (*here.absent(), below):
            body = {"values": said("never"), **named}
            answer = await here.http.post(f"/threads/{here.thread}/state", json=body)
            assert answer.status_code == 404, (named, answer.text)
            assert "has no checkpoint" in detail(answer)
        with pytest.raises(NotFoundError, match="has no checkpoint"):
            await here.client.threads.update_state(here.thread, said("never"), checkpoint_id=here.elsewhere)
        assert await here.everything() == before


@run
async def test_a_reference_that_contradicts_the_request_changes_nothing(server: Server) -> None:
    async with talk(server) as here:
        before = await here.everything()
        at = f"/threads/{here.thread}"
        body = {"assistant_id": "chat", "input": said("never")}
        asked: list[tuple[str, dict[str, Any]]] = [
            ("/runs/wait", {**body, "checkpoint": {"thread_id": here.thread}})
        ]
        for named in here.contradictory():
            asked += [(f"{at}/runs{how}", {**body, **named}) for how in ("", "/wait", "/stream")]
            asked += [(f"{at}/state", {"values": said("never"), **named})]
        for ref in ({"thread_id": "another"}, {"thread_id": "another", "checkpoint_id": here.old}):
            asked += [(f"{at}/state/checkpoint", {"checkpoint": ref}), (f"{at}/history", {"checkpoint": ref})]
        ref = {"thread_id": "another", "checkpoint_id": here.old}
        asked += [(f"{at}/history", {"before": ref}), (f"{at}/history", {"before": {"configurable": ref}})]
        for path, sent in asked:
            answer = await here.http.post(path, json=sent)
            assert answer.status_code == 422, (path, sent, answer.text)
            assert "checkpoint" in detail(answer)
        told = await command(
            here.http, here.thread, "run.start", assistant_id="chat", input=said("never"), forkFrom=ref
        )
        assert told["error"] == "invalid_argument", told
        assert await here.everything() == before


@run
async def test_a_command_says_that_there_is_no_such_checkpoint(server: Server) -> None:
    async with talk(server) as here:
        before = await here.everything()
        configured = {"configurable": {"checkpoint_id": here.elsewhere}}
        for method, params in (
            ("run.start", {"assistant_id": "chat", "input": said("never"), "forkFrom": str(uuid.uuid4())}),
            ("run.start", {"assistant_id": "chat", "input": said("never"), "forkFrom": here.elsewhere}),
            ("run.start", {"assistant_id": "chat", "input": said("never"), "config": configured}),
            ("state.fork", {"checkpoint_id": here.elsewhere, "input": said("never")}),
        ):
            told = await command(here.http, here.thread, method, **params)
            assert told["error"] == "no_such_checkpoint", (params, told)
            assert "has no checkpoint" in told["message"]
        assert await here.everything() == before


@run
async def test_what_can_be_configured_names_a_checkpoint_too(server: Server) -> None:
    async with talk(server) as here:
        past: Config = {"configurable": {"checkpoint_id": here.old, "checkpoint_ns": "", "__pregel_read": 1}}
        values = await here.client.runs.wait(here.thread, "chat", input=said("other"), config=past)
        assert heard(values) == ["one", "echo one", "other", "echo other"]
        (newest, *_) = await here.client.runs.list(here.thread)
        # It is where this run began, and not where what follows goes on.
        values = await here.client.runs.wait(here.thread, "chat", input=said("more"))
        assert heard(values)[-2:] == ["more", "echo more"]
        assert newest["status"] == "success"
        for wrong in ({"checkpoint_id": 7}, {"checkpoint_id": here.old, "checkpoint_ns": "talk:1"}):
            body = {"assistant_id": "chat", "config": {"configurable": wrong}}
            answer = await here.http.post(f"/threads/{here.thread}/runs/wait", json=body)
            assert answer.status_code == 422, answer.text
        for config in ({"configurable": [1]}, {"metadata": "text"}):
            body = {"assistant_id": "chat", "config": config}
            answer = await here.http.post(f"/threads/{here.thread}/runs/wait", json=body)
            assert answer.status_code == 422, answer.text
            assert "of a config is an object" in detail(answer)


@near
@run
async def test_what_was_accepted_is_answered_again_though_its_checkpoint_is_gone(server: Server) -> None:
    async with talk(server) as here:

        async def asked(key: str, **more: Any) -> httpx.Response:
            body = {"assistant_id": "chat", "input": said("branch"), "checkpoint_id": here.old, **more}
            headers = {"Idempotency-Key": key}
            return await here.http.post(f"/threads/{here.thread}/runs", json=body, headers=headers)

        first = (await asked("now")).json()
        await here.client.runs.join(here.thread, first["run_id"])
        later = (await asked("later", after_seconds=600)).json()
        await here.client.threads.prune([here.thread], strategy="keep_latest")
        assert (await here.http.get(f"/threads/{here.thread}/state/{here.old}")).status_code == 404
        assert (await asked("now")).json()["run_id"] == first["run_id"]
        assert (await asked("later", after_seconds=600)).json()["run_id"] == later["run_id"]
        assert (await asked("another")).status_code == 404
        await here.client.runs.cancel(here.thread, later["run_id"])


@run
async def test_a_run_that_starts_in_the_past_ends_where_it_is(server: Server) -> None:
    async with server.client() as client:
        thread = await new(client)
        for given in (said("one"), None):
            await client.runs.wait(thread, "stopped", input=given)
        over = row(await client.threads.get_state(thread))
        assert (over["next"], (await client.threads.get(thread))["status"]) == ([], "idle")
        past: Config = {"configurable": {"checkpoint_id": over["checkpoint_id"]}}
        await client.runs.wait(thread, "stopped", input=said("two"), config=past)
        assert (await client.threads.get_state(thread))["next"] == ["second"]
        assert (await client.threads.get(thread))["status"] == "interrupted"


@near
@run
async def test_a_run_that_stores_no_checkpoint_has_the_result_of_the_one_it_started_from(
    server: Server,
) -> None:
    async with server.client() as client:
        thread = await new(client)
        begun: Any = {"answers": ["before"]}
        asked: Any = await client.runs.wait(thread, "both", input=begun)
        ids = {one["value"]: one["id"] for one in asked["__interrupt__"]}
        old = row(await client.threads.get_state(thread))["checkpoint"]
        await client.threads.update_state(thread, {"answers": ["edited"]}, as_node="left")
        resume: Any = {"resume": {ids["left?"]: "yes"}}
        left: Any = await client.runs.wait(thread, "both", command=resume, checkpoint=old)
        assert left["answers"] == ["before"]
        assert [one["value"] for one in left["__interrupt__"]] == ["right?"]
        (latest, _) = await client.runs.list(thread)
        assert row(await client.runs.join(thread, latest["run_id"])) == left
        await client.threads.update_state(thread, {"answers": ["again"]}, as_node="left")
        assert row(await client.runs.join(thread, latest["run_id"])) == left


@near
@run
async def test_an_answer_is_taken_once_at_each_checkpoint(server: Server) -> None:
    async with server.client() as client:
        thread = await new(client)
        await client.runs.wait(thread, "ask", input=said("hello"))
        old = row(await client.threads.get_state(thread))["checkpoint"]

        async def answered(word: str) -> Any:
            return await client.runs.wait(thread, "ask", command={"resume": word}, checkpoint=old)

        assert heard(await answered("yes"))[-1] == "you said yes"
        for _ in range(2):
            # It is not the latest checkpoint any more, and its question has an answer.
            with pytest.raises(httpx.HTTPStatusError, match="409"):
                await answered("no")
        await client.runs.wait(thread, "ask", input=None, checkpoint=old)
        values = await client.runs.wait(thread, "ask", command={"resume": "no"})
        assert heard(values) == ["hello", "you said no"]
