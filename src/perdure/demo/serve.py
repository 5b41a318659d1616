"""Server of the demo: one database, one graph, a chat model and the page.

Everything starts in the order database, model, runtime, server, and stops in reverse, in a child process that
is replaced when it is killed. After Ctrl-C, unfinished answers are handed over and continue when the demo is
started again.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
import webbrowser
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

from rich.console import Console
from rich.markup import escape

from perdure.config.hosts import in_url, is_loopback
from perdure.demo.models import require
from perdure.demo.replaced_process import serve_replaced
from perdure.errors import PerdureError
from perdure.web.listening import bound, listening

STOPPING_SECONDS = 5
EXPOSED = "[yellow]Anyone who reaches this port can read and change every conversation.[/]"
PORTS_TRIED = 20


def main_demo(
    db_url: str,
    *,
    host: str,
    port: int,
    model: str | None,
    once: str | None,
    thread: str | None,
    open_browser: bool,
) -> int:
    """Serve the page, or print the answer to one message; return the process's exit code.

    An error that prevents the start is printed to stderr in a sentence, with exit code 1.

    Args:
        db_url: The URL of the database.
        host: The address to listen on.
        port: The port to listen on; another one if it is taken.
        model: The model to use, if one was named.
        once: The one message to answer, instead of the page.
        thread: The thread that ``once`` continues, if any.
        open_browser: True to open the page in a browser.
    """
    try:
        require("dotenv", "fastapi", "jwt", "numpy", "sse_starlette", "snowballstemmer", "uvicorn")
        if once is not None:
            from perdure.demo.one_message import answer_once

            return asyncio.run(answer_once(once, db_url, model, thread))
        with _listening(host, port) as listener:
            serving = _Serving(db_url, host, port, model, open_browser)
            return serve_replaced(serving, listener)
    except PerdureError as error:
        Console(stderr=True).print(f"[bold red]perdure demo:[/] {escape(str(error))}")
        return 1
    except KeyboardInterrupt:
        return 130


@dataclass(frozen=True, slots=True)
class _Serving:
    """Address and model of a process of the demo."""

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


async def _serve(serving: _Serving, listener: socket.socket, is_again: bool) -> int:
    """Serve the page until SIGINT or SIGTERM and return the exit code."""
    import uvicorn

    from perdure.demo.running import opened
    from perdure.demo.web import create_app
    from perdure.server.hosting.process import Server
    from perdure.web.connections import LimitedConnection

    console = Console(highlight=False)
    url, host, port = serving.url, serving.host, serving.port
    async with opened(url, serving.model, console) as demo:
        database, is_near = shown_url(url), is_loopback(host)
        app = create_app(demo.host, model=demo.model.label, database=database, loopback=is_near)
        taken: int = listener.getsockname()[1]
        address = f"http://{in_url(host)}:{taken}/"

        async def ready() -> None:
            if is_again:
                console.print(f"The process was killed; process {os.getpid()} goes on.")
                return
            moved_from = port if port not in (0, taken) else None
            _banner(console, address, database, demo.model.label, moved_from=moved_from)
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
        await Server(settings, ready, demo.host.close).serve(sockets=[listener])
    console.print("Stopped. Every accepted message is stored.")
    if demo.handed_over.count:
        console.print("The answer that was being written continues when the demo is started again.")
    return 0


def shown_url(url: str) -> str:
    """Return the database's name for people: a file's full path, or a URL without its password."""
    parts = urlsplit(url)
    if parts.scheme.startswith("sqlite") and parts.path:
        return str(Path(parts.path[1:] or parts.path).absolute())
    if parts.password is None:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:…@{host}"))


def _listening(host: str, port: int) -> socket.socket:
    """Return a socket that listens on the port, or if that is taken on one of the next ports, or on any."""
    candidates = [port, *range(port + 1, min(port + PORTS_TRIED, 65536)), 0] if port else [0]
    for candidate in candidates[:-1]:
        try:
            return bound(host, candidate)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                break
    return listening(host, candidates[-1])


def _banner(console: Console, address: str, database: str, model: str, *, moved_from: int | None) -> None:
    if moved_from is not None:
        console.print(f"[yellow]Port {moved_from} is taken, so this is another one.[/]")
    console.print()
    console.print(f"  [bold]Perdure demo[/]  {address}", soft_wrap=True)
    console.print(f"  [dim]inspector[/]     {address}inspect/", soft_wrap=True)
    console.print(f"  [dim]database[/]      {escape(database)}", soft_wrap=True)
    console.print(f"  [dim]model[/]         {escape(model)}", soft_wrap=True)
    console.print("  [dim]stop[/]          Ctrl-C, or kill -9: the conversations stay either way")
    console.print()
