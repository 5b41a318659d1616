"""The demo over HTTP: the page, and the few requests it makes.

An answer travels as server-sent events: ``accepted`` once the message is stored, ``token`` for each piece of
text, then ``done`` or ``error``. A refusal before that is JSON, ``{"error": {"code", "message"}}``, as is
every other error. Threads are listed by the catalogue and read through the agent; nothing is stored here.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass
from datetime import datetime
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Protocol

from fastapi import FastAPI, Request, Response
from fastapi import Path as PathParameter
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, JSONResponse
from fastapi.staticfiles import StaticFiles
from langchain_core.messages import AIMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.types import StateSnapshot
from pydantic import BaseModel, ConfigDict, Field, field_validator
from sse_starlette import EventSourceResponse, ServerSentEvent
from starlette.exceptions import HTTPException

from perdure.demo.agent import Agent
from perdure.demo.answers import Answer, Answers, Event, Problem, Refused, messages_of
from perdure.demo.guard import Guard
from perdure.errors import PerdureError, Unavailable

MESSAGE_CHARACTERS = 8_000
TITLE_CHARACTERS = 60
THREADS_LISTED = 200
THREAD_ID = r"^[^/\x00-\x1f\x7f]{1,256}$"
MESSAGE_ID = r"^[A-Za-z0-9][A-Za-z0-9_.:-]{0,127}$"
PAGE = Path(str(files("perdure.demo"))) / "page"


class ThreadRow(Protocol):
    """What the catalogue says of a thread."""

    @property
    def thread_id(self) -> str:
        """The thread's id."""
        ...

    @property
    def updated_at(self) -> str | None:
        """When the thread last changed, in the form of ISO 8601, if that is known."""
        ...


class Catalogue(Protocol):
    """Lists the threads of a database."""

    def threads(self) -> AsyncIterator[ThreadRow]:
        """Every thread, in any order."""
        ...


@dataclass(frozen=True, slots=True)
class About:
    """What the page shows of the process behind it."""

    model: str
    database: str
    version: str


class NewMessage(BaseModel):
    """A user's message. Sent again under the same ``id`` it is not stored a second time."""

    model_config = ConfigDict(extra="forbid")

    text: str = Field(min_length=1, max_length=MESSAGE_CHARACTERS)
    id: str = Field(default_factory=lambda: uuid.uuid4().hex, pattern=MESSAGE_ID)

    @field_validator("text")
    @classmethod
    def _says_something(cls, text: str) -> str:
        if not text.strip():
            raise ValueError("the message is empty")
        if any("\ud800" <= character <= "\udfff" for character in text):
            raise ValueError("the message holds half a character")
        return text


ThreadId = Annotated[str, PathParameter(pattern=THREAD_ID)]


def create_app(
    agent: Agent, catalogue: Catalogue, answers: Answers, about: About, *, loopback: bool = True
) -> FastAPI:
    """The application. ``agent`` needs a checkpointer; the caller closes ``answers`` when it stops."""
    app = FastAPI(title="Perdure demo", docs_url=None, redoc_url=None, openapi_url=None)
    app.add_middleware(Guard, loopback=loopback)
    app.mount("/page", StaticFiles(directory=PAGE), name="page")
    app.exception_handler(Refused)(_refused)
    app.exception_handler(RequestValidationError)(_invalid)
    app.exception_handler(HTTPException)(_http_error)
    app.exception_handler(PerdureError)(_storage_error)
    app.exception_handler(Exception)(_failed)
    checkpointer = agent.checkpointer
    if not isinstance(checkpointer, BaseCheckpointSaver):
        raise TypeError("The agent is compiled without a checkpointer; pass one to build_agent.")
    headings = Headings(agent)

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(PAGE / "index.html")

    @app.get("/api/about")
    async def show_about() -> dict[str, str | int]:
        return {**asdict(about), "message_characters": MESSAGE_CHARACTERS}

    @app.get("/api/threads")
    async def list_threads() -> dict[str, object]:
        rows = [row async for row in catalogue.threads() if re.match(THREAD_ID, row.thread_id)]
        rows.sort(key=lambda row: _seconds(row.updated_at) or 0.0, reverse=True)
        threads = [
            {
                "id": row.thread_id,
                "updated_at": _seconds(row.updated_at),
                "title": (heading := await headings.of(row)).title,
                "status": _status(answers, row.thread_id, heading.unfinished),
            }
            for row in rows[:THREADS_LISTED]
        ]
        return {"threads": threads}

    @app.post("/api/threads", status_code=201)
    async def new_thread() -> dict[str, str]:
        return {"id": uuid.uuid4().hex}

    @app.get("/api/threads/{thread_id}")
    async def show_thread(thread_id: ThreadId) -> dict[str, object]:
        state = await agent.aget_state(_config(thread_id))
        if state.created_at is None:
            raise Refused(Problem(404, "not_found", "This conversation is not stored (any more)."))
        return {
            "id": thread_id,
            "title": title_of(state),
            "status": _status(answers, thread_id, bool(state.next)),
            "messages": [
                {"id": message.id, "role": role, "text": str(message.text)}
                for message in messages_of(state)
                if (role := _role(message)) and message.text
            ],
        }

    @app.post("/api/threads/{thread_id}/messages")
    async def send(thread_id: ThreadId, new: NewMessage) -> Response:
        return await _stream(answers.ask(thread_id, HumanMessage(new.text, id=new.id)))

    @app.post("/api/threads/{thread_id}/continue")
    async def resume(thread_id: ThreadId) -> Response:
        return await _stream(answers.resume(thread_id))

    @app.delete("/api/threads/{thread_id}", status_code=204)
    async def delete(thread_id: ThreadId) -> Response:
        await answers.stop(thread_id)
        await checkpointer.adelete_thread(thread_id)
        headings.forget(thread_id)
        return Response(status_code=204)

    return app


