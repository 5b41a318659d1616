"""Open parts of a demo: a database, a chat model, and a runtime in which the agent answers.

A demo is a single process. Its leases are short, so it recovers from a crash within seconds, and Ctrl-C does
not wait for an answer.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from rich.console import Console

import perdure
from perdure.demo.agent import build_agent
from perdure.demo.memory import make_demo_policy
from perdure.demo.models import OpenModel, choose_model, open_model
from perdure.langgraph.search.index import SearchConfig
from perdure.runtime import Agent, Runtime, Settings
from perdure.runtime.observers import Logs, Observer
from perdure.server.auth.identity import OpenGate
from perdure.server.resources import ServerState

GRAPH = "chat"
"""Name under which the agent is served."""

SETTINGS = Settings(lease=5.0, poll=0.25, drain=0.0, attempts=1000)
"""Settings for a demo that may be killed any number of times."""


WORD_INDEX: SearchConfig = {"text": True, "fields": ["text"]}
"""Index of the demo's store: it compares words only, so no embedding model is needed."""


class HandOverCounter(Observer):
    """Observer that counts the answers that were being written when the demo stopped."""

    def __init__(self) -> None:
        self.count = 0

    def event(self, name: str, fields: dict[str, Any]) -> None:
        self.count += name == "run.handed_over"


@dataclass(frozen=True, slots=True)
class Demo:
    """A running demo."""

    host: ServerState
    model: OpenModel
    handed_over: HandOverCounter

    @property
    def runtime(self) -> Runtime:
        return self.host.runtime


@asynccontextmanager
async def open_demo(url: str, model_name: str | None, console: Console) -> AsyncIterator[Demo]:
    """Open a demo over a database.

    Args:
        url: The URL of the database.
        model_name: The model to use, if one was named.
        console: The console for progress.
    """
    choice = choose_model(model_name, os.environ)
    async with AsyncExitStack() as stack:
        db = await stack.enter_async_context(perdure.connect(url, migrate=True))
        started = time.perf_counter()
        opening = open_model(choice, os.environ)
        with console.status("Loading the model…"):
            model = await asyncio.to_thread(opening.__enter__)
        stack.push_async_callback(asyncio.to_thread, opening.__exit__, None, None, None)
        console.print(f"[dim]Model ready after {time.perf_counter() - started:.1f} s.[/]")
        yield await start_demo(stack, db, model)


async def start_demo(stack: AsyncExitStack, db: perdure.Database, model: OpenModel) -> Demo:
    """Start a demo with an open model and return it; ``stack`` closes it."""
    graph = build_agent(model.chat, context_tokens=model.context_tokens)
    agent = Agent(graph, memory=make_demo_policy())
    handed_over = HandOverCounter()
    observers = (Logs(), handed_over)
    runtime = Runtime(db, {GRAPH: agent}, settings=SETTINGS, observers=observers, store_index=WORD_INDEX)
    await stack.enter_async_context(runtime)
    host = ServerState.over(runtime, OpenGate(db.tenant))
    stack.push_async_callback(host.close)
    return Demo(host, model, handed_over)
