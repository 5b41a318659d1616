"""A function on Lambda: one turn for each request, however its containers start, freeze, time out and die.

The runtime client is the genuine one; the Runtime API that it talks to is on this machine.
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from fastapi import BackgroundTasks, FastAPI, Request, Response
from fastapi.responses import JSONResponse
from langgraph.graph import START, MessagesState, StateGraph

from perdure.database.opening import open_database
from perdure.model.ops import Fetch, Range
from perdure.model.records import LANE, Partition
from perdure.model.runs.queue import IN
from perdure.runtime import Runtime
from perdure.server import checkpoint_lifespan
from perdure.serverless.aws import TimeBudget, is_scheduled, lambda_handler
from perdure.storage.url import open_driver
from tests import backends
from tests.serverless.lambda_api import (
    EVENTS,
    ROOT,
    SCHEDULE,
    Context,
    Died,
    LambdaContainer,
    TimedOut,
    http_event,
    rest_event,
)

FULL = os.environ.get("PERDURE_CHAOS") == "full"
LEASE_S = 1.0
PATIENCE_S = 29.0 if FULL else 1.0
"""Seconds after which a client gives up; 29 are those of API Gateway."""

Make = Callable[..., LambdaContainer]


class Function:
    """A function over one database, of which a test may start any number of containers."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url, self.folder = url, folder
        self._containers: list[LambdaContainer] = []
        open_database(url, migrate=True).close()

    def container(self, name: str = "handler", *, timeout: float = 60.0, **variables: str) -> LambdaContainer:
        environ = {
            "URL": self.url,
            "JOURNAL": str(self.folder / "journal"),
            "LEASE": str(LEASE_S),
            **variables,
        }
        container = LambdaContainer(
            f"tests.serverless.functions.{name}", environ, timeout=timeout, log=self.folder / "log"
        )
        self._containers.append(container)
        return container

    def sleep(self, seconds: float) -> None:
        """Let the graph's node take this long from now on."""
        (self.folder / "journal.sleep").write_text(str(seconds))

    @property
    def calls(self) -> list[str]:
        """What the graph's node was called with."""
        journal = self.folder / "journal"
        return journal.read_text().splitlines() if journal.exists() else []

    @property
    def messages(self) -> list[str]:
        """The messages of the thread."""
        database = open_database(self.url)
        try:
            held = database.checkpointer().get({"configurable": {"thread_id": "t"}})
            return [] if held is None else [m.text for m in held["channel_values"]["messages"]]
        finally:
            database.close()

    @property
    def owner(self) -> str | None:
        """The holder of the thread's lease."""
        driver = open_driver(self.url)
        try:
            (lanes,) = driver.perform(Fetch(Partition("", "t"), (Range(LANE),)))
            return next((lane.fields["owner"] for lane in lanes if lane.key == (IN,)), None)
        finally:
            driver.close()

    def close(self) -> None:
        for container in self._containers:
            container.close()


@pytest.fixture
def function(tmp_path: Path) -> Iterator[Function]:
    with backends.EMPTY["sqlite"]() as url:
        made = Function(url, tmp_path)
        yield made
        made.close()


def run_event(text: str, key: str, of: Callable[..., Any] = http_event) -> Any:
    body = {
        "assistant_id": "agent",
        "input": {"messages": [{"role": "user", "content": text}]},
        "if_not_exists": "create",
    }
    return of("POST", "/threads/t/runs/wait", body, {"idempotency-key": key})


def said(answer: Mapping[str, Any]) -> str:
    assert answer["statusCode"] == 200, answer
    return str(json.loads(answer["body"])["messages"][-1]["content"])


@pytest.mark.parametrize("kind", EVENTS)
def test_a_container_answers_cold_warm_and_frozen_for_longer_than_a_lease(
    function: Function, kind: str
) -> None:
    container, of = function.container(), EVENTS[kind]
    assert said(container.call(run_event("one", "k1", of))) == "echo: one"
    assert function.owner is None, "no lease is held by a frozen container"
    assert said(container.call(run_event("two", "k2", of))) == "echo: two"
    time.sleep(1.5 * LEASE_S)
    assert said(container.call(run_event("three", "k3", of))) == "echo: three"
    assert container.starts == 1
    assert function.calls == ["one", "two", "three"]
    assert function.messages == [t for n in ("one", "two", "three") for t in (n, f"echo: {n}")]


