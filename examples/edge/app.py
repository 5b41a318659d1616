"""Conversations at the edge: a graph over Cloudflare D1, anchors, time travel, compaction by a schedule.

No process keeps anything between two requests, and nothing runs beside them: a scheduler, such as a cron
trigger, calls ``POST /scheduled``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel, Field

import perdure
from examples.database import database_of
from examples.page import own_page, serve_page
from perdure.retention.sweeper import RetentionOptions
from perdure.server import answer_error

KEPT = perdure.Retention(keep_last=10)
router = APIRouter()


async def answer(state: MessagesState) -> dict[str, Any]:
    """Say how much there is to read, in place of a model that reads it."""
    number = len(state["messages"])
    text = "This is the first message here." if number == 1 else f"I have {number} messages before me."
    return {"messages": [AIMessage(text)]}


builder = StateGraph(MessagesState).add_node(answer).add_edge(START, "answer")


class Said(BaseModel):
    text: str = Field(min_length=1)
    anchor: str | None = Field(None, description="Go on from this anchor instead of the latest state")


class Anchor(BaseModel):
    checkpoint_id: str | None = None


def create_app(db_url: str | None = None) -> FastAPI:
    """Return the application over a database, by default that of ``PERDURE_DB`` or ``edge.db``."""
    url, migrates = database_of("edge", db_url)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with perdure.connect(url, migrate=migrates, retention=KEPT) as database:
            app.state.database = database
            app.state.graph = builder.compile(checkpointer=database.checkpointer())
            yield

    app = FastAPI(title="Edge", lifespan=lifespan)
    app.exception_handler(perdure.PerdureError)(answer_error)
    app.include_router(router)
    serve_page(app, own_page(__file__))
    return app


def _database(request: Request) -> perdure.Database:
    database: perdure.Database = request.app.state.database
    return database


DatabaseNow = Annotated[perdure.Database, Depends(_database)]


@router.post("/threads/{thread}/messages")
async def say(request: Request, thread: str, said: Said, database: DatabaseNow) -> dict[str, Any]:
    """Answer a message. With an anchor the answer is a branch of its own, and the thread goes on from it."""
    configurable = {"thread_id": thread}
    if said.anchor is not None:
        anchors = await database.tags(thread)
        if said.anchor not in anchors:
            raise perdure.NotFound(f"the thread has no anchor {said.anchor!r}")
        configurable["checkpoint_id"] = anchors[said.anchor]
    given = {"messages": [{"role": "user", "content": said.text}]}
    state = await request.app.state.graph.ainvoke(given, {"configurable": configurable}, durability="sync")
    return {"answer": state["messages"][-1].text}


@router.get("/threads/{thread}/states")
async def states(request: Request, thread: str, limit: int = 100) -> list[dict[str, Any]]:
    """List the states of a thread, the newest first."""
    config: Any = {"configurable": {"thread_id": thread}}
    found = request.app.state.graph.aget_state_history(config, limit=limit)
    return [
        {
            "checkpoint_id": state.config["configurable"]["checkpoint_id"],
            "parent_id": ((state.parent_config or {}).get("configurable") or {}).get("checkpoint_id"),
            "messages": len(state.values.get("messages", [])),
        }
        async for state in found
    ]


@router.put("/threads/{thread}/anchors/{name}")
async def anchor(thread: str, name: str, at: Anchor, database: DatabaseNow) -> dict[str, str]:
    """Name a state, by default the latest: no compaction removes it."""
    return {"checkpoint_id": await database.tag(thread, name, at.checkpoint_id)}


@router.get("/threads/{thread}/anchors")
async def anchors(thread: str, database: DatabaseNow) -> dict[str, str]:
    return await database.tags(thread)


@router.post("/scheduled")
async def scheduled(database: DatabaseNow) -> dict[str, Any]:
    """Compact all threads: of each stay the last states, the anchors, and what these need."""
    swept = await database.apply_retention(RetentionOptions(share=1.0))
    return {} if swept is None else asdict(swept)
