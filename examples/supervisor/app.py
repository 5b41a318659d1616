"""The HTTP side: a message is durable before it is answered; fragments in quick succession are one run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException
from pydantic import BaseModel, Field

import perdure
from examples.database import database_of
from examples.page import own_page, serve_page
from perdure.runtime import Agent, Logs, Runtime
from perdure.server import answer_error
from perdure.supervisor import Spent, Usage

from .agent import agent
from .doubles import Doubles

DEBOUNCE_S = 0.5


class ChatMessage(BaseModel):
    """A message of a chat, as a webhook of a messenger would pass it on."""

    chat: str = Field(min_length=1, max_length=255)
    text: str = Field(min_length=1)


def create_app(db_url: str | None = None, helper: Agent | None = None) -> FastAPI:
    """Return the application over a database, by default that of ``PERDURE_DB`` or ``supervisor.db``.
    Telegram and WhatsApp are doubles on this machine."""
    url, migrates = database_of("supervisor", db_url)
    usage = Usage()
    doubles = Doubles(DEBOUNCE_S)
    named = {"supervisor": helper or agent()}

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with (
            perdure.connect(url, migrate=migrates) as database,
            doubles as bots,
            Runtime(database, named, channels=bots.channels, observers=(Logs(), usage)) as runtime,
        ):
            app.state.runtime = runtime
            app.router.routes.extend(bots.routes(runtime))
            yield

    app = FastAPI(title="Supervisor", lifespan=lifespan)
    app.exception_handler(perdure.PerdureError)(answer_error)

    @app.post("/api/chat")
    async def chat(
        message: ChatMessage, idempotency_key: Annotated[str | None, Header()] = None
    ) -> dict[str, Any]:
        """Accept a message, and return the reply to it and to the fragments around it."""
        runtime: Runtime = app.state.runtime
        ticket = await runtime.accept(
            message.chat,
            message.text,
            dedupe_key=idempotency_key,
            debounce=DEBOUNCE_S,
            config={"configurable": {"user_id": message.chat}},
        )
        run = await runtime.wait(ticket)
        at: Any = {"configurable": {"thread_id": message.chat}}
        # Later messages may have been answered since: the reply is in the last checkpoint of this run.
        stored = runtime.graph("supervisor").aget_state_history(at, filter={"run_id": run.id}, limit=1)
        states = [found.values async for found in stored] if run.state == "done" else []
        if not states:
            raise HTTPException(502, f"run {run.id} has no reply: it is {run.state}")
        return {"route": states[0]["route"], "reply": states[0]["messages"][-1].text, "state": run.state}

    @app.get("/api/usage")
    async def used() -> dict[str, Any]:
        """Return the calls, tokens, time and cost of models by hop and by user, since this process began."""
        hops, users = usage.by_hop(), usage.by_user()
        return {
            "hops": {name: _shown(spent) for name, spent in hops.items()},
            "users": {name or "nobody": _shown(spent) for name, spent in users.items()},
        }

    app.include_router(doubles.router())
    serve_page(app, own_page(__file__))
    return app


def _shown(spent: Spent) -> dict[str, float]:
    """Return sums as people read them: seconds to the millisecond, and dollars to a thousandth of a cent."""
    return {
        "calls": spent.calls,
        "input_tokens": spent.input_tokens,
        "output_tokens": spent.output_tokens,
        "seconds": round(spent.seconds, 3),
        "dollars": round(spent.cost, 5),
    }
