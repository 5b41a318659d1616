"""The movies' application: accounts, sessions and checkpoints in one database, over restarts and outages."""

from __future__ import annotations

import asyncio
import secrets
import signal
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import httpx
import psycopg
import pytest
from fastapi import FastAPI, HTTPException
from sqlalchemy import inspect

import perdure
from examples.movies import accounts
from examples.movies import app as movies
from examples.movies.database import migrate, open_engine
from tests.servers import postgres

SECRET = "a secret of the tests, of enough bytes"
LOGIN = {"email": "Ada@example.com", "password": "correct horse"}


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """A database with Perdure's tables, and none of the application's."""
    if request.param == "sqlite":
        found = f"sqlite:///{tmp_path / 'movies.db'}"
        _migrated(found)
        yield found
    else:
        name = f"movies_{uuid.uuid4().hex}"
        with psycopg.connect(postgres.shared().url(), autocommit=True) as connection:
            connection.execute(f'CREATE DATABASE "{name}"'.encode())
        found = postgres.shared().url(name)
        _migrated(found)
        yield found


def _migrated(url: str) -> None:
    async def main() -> None:
        async with perdure.connect(url, migrate=True):
            pass

    asyncio.run(main())


@asynccontextmanager
async def replica(url: str) -> AsyncIterator[tuple[httpx.AsyncClient, FastAPI]]:
    """One process of the application, as far as it keeps something."""
    app = movies.create_app(url, SECRET)
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://here") as client,
    ):
        yield client, app


async def logged_in(client: httpx.AsyncClient) -> dict[str, str]:
    await client.post("/users", json=LOGIN)
    answer = await client.post("/login", json=LOGIN)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def bearing(tokens: dict[str, str]) -> dict[str, str]:
    return {"Authorization": f"Bearer {tokens['access_token']}"}


def test_accounts_refresh_once_and_a_stolen_token_revokes_all(url: str) -> None:
    async def main() -> None:
        async with replica(url) as (client, _):
            assert (await client.post("/users", json=LOGIN)).status_code == 201
            assert (await client.post("/users", json=LOGIN)).status_code == 409
            wrong = await client.post("/login", json={**LOGIN, "password": "wrong horse"})
            unknown = await client.post("/login", json={**LOGIN, "email": "bob@example.com"})
            assert wrong.status_code == unknown.status_code == 401
            assert wrong.json() == unknown.json()
            first = (await client.post("/login", json=LOGIN)).json()
            second = (await client.post("/refresh", json=first)).json()
            assert second["refresh_token"] != first["refresh_token"]
            assert (await client.post("/refresh", json=first)).status_code == 401
            assert (await client.post("/refresh", json=second)).status_code == 401, "its family is revoked"
            other = (await client.post("/login", json=LOGIN)).json()
            assert (await client.post("/logout", json=other)).status_code == 204
            assert (await client.post("/refresh", json=other)).status_code == 401
            for wrong_token in ({}, {"Authorization": "Bearer x.y.z"}):
                refused = await client.post("/sessions", headers=wrong_token)
                assert refused.status_code in (401, 403)

    asyncio.run(main())


