"""Users, sessions and messages in tables of their own, and the graph's checkpoints, in one database.

A message is stored before the graph runs, and its id is the run's. So whatever is interrupted goes on when
the request is sent again, on any replica: a run that has ended is not repeated, and an answer is stored once,
on PostgreSQL by the commit of the step that gave it.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Header, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from langchain_core.runnables import RunnableConfig
from langgraph.graph.state import CompiledStateGraph
from pydantic import BaseModel, Field
from sqlalchemy.exc import OperationalError

import perdure
from examples.database import database_of
from examples.page import own_page, serve_page
from perdure.server import answer_error

from .accounts import Accounts, secret_of
from .agent import compile_graph
from .database import migrate, open_engine
from .sessions import Sessions

router = APIRouter()
_log = logging.getLogger(__name__)


class Login(BaseModel):
    email: str = Field(min_length=3, max_length=320)
    password: str = Field(min_length=8, max_length=200)


class Token(BaseModel):
    refresh_token: str


class Question(BaseModel):
    text: str = Field(min_length=1)


def create_app(db_url: str | None = None, secret: str | None = None) -> FastAPI:
    """Return the application over a database, by default that of ``PERDURE_DB`` or ``movies.db``.
    ``MOVIES_SECRET`` signs its access tokens; on SQLite it has a secret of its own without it."""
    url, migrates = database_of("movies", db_url)
    engine = open_engine(url)
    accounts = Accounts(engine, secret_of(engine, secret))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await run_in_threadpool(migrate, engine)
        async with perdure.checkpoint_lifespan(url, migrate=migrates) as saver:
            app.state.graph = compile_graph(checkpointer=saver)
            yield
        engine.dispose()

    app = FastAPI(title="Movies", lifespan=lifespan)
    app.state.accounts = accounts
    app.state.sessions = Sessions(engine)
    app.exception_handler(perdure.PerdureError)(answer_error)
    app.exception_handler(OperationalError)(_unavailable)
    app.include_router(router)
    serve_page(app, own_page(__file__))
    return app


async def _unavailable(request: Request, error: Exception) -> Any:
    return await answer_error(request, perdure.Unavailable("the database does not answer"))


def _accounts(request: Request) -> Accounts:
    accounts: Accounts = request.app.state.accounts
    return accounts


def _sessions(request: Request) -> Sessions:
    sessions: Sessions = request.app.state.sessions
    return sessions


AccountsNow = Annotated[Accounts, Depends(_accounts)]
SessionsNow = Annotated[Sessions, Depends(_sessions)]


def _user(held: Annotated[HTTPAuthorizationCredentials, Depends(HTTPBearer())], accounts: AccountsNow) -> str:
    return accounts.user_of(held.credentials)


User = Annotated[str, Depends(_user)]


def _session(session_id: str, user_id: User, sessions: SessionsNow) -> str:
    sessions.require(session_id, user_id)
    return session_id


Session = Annotated[str, Depends(_session)]


@router.post("/users", status_code=201)
def register(login: Login, accounts: AccountsNow) -> dict[str, str]:
    return {"user_id": accounts.register(login.email, login.password)}


@router.post("/login")
def log_in(login: Login, accounts: AccountsNow) -> dict[str, str]:
    return accounts.log_in(login.email, login.password)


@router.post("/refresh")
def refresh(token: Token, accounts: AccountsNow) -> dict[str, str]:
    return accounts.refresh(token.refresh_token)


@router.post("/logout", status_code=204)
def log_out(token: Token, accounts: AccountsNow) -> None:
    accounts.log_out(token.refresh_token)


@router.post("/sessions", status_code=201)
def begin(user_id: User, sessions: SessionsNow) -> dict[str, str]:
    return {"session_id": sessions.begin(user_id)}


@router.get("/sessions/{session_id}/messages")
def history(session: Session, sessions: SessionsNow) -> list[dict[str, Any]]:
    return [{name: row[name] for name in ("question", "answer")} for row in sessions.rows(session)]


@router.post("/sessions/{session_id}/messages")
async def ask(
    request: Request,
    session: Session,
    sessions: SessionsNow,
    question: Question,
    idempotency_key: Annotated[str, Header(min_length=1, max_length=200)],
) -> dict[str, str]:
    """Answer a message, after those before it that were left without an answer. It is stored first, so it
    needs a key of its own by which it is known when it is sent again. One before it that the graph fails on
    is left out from then on, unless it is sent again itself."""
    message_id = f"{session}:{idempotency_key}"
    await run_in_threadpool(sessions.add, session, message_id, question.text)
    for row in await run_in_threadpool(sessions.rows, session):
        is_own = row["id"] == message_id
        if row["answer"] is not None or (row["has_failed"] and not is_own):
            continue
        try:
            answer = await _reply(request.app.state.graph, session, row, sessions.are_with_threads)
        except (perdure.PerdureError, OperationalError):
            raise
        except Exception:
            if is_own:
                raise
            _log.exception("a message failed again and is left out")
            await run_in_threadpool(sessions.fail, row["id"])
        else:
            await run_in_threadpool(sessions.answer, row["id"], answer)
    held = {row["id"]: row["answer"] for row in await run_in_threadpool(sessions.rows, session)}
    return {"answer": held[message_id]}


async def _reply(
    graph: CompiledStateGraph[Any, Any, Any, Any], session: str, row: dict[str, Any], stores_answer: bool
) -> str:
    """Run the graph on a message, and return its answer, which the graph stores itself if it can."""
    config: RunnableConfig = {"configurable": {"thread_id": session}, "metadata": {"run_id": row["id"]}}
    if stores_answer:
        config["configurable"]["message_id"] = row["id"]
    said = {"messages": [{"role": "user", "content": row["question"], "id": row["id"]}]}
    state = await graph.ainvoke(said, config, durability="sync")
    return str(state["messages"][-1].text)
