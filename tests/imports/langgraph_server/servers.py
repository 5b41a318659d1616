"""Servers with LangGraph's API, each a process of its own with the same agent; what fills them, and what
compares two of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from langgraph_sdk import get_sync_client
from langgraph_sdk.client import SyncLangGraphClient

import perdure
from bench.served import rooms
from bench.served.hosts import HOSTS, LANGGRAPH, Site
from bench.servers import Missing
from tests.conftest import missing
from tests.servers.ports import free_port

LANGGRAPH_DEV, PERDURE = "langgraph dev", "perdure serve"
WORDS = ("hello", "ask", "both", "send", "inner", "tool")
"""What is said on threads in turn: the agent goes another way for each."""

_HERE = Path(__file__).parent


def project(folder: Path) -> Path:
    """Write the agent's project into a folder, and return the folder."""
    folder.mkdir(exist_ok=True)
    shutil.copy(_HERE / "agent.py", folder / "agent.py")
    described = {"dependencies": ["."], "graphs": {"agent": "./agent.py:graph"}}
    (folder / "langgraph.json").write_text(json.dumps(described))
    return folder


@contextmanager
def served(kind: str, folder: Path, database: str = "") -> Iterator[str]:
    """Run a server in a folder with its project; yield its URL."""
    port = free_port()
    environ = {**os.environ, "LANGGRAPH_API_KEY": ""}
    if kind == LANGGRAPH_DEV:
        try:
            programs = rooms.programs(HOSTS[LANGGRAPH])
        except Missing as error:
            missing("LangGraph's development server", str(error))
        start = HOSTS[LANGGRAPH].start(Site(programs, folder, port, {}))
        command, environ = start.command, {**environ, **start.environment}
    else:
        database = database or f"sqlite:///{folder / 'served.db'}"
        with perdure.connect_sync(database, migrate=True):
            pass
        command = [sys.executable, "-m", "perdure", "serve", "--dev", "--port", str(port), "--db", database]
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=environ, stdout=log, stderr=subprocess.STDOUT)
    try:
        url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 90
        while not _answers(url):
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline, (folder / "log").read_text()
            time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/ok").is_success
    except httpx.TransportError:
        return False


def said(word: str) -> Any:
    """Return an input."""
    return {"messages": [{"role": "user", "content": word}]}


def fill(client: SyncLangGraphClient, count: int) -> list[str]:
    """Make threads, each on another way through the agent, some with a fork; assistants, crons and items.
    Return the ids of the threads."""
    made = []
    for number in range(count):
        word = WORDS[number % len(WORDS)]
        thread = client.threads.create(metadata={"word": word, "number": number})["thread_id"]
        made.append(thread)
        client.runs.wait(thread, "agent", input=said(word), raise_error=True)
        if number % 12 == 0:
            fork(client, thread)
        if number % 12 == 5:
            client.runs.wait(thread, "agent", input=said("hello"))
    made.append(client.threads.create(metadata={"word": "nothing"})["thread_id"])
    mine = client.assistants.create("agent", name="one", config={"tags": ["x"]}, metadata={"mine": 1})
    for name in ("two", "three"):
        client.assistants.update(mine["assistant_id"], name=name)
    client.assistants.set_latest(mine["assistant_id"], 2)
    client.crons.create_for_thread(made[0], "agent", schedule="0 9 * * *", input=said("hello"))
    client.crons.create(
        mine["assistant_id"],
        schedule="5 9 1 * *",
        input=said("hello"),
        metadata={"of": "month"},
        timezone="UTC",
    )
    for number in range(count):
        client.store.put_item(("users", f"u{number}"), "likes", {"tea": number, "more": [{"a": None}]})
    return made


def fork(client: SyncLangGraphClient, thread: str) -> None:
    """Change the first message of a thread, and go on from there."""
    early = client.threads.get_history(thread, limit=100)[-2]
    changed = {**early["values"]["messages"][0], "content": "changed"}  # type: ignore[call-overload]
    update = client.threads.update_state(
        thread, {"messages": [changed]}, checkpoint=early["checkpoint"], as_node="__start__"
    )
    client.runs.wait(thread, "agent", input=None, checkpoint=update["checkpoint"])


def shown(client: SyncLangGraphClient) -> dict[str, Any]:
    """Return all that a server has, in a form that can be compared with another's."""
    threads = {each["thread_id"]: each for each in client.threads.search(limit=1000)}
    return {
        "threads": {
            name: (each["metadata"], each["status"], each["created_at"]) for name, each in threads.items()
        },
        "heads": {name: _head(client, name) for name in threads},
        "history": {name: list(map(_state, history(client, name))) for name in threads},
        "assistants": {
            each["assistant_id"]: (
                each["version"],
                [_part(v) for v in versions(client, each["assistant_id"])],
            )
            for each in client.assistants.search(limit=100)
        },
        "crons": {each["cron_id"]: _cron(dict(each)) for each in client.crons.search(limit=100)},
        "items": sorted(
            client.store.search_items((), limit=1000)["items"], key=lambda item: item["namespace"]
        ),
    }


def history(client: SyncLangGraphClient, thread: str) -> list[Any]:
    """Return the states of a thread."""
    return list(client.threads.get_history(thread, limit=1000))


def versions(client: SyncLangGraphClient, assistant: str) -> list[Any]:
    """Return the versions of an assistant."""
    return list(client.assistants.get_versions(assistant, limit=100))


def _head(client: SyncLangGraphClient, thread: str) -> Any:
    state: Any = client.threads.get_state(thread)
    return _state(state)


def _state(state: dict[str, Any]) -> dict[str, Any]:
    parts = ("next", "tasks", "metadata", "created_at", "checkpoint", "parent_checkpoint", "interrupts")
    return {"values": _sorted(state["values"]), **{part: _sorted(state[part]) for part in parts}}


def _sorted(value: Any) -> Any:
    """Return a value with its set in one order, which JSON does not have."""
    if isinstance(value, dict):
        return {key: sorted(each) if key == "tags" else _sorted(each) for key, each in value.items()}
    return [_sorted(each) for each in value] if isinstance(value, list) else value


def _part(version: dict[str, Any]) -> dict[str, Any]:
    return {key: version[key] for key in ("version", "name", "graph_id", "config", "context", "metadata")}


def _cron(cron: dict[str, Any]) -> dict[str, Any]:
    parts = ("assistant_id", "thread_id", "schedule", "timezone", "end_time", "on_run_completed", "enabled")
    due = cron["next_run_date"].split(".")[0].removesuffix("+00:00")
    return {**{part: cron[part] for part in parts}, "input": cron["payload"]["input"], "due": due}


def client_of(url: str) -> SyncLangGraphClient:
    """Return a client."""
    return get_sync_client(url=url, api_key=None)