def test_a_logout_during_a_refresh_revokes_the_new_token_too(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine(url)
    migrate(engine)
    held = accounts.Accounts(engine, SECRET)
    held.register(**LOGIN)
    first = held.log_in(**LOGIN)["refresh_token"]
    leaving = Thread(target=held.log_out, args=(first,))
    issued = secrets.token_urlsafe

    def meanwhile(size: int) -> str:
        leaving.start()
        leaving.join(0.3)
        return issued(size)

    with monkeypatch.context() as patch:
        patch.setattr(secrets, "token_urlsafe", meanwhile)
        second = held.refresh(first)["refresh_token"]
    leaving.join()
    with pytest.raises(HTTPException):
        held.refresh(second)
    engine.dispose()


def test_a_conversation_goes_on_over_replicas_and_restarts(url: str) -> None:
    async def main() -> None:
        async with AsyncExitStack() as two:
            one, _ = await two.enter_async_context(replica(url))
            other, _ = await two.enter_async_context(replica(url))
            tokens = await logged_in(one)
            headers = bearing(tokens)
            session = (await one.post("/sessions", headers=headers)).json()["session_id"]
            path = f"/sessions/{session}/messages"
            answers = []
            for number, client in enumerate((one, other, one)):
                given = {**headers, "Idempotency-Key": str(number)}
                for _ in range(2):  # the second is sent again
                    answer = await client.post(path, json={"text": f"which? {number}"}, headers=given)
                    assert answer.status_code == 200, answer.text
                answers.append(answer.json()["answer"])
            assert [text.partition(":")[0] for text in answers] == ["1", "2", "3"]
            await one.post("/users", json={**LOGIN, "email": "eve@example.com"})
            eve = (await one.post("/login", json={**LOGIN, "email": "eve@example.com"})).json()
            assert (await one.get(path, headers=bearing(eve))).status_code == 404
        async with replica(url) as (again, _):
            shown = (await again.get(path, headers=headers)).json()
            assert [row["answer"] for row in shown] == answers

    asyncio.run(main())


@pytest.mark.parametrize("dies", ["before the run", "after the run"])
def test_a_message_whose_request_died_is_answered_once_before_the_next(
    url: str, dies: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with replica(url) as (client, app):
            headers = bearing(await logged_in(client))
            session = (await client.post("/sessions", headers=headers)).json()["session_id"]
            path = f"/sessions/{session}/messages"
            if dies == "after the run":
                monkeypatch.setattr(app.state.sessions, "answer", _dies)
            else:
                monkeypatch.setattr(type(app.state.graph), "ainvoke", _dies)
            first = {**headers, "Idempotency-Key": "1"}
            died = await client.post(path, json={"text": "which?"}, headers=first)
            assert died.status_code == 500
            monkeypatch.undo()
        async with replica(url) as (client, app):
            refused = await client.post(path, json={"text": "and then?"}, headers=headers)
            assert refused.status_code == 422, "sent again, it would run twice"
            second = await client.post(
                path, json={"text": "and then?"}, headers={**headers, "Idempotency-Key": "2"}
            )
            assert second.json()["answer"].startswith("2:")
            again = await client.post(path, json={"text": "which?"}, headers=first)
            assert again.json()["answer"].startswith("1:")
            shown = (await client.get(path, headers=headers)).json()
            assert [row["answer"][0] for row in shown] == ["1", "2"]
            at: Any = {"configurable": {"thread_id": session}}
            assert len((await app.state.graph.aget_state(at)).values["messages"]) == 4

    asyncio.run(main())


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_on_postgresql_an_answer_is_stored_with_its_step(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with replica(url) as (client, app):
            headers = bearing(await logged_in(client))
            session = (await client.post("/sessions", headers=headers)).json()["session_id"]
            path = f"/sessions/{session}/messages"
            first = {**headers, "Idempotency-Key": "1"}
            monkeypatch.setattr(app.state.sessions, "answer", _dies)
            assert (await client.post(path, json={"text": "which?"}, headers=first)).status_code == 500
            (row,) = (await client.get(path, headers=headers)).json()
            at: Any = {"configurable": {"thread_id": session}}
            stored = (await app.state.graph.aget_state(at)).values["messages"]
            assert [row["question"], row["answer"]] == [each.text for each in stored]
            again = await client.post(path, json={"text": "which?"}, headers=first)
            assert (again.status_code, again.json()["answer"]) == (200, row["answer"])

    asyncio.run(main())


def _dies(*args: Any, **kwargs: Any) -> Any:
    raise RuntimeError("the process dies here")


def test_a_message_that_fails_each_time_does_not_hold_up_the_next(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(graph: Any, given: Any, *args: Any, **kwargs: Any) -> Any:
        if given["messages"][0]["content"] == "poison":
            raise ValueError("the model refuses this message")
        return replies["real"](graph, given, *args, **kwargs)

    replies: dict[str, Any] = {}

    async def main() -> None:
        async with replica(url) as (client, app):
            replies["real"] = type(app.state.graph).ainvoke
            headers = bearing(await logged_in(client))
            session = (await client.post("/sessions", headers=headers)).json()["session_id"]
            path = f"/sessions/{session}/messages"

            async def answered(text: str, key: str) -> str | int:
                given = {**headers, "Idempotency-Key": key}
                answer = await client.post(path, json={"text": text}, headers=given)
                return answer.json()["answer"] if answer.status_code == 200 else answer.status_code

            monkeypatch.setattr(type(app.state.graph), "ainvoke", fails)
            assert await answered("poison", "1") == 500
            assert str(await answered("which?", "2")).startswith("1:")
            monkeypatch.undo()
            assert str(await answered("and then?", "3")).startswith("2:")
            assert str(await answered("poison", "1")).startswith("3:"), "it can be sent again"

    asyncio.run(main())


def test_its_own_migrations_are_applied_once_by_several_processes(url: str) -> None:
    async def main() -> None:
        async with AsyncExitStack() as several:
            await asyncio.gather(*(several.enter_async_context(replica(url)) for _ in range(4)))

    asyncio.run(main())
    engine = open_engine(url)
    migrate(engine)
    tables = set(inspect(engine).get_table_names())
    engine.dispose()
    assert {"movie_users", "movie_refresh_tokens", "movie_sessions", "movie_messages"} <= tables


@pytest.mark.slow
def test_an_outage_is_a_503_and_afterwards_nothing_is_lost() -> None:
    server = postgres.Postgres(durable=True)
    _migrated(server.url())

    async def main() -> None:
        async with replica(server.url()) as (client, _):
            headers = bearing(await logged_in(client))
            session = (await client.post("/sessions", headers=headers)).json()["session_id"]
            path = f"/sessions/{session}/messages"
            given = {**headers, "Idempotency-Key": "1"}
            assert (await client.post(path, json={"text": "which?"}, headers=given)).status_code == 200
            given["Idempotency-Key"] = "2"
            server.stop(signal.SIGQUIT)
            answer = await client.post(path, json={"text": "and then?"}, headers=given)
            assert answer.status_code == 503, answer.text
            server.start()
            answer = await client.post(path, json={"text": "and then?"}, headers=given)
            assert answer.json()["answer"].startswith("2:")
            shown = (await client.get(path, headers=headers)).json()
            assert [row["answer"][0] for row in shown] == ["1", "2"]

    try:
        asyncio.run(main())
    finally:
        server.close()
