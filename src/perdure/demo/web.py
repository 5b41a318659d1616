"""HTTP application of the demo: LangGraph's API, the chat page, and the guard in front of both."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.routing import Route

from perdure.server import app as api
from perdure.server.config import Http
from perdure.server.resources import ServerState
from perdure.server.routes import chat
from perdure.web.guard import Guard

STARTS = (
    "Tell me a long story about a lighthouse",
    "What is a good name for a cat?",
    "Explain tides to a child",
)


def create_app(host: ServerState, *, model: str, database: str, loopback: bool = True) -> FastAPI:
    """Return the application.

    Args:
        host: The state of the server.
        model: The model's name on the page.
        database: The database's name on the page.
        loopback: True if only the loopback address is served.
    """
    app = api.create_app(None, Http(inspector=True))
    app.state.perdure = host
    about = {"model": model, "database": database, "starts": STARTS, "inspector": True, "process": loopback}
    chat.serve_page(app, about)
    app.router.routes.insert(0, Route("/", _to_the_page))
    app.add_middleware(Guard, loopback=loopback)
    return app


async def _to_the_page(request: Request) -> RedirectResponse:
    return RedirectResponse(f"{chat.PATH}/")
