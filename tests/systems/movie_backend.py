"""A FastAPI backend that owns its checkpointer: the graph is compiled once in the lifespan, over
``DATABASE_URL``, and the same database has the application's own tables.
``uvicorn tests.systems.movie_backend:app``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from fastapi import FastAPI, HTTPException, Request
from langchain_core.messages import AIMessage
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

import perdure
from perdure.server import answer_error

TABLES = """
CREATE TABLE IF NOT EXISTS app_users (id text PRIMARY KEY, email text UNIQUE NOT NULL);
CREATE TABLE IF NOT EXISTS app_sessions (
    id text PRIMARY KEY,
    user_id text REFERENCES app_users ON DELETE CASCADE
);
CREATE TABLE IF NOT EXISTS app_messages (
    number bigint GENERATED ALWAYS AS IDENTITY,
    id text PRIMARY KEY,
    session_id text REFERENCES app_sessions ON DELETE CASCADE,
    question text NOT NULL,
    answer text
);
CREATE TABLE IF NOT EXISTS app_revoked_tokens (jti text PRIMARY KEY);
"""
CONNECT_S = 3
THINKS_S = float(os.environ.get("THINKS_S", "0"))


async def recommend(state: MessagesState) -> dict[str, Any]:
    await asyncio.sleep(THINKS_S)
    asked = [message for message in state["messages"] if message.type == "human"]
    return {"messages": [AIMessage(f"{len(asked)}: a movie for {asked[-1].text}")]}


builder = StateGraph(MessagesState).add_node(recommend).add_edge(START, "recommend")


def own(url: str) -> Any:
    """Return a connection for the application's tables."""
    return psycopg.AsyncConnection.connect(url.partition("?")[0], autocommit=True, connect_timeout=CONNECT_S)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    url = app.state.url = os.environ["DATABASE_URL"]
    async with await own(url) as connection:
        await connection.execute("SELECT pg_advisory_lock(77)")
        await connection.execute(TABLES)
    async with perdure.checkpoint_lifespan(url) as saver:
        app.state.graph = perdure.compile_graph(builder, checkpointer=saver)
        yield


app = FastAPI(lifespan=lifespan)
app.exception_handler(perdure.PerdureError)(answer_error)


@app.exception_handler(psycopg.OperationalError)
async def unavailable(request: Request, error: Exception) -> Any:
    return await answer_error(request, perdure.Unavailable("the database does not answer"))


class Chat(BaseModel):
    session_id: str
    message_id: str
    text: str


@app.get("/health/live")
async def live() -> dict[str, str]:
    return {"status": "live"}


@app.get("/health/ready")
async def ready(request: Request) -> dict[str, str]:
    """Ready if the checkpoints can be read."""
    await request.app.state.graph.checkpointer.aget_tuple({"configurable": {"thread_id": "health"}})
    return {"status": "ready"}


@app.post("/sessions/{session_id}", status_code=201)
async def begin(session_id: str, request: Request) -> dict[str, str]:
    async with await own(request.app.state.url) as connection:
        await connection.execute(
            "INSERT INTO app_users VALUES (%s, %s) ON CONFLICT DO NOTHING",
            (session_id, f"{session_id}@x.org"),
        )
        await connection.execute(
            "INSERT INTO app_sessions VALUES (%s, %s) ON CONFLICT DO NOTHING", (session_id, session_id)
        )
    return {"session_id": session_id}


@app.post("/chat")
async def chat(body: Chat, request: Request) -> dict[str, str]:
    """Answer a message once, however often and to whichever replica it is sent."""
    async with await own(request.app.state.url) as connection:
        await connection.execute(
            "INSERT INTO app_messages (id, session_id, question) VALUES (%s, %s, %s) ON CONFLICT DO NOTHING",
            (body.message_id, body.session_id, body.text),
        )
        rows = connection.execute("SELECT answer FROM app_messages WHERE id = %s", (body.message_id,))
        answer = (await (await rows).fetchone())[0]
    if answer is None:
        given = {"messages": [{"role": "user", "content": body.text, "id": body.message_id}]}
        config: Any = {
            "configurable": {"thread_id": body.session_id},
            "metadata": {"run_id": body.message_id},
        }
        state = await request.app.state.graph.ainvoke(given, config, durability="sync")
        answer = state["messages"][-1].text
        async with await own(request.app.state.url) as connection:
            await connection.execute(
                "UPDATE app_messages SET answer = %s WHERE id = %s", (answer, body.message_id)
            )
    return {"answer": answer}


@app.get("/sessions/{session_id}/messages")
async def history(session_id: str, request: Request) -> dict[str, Any]:
    """The messages of the application's table, and those of the thread."""
    async with await own(request.app.state.url) as connection:
        cursor = await connection.execute(
            "SELECT question, answer FROM app_messages WHERE session_id = %s ORDER BY number", (session_id,)
        )
        rows = await cursor.fetchall()
    if not rows:
        raise HTTPException(404, "There is no such session.")
    state = await request.app.state.graph.aget_state({"configurable": {"thread_id": session_id}})
    return {"rows": rows, "thread": [message.text for message in state.values["messages"]]}
