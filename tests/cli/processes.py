"""Worker processes as an operator starts them, over one SQLite file, and who accepts messages beside them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from langgraph.graph import START, MessagesState, StateGraph

import perdure
from perdure.database.base import handle_of
from perdure.model.ops import Fetch, Get
from perdure.model.program import ask
from perdure.model.records import LANE, Partition
from perdure.model.runs.messages import Run
from perdure.model.runs.queue import IN
from perdure.runtime import Runtime, Settings, Ticket
from tests.forking import Forked, fork_server

Process = subprocess.Popen[bytes] | Forked
PROGRAM = Path(sys.executable).with_name("perdure")
WITHIN = 100.0
"""How long anything may take before the test has failed, in seconds."""
LEASE = 300.0
"""Longer than a test: whoever works on a run before that was handed it."""

APP = """
import asyncio
import time
from pathlib import Path

from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph

from perdure.runtime import Agent, Channel

HERE = Path(__file__).parent


def note(line):
    with (HERE / "notes").open("a") as file:
        file.write(line + "\\n")


def is_free():
    return (HERE / "free").exists()


async def first(state):
    note("first " + state["messages"][-1].content)


async def answer(state):
    said = state["messages"][-1].content
    note("answer " + said)
    while said.startswith("slow") and not is_free():
        await asyncio.sleep(0.01)
    return {"messages": [AIMessage("echo " + said)]}


def stubborn_answer(state):
    note("stubborn " + state["messages"][-1].content)
    while not is_free():
        time.sleep(0.01)
    return {"messages": [AIMessage("echo at last")]}


async def stuck_answer(state):
    note("stuck " + state["messages"][-1].content)
    while not is_free():
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            pass
    return {"messages": [AIMessage("echo at last")]}


def built(answer):
    graph = StateGraph(MessagesState).add_node("first", first).add_node("answer", answer)
    return graph.add_edge(START, "first").add_edge("first", "answer")


uncompiled = built(answer)
graph = uncompiled.compile()
agent = Agent(graph)
stubborn = built(stubborn_answer).compile()
stuck = built(stuck_answer).compile()


async def make():
    return graph


async def send(thread, reply):
    note("sent " + reply.payload["content"])
    return "provider-1"


channels = {"pigeon": Channel(send)}


class Folder:
    inner = graph
"""


def _program(without: Sequence[str]) -> list[str]:
    if not without:
        return [str(PROGRAM)]
    absent = "".join(f"sys.modules[{name!r}] = None; " for name in without)
    return [sys.executable, "-c", f"import sys; {absent}from perdure.cli import main; main()"]


class Workers:
    """Worker processes over one database and folder; those still running at the end are killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.url = f"sqlite:///{folder / 'threads.db'}"
        self._started: list[Process] = []
        (folder / "app.py").write_text(APP)
        with perdure.connect_sync(self.url, migrate=True):
            """Only its schema is wanted."""

    def start(self, *words: str, lease: float = LEASE, is_forked: bool = True) -> Process:
        """A worker of this database that is ready."""
        more = ("--db", self.url, "--lease", str(lease), "--poll", "0.1")
        return self.ready(*words, *more, is_forked=is_forked)

    def ready(
        self,
        *words: str,
        folder: Path | None = None,
        without: Sequence[str] = (),
        is_forked: bool = True,
        **environ: str,
    ) -> Process:
        """A worker that is told no more than these words and variables, and is ready; its log is in a file of
        its own. Its interpreter is new if it is not forked, or if these packages are not installed where it
        runs."""
        log = self._log(len(self._started))
        cwd, env = folder or self.folder, {**os.environ, **environ}
        with log.open("wb") as file:
            process: Process
            if is_forked and not without:
                process = fork_server().start(
                    ["worker", *words], cwd=cwd, environ=env, stdout=file.fileno(), stderr=file.fileno()
                )
            else:
                process = subprocess.Popen(
                    [*_program(without), "worker", *words],
                    cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                )  # fmt: skip
        self._started.append(process)
        self.until(lambda: " runs " in log.read_text() or process.poll() is not None)
        assert process.poll() is None, log.read_text()
        return process

    def refused(self, *words: str, without: Sequence[str] = (), **environ: str) -> str:
        """What a worker says that does not start, in one line."""
        done = subprocess.run(
            [*_program(without), "worker", *words],
            cwd=self.folder, env={**os.environ, **environ},
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WITHIN, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (1, ""), done
        *logged, last = done.stderr.splitlines()
        assert not any("Traceback" in line for line in logged), done.stderr
        assert last.startswith("perdure: "), done.stderr
        return last.removeprefix("perdure: ")

    def log(self, process: Process) -> str:
        return self._log(self._started.index(process)).read_text()

    def _log(self, number: int) -> Path:
        return self.folder / f"worker-{number}.log"

    def ask_to_stop(self, process: Process, number: int = signal.SIGTERM) -> None:
        """The first signal; it has been taken note of when this returns."""
        process.send_signal(number)
        self.until(lambda: "claims nothing more" in self.log(process))

    def ended(self, process: Process) -> int:
        return process.wait(WITHIN)

    def until(self, holds: Callable[[], bool]) -> None:
        limit = time.monotonic() + WITHIN
        while not holds():
            assert time.monotonic() < limit, "it did not come to that in time"
            time.sleep(0.02)

    def notes(self) -> list[str]:
        path = self.folder / "notes"
        return path.read_text().splitlines() if path.exists() else []

    def free(self) -> None:
        (self.folder / "free").touch()

    def close(self) -> None:
        for process in self._started:
            if process.poll() is None:
                process.kill()
            process.wait(WITHIN)

    # The other process, which accepts: this one

    def accept(
        self, *said: tuple[str, str], graph: str = "agent", channel: str = "", tenant: str = ""
    ) -> list[Ticket]:
        async def go(runtime: Runtime) -> list[Ticket]:
            return [
                await runtime.for_tenant(tenant).accept(thread, text, channel=channel)
                for thread, text in said
            ]

        return self._with_runtime(go, graph)

    def wait(self, tickets: list[Ticket], graph: str = "agent") -> list[Run]:
        async def go(runtime: Runtime) -> list[Run]:
            return [await runtime.wait(ticket, WITHIN) for ticket in tickets]

        return self._with_runtime(go, graph)

    def runs(self, thread: str) -> list[Run]:
        async def go(runtime: Runtime) -> list[Run]:
            return list(await runtime.runs(thread))

        return self._with_runtime(go, "agent")

    def _with_runtime(self, go: Callable[[Runtime], Any], graph: str) -> Any:
        compiled = StateGraph(MessagesState).add_node("n", lambda _: None).add_edge(START, "n").compile()

        async def run() -> Any:
            async with (
                perdure.connect(self.url) as db,
                Runtime(db, {graph: compiled}, works=False, settings=Settings(lease=LEASE)) as runtime,
            ):
                return await go(runtime)

        return asyncio.run(run())

    def said(self, thread: str) -> list[str]:
        """The messages of a thread's latest state."""
        with perdure.connect_sync(self.url) as db:
            channels = {channel.name: channel.value for channel in db.show(thread).channels}
            assert db.fsck(thread) == []
        return [message["value"]["content"] for message in channels["messages"]]

    def holder(self, thread: str) -> str | None:
        with perdure.connect_sync(self.url) as db:
            ((lane,),) = handle_of(db).run(ask(Fetch(Partition("", thread), (Get(LANE, (IN,)),))))
        owner: str | None = lane.fields["owner"]
        return owner