@dataclass(frozen=True, slots=True)
class Heading:
    """A line of the thread list."""

    title: str
    unfinished: bool


class Headings:
    """The lines of the thread list; a thread is read again only after it changed."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._read: dict[str, tuple[str, Heading]] = {}

    async def of(self, row: ThreadRow) -> Heading:
        """The line for a thread as the catalogue gave it."""
        known = self._read.get(row.thread_id)
        if known is not None and known[0] == row.updated_at:
            return known[1]
        state = await self._agent.aget_state(_config(row.thread_id))
        heading = Heading(title_of(state), bool(state.next))
        if row.updated_at is not None and not heading.unfinished:
            self._read[row.thread_id] = (row.updated_at, heading)
        return heading

    def forget(self, thread_id: str) -> None:
        """Drop what is remembered of a thread."""
        self._read.pop(thread_id, None)


def title_of(state: StateSnapshot) -> str:
    """The first user's message on one line, cut at a word."""
    for message in messages_of(state):
        if isinstance(message, HumanMessage):
            line = " ".join(str(message.text).split())
            if len(line) <= TITLE_CHARACTERS:
                return line
            return f"{line[:TITLE_CHARACTERS].rsplit(' ', 1)[0]}…"
    return "Untitled conversation"


def _seconds(moment: str | None) -> float | None:
    return None if moment is None else datetime.fromisoformat(moment).timestamp()


def _role(message: object) -> str | None:
    if isinstance(message, HumanMessage):
        return "user"
    return "assistant" if isinstance(message, AIMessage) else None


def _status(answers: Answers, thread_id: str, unfinished: bool) -> str:
    if answers.writing(thread_id):
        return "answering"
    return "unfinished" if unfinished else "finished"


def _config(thread_id: str) -> RunnableConfig:
    return {"configurable": {"thread_id": thread_id}}


async def _stream(answer: Answer) -> Response:
    first = await answer.first()
    if first.problem is not None:
        return _error(first.problem)

    async def events() -> AsyncIterator[ServerSentEvent]:
        async for event in answer.follow():
            yield ServerSentEvent(json.dumps(_wire(event)), event=event.name)

    return EventSourceResponse(events())


def _wire(event: Event) -> dict[str, object]:
    if event.problem is not None:
        return {"code": event.problem.code, "message": event.problem.message}
    return {key: value for key, value in (("text", event.text), ("message_id", event.message_id)) if value}


def _error(problem: Problem) -> JSONResponse:
    body = {"error": {"code": problem.code, "message": problem.message}}
    return JSONResponse(body, status_code=problem.status)


async def _refused(_: Request, error: Refused) -> JSONResponse:
    return _error(error.problem)


async def _invalid(_: Request, error: RequestValidationError) -> JSONResponse:
    faults = "; ".join(f"{'.'.join(str(part) for part in e['loc'][1:])}: {e['msg']}" for e in error.errors())
    return _error(Problem(422, "invalid", f"The request is not valid: {faults}."))


async def _http_error(_: Request, error: HTTPException) -> JSONResponse:
    return _error(Problem(error.status_code, "http", str(error.detail)))


async def _storage_error(_: Request, error: Exception) -> JSONResponse:
    if isinstance(error, Unavailable):
        return _error(Problem(503, "database_unavailable", "The database does not answer. Try again."))
    return _error(Problem(500, "storage", str(error)))


async def _failed(_: Request, error: Exception) -> JSONResponse:
    return _error(Problem(500, "internal", f"The server failed ({type(error).__name__}); its log says more."))
