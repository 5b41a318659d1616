"""Processes that run the deep agent of ``examples.researcher``, to be killed at any moment.

A zygote imports everything once and only forks. Each process notes the calls of models and tools that it
begins in a file, a line in one ``write``, and goes on from wherever the thread is.
"""

from __future__ import annotations

import asyncio
import json
import os
import select
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage

from examples.researcher.agent import agent
from perdure.database.opening import connect
from perdure.runtime import Runtime, Settings
from perdure.storage.url import backend_of
from tests.chaos.child_processes import remove_guard

ROOT = Path(__file__).resolve().parents[2]
THREAD, SUBJECT, USER = "r", "durable threads", "ada"
LEAD = "lead"
LEASE_S = 1.2
APPROVAL = {"decisions": [{"type": "approve"}]}
_PATIENCE_S = 120.0


@dataclass(frozen=True)
class Life:
    """One process: it asks for a report, answers the question, and ends with the report.

    Attributes:
        number: Its number, from 0.
        begun: The file in which the calls of models and tools are noted that have begun.
        pace: The seconds that each call takes.
        kill_after: The seconds after its first call, or with ``at_start`` after its start, at which it is
            killed; ``None`` for not at all.
        until: The call from which they are counted in place of the first one.
        answers: False to end where the agent asks.
        breaks: Function that removes a guard, as ``module:function``, to check the checks.
    """

    number: int
    url: str
    begun: str
    pace: float
    look_ups: int
    kill_after: float | None = None
    at_start: bool = False
    until: str = ""
    answers: bool = True
    breaks: str = ""


class _Begun(BaseCallbackHandler):
    """Notes each call of a model or a tool when it begins."""

    run_inline = True

    def __init__(self, life: Life) -> None:
        self._number = life.number
        self._file = os.open(life.begun, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def on_chat_model_start(
        self, serialized: Any, messages: list[list[BaseMessage]], *, metadata: Any = None, **kwargs: Any
    ) -> None:
        name = (metadata or {}).get("lc_agent_name") or LEAD
        answers = sum(isinstance(each, AIMessage) for each in messages[0])
        self._note(f"model {name} {answers}")

    def on_tool_start(
        self, serialized: Any, input_str: str, *, tool_call_id: str | None = None, **kwargs: Any
    ) -> None:
        self._note(f"tool {tool_call_id}")

    def _note(self, call: str) -> None:
        os.write(self._file, json.dumps([self._number, call]).encode() + b"\n")


async def _live(life: Life) -> None:
    if life.breaks:
        remove_guard(life.breaks)
    graph = agent(life.pace, life.look_ups).with_config(callbacks=[_Begun(life)])
    settings = Settings(lease=LEASE_S, poll=0.1, attempts=10_000, backoff=0.05, max_backoff=0.1)
    async with (
        connect(life.url) as database,
        Runtime(database, graph, settings=settings) as runtime,
    ):
        config = {"configurable": {"user_id": USER}, "recursion_limit": 10_000}
        asked = await runtime.accept(THREAD, SUBJECT, dedupe_key="asked", config=config)
        await runtime.wait(asked)
        if life.answers:
            await runtime.wait(await runtime.answer(THREAD, APPROVAL, dedupe_key="answer"))


class Zygote:
    """The test's end of the pipe."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.chaos.researching"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Zygote:
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.communicate(timeout=60)

    def live(self, life: Life) -> int:
        """Let a child live; return the signal with which it ended, or its exit code as a negative number."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(life)) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


def _has_begun(life: Life, before: int) -> bool:
    """Return True if a process has begun the call from which its time is counted."""
    path = Path(life.begun)
    return (
        path.exists() and life.until.encode() in path.read_bytes()[before:] and path.stat().st_size > before
    )


def _fork(life: Life) -> int:
    path = Path(life.begun)
    before = path.stat().st_size if path.exists() else 0
    child = os.fork()
    if child == 0:
        try:
            asyncio.run(_live(life))
        except BaseException:
            traceback.print_exc(file=sys.stderr)
            os._exit(1)
        os._exit(0)
    if life.kill_after is not None:
        gone = os.pidfd_open(child)
        until = time.monotonic() + _PATIENCE_S
        is_over = False
        while not (life.at_start or is_over or _has_begun(life, before)) and time.monotonic() < until:
            is_over = bool(select.select([gone], [], [], 0.005)[0])
        select.select([gone], [], [], life.kill_after)
        os.close(gone)
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return os.WTERMSIG(status) if os.WIFSIGNALED(status) else -os.WEXITSTATUS(status)


def _serve() -> None:
    for line in sys.stdin:
        life = Life(**json.loads(line))
        backend_of(life.url)  # its client is imported here, once
        print(_fork(life), flush=True)


if __name__ == "__main__":
    _serve()
