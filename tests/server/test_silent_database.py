"""A server whose PostgreSQL is paused: every request ends within the patience, with 503."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from perdure.storage.url import open_driver
from tests.server.served_processes import process_of
from tests.servers.pausing import paused
from tests.servers.postgres import Postgres, empty

GRAPH = """
from langgraph.graph import MessagesState, StateGraph

def answer(state):
    return {"messages": [("ai", "done")]}

graph = StateGraph(MessagesState).add_node(answer).add_edge("__start__", "answer").compile()
"""
ROOM_S = 3.0
RUN = {"assistant_id": "agent", "input": {"messages": [{"role": "user", "content": "hello"}]}}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_requests_beside_a_paused_database_are_503_within_the_patience(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(GRAPH)
    (tmp_path / "langgraph.json").write_text(
        '{"graphs": {"agent": "./agent.py:graph"}, "dependencies": ["."]}'
    )
    with closing(Postgres()) as server, empty(server) as url:
        open_driver(url, migrate=True).close()
        with (
            process_of(tmp_path, "--db", url) as address,
            httpx.Client(base_url=address, timeout=60, trust_env=False) as http,
        ):
            thread = http.post("/threads", json={}).json()["thread_id"]
            assert http.post(f"/threads/{thread}/runs/wait", json=RUN).status_code == 200
            assert http.get("/ready").status_code == 200
            requests = [
                ("POST", f"/threads/{thread}/runs", RUN),
                ("POST", f"/threads/{thread}/runs/wait", RUN),
                ("GET", f"/threads/{thread}/state", None),
                ("POST", "/threads/search", {}),
                ("PUT", "/store/items", {"namespace": ["a"], "key": "k", "value": {"n": 1}}),
                ("GET", "/store/items?namespace=a&key=k", None),
                ("POST", "/store/items/search", {"namespace_prefix": ["a"]}),
                ("POST", "/threads", {}),
                ("DELETE", f"/threads/{thread}", None),
                ("GET", "/ready", None),
            ]
            assert server.process is not None
            for method, path, body in requests:
                with paused(server.process.pid):
                    began = time.monotonic()
                    answer = http.request(method, path, json=body)
                    took = time.monotonic() - began
                assert answer.status_code == 503, f"{method} {path}: {answer.status_code} {answer.text}"
                assert took < 5 + ROOM_S, f"{method} {path} took {took:.1f} s"
                _wait_until_ready(http)
            # What was in doubt happened once or not at all, and the thread goes on.
            if http.get(f"/threads/{thread}").status_code == 200:
                answer = http.post(f"/threads/{thread}/runs/wait", json=RUN)
                assert answer.status_code == 200, answer.text
                said = [message["type"] for message in answer.json()["messages"]]
                assert 4 <= len(said) <= 8
                assert said.count("human") == said.count("ai")


def _wait_until_ready(http: httpx.Client) -> None:
    until = time.monotonic() + 60
    while http.get("/ready").status_code != 200:
        assert time.monotonic() < until, "the server does not become ready after the pause"
        time.sleep(0.1)
