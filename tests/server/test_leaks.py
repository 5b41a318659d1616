"""Nothing internal leaves the server: in no stream mode, on no route."""

from __future__ import annotations

import json
import re
import uuid
from typing import Any

import httpx
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.runtime import Runtime
from langgraph.types import interrupt
from langgraph_sdk import Auth

from perdure.server.auth.handlers import Handlers
from perdure.server.requests import RUN_MODES
from perdure.server.streaming.protocol_events import CHANNELS
from tests.server.hosting import run, serving
from tests.server.listening import heard, start, until_ended

SECRET = "Kx8-secret-of-the-user"
TENANT = "tenant-of-ada"
INTERNAL = re.compile(
    r"__perdure|__pregel_(?!pull|push)|perdure|epoch|journal|lease|partition|tenant|sqlite|0x[0-9a-f]{6,}"
    r"|callbackmanager|<[a-z_.]+ object|langgraph_auth_user\b|\"checkpoint_id\":null",
    re.IGNORECASE,
)
REFERENCE = {"thread_id", "checkpoint_ns", "checkpoint_id", "checkpoint_map"}
INPUT = {"messages": [{"role": "user", "content": "hi"}]}


def _graph() -> Any:
    async def turn(state: MessagesState, runtime: Runtime[Any], config: RunnableConfig) -> dict[str, Any]:
        writer = runtime.stream_writer
        # A careless graph sends all that it was given.
        writer({"runtime": runtime, "store": runtime.store, "node": turn})
        return {"messages": [AIMessage("hello")]}

    def ask(state: MessagesState) -> dict[str, Any]:
        return {"messages": [AIMessage(f"you: {interrupt({'question': 'sure?'})}")]}

    inner: Any = StateGraph(MessagesState)
    inner.add_sequence([("turn", turn), ("ask", ask)])
    inner.add_edge(START, "turn")
    outer = StateGraph(MessagesState)
    outer.add_node("inner", inner.compile())
    outer.add_edge(START, "inner")
    return outer.compile()


def _gate() -> Handlers:
    auth = Auth()

    @auth.authenticate
    async def authenticate(authorization: str | None) -> Any:
        return {"identity": "ada", "org": TENANT, "token": SECRET, "permissions": ["read"]}

    return Handlers(auth, ["org"])


def _checked(text: str, where: str) -> None:
    assert SECRET not in text, where
    assert TENANT not in text, where
    found = INTERNAL.search(text)
    assert found is None, f"{where}: {text[max(0, found.start() - 80) : found.end() + 40]}"


def _frames(text: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for frame in text.replace("\r", "").split("\n\n"):
        lines = dict(line.split(": ", 1) for line in frame.splitlines() if ": " in line and line[0] != ":")
        if "data" in lines:
            found.append((lines["event"], json.loads(lines["data"])))
    return found


async def _streamed(http: httpx.AsyncClient, thread: str, **more: Any) -> str:
    body = {"assistant_id": "both", "stream_subgraphs": True, "stream_resumable": True, **more}
    return (await http.post(f"/threads/{thread}/runs/stream", json=body)).text


@run
async def test_no_stream_mode_and_no_route_sends_what_is_internal(near: str) -> None:
    async with serving(near, of={"both": _graph()}, gate=_gate()) as served:
        http = await served.http("ada")
        for mode in (*RUN_MODES, list(RUN_MODES)):
            thread = str(uuid.uuid4())
            text = await _streamed(http, thread, input=INPUT, stream_mode=mode, if_not_exists="create")
            _checked(text, f"mode {mode}")
            names = {name.partition("|")[0] for name, _ in _frames(text)}
            assert names > {"metadata"}, text
            for name, data in _frames(text):
                checkpoint = data.get("payload") if name.startswith("debug") else data
                if name.startswith("checkpoints") or (
                    name.startswith("debug") and data["type"] == "checkpoint"
                ):
                    assert set(checkpoint["checkpoint"]) <= REFERENCE
                    assert checkpoint["checkpoint"]["checkpoint_id"]
                    assert checkpoint["config"] == {"configurable": checkpoint["checkpoint"]}
                    parent = checkpoint["parent_checkpoint"]
                    assert parent is None or parent["checkpoint_id"]
                    for task in checkpoint["tasks"]:
                        assert task.get("checkpoint") is None or set(task["checkpoint"]) <= REFERENCE
        text = await _streamed(http, thread, command={"resume": "yes"}, stream_mode="checkpoints")
        _checked(text, "an answer")
        await _routes(http, thread)


async def _routes(http: httpx.AsyncClient, thread: str) -> None:
    (run_id,) = [one["run_id"] for one in (await http.get(f"/threads/{thread}/runs?limit=1")).json()]
    state = (await http.get(f"/threads/{thread}/state")).json()
    checkpoint = state["checkpoint"]["checkpoint_id"]
    body = {"assistant_id": "both", "input": INPUT}
    command = {"id": 1, "params": {"assistant_id": "both"}}
    asked: list[tuple[str, str, Any]] = [
        ("GET", f"/threads/{thread}", None),
        ("GET", f"/threads/{thread}/state?subgraphs=true", None),
        ("GET", f"/threads/{thread}/state/{checkpoint}", None),
        ("POST", f"/threads/{thread}/state/checkpoint", {"checkpoint": state["checkpoint"]}),
        ("POST", f"/threads/{thread}/history", {"limit": 50}),
        ("GET", f"/threads/{thread}/runs/{run_id}", None),
        ("GET", f"/threads/{thread}/runs/{run_id}/join", None),
        ("GET", f"/threads/{thread}/runs/{run_id}/stream?last_event_id=-1", None),
        ("GET", f"/threads/{thread}/storage", None),
        ("POST", f"/threads/{thread}/commands", {**command, "method": "state.get"}),
        ("POST", f"/threads/{thread}/commands", {**command, "method": "agent.getTree"}),
        ("POST", f"/threads/{thread}/commands", {**command, "method": "state.listCheckpoints"}),
        ("POST", f"/threads/{thread}/copy", None),
        ("POST", f"/threads/{thread}/runs/wait", body),
        ("POST", f"/threads/{thread}/runs", body),
        ("POST", "/runs/wait", body),
        ("POST", f"/threads/{thread}/state", {"values": INPUT, "as_node": "nowhere"}),
        ("POST", "/threads/search", {}),
        ("POST", "/assistants/search", {}),
        ("GET", "/assistants/both/graph?xray=true", None),
        ("GET", "/assistants/both/schemas", None),
        ("GET", "/assistants/both/subgraphs?recurse=true", None),
        ("POST", "/store/items/search", {"namespace_prefix": []}),
        ("GET", "/threads/nothing/state", None),
    ]
    for method, path, given in asked:
        answer = await http.request(method, path, json=given)
        assert answer.status_code < 500, (path, answer.text)
        _checked(answer.text, path)


@run
async def test_the_event_protocol_sends_nothing_that_is_internal(near: str) -> None:
    async with serving(near, of={"both": _graph()}, gate=_gate()) as served:
        http = await served.http("ada")
        thread = str(uuid.uuid4())
        await start(http, thread, "both", INPUT)
        told = await until_ended(heard(http, thread, channels=list(CHANNELS)))
        for event in told:
            _checked(json.dumps(event), event["method"])
        assert {event["method"] for event in told} >= {"values", "tasks", "checkpoints", "custom"}
