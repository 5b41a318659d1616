"""The lowest versions that ``pyproject.toml`` admits store on every backend, and serve LangGraph's client.

All other tests run on the newest versions.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest

from tests.backends import EMPTY
from tests.conftest import missing
from tests.firstday.running import ENVIRONMENT
from tests.servers.ports import free_port

ROOT = Path(__file__).parents[2]
LEFT_OUT = {"demo", "memory"}
"""Extras whose oldest wheels are gone, or are built for a quarter of an hour."""
AGENT = """
from langgraph.graph import START, MessagesState, StateGraph


def answer(state: MessagesState) -> dict:
    return {"messages": [("ai", f"{len(state['messages'])} said")]}


graph = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer").compile()
"""
STORING = """
import sys
import perdure

with perdure.connect_sync(sys.argv[1], migrate=True) as db:
    db.store().put(("a",), "key", {"n": 1})
    print(db.store().get(("a",), "key").value["n"])
"""
CLIENT = """
import sys
from langgraph_sdk import get_sync_client

said = {"messages": [{"role": "user", "content": "hi"}]}
client = get_sync_client(url=sys.argv[1], api_key=None)
thread = client.threads.create()["thread_id"]
print(client.runs.wait(thread, "agent", input=said)["messages"][-1]["content"])
print(len(client.threads.get_history(thread)) > 0)
print(len(client.threads.get_history(thread, checkpoint={"checkpoint_ns": "of a tool"})))
with client.threads.stream(assistant_id="agent", transport="websocket") as stream:
    stream.run.start(input=said)
    print(stream.output["messages"][-1]["content"])
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_lowest_versions_store_and_serve(tmp_path: Path) -> None:
    uv = os.environ.get("UV") or shutil.which("uv")
    if uv is None:
        missing("uv", "pip install uv")
    # Not from the repository's folder: the pins of its own tests would apply.
    home, python = tmp_path / "home", tmp_path / "home" / "bin" / "python"
    subprocess.run([str(uv), "venv", "-q", "--python", sys.executable, str(home)], cwd=tmp_path, check=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = ",".join(sorted(set(project["optional-dependencies"]) - LEFT_OUT))
    install = [str(uv), "pip", "install", "-q", "--python", str(python), "--resolution", "lowest-direct"]
    subprocess.run([*install, f"{ROOT}[{extras}]"], cwd=tmp_path, check=True)
    subprocess.run([str(home / "bin" / "perdure"), "serve", "--help"], env=ENVIRONMENT, check=True)
    for backend, empty in EMPTY.items():
        with empty() as url:
            command = [str(python), "-c", STORING, url]
            # With the variables that the servers of the tests have set.
            stored = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert stored.stdout == "1\n", (backend, stored.stderr)
    (tmp_path / "agent.py").write_text(AGENT)
    (tmp_path / "client.py").write_text(CLIENT)
    port = str(free_port())
    with (tmp_path / "log").open("w") as log:
        server = subprocess.Popen(
            [str(home / "bin" / "perdure"), "serve", "./agent.py:graph", "--port", port, "--dev"],
            cwd=tmp_path, env=ENVIRONMENT, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        address = f"http://127.0.0.1:{port}"
        until = time.monotonic() + 120
        ready = [str(python), "-c", f"import httpx; httpx.get({address + '/ok'!r}).raise_for_status()"]
        while subprocess.run(ready, capture_output=True, env=ENVIRONMENT).returncode:
            assert server.poll() is None, (tmp_path / "log").read_text()
            assert time.monotonic() < until, (tmp_path / "log").read_text()
            time.sleep(0.2)
        asked = subprocess.run(
            [str(python), "client.py", address], cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True
        )
    finally:
        server.terminate()
        server.wait(60)
    told = asked.stdout.splitlines()
    assert told == ["1 said", "True", "0", "1 said"], asked.stderr + (tmp_path / "log").read_text()
