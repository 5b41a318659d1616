"""Whatever is sent to the API, nothing fails in the server, and a refusal is one sentence."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.core.result import Ok

from perdure.server.auth.identity import OpenGate
from tests.backends import EMPTY
from tests.server.acceptance.serving import run
from tests.server.tenants import Served, graphs, said, serving

VALID, INVALID = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
REQUESTS = (
    pytest.param(2, (VALID,), id="valid"),
    pytest.param(6, (VALID, INVALID), id="all", marks=pytest.mark.slow),
)
"""Requests of each kind for each of the routes, and the kinds."""

_READS_S = 0.5
_NUL, _HALF = "a\0b", "a\ud800b"


@pytest.fixture(params=["sqlite"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    with EMPTY[request.param]() as url:
        yield url


@pytest.fixture
def ask(url: str) -> Iterator[Callable[..., tuple[int, bytes]]]:
    """A server in a loop of its own, and a way to ask it: whatever the answer, no more than its beginning is
    read of a stream."""
    served = {name: graph for name, graph in graphs().items() if name != "rest"}
    with asyncio.Runner() as runner:
        context = serving(url, OpenGate(), serves=served)
        server: Served = runner.run(context.__aenter__())
        http = server.http({})

        async def one(method: str, path: str, **what: Any) -> tuple[int, bytes]:
            text = b""
            async with http.stream(method, path, **what) as answer:
                try:
                    async with asyncio.timeout(_READS_S):
                        async for part in answer.aiter_bytes():
                            text += part
                except TimeoutError:
                    assert answer.headers["content-type"].startswith(
                        ("text/event-stream", "application/json")
                    )
                    return answer.status_code, b""
                return answer.status_code, text

        yield lambda *asked, **what: runner.run(one(*asked, **what))
        runner.run(http.aclose())
        runner.run(context.__aexit__(None, None, None))


PROTOCOLS = ("/mcp", "/a2a/")
"""Routes whose errors have the form of their protocol."""


def holds(status: int, text: bytes, asked: Any) -> None:
    """No fault of the server; of every other, a sentence, and nothing of where it keeps things."""
    assert status < 500, (asked, status, text)
    if isinstance(asked, tuple) and str(asked[1]).startswith(PROTOCOLS):
        assert b"sqlite" not in text, (asked, text)
        assert b"postgresql" not in text, (asked, text)
    elif status >= 400 and text:
        said = json.loads(text)
        assert list(said) == ["detail"], (asked, text)
        assert isinstance(said["detail"], str)
        assert said["detail"]
        assert "sqlite" not in said["detail"]
        assert "postgresql" not in said["detail"]


@pytest.mark.parametrize(("examples", "modes"), REQUESTS)
def test_nothing_that_is_sent_makes_the_server_fail(
    examples: int, modes: Sequence[schemathesis.GenerationMode], ask: Callable[..., tuple[int, bytes]]
) -> None:
    status, described = ask("GET", "/openapi.json")
    assert status == 200
    thread = json.loads(ask("POST", "/threads", json={})[1])["thread_id"]
    schema = schemathesis.openapi.from_dict(json.loads(described))
    tried: dict[str, int] = {}

    def sent(case: schemathesis.Case[Any]) -> None:
        if "thread_id" in (case.path_parameters or {}):
            # A route does more with a thread that there is.
            case.path_parameters["thread_id"] = thread
        request = case.as_transport_kwargs(base_url="http://here")
        what: dict[str, Any] = {
            "headers": dict(request.get("headers") or {}),
            "params": request.get("params"),
        }
        if "json" in request:
            what["content"] = json.dumps(request["json"]).encode()
            what["headers"]["Content-Type"] = "application/json"
        elif (body := request.get("data")) is not None:
            what["content"] = body if isinstance(body, bytes) else str(body).encode()
        try:
            httpx.Request(request["method"], request["url"], **what)
        except (UnicodeEncodeError, httpx.InvalidURL):
            return
        path = request["url"].removeprefix("http://here")
        holds(*ask(request["method"], path, **what), asked=(request["method"], path, what))
        name = f"{case.operation.method.upper()} {case.operation.path}"
        tried[name] = tried.get(name, 0) + 1

    bounded = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    found = list(schema.get_all_operations())
    routes = [each.ok() for each in found if isinstance(each, Ok)]
    assert len(routes) == len(found)
    for route in routes:
        for mode in modes:
            try:
                bounded(given(case=route.as_strategy(generation_mode=mode))(sent))()
            except (Unsatisfiable, schemathesis.errors.SchemathesisError):
                # There is nothing that could be wrong with it.
                assert mode is INVALID
    assert len(tried) == len(routes) >= 50
    print(f"{sum(tried.values())} requests to {len(tried)} routes")


NUMBERS = {
    "NaN": "NaN",
    "infinite": "1e999",
    "400 digits": "1" + "0" * 400,
    "5000 digits": "1" * 5000,
    "beyond 63 bits": str(2**63),
    "beyond 64 bits": str(2**64),
    "far below": str(-(2**70)),
    "lists in lists": "[" * 2000 + "]" * 2000,
    "many of them": "[" * 100_000 + "]" * 100_000,
    "objects in objects": '{"a":' * 3000 + "1" + "}" * 3000,
}


def bodies(value: str) -> Iterator[tuple[str, str, str]]:
    """A value at every kind of place, as the text of a body."""
    yield "POST", "/threads", f'{{"metadata": {{"a": {value}}}}}'
    yield "POST", "/threads", f'{{"ttl": {{"ttl": {value}}}}}'
    yield "PATCH", "/threads/t", f'{{"ttl": {{"ttl": {value}}}}}'
    for part in ("metadata", "offset", "limit", "values", "ids", "select", "extract"):
        yield "POST", "/threads/search", f'{{"{part}": {value}}}'
    yield "POST", "/threads/search", f'{{"metadata": {{"a": {value}}}}}'
    yield "POST", "/threads/t/history", f'{{"metadata": {{"a": {value}}}, "limit": 2}}'
    yield "POST", "/threads/t/history", f'{{"before": {value}}}'
    message = f'{{"messages": [{{"role": "user", "content": "x", "additional_kwargs": {{"a": {value}}}}}]}}'
    yield "POST", "/threads/t/state", f'{{"values": {message}}}'
    for part in ("input", "metadata", "config", "context", "after_seconds", "checkpoint", "command"):
        yield "POST", "/threads/t/runs/wait", f'{{"assistant_id": "chat", "{part}": {value}}}'
    yield "POST", "/threads/t/runs/wait", f'{{"assistant_id": "chat", "input": {message}}}'
    yield (
        "POST",
        "/threads/t/runs/wait",
        f'{{"assistant_id": "chat", "metadata": {{"debounce_ms": {value}}}}}',
    )
    yield (
        "POST",
        "/threads/t/runs/wait",
        f'{{"assistant_id": "chat", "config": {{"recursion_limit": {value}}}}}',
    )
    yield "POST", "/assistants", f'{{"graph_id": "chat", "config": {{"a": {value}}}}}'
    yield "POST", "/assistants/chat/latest", f'{{"version": {value}}}'
    yield "POST", "/assistants/search", f'{{"offset": {value}}}'
    yield "PUT", "/store/items", f'{{"namespace": ["n"], "key": "k", "value": {{"a": {value}}}}}'
    yield "PUT", "/store/items", f'{{"namespace": ["n"], "key": "k", "value": {{}}, "ttl": {value}}}'
    yield "POST", "/store/items/search", f'{{"filter": {{"a": {value}}}, "offset": {value}}}'
    yield "POST", "/store/namespaces", f'{{"max_depth": {value}}}'
    for part in ("id", "params"):
        yield "POST", "/threads/t/commands", f'{{"id": 1, "method": "state.get", "{part}": {value}}}'
    yield "POST", "/threads/t/commands", value
    yield "POST", "/threads/t/stream/events", f'{{"channels": ["nothing"], "since": {value}}}'


@pytest.mark.parametrize("value", NUMBERS)
def test_no_number_and_no_depth_makes_it_fail(ask: Callable[..., tuple[int, bytes]], value: str) -> None:
    ask("POST", "/threads", json={"thread_id": "t"})
    ask("POST", "/threads/t/runs/wait", json={"assistant_id": "chat", "input": said("x")})
    for method, path, body in bodies(NUMBERS[value]):
        json_text = {"Content-Type": "application/json"}
        holds(*ask(method, path, content=body.encode(), headers=json_text), asked=(method, path, body[:200]))
    for path in ("/threads/t/runs?limit=", "/threads/t/runs?offset=", "/assistants/chat/graph?xray="):
        holds(*ask("GET", path + NUMBERS[value][:500]), asked=path)
    for header in ("Last-Event-ID", "X-Debounce-Ms", "Idempotency-Key"):
        new = {"assistant_id": "chat", "input": {"messages": []}}
        headers = {header: NUMBERS[value][:500]}
        holds(*ask("POST", "/threads/t/runs/wait", json=new, headers=headers), asked=header)
        holds(*ask("GET", "/threads/t/runs/none/stream", headers=headers), asked=header)


def texts(text: str) -> Iterator[tuple[str, str, Any]]:
    """A text at every kind of place."""
    said_so = {"messages": [{"role": "user", "content": text, "id": text}]}
    yield "POST", "/threads", {"thread_id": text}
    yield "POST", "/threads", {"metadata": {text: text}}
    yield "PATCH", "/threads/t", {"metadata": {text: text}}
    yield "POST", "/threads/search", {"ids": [text]}
    yield "POST", "/threads/search", {"metadata": {text: text}, "extract": {text: text}, "select": [text]}
    for strategy in ("delete", "keep_latest", text):
        yield "POST", "/threads/prune", {"thread_ids": [text], "strategy": strategy}
    for thread in ("t", text):
        yield "POST", "/runs/cancel", {"thread_id": thread, "run_ids": [text]}
    ref = {"checkpoint_id": text}
    for checkpoint in (ref, {"checkpoint_ns": text}):
        yield "POST", "/threads/t/state/checkpoint", {"checkpoint": checkpoint}
        yield "POST", "/threads/t/history", {"checkpoint": checkpoint}
        yield "POST", "/threads/t/state", {"values": said("x"), "checkpoint": checkpoint}
    for before in (text, ref, {"configurable": ref}):
        yield "POST", "/threads/t/history", {"before": before}
    yield "POST", "/threads/t/history", {"metadata": {text: text}, "select": [text]}
    yield "POST", "/threads/t/state", {"values": said_so}
    yield "POST", "/threads/t/state", {"values": said_so, "as_node": text}
    new = {"assistant_id": "chat", "input": said_so}
    yield "POST", "/threads/t/runs/wait", new
    yield "POST", "/threads/t/runs/wait", {**new, "input": said("x"), "metadata": {text: text}}
    yield "POST", "/threads/t/runs/wait", {**new, "input": said("x"), "checkpoint_id": text}
    yield "POST", "/threads/t/runs/wait", {**new, "config": {"tags": [text], "configurable": {text: text}}}
    yield "POST", "/threads/t/runs/wait", {**new, "input": said("x"), "interrupt_before": [text]}
    yield "POST", "/threads/t/runs/wait", {"assistant_id": text}
    yield (
        "POST",
        "/threads/t/runs/wait",
        {"assistant_id": "chat", "command": {"goto": text, "update": said_so}},
    )
    yield "POST", "/threads/t/runs/wait", {"assistant_id": "chat", "command": {"resume": {text: text}}}
    yield "POST", "/assistants", {"graph_id": "chat", "name": text, "metadata": {text: text}}
    yield "POST", "/assistants", {"graph_id": text, "assistant_id": text}
    yield "POST", "/assistants/search", {"name": text, "graph_id": text, "metadata": {text: text}}
    item = {"namespace": [text], "key": text}
    yield "PUT", "/store/items", {**item, "value": {text: text}}
    yield "PUT", "/store/items", {"namespace": ["n"], "key": text, "value": {}}
    yield "PUT", "/store/items", {"namespace": ["n"], "key": "k", "value": {text: text}}
    yield "DELETE", "/store/items", item
    yield "POST", "/store/items/search", {"namespace_prefix": [text], "filter": {text: text}, "query": text}
    yield "POST", "/store/namespaces", {"prefix": [text], "suffix": [text]}
    for method, params in (
        (text, {}),
        ("run.start", {"assistant_id": "chat", "input": said_so, "forkFrom": text}),
        ("run.start", {"assistant_id": text}),
        ("state.get", {"namespace": [text], "keys": [text]}),
        ("agent.getTree", {"run_id": text}),
        ("state.listCheckpoints", {"before": text, "namespace": [text]}),
        ("state.fork", {"checkpoint_id": text}),
        ("input.respond", {"interrupt_id": text, "response": text}),
    ):
        yield "POST", "/threads/t/commands", {"id": 1, "method": method, "params": params}
    yield "POST", "/threads/t/stream/events", {"channels": [text], "namespaces": [[text]]}


@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.parametrize("text", [_NUL, _HALF, "x" * 5000, "\U0010ffff\u202e"])
def test_no_text_makes_it_fail(ask: Callable[..., tuple[int, bytes]], text: str) -> None:
    ask("POST", "/threads", json={"thread_id": "t"})
    ask("POST", "/threads/t/runs/wait", json={"assistant_id": "chat", "input": said("x")})
    for method, path, body in texts(text):
        json_text = {"Content-Type": "application/json"}
        answer = ask(method, path, content=json.dumps(body).encode(), headers=json_text)
        holds(*answer, asked=(method, path, body))
        assert b"postgresql:" not in answer[1], (method, path, body, answer)
    for path in ("/threads/t", "/threads/t/state", "/threads/t/history", "/threads/t/runs"):
        assert ask("GET", path)[0] == 200, "what was sent spoilt the thread"


@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
@run
async def test_a_nul_comes_back_as_it_was_sent(url: str) -> None:
    """PostgreSQL has no text with a NUL: what holds one is not stored as such, or is refused everywhere."""
    async with serving(url, OpenGate()) as server, server.http({}) as http:
        refused = await http.post("/threads", json={"thread_id": _NUL})
        assert refused.status_code == 422
        await http.post("/threads", json={"thread_id": "t", "metadata": {_NUL: _NUL}})
        assert (await http.get("/threads/t")).json()["metadata"] == {_NUL: _NUL}
        new = {"assistant_id": "chat", "input": said(_NUL), "metadata": {"m": _NUL}}
        values = (await http.post("/threads/t/runs/wait", json=new)).json()
        assert [message["content"] for message in values["messages"]] == [_NUL, f"echo {_NUL}"]
        (found,) = (await http.get("/threads/t/runs")).json()
        assert found["metadata"]["m"] == _NUL
        assert found["kwargs"]["input"] == said(_NUL)
        item = {"namespace": ["n"], "key": _NUL, "value": {_NUL: _NUL}}
        assert (await http.put("/store/items", json=item)).status_code == 204
        got = (await http.get("/store/items", params={"namespace": "n", "key": _NUL})).json()
        assert (got["key"], got["value"]) == (_NUL, {_NUL: _NUL})
