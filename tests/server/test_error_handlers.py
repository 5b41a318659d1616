"""What a client is told of an error never names the database, and what is logged never quotes anybody."""

from __future__ import annotations

import asyncio
import gzip
import json
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Any, LiteralString

import httpx
import psycopg
import pytest
from fastapi import FastAPI
from langchain_core.messages import AIMessage
from langgraph.graph import END, START, MessagesState, StateGraph
from starlette.requests import Request
from starlette.testclient import TestClient

import perdure
from perdure import errors
from perdure.errors import PerdureError
from perdure.model.runs.messages import FAILED, Run
from perdure.runtime import Event, Runtime
from perdure.server import error_handlers, responses
from perdure.server.app import create_app
from perdure.server.auth.identity import OpenGate
from perdure.server.resources import ServerState
from perdure.server.streaming import protocol_commands
from perdure.server.streaming.protocol_events import EventFilter, project
from tests.server.acceptance.saying import detail, said
from tests.server.acceptance.serving import run
from tests.server.applications import QUICK, postgresql

ADDRESS = "postgresql://somebody@db.internal:5433/conversations"
DRIVER = 'connection to server at "10.1.2.3", port 5433 failed: password authentication failed'
WORDS = ("somebody", "db.internal", "port 5433", "conversations", "10.1.2.3", "password", "postgresql")

TOLD = (
    errors.Conflict,
    errors.HeadConflict,
    errors.CannotTakeBack,
    errors.Forgotten,
    errors.Fenced,
    errors.Contention,
    errors.RunInProgress,
    errors.NotWaiting,
    errors.NotFound,
    errors.MissingStart,
    errors.OtherGraph,
    errors.NotAllowed,
    errors.OverMaximum,
    errors.Unreadable,
    errors.TypeNotAllowed,
    errors.TypeNotFound,
    errors.SchemaTooNew,
    errors.ThreadPinned,
    errors.MigrationFailed,
    errors.LimitPending,
    errors.LimitReached,
    errors.QueueFull,
    errors.SubscriberTooSlow,
    errors.Unserialisable,
)
"""Whose sentences are for clients: they are of threads, runs and types. All others are not."""


def kinds(root: type[PerdureError] = PerdureError) -> Iterator[type[PerdureError]]:
    yield root
    for kind in root.__subclasses__():
        if kind.__module__ == errors.__name__:
            yield from kinds(kind)


def raised(kind: type[PerdureError]) -> PerdureError:
    try:
        try:
            raise OSError(DRIVER)
        except OSError as error:
            raise kind(f"{ADDRESS}: {DRIVER}") from error
    except PerdureError as error:
        return error


async def answered(error: PerdureError) -> tuple[int, str]:
    answer = await error_handlers.answer_error(
        Request({"type": "http", "method": "GET", "path": "/x", "headers": []}), error
    )
    return answer.status_code, json.loads(bytes(answer.body))["detail"]


def _line_of(error: PerdureError) -> int:
    trace = error.__traceback__
    assert trace is not None
    return trace.tb_lineno


def _failed(noted: str, kind: str) -> Run:
    return Run("r", 1, 1, FAILED, "g", "", 5, 1, None, 0, 0, {"error": noted, "kind": kind})


@pytest.mark.parametrize("kind", sorted(set(kinds()), key=attrgetter("__name__")))
def test_only_sentences_about_threads_and_runs_are_told(
    kind: type[PerdureError], caplog: pytest.LogCaptureFixture
) -> None:
    error = raised(kind)
    status, told = asyncio.run(answered(error))
    assert told
    if kind in TOLD:
        assert told == str(error)
        assert not caplog.records
        return
    assert not any(word in told for word in WORDS), told
    (record,) = caplog.records
    assert record.getMessage() == f"GET a request failed: {kind.__name__} at {__name__}:{_line_of(error)}"
    assert record.levelno == (logging.ERROR if status == 500 else logging.WARNING)
    # As the error of a run, which is noted by its name, it is told no more of.
    shown = responses.run_error(_failed(f"{kind.__name__}: {error}", kind.__name__))
    assert shown["error"] == kind.__name__
    assert not any(word in shown["message"] for word in WORDS)
    end = Event(7, "r", "end", json.dumps({"state": FAILED, "error": f"{kind.__name__}: {error}"}))
    (event,) = project(end, EventFilter(frozenset(["lifecycle"])))
    assert json.loads(event.text)["params"]["data"]["error"].startswith(f"{kind.__name__}: ")
    assert not any(word in event.text for word in WORDS)
    for stored in (error, repr(error)):
        told_of_task = responses._make_error_text(stored)
        assert told_of_task.startswith(f"{kind.__name__}(")
        assert not any(word in told_of_task for word in WORDS)


