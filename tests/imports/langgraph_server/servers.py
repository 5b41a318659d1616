"""Servers with LangGraph's API, each a process of its own with the same agent; what fills them, and what
compares two of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from langgraph_sdk import get_sync_client
from langgraph_sdk.client import SyncLangGraphClient

import perdure
from bench.served import hosts, rooms
from bench.servers import Missing
from tests.conftest import missing
from tests.forking import Forked, fork_server
from tests.servers import postgres
from tests.servers.ports import free_port

LANGGRAPH_DEV, AEGRA, PERDURE = hosts.LANGGRAPH, hosts.AEGRA, "perdure serve"
KINDS = [PERDURE, *(pytest.param(kind, marks=pytest.mark.slow) for kind in (LANGGRAPH_DEV, AEGRA))]
"""Parameters of a test about all of them."""

WORDS = ("hello", "ask", "both", "send", "inner", "tool")
"""What is said on threads in turn: the agent goes another way for each."""

ENVIRON = {**os.environ, "LANGGRAPH_API_KEY": ""}
"""Variables of all processes here: a key of the developer's is not sent."""
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
    environ: dict[str, str] = ENVIRON
    health = "/ok"
    with ExitStack() as stack:
        if kind == PERDURE:
            database = database or f"sqlite:///{folder / 'served.db'}"
            with perdure.connect_sync(database, migrate=True):
                pass
            command = ["serve", "--dev", "--port", str(port), "--db", database]
        else:
            host = hosts.HOSTS[kind]
            urls = {}
            if "postgres" in host.needs:
                urls["postgres"] = database or stack.enter_context(postgres.empty_database())
            try:
                programs = rooms.programs(host)
            except Missing as error:
                missing(kind, str(error))
            start = host.start(hosts.Site(programs, folder, port, urls))
            command, environ, health = start.command, {**environ, **start.environment}, host.health
        process: subprocess.Popen[bytes] | Forked
        with open(folder / "log", "wb") as log:
            if kind == PERDURE:
                output = log.fileno()
                process = fork_server().start(
                    command, cwd=folder, environ=environ, stdout=output, stderr=output
                )
            else:
                process = subprocess.Popen(command, cwd=folder, env=environ, stdout=log, stderr=log)
        try:
            url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + 180
            while not _answers(url + health):
                assert process.poll() is None, (folder / "log").read_text()
                assert time.monotonic() < deadline, (folder / "log").read_text()
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            process.wait(30)


def _answers(url: str) -> bool:
    try:
        return httpx.get(url).is_success
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
            name: (each["metadata"], each["status"], _time(str(each["created_at"])))
            for name, each in threads.items()
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
            ((item["namespace"], item["key"], item["value"]) for item in _items(client)), key=repr
        ),
    }


def item_times(client: SyncLangGraphClient) -> list[Any]:
    """Return the times of all items, of a server that shows them."""
    return sorted((item["namespace"], item["created_at"], item["updated_at"]) for item in _items(client))


def _items(client: SyncLangGraphClient) -> list[Any]:
    return list(client.store.search_items((), limit=1000)["items"])


def history(client: SyncLangGraphClient, thread: str) -> list[Any]:
    """Return the states of a thread."""
    return list(client.threads.get_history(thread, limit=1000))


def versions(client: SyncLangGraphClient, assistant: str) -> list[Any]:
    """Return the versions of an assistant."""
    return list(client.assistants.get_versions(assistant, limit=100))


def _head(client: SyncLangGraphClient, thread: str) -> Any:
    state: Any = client.threads.get_state(thread)
    # Of a thread on which nothing ran, each server shows nothing in a form of its own.
    return _state(state) if (state["checkpoint"] or {}).get("checkpoint_id") else None


def _state(state: dict[str, Any]) -> dict[str, Any]:
    parts = ("values", "next", "interrupts")
    parent = state["parent_checkpoint"]
    return {
        **{part: _sorted(state[part]) for part in parts},
        "tasks": list(map(_task, state["tasks"])),
        # Some servers add the thread to what is stored.
        "metadata": {name: held for name, held in (state["metadata"] or {}).items() if name != "thread_id"},
        "created_at": _time(state["created_at"]),
        "checkpoint": _place(state["checkpoint"]),
        "parent_checkpoint": _place(parent) if parent else None,
    }


def _task(task: dict[str, Any]) -> dict[str, Any]:
    """Return what every server shows of a task, its place in one form; its path is in its id."""
    parts = ("id", "name", "error", "interrupts", "result")
    place = task["checkpoint"] or (task["state"] or {}).get("configurable")
    return {
        **{part: _sorted(task[part]) for part in parts},
        "place": place and place["checkpoint_ns"],
    }


def _place(checkpoint: dict[str, Any]) -> Any:
    return checkpoint["thread_id"], checkpoint["checkpoint_ns"], checkpoint["checkpoint_id"]


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None


def _sorted(value: Any) -> Any:
    """Return a value with its set in one order, which JSON does not have."""
    if isinstance(value, dict):
        return {key: sorted(each) if key == "tags" else _sorted(each) for key, each in value.items()}
    return [_sorted(each) for each in value] if isinstance(value, list) else value


def _part(version: dict[str, Any]) -> dict[str, Any]:
    return {key: version[key] for key in ("version", "name", "graph_id", "config", "context", "metadata")}


def _cron(cron: dict[str, Any]) -> dict[str, Any]:
    parts = ("assistant_id", "thread_id", "schedule", "end_time", "enabled")
    payload = cron["payload"]
    due = datetime.fromisoformat(cron["next_run_date"]).replace(microsecond=0, tzinfo=None)
    # Aegra shows the time zone with the run, and the default of what becomes of the thread not at all.
    zone = cron.get("timezone") or payload.get("timezone")
    ends = cron.get("on_run_completed") or (None if cron.get("thread_id") else "delete")
    more = {"timezone": zone, "on_run_completed": ends, "input": payload["input"], "due": due}
    return {**{part: cron.get(part) for part in parts}, **more}


def client_of(url: str) -> SyncLangGraphClient:
    """Return a client."""
    return get_sync_client(url=url, api_key=None)
