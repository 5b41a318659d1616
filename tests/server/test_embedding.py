"""LangGraph's API in somebody else's application, and which thread a request there means.

Covers perdure.server.thread_ids.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest
from fastapi import Depends, FastAPI, Header, HTTPException
from langgraph_sdk import get_client
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.errors import NotFoundError, UnprocessableEntityError

import perdure
from examples.fastapi_app import create_app as example
from perdure.errors import Unavailable
from perdure.server import OpenedNow, RequestThreadId, perdure_app, perdure_router
from tests.server.acceptance.saying import said
from tests.server.applications import QUICK, Place, app_with, client_of, listening, run, started

pytestmark = pytest.mark.usefixtures("nothing_is_set")


async def _drive(client: LangGraphClient) -> None:
    """From a thread to its state, and errors under the names that the client has for them."""
    thread = await client.threads.create(metadata={"of": "a test"})
    state: Any = await client.runs.wait(thread["thread_id"], "chat", input=said("hello"))
    assert state["messages"][-1]["content"] == "1: hello"
    stream = client.runs.stream(thread["thread_id"], "chat", input=said("hello"), stream_mode="updates")
    told = [part async for part in stream]
    assert [part.event for part in told] == ["metadata", "updates", "end"]
    assert told[1].data["answer"]["messages"][0]["content"] == "2: hello"
    found: Any = await client.threads.get_state(thread["thread_id"])
    assert len(found["values"]["messages"]) == 4
    with pytest.raises(NotFoundError):
        await client.threads.get("nobody-made-this")
    with pytest.raises(UnprocessableEntityError, match="no graph or assistant"):
        await client.runs.create(thread["thread_id"], "poet", input=said("hello"))


def test_the_example_chats_and_serves_langgraph_s_client(place: Place) -> None:
    async def both() -> None:
        async with listening(example(place.migrated().url)) as base, httpx.AsyncClient(base_url=base) as http:
            for number in (1, 2):
                told = await http.post("/chat", json={"context_id": "mine", "message": "hi"})
                assert told.json() == {"context_id": "mine", "answer": f"{number}: hi"}
            async with get_client(url=f"{base}/agents", api_key=None) as client:
                await _drive(client)
                # What the chat stored is a thread to LangGraph's client, and goes on there.
                found: Any = await client.threads.get_state("mine")
                assert len(found["values"]["messages"]) == 4
                state: Any = await client.runs.wait("mine", "chat", input=said("you"))
                assert state["messages"][-1]["content"] == "3: you"
            told = await http.post("/chat", json={"thread_id": "mine", "message": "me"})
            assert told.json()["answer"] == "4: me"

    run(both())


def test_what_was_said_is_there_after_a_restart(place: Place) -> None:
    async def once(expected: str) -> None:
        app = example(place.url)
        async with started(app), client_of(app) as http:
            told = await http.post("/chat", json={"context_id": "c", "message": "hi"})
            assert told.json()["answer"] == expected

    place.migrated()
    run(once("1: hi"))
    run(once("2: hi"))


def test_the_routes_can_be_included(near: str) -> None:
    app = app_with(near, serve=True, settings=QUICK)
    app.include_router(perdure_router(), prefix="/agents")

    async def driven() -> None:
        async with listening(app) as base:
            async with get_client(url=f"{base}/agents", api_key=None) as client:
                await _drive(client)
            async with httpx.AsyncClient(base_url=base) as http:
                refused = await http.post("/agents/threads/search", json={"limit": "many"})
                assert refused.status_code == 422
                assert isinstance(refused.json()["detail"], str)

    run(driven())
    assert "/agents/threads/{thread_id}/runs/wait" in app.openapi()["paths"]


def test_included_routes_are_behind_the_application_s_own_door(near: str) -> None:
    async def key(x_key: str = Header("")) -> None:
        if x_key != "k":
            raise HTTPException(401, "no")

    app = app_with(near, serve=True)
    app.include_router(perdure_router(), prefix="/agents", dependencies=[Depends(key)])

    async def asked() -> None:
        async with started(app), client_of(app) as http:
            assert (await http.post("/agents/threads", json={})).status_code == 401
            assert (await http.post("/agents/threads", json={}, headers={"x-key": "k"})).status_code == 200

    run(asked())


def test_an_application_s_own_answers_stay_its_own(near: str) -> None:
    app = app_with(near, serve=True)
    app.include_router(perdure_router(), prefix="/agents")

    @app.get("/own")
    async def own(number: int) -> int:
        return number

    async def asked() -> None:
        async with started(app), client_of(app) as http:
            assert isinstance((await http.get("/own", params={"number": "x"})).json()["detail"], list)

    run(asked())


def test_a_mounted_api_takes_any_thread_id(near: str) -> None:
    app = app_with(near, serve=True)
    app.mount("/agents", perdure_app(app))

    async def asked() -> None:
        async with started(app), client_of(app) as http:
            made = await http.post("/agents/threads", json={"thread_id": "a/b c%"})
            assert made.status_code == 200
            found = await http.get("/agents/threads/a%2Fb%20c%25")
            assert found.json()["thread_id"] == "a/b c%"

    run(asked())


def test_a_server_that_passes_decoded_paths_alone_is_warned_of_once(
    near: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = app_with(near, serve=True)
    app.mount("/agents", perdure_app(app))

    async def decode(scope: Any, *rest: Any) -> None:
        await app({**scope, "raw_path": None}, *rest)

    async def asked() -> None:
        async with started(app), client_of(decode) as http:
            await http.post("/agents/threads", json={"thread_id": "a b%"})
            assert (await http.get("/agents/threads/a%20b%25")).json()["thread_id"] == "a b%"

    run(asked())
    (line,) = (record.getMessage() for record in caplog.records if "raw_path" in record.getMessage())
    assert "%2F in a path is a slash" in line


@pytest.mark.parametrize("way", ["mounted", "included"])
def test_before_the_start_and_after_the_stop_it_is_503(near: str, way: str) -> None:
    app = app_with(near, serve=True)
    if way == "mounted":
        app.mount("/agents", perdure_app(app))
    else:
        app.include_router(perdure_router(), prefix="/agents")

    @app.get("/own")
    async def own(opened: OpenedNow) -> list[str]:
        return list(opened.graphs)

    async def asked() -> None:
        async with client_of(app) as http:
            for _ in range(2):
                for path in ("/own", "/agents/threads/t"):
                    answer = await http.get(path)
                    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
                    assert "starting or stopping" in answer.json()["detail"]
                async with started(app):
                    assert (await http.get("/own")).json() == ["chat"]
                    assert (await http.get("/agents/threads/t")).status_code == 404

    run(asked())


def test_routes_without_serve_say_what_is_missing(near: str) -> None:
    app = app_with(near)
    app.mount("/agents", perdure_app(app))

    async def asked() -> None:
        async with started(app), client_of(app) as http:
            answer = await http.get("/agents/threads/t")
            assert answer.status_code == 503
            assert "serve=True" in answer.json()["detail"]

    run(asked())


@pytest.mark.parametrize(
    ("error", "status", "told"),
    [
        (Unavailable("who knows where"), 503, "The database does not answer; try again."),
        (perdure.HeadConflict("thread 't': another run was first"), 409, "another run was first"),
    ],
)
def test_an_endpoint_s_errors_are_answered(
    near: str, error: Exception, status: int, told: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any) -> Any:
        raise error

    app = example(near)

    async def asked() -> None:
        async with started(app), client_of(app) as http:
            monkeypatch.setattr(perdure.PerdureSaver, "aget_tuple", fails)
            answer = await http.post("/chat", json={"context_id": "t", "message": "hi"})
            assert answer.status_code == status
            assert told in answer.json()["detail"]
            monkeypatch.undo()

    run(asked())


# Which thread


@pytest.fixture(scope="module")
def naming() -> FastAPI:
    app = FastAPI()

    @app.post("/any")
    async def anywhere(thread_id: RequestThreadId) -> str:
        return thread_id

    @app.post("/contexts/{context_id}")
    async def context(thread_id: RequestThreadId) -> str:
        return thread_id

    @app.post("/threads/{thread_id}")
    async def thread(named: RequestThreadId) -> str:
        return named

    return app


def _named(app: FastAPI, path: str, **sent: Any) -> tuple[int, Any]:
    async def asked() -> httpx.Response:
        async with client_of(app) as http:
            return await http.post(path, **sent)

    answer = run(asked())
    return answer.status_code, answer.json() if answer.is_success else answer.json()["detail"]


@pytest.mark.parametrize(
    ("path", "sent"),
    [
        ("/any", {"json": {"thread_id": "t"}}),
        ("/any", {"json": {"context_id": "t"}}),
        ("/any", {"json": {"context_id": "t", "thread_id": "t"}}),
        ("/any", {"json": {"context_id": "t", "thread_id": None}}),
        ("/any?thread_id=t", {}),
        ("/any?context_id=t", {"json": {"thread_id": "t"}}),
        ("/any?context_id=t&thread_id=t", {"json": ["no object"]}),
        ("/contexts/t", {}),
        ("/threads/t", {"json": {"context_id": "t"}}),
        ("/threads/t", {"content": b"{", "headers": {"content-type": "text/plain"}}),
        ("/any", {"content": b'{"context_id":"t"}', "headers": {"content-type": "application/a+json; x=y"}}),
    ],
)
def test_a_thread_is_named_by_either_name(naming: FastAPI, path: str, sent: dict[str, Any]) -> None:
    assert _named(naming, path, **sent) == (200, "t")


@pytest.mark.parametrize(
    ("path", "sent", "told"),
    [
        ("/any", {}, "names no thread; send thread_id, or context_id"),
        ("/any", {"json": {"context_id": None}}, "names no thread"),
        ("/any", {"json": {"threadId": "t"}}, "names no thread"),
        ("/any", {"data": {"thread_id": "t"}}, "names no thread"),
        ("/any", {"json": {"context_id": "t", "thread_id": "u"}}, "names two threads"),
        ("/any?thread_id=t", {"json": {"context_id": "u"}}, "names two threads"),
        ("/any?thread_id=t&thread_id=u", {}, "names two threads"),
        ("/threads/t?context_id=u", {}, "names two threads"),
        ("/threads/t", {"json": {"thread_id": "u"}}, "names two threads"),
        ("/any", {"json": {"context_id": 7}}, "are text"),
        ("/any", {"json": {"context_id": ""}}, "1 to 255 characters"),
        ("/any?thread_id=", {}, "1 to 255 characters"),
        ("/any", {"json": {"context_id": "x" * 256}}, "1 to 255 characters"),
        ("/any", {"json": {"context_id": "a\u0000b"}}, "1 to 255 characters"),
        ("/any", {"content": b"{", "headers": {"content-type": "application/json"}}, "not JSON"),
        ("/any", {"content": b"\xff", "headers": {"content-type": "application/json"}}, "not JSON"),
        ("/any", {"content": b"[" * 200_000, "headers": {"content-type": "application/json"}}, "nested"),
    ],
)
def test_a_request_that_names_no_thread_or_two_is_refused(
    naming: FastAPI, path: str, sent: dict[str, Any], told: str
) -> None:
    status, detail = _named(naming, path, **sent)
    assert status == 422
    assert told in detail


def first_block_of_the_page() -> dict[str, Any]:
    text = Path(__file__).parents[2].joinpath("docs", "embedding.md").read_text("utf-8")
    found = re.search(r"^```python \{\.run\}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert found is not None
    # FastAPI reads annotations in the namespace of a module.
    module = ModuleType("first_block")
    exec(found[1], module.__dict__)  # noqa: S102
    return module.__dict__


def test_two_messages_at_once_to_the_first_application_of_the_page_are_an_answer_and_a_409(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", place.migrated().url)
    app = first_block_of_the_page()["app"]

    async def race() -> None:
        async with listening(app) as base, httpx.AsyncClient(base_url=base, timeout=60) as http:

            async def say(number: int) -> httpx.Response:
                return await http.post("/chat?thread_id=ada", json={"message": f"message {number}"})

            stored = conflicts = 0
            while not conflicts:
                assert stored < 400, "two requests never met"
                texts = []
                for response in await asyncio.gather(say(1), say(2)):
                    assert response.status_code in (200, 409), response.text
                    if response.status_code == 409:
                        conflicts += 1
                        assert "'ada'" in response.json()["detail"]
                    else:
                        texts.append(response.json())
                # Each answer counts the messages up to its own. A refused one is not in the thread, unless
                # the call that was answered began after the refused one had stored its input.
                assert texts
                if len(texts) == 1:
                    assert texts[0] in (f"message {stored + 1}", f"message {stored + 2}")
                else:
                    assert set(texts) == {f"message {stored + 1}", f"message {stored + 3}"}
                stored = max(int(text.removeprefix("message ")) for text in texts) + 1
            assert (await say(3)).json() == f"message {stored + 1}"

    run(race())