@pytest.mark.slow
def test_a_request_that_does_not_fit_its_time_is_released_and_finished_by_the_next(
    function: Function,
) -> None:
    container = function.container(timeout=12)
    function.sleep(60)
    answer = container.call(run_event("slow", "k"))
    assert answer["statusCode"] == 504
    assert "Idempotency-Key" in json.loads(answer["body"])["detail"]
    assert function.owner is None
    function.sleep(0)
    assert said(container.call(run_event("slow", "k"))) == "echo: slow"
    assert container.starts == 1
    assert function.messages == ["slow", "echo: slow"]


@pytest.mark.slow
def test_a_client_that_gives_up_and_sends_again_has_one_turn(function: Function) -> None:
    first, second = function.container(), function.container()
    function.sleep(PATIENCE_S + 2)
    answers: list[str] = []
    waiting = threading.Thread(target=lambda: answers.append(said(first.call(run_event("hi", "k")))))
    waiting.start()
    while not function.calls:
        time.sleep(0.05)
    time.sleep(PATIENCE_S)
    answers.append(said(second.call(run_event("hi", "k"))))
    waiting.join()
    assert answers == ["echo: hi"] * 2
    assert function.calls == ["hi"]
    assert function.messages == ["hi", "echo: hi"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_container_killed_at_any_request_to_the_database_costs_no_turn(when: str, tmp_path: Path) -> None:
    """The client sends again with the same key, to a new container, until it is answered."""
    at, steps = 0, 0
    while True:
        at += 1 if FULL else 2
        folder = tmp_path / f"{at}"
        folder.mkdir()
        with backends.EMPTY["sqlite"]() as url:
            function = Function(url, folder)
            try:
                container = function.container(KILL_AT=str(at), KILL_WHEN=when)
                try:
                    assert said(container.call(run_event("hi", "k"))) == "echo: hi"
                    break
                except Died:
                    steps += 1
                assert said(function.container().call(run_event("hi", "k"))) == "echo: hi"
                assert function.messages == ["hi", "echo: hi"]
                assert len(function.calls) <= 2
            finally:
                function.close()
    assert steps > 2


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_call_whose_time_is_over_at_any_await_costs_no_turn(function: Function) -> None:
    """The container goes on with the next call, as one does that answered in time."""
    container = function.container("cut", CUTS="yes")
    said_of: list[str] = []
    outcomes: list[int] = []

    def call(text: str, rounds: int) -> Any:
        (function.folder / "journal.cut").write_text(str(rounds))
        return container.call(run_event(text, text))

    said(call("first", 0))
    at = 0
    while True:
        at += 1
        text = f"hi {at}"
        answer = call(text, at)
        outcomes.append(answer["statusCode"])
        said_of.append(text)
        if answer["rounds_left"] > 0:
            assert answer["statusCode"] == 200, "it needed fewer rounds"
            break
        assert answer["statusCode"] in (200, 504)
        assert said(call(text, 0)) == f"echo: {text}"
    print(f"cut at {len(outcomes) - 1} of {at} rounds, {outcomes.count(504)} calls were too long")
    assert outcomes.count(504) > 2
    assert container.starts == 1
    assert function.owner is None
    assert function.messages == [t for text in ("first", *said_of) for t in (text, f"echo: {text}")]


@pytest.mark.slow
def test_a_container_killed_in_the_middle_of_a_run_costs_no_turn(function: Function) -> None:
    container = function.container()
    function.sleep(60)
    outcome: list[object] = []

    def call() -> None:
        try:
            outcome.append(container.call(run_event("hi", "k")))
        except Died as died:
            outcome.append(died)

    calling = threading.Thread(target=call)
    calling.start()
    while not function.calls:
        time.sleep(0.05)
    assert container.process is not None
    container.process.kill()
    calling.join()
    assert isinstance(outcome[0], Died)
    assert function.owner is not None, "nothing released its lease"
    function.sleep(0)
    assert said(container.call(run_event("hi", "k"))) == "echo: hi"
    assert function.messages == ["hi", "echo: hi"]


@pytest.mark.parametrize("seconds", [pytest.param(0.05, marks=pytest.mark.slow), 0.6])
def test_with_hardly_any_time_the_function_still_answers_or_costs_no_turn(
    function: Function, seconds: float
) -> None:
    container = function.container()
    container.call(http_event("GET", "/ok"))
    container.timeout = seconds
    function.sleep(60)
    try:
        assert container.call(run_event("hi", "k"))["statusCode"] == 504
    except TimedOut:
        assert container.process is None
    function.sleep(0)
    container.timeout = 60
    assert said(container.call(run_event("hi", "k"))) == "echo: hi"
    assert function.messages == ["hi", "echo: hi"]


def test_a_schedule_works_off_what_is_due(function: Function) -> None:
    container = function.container()
    database = open_database(function.url)
    try:
        graph = StateGraph(MessagesState).add_node("x", lambda s: {}).add_edge(START, "x").compile()

        async def leave() -> None:
            async with Runtime(database, graph, works=False) as runtime:
                await runtime.accept("t", "left")

        asyncio.run(leave())
    finally:
        database.close()
    assert container.call(SCHEDULE) == {"is_done": True, "swept": 0}
    assert function.messages == ["left", "echo: left"]
    assert function.owner is None
    with pytest.raises(RuntimeError, match="ValueError: an event of an HTTP API"):
        container.call({"Records": []})


@pytest.mark.slow
def test_a_function_of_ones_own_has_an_open_database(function: Function) -> None:
    container = function.container("threads")
    assert container.call({}) == []
    function.container().call(run_event("hi", "k"))
    time.sleep(1.2)
    assert container.call({}) == ["t"]
    assert container.starts == 1


@pytest.mark.slow
def test_the_function_of_the_image_answers(function: Function) -> None:
    image = (ROOT / "deploy/lambda/Dockerfile").read_text(encoding="utf-8")
    copied = [path for line in re.findall(r"^COPY (.+) \S+$", image, re.MULTILINE) for path in line.split()]
    assert copied
    assert all((ROOT / path).exists() for path in copied)
    (handler,) = re.findall(r'CMD \["(.+)"\]', image)
    container = LambdaContainer(f"deploy.lambda.{handler}", {"DATABASE_URL": function.url})
    try:
        assert said(container.call(run_event("hi", "k"))) == "question 1"
    finally:
        container.close()


@pytest.mark.slow
def test_wingman_on_lambda_over_dynamodb_is_one_turn_a_request(tmp_path: Path) -> None:
    def event(text: str) -> Any:
        body = {"session_id": "s", "message": text}
        return http_event("POST", "/api/chat", body, {"Idempotency-Key": text})

    with backends.EMPTY["dynamodb"]() as url:
        function = Function(url, tmp_path)
        try:
            warm = function.container(APP="wingman")
            for n in range(4):
                container = warm if n % 2 else function.container(APP="wingman")
                container.call(event(f"q{n}"))
                answer = warm.call(event(f"q{n}"))
                rows = json.loads(answer["body"])["history"]
                assert len(rows) == 5 * (n + 1), "the same key is one turn"
        finally:
            function.close()


def test_the_time_for_work_is_what_lambda_has_left_but_for_a_reserve() -> None:
    assert 22 < TimeBudget.of(Context(30), 7).time_left() <= 23
    assert 1.8 < TimeBudget.of(Context(3), 7).time_left() <= 2
    assert TimeBudget.of(Context(0), 7).time_left() == 0


def test_a_database_that_is_away_is_answered_with_503(tmp_path: Path) -> None:
    url = "redis://127.0.0.1:1/0"
    handler = lambda_handler(FastAPI(lifespan=checkpoint_lifespan(url)))
    answer = handler(http_event("GET", "/"), Context(30))
    handler.close()
    assert (answer["statusCode"], answer["headers"]["retry-after"]) == (503, "1")


@pytest.mark.parametrize("fails", [False, True], ids=["stopped", "failing when it is stopped"])
def test_a_request_that_does_not_fit_its_time_is_logged_in_one_line(
    fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    app = FastAPI()

    @app.get("/slow")
    async def wait() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            if fails:
                raise RuntimeError("the connection is gone")

    handler = lambda_handler(app)
    assert handler(http_event("GET", "/slow"), Context(0.3))["statusCode"] == 504
    handler.close()
    (line,) = (record for record in caplog.records if record.levelno >= logging.WARNING)
    assert line.exc_info is None
    assert "GET /slow" in line.getMessage()
    assert "timeout" in line.getMessage()


def test_a_request_that_fails_in_time_is_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    app = FastAPI()

    @app.get("/broken")
    async def fail() -> None:
        raise RuntimeError("broken")

    handler = lambda_handler(app)
    assert handler(http_event("GET", "/broken"), Context(30))["statusCode"] == 500
    handler.close()
    assert any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize("fails", [False, True], ids=["stopped", "failing when it is stopped"])
def test_a_response_that_is_complete_is_sent_whatever_goes_on_after_it(
    fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    app = FastAPI()

    async def write_mail() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            if fails:
                raise RuntimeError("the connection is gone")

    @app.post("/pay")
    async def pay(tasks: BackgroundTasks) -> str:
        tasks.add_task(write_mail)
        return "paid"

    handler = lambda_handler(app)
    answer = handler(http_event("POST", "/pay"), Context(0.3))
    handler.close()
    assert (answer["statusCode"], answer["body"]) == (200, '"paid"')
    (line,) = (record for record in caplog.records if record.levelno >= logging.WARNING)
    assert line.exc_info is None
    assert "POST /pay was answered" in line.getMessage()


@pytest.mark.parametrize("sent", [0, 1, 2])
def test_an_application_that_returns_without_a_complete_response_is_answered_with_500(sent: int) -> None:
    async def serve(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            part = {"type": "http.response.body", "body": b"half", "more_body": True}
            for message in ({"type": "http.response.start", "status": 200}, part)[:sent]:
                await send(message)

    handler = lambda_handler(serve)
    assert handler(http_event("GET", "/"), Context(30))["statusCode"] == 500
    handler.close()


def _echo() -> FastAPI:
    app = FastAPI()

    @app.api_route("/{path:path}", methods=["GET", "POST", "DELETE"])
    async def echo(request: Request) -> Response:
        told = {
            "method": request.method,
            "path": request.path_params["path"],
            "query": request.query_params.multi_items(),
            "headers": [[n.decode(), v.decode("latin-1")] for n, v in request.headers.raw],
            "body": (await request.body()).decode("latin-1"),
            "client": request.client.host if request.client else None,
        }
        response = JSONResponse(told)
        response.set_cookie("a", "1")
        response.set_cookie("b", "2")
        return response

    return app


@pytest.mark.parametrize("kind", ["a REST API", "an HTTP API of format 1.0"])
def test_a_request_of_a_rest_api_is_the_one_that_was_sent(kind: str) -> None:
    handler = lambda_handler(_echo(), base_path="/v1")
    event = EVENTS[kind]("POST", "/v1/a%20b?x=1&x=2&y=", None, {"Authorization": "Bearer t"})
    event["multiValueHeaders"] |= {"Authorization": ["Bearer t", "Bearer u"], "Cookie": ["c=1", "d=2"]}
    event |= {"body": base64.b64encode(b"\xff\x00").decode(), "isBase64Encoded": True}
    answer = handler(event, Context(30))
    told = json.loads(answer["body"])
    assert (answer["statusCode"], told["method"], told["path"]) == (200, "POST", "a b")
    assert told["query"] == [["x", "1"], ["x", "2"], ["y", ""]]
    assert [value for name, value in told["headers"] if name == "authorization"] == ["Bearer t", "Bearer u"]
    assert [value for name, value in told["headers"] if name == "cookie"] == ["c=1; d=2"]
    assert (told["body"], told["client"]) == ("\xff\x00", "192.0.2.1")
    assert len(answer["multiValueHeaders"]["set-cookie"]) == 2
    # The console's test sends neither headers nor a query.
    bare = {**EVENTS[kind]("GET", "/"), "headers": None, "multiValueHeaders": None}
    assert handler({**bare, "multiValueQueryStringParameters": None}, Context(30))["statusCode"] == 200
    handler.close()


@pytest.mark.parametrize(
    "event", [{}, {"httpMethod": "GET", "path": "/"}, {"Records": []}, {"version": "2.0"}]
)
def test_an_event_of_another_kind_is_named(event: dict[str, Any]) -> None:
    handler = lambda_handler(_echo())
    balancer = {**rest_event("GET", "/"), "requestContext": {"elb": {"targetGroupArn": "arn"}}}
    for one in (event, balancer):
        with pytest.raises(ValueError, match="an HTTP API or a REST API"):
            handler(one, Context(30))
    handler.close()


def test_schedules_are_recognised() -> None:
    assert is_scheduled(SCHEDULE)
    assert is_scheduled({"source": "aws.scheduler"})
    assert not is_scheduled(http_event("GET", "/"))
