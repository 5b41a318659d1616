"""Processes whose graph gives statements on a table of its own, to be killed between any two requests.

A zygote imports everything once and only forks. It reads one job a line from standard input, and answers each
with the signal and the exit code with which its child ended.
"""

from __future__ import annotations

import asyncio
import json
import operator
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import apsw
from langchain_core.runnables import RunnableConfig
from langgraph.graph import END, START, StateGraph
from psycopg import pq

from perdure.database.opening import open_database
from perdure.langgraph.saver import PerdureSaver
from perdure.runtime import transaction
from perdure.storage.postgres.connection import ServerConnection
from perdure.storage.url import backend_of

ROOT = Path(__file__).resolve().parents[2]

TABLES = (
    "CREATE TABLE app_step (thread TEXT NOT NULL, step INTEGER NOT NULL)",
    "CREATE TABLE app_total (thread TEXT PRIMARY KEY, steps INTEGER NOT NULL)",
)
"""Without a constraint that could refuse a step that is made twice."""
INSERT = "INSERT INTO app_step (thread, step) VALUES (:thread, :step)"
ADD = (
    "INSERT INTO app_total (thread, steps) VALUES (:thread, 1) "
    "ON CONFLICT (thread) DO UPDATE SET steps = app_total.steps + 1"
)


@dataclass(frozen=True)
class Life:
    """One process: it runs a thread to its last step, or is killed at the ``at``-th request to the database,
    from 1, before its answer or after it; 0 for none. It notes in ``report`` how many it made."""

    url: str
    thread: str
    steps: int
    durability: Literal["sync", "async"]
    at: int
    when: Literal["before", "after"]
    asynchronous: bool
    report: str


class State(TypedDict):
    steps: Annotated[list[int], operator.add]


def graph_of(saver: PerdureSaver, last: int) -> Any:
    """Return a graph that takes steps up to the last one, each with its row."""

    def step(state: State, config: RunnableConfig) -> dict[str, Any]:
        number = len(state["steps"]) + 1
        thread = str(config["configurable"]["thread_id"])
        commit = transaction()
        commit.execute(INSERT, {"thread": thread, "step": number})
        commit.execute(ADD, {"thread": thread})
        return {"steps": [number]}

    builder = StateGraph(State)
    builder.add_node("step", step)
    builder.add_edge(START, "step")
    builder.add_conditional_edges("step", lambda state: "step" if len(state["steps"]) < last else END)
    return builder.compile(checkpointer=saver)


class _Requests:
    """Counts requests to the database, each SQL statement of its own, and kills this process at one."""

    def __init__(self, at: int, when: str) -> None:
        self.count = 0
        self._at = at
        self._when = when

    def begin(self) -> None:
        self.count += 1
        self._kill("before")

    def end(self) -> None:
        self._kill("after")

    def _kill(self, when: str) -> None:
        if self.count == self._at and when == self._when:
            os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def _watched(requests: _Requests) -> Iterator[None]:
    plain = ServerConnection._result

    def result(self: ServerConnection, pgconn: pq.abc.PGconn, deadline: float) -> pq.abc.PGresult:
        requests.begin()
        found = plain(self, pgconn, deadline)
        requests.end()
        return found

    def opened(connection: apsw.Connection) -> None:
        def trace(*_: object) -> bool:
            requests.begin()
            return True

        connection.exec_trace = trace

    ServerConnection._result = result  # type: ignore[method-assign]
    apsw.connection_hooks.append(opened)
    try:
        yield
    finally:
        ServerConnection._result = plain  # type: ignore[method-assign]
        apsw.connection_hooks.remove(opened)


def live(life: Life) -> None:
    """Run a thread to its last step, from wherever it is."""
    requests = _Requests(life.at, life.when)
    with _watched(requests):
        database = open_database(life.url)
        try:
            graph = graph_of(database.checkpointer(), life.steps)
            config: RunnableConfig = {
                "configurable": {"thread_id": life.thread},
                "recursion_limit": life.steps + 5,
            }
            is_begun = bool(graph.get_state(config).metadata)
            said: dict[str, Any] | None = None if is_begun else {"steps": []}
            if life.asynchronous:
                asyncio.run(graph.ainvoke(said, config, durability=life.durability))
            else:
                graph.invoke(said, config, durability=life.durability)
        finally:
            database.close()
    Path(life.report).write_text(str(requests.count))


class Zygote:
    """The test's end of the pipe."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.transacting"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Zygote:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.communicate(timeout=30)

    def live(self, life: Life) -> tuple[int, int]:
        """Let a child live; return the signal and the code with which it ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(life)) + "\n")
        self._process.stdin.flush()
        killed, code = json.loads(self._process.stdout.readline())
        return killed, code


def _serve() -> None:
    for line in sys.stdin:
        life = Life(**json.loads(line))
        backend_of(life.url)
        child = os.fork()
        if child == 0:
            try:
                live(life)
            except BaseException:
                traceback.print_exc(file=sys.stderr)
                os._exit(1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else 0
        print(json.dumps([killed, code]), flush=True)


if __name__ == "__main__":
    _serve()
