"""The functions that the containers of these tests run."""

from __future__ import annotations

import asyncio
import os
import selectors
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import perdure
from perdure.database import opening
from perdure.runtime import Settings
from perdure.serverless import aws, lambda_function, lambda_handler
from perdure.testing.faults import Fault, FaultyDriver, kill

if at := int(os.environ.get("KILL_AT", "0")):
    _open = opening.open_driver  # type: ignore[attr-defined]
    when: Any = os.environ.get("KILL_WHEN", "before")

    def _killing(url: str, **options: Any) -> Any:
        return FaultyDriver(_open(url, **options), Fault(at, kill, when))

    opening.open_driver = _killing  # type: ignore[attr-defined]


def _note(question: str) -> None:
    with Path(os.environ["JOURNAL"]).open("a") as journal:
        journal.write(f"{question}\n")


def served() -> Any:
    """LangGraph's API over one graph, which notes each call of its node in a file."""
    from fastapi import FastAPI
    from langchain_core.messages import AIMessage
    from langgraph.graph import START, MessagesState, StateGraph

    from perdure.server import checkpoint_lifespan, perdure_app

    async def answer(state: MessagesState) -> dict[str, Any]:
        question = state["messages"][-1].text
        _note(question)
        seconds = Path(os.environ["JOURNAL"]).with_suffix(".sleep")
        if seconds.exists():
            await asyncio.sleep(float(seconds.read_text()))
        return {"messages": [AIMessage(f"echo: {question}")]}

    builder = StateGraph(MessagesState).add_node("answer", answer).add_edge(START, "answer")
    settings = Settings(lease=float(os.environ.get("LEASE", "1")), poll=0.2)
    app = FastAPI(
        lifespan=checkpoint_lifespan(os.environ["URL"], graphs=builder, serve=True, settings=settings)
    )
    app.mount("/", perdure_app(app))
    return app


def wingman() -> Any:
    from examples.wingman.app import create_app

    return create_app(os.environ["URL"])


handler = lambda_handler(wingman() if os.environ.get("APP") == "wingman" else served())


class _Rounds(selectors.DefaultSelector):
    """Waits of the event loop, one for each round of it. In a given one the time for work is over."""

    left = 0
    over = asyncio.Event()

    def select(self, timeout: float | None = None) -> Any:
        self.left -= 1
        if self.left == 0:
            self.over.set()
            timeout = 0
        return super().select(timeout)

    def ahead(self) -> float:
        return time.monotonic() + 3600 * self.over.is_set()

    async def wait(self, tasks: Any, timeout: float | None) -> Any:  # noqa: ASYNC109 - as it is called
        """Wait as ``asyncio.wait`` does, and no longer than the time for work."""
        over = asyncio.ensure_future(self.over.wait())
        try:
            return await asyncio.wait([*tasks, over], timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()


def cut(event: Any, context: Any) -> Any:
    """Answer an event; a file beside the journal says in which round of the event loop its time is over."""
    _rounds.over = asyncio.Event()
    _rounds.left = int(Path(os.environ["JOURNAL"]).with_suffix(".cut").read_text())
    answer = handler(event, context)
    return {**answer, "rounds_left": _rounds.left}


if "CUTS" in os.environ:
    _rounds = _Rounds()
    asyncio.new_event_loop = lambda: asyncio.SelectorEventLoop(_rounds)
    _patched: Any = aws
    _patched.time = SimpleNamespace(monotonic=_rounds.ahead)
    _patched.asyncio = SimpleNamespace(ensure_future=asyncio.ensure_future, wait=_rounds.wait)


@lambda_function(lambda: perdure.connect(os.environ["URL"]))
async def threads(event: Any, context: Any, database: perdure.Database) -> list[str]:
    """Return the ids of all threads."""
    return [thread.thread_id async for thread in database.threads()]
