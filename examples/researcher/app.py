"""The HTTP side: what is asked is durable before it is worked on, and a process that ends is replaced."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Header
from pydantic import BaseModel, Field

import perdure
from examples.database import database_of
from examples.page import own_page, serve_page
from perdure.runtime import Runtime, Settings
from perdure.server import answer_error

from .agent import agent

LEASE_S = 3.0
"""After so many seconds another process goes on with the work of one that was killed."""


class Request(BaseModel):
    """A subject for a report, in a thread of a user."""

    thread: str = Field(min_length=1, max_length=255)
    user: str = Field(default="ada", min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_-]+$")
    subject: str = Field(min_length=1, max_length=1000)


class Decision(BaseModel):
    """The answer to what the editor asks."""

    thread: str = Field(min_length=1, max_length=255)
    decision: Literal["approve", "reject"]


def create_app(db_url: str | None = None, pace: float | None = None) -> FastAPI:
    """Return the application over a database, by default that of ``PERDURE_DB`` or ``researcher.db``.

    Args:
        db_url: The database.
        pace: The seconds that each call of a model or tool takes, by default those of ``RESEARCHER_PACE``, or
            half a second.
    """
    url, migrates = database_of("researcher", db_url)
    seconds = float(os.environ.get("RESEARCHER_PACE", "0.5")) if pace is None else pace
    graph = agent(seconds)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with (
            perdure.connect(url, migrate=migrates) as database,
            Runtime(database, graph, settings=Settings(lease=LEASE_S)) as runtime,
        ):
            app.state.runtime = runtime
            yield

    app = FastAPI(title="Researcher", lifespan=lifespan)
    app.exception_handler(perdure.PerdureError)(answer_error)

    @app.post("/api/research")
    async def research(
        request: Request, idempotency_key: Annotated[str | None, Header()] = None
    ) -> dict[str, Any]:
        """Have a report written. Returns when the agent is done, or asks something."""
        runtime: Runtime = app.state.runtime
        config = {"configurable": {"user_id": request.user}}
        ticket = await runtime.accept(
            request.thread, request.subject, dedupe_key=idempotency_key, config=config
        )
        await runtime.wait(ticket)
        return await _shown(runtime, request.thread)

    @app.post("/api/decisions")
    async def decide(
        decision: Decision, idempotency_key: Annotated[str | None, Header()] = None
    ) -> dict[str, Any]:
        """Answer what the agent asks."""
        runtime: Runtime = app.state.runtime
        answer = {"decisions": [{"type": decision.decision}]}
        await runtime.wait(await runtime.answer(decision.thread, answer, dedupe_key=idempotency_key))
        return await _shown(runtime, decision.thread)

    @app.get("/api/threads/{thread}")
    async def show(thread: str) -> dict[str, Any]:
        """Return what is stored of a thread: also while its agent works."""
        return await _shown(app.state.runtime, thread)

    serve_page(app, own_page(__file__))
    return app


async def _shown(runtime: Runtime, thread: str) -> dict[str, Any]:
    """Return the messages, to-dos and files of a thread, and what its agent asks."""
    state = await runtime.graph("agent").aget_state({"configurable": {"thread_id": thread}})
    files: dict[str, Any] = state.values.get("files", {})
    return {
        "messages": [
            {"role": message.type, "text": message.text}
            for message in state.values.get("messages", ())
            if message.type in ("human", "ai") and message.text
        ],
        "todos": state.values.get("todos", []),
        "files": {path: file["content"] for path, file in sorted(files.items())},
        "asks": [
            request["description"]
            for interrupt in state.interrupts
            for request in interrupt.value["action_requests"]
        ],
    }
