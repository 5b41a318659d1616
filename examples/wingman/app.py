"""The HTTP contract: each request reads the session's history, runs, and adds to it on condition.

No process keeps anything between two requests, so that any instance serves any session.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Annotated, Any

from fastapi import FastAPI, Header, Request
from pydantic import BaseModel, Field

import perdure
from examples.database import database_of
from examples.page import own_page, serve_page
from perdure.history import Histories, NewTurn, SessionHistory
from perdure.server import answer_error

from .agent import Wingman
from .models import wingman

KEPT = timedelta(days=30)


class ChatRequest(BaseModel):
    """A message of a session. ``new_task`` gives its task all turns again."""

    session_id: str = Field(min_length=1)
    message: str = Field(min_length=1)
    success_criteria: str | None = None
    new_task: bool = False


class SessionRequest(BaseModel):
    """The session to begin, a new one by default, or to remove."""

    session_id: str = Field(default_factory=lambda: uuid.uuid4().hex, min_length=1)


def create_app(db_url: str | None = None, agent: Wingman | None = None) -> FastAPI:
    """Return the application over a database, by default that of ``PERDURE_DB`` or ``wingman.db``."""
    url, migrates = database_of("wingman", db_url)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with perdure.connect(url, migrate=migrates) as database:
            app.state.histories = database.history(ttl=KEPT)
            yield

    app = FastAPI(title="Wingman", lifespan=lifespan)
    app.exception_handler(perdure.PerdureError)(answer_error)
    helper = agent or wingman()

    def histories(request: Request) -> Histories:
        found: Histories = request.app.state.histories
        return found

    @app.post("/api/chat")
    async def chat(
        body: ChatRequest, request: Request, idempotency_key: Annotated[str | None, Header()] = None
    ) -> dict[str, Any]:
        """Answer a message. A request that lost a race is answered again with what the other stored; one
        that is sent again with its ``Idempotency-Key`` gets the history and adds nothing."""

        async def turn(history: SessionHistory) -> NewTurn:
            return await helper.run_superstep(
                body.message, body.success_criteria, _of_task(history, body.new_task)
            )

        return _shown(await histories(request).update(body.session_id, turn, key=idempotency_key))

    @app.post("/api/init")
    async def init(body: SessionRequest, request: Request) -> dict[str, Any]:
        """Begin a task: in a new session, or in one that goes on."""

        async def turn(history: SessionHistory) -> NewTurn:
            return NewTurn([], _of_task(history, True).budget)

        history = await histories(request).update(body.session_id, turn)
        return {"session_id": body.session_id, **_shown(history)}

    @app.post("/api/reset")
    async def reset(body: SessionRequest, request: Request) -> dict[str, Any]:
        """Remove a session with its history."""
        await histories(request).delete(body.session_id)
        return {"history": []}

    @app.get("/api/history/{session_id}")
    async def history(session_id: str, request: Request) -> dict[str, Any]:
        """Return the history of a session, empty if there is none."""
        return _shown(await histories(request).load(session_id))

    @app.get("/api/health")
    async def health(request: Request) -> dict[str, str]:
        """Answer if the database does."""
        await histories(request).load("health")
        return {"status": "ok"}

    serve_page(app, own_page(__file__))
    return app


def _of_task(history: SessionHistory, is_new: bool) -> SessionHistory:
    return history.with_budget(history.budget.of(uuid.uuid4().hex if is_new else None))


def _shown(history: SessionHistory) -> dict[str, Any]:
    return {"history": history.messages}