def test_an_error_that_is_not_ours_keeps_its_words() -> None:
    assert responses.run_error(_failed("ValueError: it broke", "ValueError"))["message"] == "it broke"
    assert responses._make_error_text(ValueError("it broke")) == "ValueError('it broke')"
    assert responses._make_error_text("ValueError('it broke')") == "ValueError('it broke')"


def _stumbling() -> Any:
    """Fails with what a driver might say, if it is told to."""

    def turn(state: MessagesState) -> dict[str, Any]:
        if state["messages"][-1].text == "fail":
            raise errors.TooLarge(f"{ADDRESS}: {DRIVER}")
        return {"messages": [AIMessage("fine")]}

    builder = StateGraph(MessagesState)
    builder.add_node("turn", turn)
    builder.add_edge(START, "turn")
    builder.add_edge("turn", END)
    return builder.compile()


@asynccontextmanager
async def served(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with (
        perdure.connect(url) as db,
        Runtime(db, {"turn": _stumbling()}, settings=QUICK, all_tenants=True) as works,
    ):
        app: FastAPI = create_app(None)
        app.state.perdure = host = ServerState.over(works, OpenGate())
        transport = httpx.ASGITransport(app, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://here", timeout=60) as http:
            try:
                yield http
            finally:
                await host.close()


def requests() -> Iterator[tuple[str, str, Any]]:
    new = {"assistant_id": "turn", "input": said("x")}
    yield "GET", "/threads/t", None
    yield "GET", "/threads/t/state", None
    yield "POST", "/threads/t/state", {"values": said("x")}
    yield "POST", "/threads/t/history", {}
    yield "GET", "/threads/t/storage", None
    yield "GET", "/threads/t/runs", None
    yield "POST", "/threads/t/runs", new
    yield "POST", "/threads/t/runs/wait", new
    yield "POST", "/threads/t/runs/stream", new
    yield "POST", "/runs/wait", new
    yield "POST", "/threads", {}
    yield "POST", "/threads/search", {}
    yield "POST", "/threads/t/copy", None
    yield "DELETE", "/threads/t", None
    yield "POST", "/assistants/search", {}
    yield "PUT", "/store/items", {"namespace": ["n"], "key": "k", "value": {}}
    yield "POST", "/store/items/search", {}
    for method in ("run.start", "state.get", "agent.getTree", "state.listCheckpoints"):
        yield "POST", "/threads/t/commands", {"id": 1, "method": method, "params": new}


@run
async def test_a_broken_database_is_told_of_and_not_what_it_is() -> None:
    with postgresql() as place:
        name = place.migrated().url.rpartition("/")[2].partition("?")[0]
        port = place.url.rpartition(":")[2].partition("/")[0]
        words = (name, port, "127.0.0.1", "postgres", "relation", "schema")
        async with served(place.url) as http:
            new = {"assistant_id": "turn", "input": said("hi"), "if_not_exists": "create"}
            assert (await http.post("/threads/t/runs/wait", json=new)).is_success
            _told(place.url, "ALTER SCHEMA perdure RENAME TO away")
            for method, path, body in requests():
                answer = await http.request(method, path, json=body)
                assert answer.status_code == 500, (method, path, answer.text)
                assert "its log says where" in detail(answer)
                assert not any(word in answer.text for word in words), (method, path, answer.text)
            _told(place.url, "ALTER SCHEMA away RENAME TO perdure")
            # What a command finds wrong is an answer with a code; this is not wrong with the command.
            _told(place.url, "ALTER TABLE perdure.document RENAME TO away")
            for method, path, body in requests():
                if path.endswith("/commands"):
                    answer = await http.request(method, path, json=body)
                    assert answer.status_code == 500, (body, answer.text)
                    assert not any(word in answer.text for word in words), (body, answer.text)
            _told(place.url, "ALTER TABLE perdure.away RENAME TO document")
            assert (await http.get("/threads/t")).is_success


def _told(url: str, statement: LiteralString) -> None:
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
        connection.execute(statement)


@run
async def _commanded(url: str) -> None:
    async with served(url) as http:
        said_of = {"id": 1, "method": "state.get", "params": {}}
        answer = await http.post("/threads/t/commands", json=said_of)
        assert answer.json()["error"] == "invalid_argument"
        assert answer.json()["message"].startswith("A value is larger")


def test_a_command_does_not_repeat_a_driver_s_words_either(
    near: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(*_: Any) -> dict[str, Any]:
        raise raised(errors.TooLarge)

    monkeypatch.setitem(protocol_commands._COMMANDS, "state.get", fails)
    _commanded(near)


@run
async def test_a_run_that_fails_with_a_driver_s_words_does_not_repeat_them(near: str) -> None:
    async with served(near) as http:
        new = {"assistant_id": "turn", "input": said("fail"), "if_not_exists": "create"}
        waited = await http.post("/threads/t/runs/wait", json=new)
        assert waited.json()["__error__"]["error"] == "TooLarge"
        streamed = await http.post("/threads/t/runs/stream", json=new)
        assert "event: error" in streamed.text
        thread = await http.get("/threads/t")
        assert thread.json()["error"]["message"].startswith("A value is larger")
        state = await http.get("/threads/t/state")
        assert state.json()["tasks"][0]["error"].startswith("TooLarge(")
        runs = await http.get("/threads/t/runs")
        for answer in (waited, streamed, thread, state, runs):
            assert not any(word in answer.text for word in WORDS), answer.text


@run
async def test_a_body_that_is_not_sent_as_json_names_the_header() -> None:
    """``curl -d`` without a header sends a form."""
    body = b'{"assistant_id": "turn", "input": {"messages": []}}'
    async with served("memory://") as http:
        for headers, sent in (
            ({}, "without a content type"),
            ({"Content-Type": "application/x-www-form-urlencoded"}, "as application/x-www-form-urlencoded"),
        ):
            answer = await http.post("/runs/wait", content=body, headers=headers)
            assert answer.status_code == 422
            assert detail(answer) == (
                f"The body was sent {sent}; send JSON, with the header Content-Type: application/json."
            )
        listed = await http.post("/runs/wait", json="text")
        assert "Content-Type" not in detail(listed)


@run
async def test_a_body_that_cannot_be_read_is_refused_for_its_reason() -> None:
    body = json.dumps({"assistant_id": "turn", "input": {"messages": []}}).encode()
    a_json = {"Content-Type": "application/json"}
    async with served("memory://") as http:
        for content, headers, status, told in (
            (gzip.compress(body), {"Content-Encoding": "gzip"}, 415, "sent with Content-Encoding: gzip"),
            (body.decode().encode("utf-16"), {}, 200, ""),
            (b'{"assistant_id": "\xff"}', {}, 400, "not UTF-8"),
            (b"[" * 100_000, {}, 400, "nested too deeply"),
            (b'{"assistant_id": "turn", "input": {"a": [NaN]}}', {}, 422, "input.a.0 is not a finite number"),
        ):
            answer = await http.post("/runs/wait", content=content, headers=a_json | headers)
            assert answer.status_code == status, answer.text
            assert not told or told in detail(answer)


def test_a_path_with_another_method_names_all_that_it_has() -> None:
    """Each method of a path may be a route of its own."""
    with TestClient(create_app()) as client:
        for method, path, allowed in (
            ("PUT", "/threads/t", "DELETE, GET, PATCH"),
            ("PATCH", "/store/items", "DELETE, GET, PUT"),
            ("PUT", "/threads/a%2Fb/runs/r", "DELETE, GET"),
            ("POST", "/ok", "GET, HEAD"),
        ):
            answer = client.request(method, path)
            assert (answer.status_code, answer.headers["Allow"]) == (405, allowed), path
