"""Paths of requests on Lambda: their encoded form, and a path in front of every route."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from fastapi import FastAPI, Request
from langgraph.graph import START, MessagesState, StateGraph

from perdure.database.opening import open_database
from perdure.server import checkpoint_lifespan, perdure_app
from perdure.serverless.aws import lambda_handler
from tests.serverless.lambda_api import EVENTS, Context, http_event


def answer(state: MessagesState) -> dict[str, Any]:
    return {"messages": [("ai", f"echo: {state['messages'][-1].text}")]}


def ask(text: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}]}


def _api(folder: Path) -> FastAPI:
    """LangGraph's API over one graph."""
    url = f"sqlite:///{folder}/threads.db"
    open_database(url, migrate=True).close()
    builder = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer")
    app = FastAPI(lifespan=checkpoint_lifespan(url, graphs=builder, serve=True))
    app.mount("/", perdure_app(app))
    return app


def _show() -> FastAPI:
    """An application that shows the path of a request."""
    app = FastAPI()

    @app.get("/{path:path}")
    async def show(path: str, request: Request) -> dict[str, str]:
        return {"path": path, "root": request.scope["root_path"]}

    return app


@pytest.mark.parametrize("kind", EVENTS)
def test_an_id_in_a_path_may_have_any_character_that_reaches_the_function(kind: str, tmp_path: Path) -> None:
    handler, of = lambda_handler(_api(tmp_path)), EVENTS[kind]
    ids = ["ada", "a%2Fb", "100%", "ü ?#;", "%252F", "a:b+c"]
    if "HTTP API" not in kind:
        # An HTTP API decodes the path, so that no slash of an id can be recognised.
        ids += ["team/ada", "ada/state", "/", "a/../b"]
    for thread in ids:
        assert handler(of("POST", "/threads", {"thread_id": thread}), Context(30))["statusCode"] == 200
    for thread in ids:
        path = f"/threads/{quote(thread, safe='')}"
        found = handler(of("GET", path), Context(30))
        assert (found["statusCode"], json.loads(found["body"]).get("thread_id")) == (200, thread)
        body = {"assistant_id": "agent", "input": ask(thread)}
        done = handler(of("POST", f"{path}/runs/wait", body), Context(30))
        assert json.loads(done["body"])["messages"][-1]["content"] == f"echo: {thread}"
    handler.close()


@pytest.mark.parametrize("base_path", ["/prod", "/prod/", "prod"])
@pytest.mark.parametrize("kind", EVENTS)
def test_addresses_below_a_base_path_have_it_and_lead_to_what_they_name(
    kind: str, base_path: str, tmp_path: Path
) -> None:
    handler = lambda_handler(_api(tmp_path), base_path=base_path)

    def call(method: str, path: str, body: Any = None) -> Any:
        event = EVENTS[kind](method, path, body)
        if kind == "a REST API":
            # The address of a stage: the path has lost it.
            event["path"] = event["path"].removeprefix("/prod") or "/"
            event["requestContext"]["path"] = path
        answer = handler(event, Context(30))
        headers = answer["headers"] | {
            name: values[-1] for name, values in answer.get("multiValueHeaders", {}).items()
        }
        return answer["statusCode"], headers, answer["body"]

    body = {"assistant_id": "agent", "if_not_exists": "create", "input": ask("hi")}
    status, headers, text = call("POST", "/prod/threads/t%20u/runs/wait", body)
    assert status == 200, text
    for name in ("location", "content-location"):
        assert headers[name].startswith("/prod/threads/t%20u/runs/")
        assert call("GET", headers[name])[0] == 200
        # As clients of LangGraph's do, which append it to their base URL.
        assert call("GET", f"/prod{headers[name]}")[0] == 200
    status, headers, _ = call("GET", "/prod")
    assert status == 200 or headers["location"].endswith("/prod/")
    assert call("GET", "/prod/")[0] == 200
    assert call("GET", "/product")[0] == 404
    handler.close()


def test_a_request_without_the_base_path_is_answered_without_it() -> None:
    handler = lambda_handler(_show(), base_path="/prod")
    for path, has in (("/prod/a", True), ("/a", False), ("/proda", False)):
        told = json.loads(handler(http_event("GET", path), Context(30))["body"])
        assert (told["root"], told["path"]) == (("/prod", "a") if has else ("", path[1:]))
    handler.close()


@pytest.mark.parametrize("base_path", ["/my stage", "/a//b", "/a?b", "/ü"])
def test_a_base_path_that_is_none_is_refused(base_path: str) -> None:
    with pytest.raises(ValueError, match=r"base_path is .* it has to be a path"):
        lambda_handler(_show(), base_path=base_path)
