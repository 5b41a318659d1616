"""Process of the demo that serves the page: database, model, runtime and server, started in this order and
stopped in reverse."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import uvicorn
from fastapi import FastAPI
from rich.console import Console
from rich.markup import escape
from starlette.requests import Request
from starlette.responses import RedirectResponse
from starlette.routing import Route

from perdure.config.hosts import format_for_url, is_loopback
from perdure.demo.running import open_demo
from perdure.errors import PerdureError
from perdure.server import app as api
from perdure.server.config import Http
from perdure.server.hosting.process import Server
from perdure.server.resources import ServerState
from perdure.server.routes import chat
from perdure.web.connections import LimitedConnection
from perdure.web.guard import Guard

STOPPING_SECONDS = 5
EXPOSED = "[yellow]Anyone who reaches this port can read and change every conversation.[/]"


@dataclass(frozen=True, slots=True)
class PageServer:
    """Address and model of the demo. A call serves the page until SIGINT or SIGTERM, and returns the exit
    code."""

    url: str
    host: str
    port: int
    model: str | None
    open_browser: bool

    def __call__(self, listener: socket.socket, is_again: bool) -> int:
        try:
            return asyncio.run(_serve(self, listener, is_again))
        except PerdureError as error:
            Console(stderr=True).print(f"[bold red]perdure demo:[/] {escape(str(error))}")
            return 1


async def _serve(serving: PageServer, listener: socket.socket, is_again: bool) -> int:
    console = Console(highlight=False)
    url, host, port = serving.url, serving.host, serving.port
    async with open_demo(url, serving.model, console) as demo:
        database, is_near = describe_url(url), is_loopback(host)
        app = create_app(demo.host, model=demo.model.label, database=database, loopback=is_near)
        bound_port: int = listener.getsockname()[1]
        address = f"http://{format_for_url(host)}:{bound_port}/"

        async def show_ready() -> None:
            if is_again:
                console.print(f"The process was killed; process {os.getpid()} goes on.")
                return
            moved_from = port if port not in (0, bound_port) else None
            _print_banner(console, address, database, demo.model.label, moved_from=moved_from)
            if not is_near:
                console.print(EXPOSED)
            if serving.open_browser:
                threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

        settings = uvicorn.Config(
            app,
            http=LimitedConnection,
            log_level="warning",
            lifespan="off",
            timeout_graceful_shutdown=STOPPING_SECONDS,
        )
        await Server(settings, show_ready, demo.host.close).serve(sockets=[listener])
    console.print("Stopped. Every accepted message is stored.")
    if demo.handed_over.count:
        console.print("The answer that was being written continues when the demo is started again.")
    return 0


def describe_url(url: str) -> str:
    """Return the database's name for people: a file's full path, or a URL without its password."""
    parts = urlsplit(url)
    if parts.scheme.startswith("sqlite") and parts.path:
        return str(Path(parts.path[1:] or parts.path).absolute())
    if parts.password is None:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:…@{host}"))


def _print_banner(
    console: Console, address: str, database: str, model: str, *, moved_from: int | None
) -> None:
    if moved_from is not None:
        console.print(f"[yellow]Port {moved_from} is taken, so this is another one.[/]")
    console.print()
    console.print(f"  [bold]Perdure demo[/]  {address}", soft_wrap=True)
    console.print(f"  [dim]inspector[/]     {address}inspect/", soft_wrap=True)
    console.print(f"  [dim]database[/]      {escape(database)}", soft_wrap=True)
    console.print(f"  [dim]model[/]         {escape(model)}", soft_wrap=True)
    console.print("  [dim]try[/]           ask for a long story, and press “Kill the server process”")
    console.print("  [dim]stop[/]          Ctrl-C; an open answer goes on at the next start")
    console.print()


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
    app.router.routes.insert(0, Route("/", _redirect_to_page))
    app.add_middleware(Guard, loopback=loopback)
    return app


async def _redirect_to_page(request: Request) -> RedirectResponse:
    return RedirectResponse(f"{chat.PATH}/")
