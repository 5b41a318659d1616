"""Runs the demo: opens the file and the model, then serves the page or answers one message.

Everything starts in this order and stops in the reverse one: database, model, agent, server. A stop by Ctrl-C
first ends the answers being written, so that what is stored is what the page was told.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import signal
import socket
import sys
import threading
import time
import uuid
import webbrowser
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit, urlunsplit

from langchain_core.messages import HumanMessage
from rich.console import Console
from rich.markup import escape

from perdure.demo.models import OpenModel, choose_model, open_model, require
from perdure.errors import PerdureError

if TYPE_CHECKING:
    import uvicorn

    from perdure.demo.answers import Answers
    from perdure.demo.web import Catalogue

STOPPING_SECONDS = 5
ANY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104 - compared with, not bound to
EXPOSED = "[yellow]Anyone who reaches this port can read and change every conversation.[/]"
PORTS_TRIED = 20


@dataclass(frozen=True, slots=True)
class Demo:
    """The open parts of a running demo."""

    answers: Answers
    agent: Any
    catalogue: Catalogue
    model: OpenModel


def main_demo(
    db_url: str,
    host: str,
    port: int,
    model: str | None,
    once: str | None,
    thread: str | None,
    open_browser: bool,
) -> int:
    """Serve the page, or with ``once`` print the answer to one message; the process's exit code.

    What keeps the demo from starting is printed to stderr in a sentence, with exit code 1.
    """
    try:
        require("fastapi", "sse_starlette", "uvicorn")
        if once is not None:
            return asyncio.run(answer_once(once, db_url, model, thread))
        return asyncio.run(serve(db_url, host, port, model, open_browser))
    except PerdureError as error:
        Console(stderr=True).print(f"[bold red]perdure demo:[/] {escape(str(error))}")
        return 1
    except KeyboardInterrupt:
        return 130


async def serve(url: str, host: str, port: int, model: str | None, open_browser: bool) -> int:
    """Serve the page until SIGINT or SIGTERM; the exit code. Takes another port when ``port`` is taken."""
    import uvicorn

    from perdure.demo.web import About, create_app

    console = Console(highlight=False)
    with _listening(host, port) as listener:
        async with _demo(url, model, console) as demo:
            about = About(demo.model.label, shown_url(url), _version())
            loopback = _is_loopback(host)
            app = create_app(demo.agent, demo.catalogue, demo.answers, about, loopback=loopback)
            taken: int = listener.getsockname()[1]
            address = f"http://{_in_url(host)}:{taken}/"

            async def ready() -> None:
                _banner(console, address, about, moved_from=port if port not in (0, taken) else None)
                if not loopback:
                    console.print(
                        "[yellow]Anyone who reaches this port can read and change every conversation.[/]"
                    )
                if open_browser:
                    threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

            cut_off: list[int] = []

            async def stopping() -> None:
                cut_off.append(await demo.answers.close())

            config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=STOPPING_SECONDS)
            await _server(config, ready, stopping).serve(sockets=[listener])
    console.print("Stopped. Every accepted message is stored.")
    if sum(cut_off):
        console.print("The answer that was being written goes on when its conversation is opened again.")
    return 0


async def answer_once(text: str, url: str, model: str | None, thread: str | None) -> int:
    """Print one answer to stdout as it is written; 0, or 1 when there is none.

    Everything else, the thread's id to go on with among it, is printed to stderr.
    """
    console = Console(stderr=True, highlight=False)
    if not text.strip():
        console.print("[bold red]perdure demo:[/] The message is empty.")
        return 1
    thread_id = thread or uuid.uuid4().hex
    async with _demo(url, model, console) as demo:
        answer = demo.answers.ask(thread_id, HumanMessage(text, id=uuid.uuid4().hex))
        written = False
        async for event in answer.follow():
            if event.problem is not None:
                console.print(f"[bold red]perdure demo:[/] {escape(event.problem.message)}")
                return 1
            if event.name == "token" or (event.name == "done" and not written):
                written = True
                sys.stdout.write(event.text)
                sys.stdout.flush()
        sys.stdout.write("\n")
        again = f"--db {escape(url)} --thread {thread_id} --once …"
        console.print(f"[dim]Go on with:[/] perdure demo {again}", soft_wrap=True)
    return 0


def shown_url(url: str) -> str:
    """The database for people: a file's full path, or a URL without its password."""
    parts = urlsplit(url)
    if parts.scheme.startswith("sqlite") and parts.path:
        return str(Path(parts.path[1:] or parts.path).absolute())
    if parts.password is None:
        return url
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit(parts._replace(netloc=f"{parts.username or ''}:…@{host}"))


@asynccontextmanager
async def _demo(url: str, asked: str | None, console: Console) -> AsyncIterator[Demo]:
    import perdure
    from perdure.demo.agent import build_agent
    from perdure.demo.answers import Answers

    choice = choose_model(asked, os.environ)
    async with perdure.connect(url, migrate=True) as db:
        started = time.perf_counter()
        opening = open_model(choice, os.environ)
        with console.status("Loading the model…"):
            model = await asyncio.to_thread(opening.__enter__)
        try:
            console.print(f"[dim]Model ready after {time.perf_counter() - started:.1f} s.[/]")
            agent = build_agent(
                model.chat, context_tokens=model.context_tokens, checkpointer=db.checkpointer()
            )
            answers = Answers(agent)
            try:
                yield Demo(answers, agent, db, model)
            finally:
                await answers.close()
        finally:
            await asyncio.to_thread(opening.__exit__, None, None, None)


def _server(
    config: uvicorn.Config, ready: Callable[[], Awaitable[None]], stopping: Callable[[], Awaitable[None]]
) -> uvicorn.Server:
    import uvicorn

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            await ready()

        async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
            await stopping()
            await super().shutdown(sockets)

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            # The base class raises the signal again once all is stopped: that would cancel our clean-up.
            before = {
                number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)
            }
            try:
                yield
            finally:
                for number, handler in before.items():
                    signal.signal(number, handler)

    return Server(config)


@contextmanager
def _listening(host: str, port: int) -> Iterator[socket.socket]:
    """A socket bound to the port, or when that is taken to one of the next, or to any."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    candidates = [port, *range(port + 1, min(port + PORTS_TRIED, 65536)), 0] if port else [0]
    for candidate in candidates:
        listener = socket.socket(family, socket.SOCK_STREAM)
        if os.name != "nt":
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, candidate))
            listener.listen()
        except OSError as error:
            listener.close()
            if error.errno in (errno.EADDRINUSE, errno.EACCES) and candidate != candidates[-1]:
                continue
            place = f"{host}:{candidate} ({error.strerror})"
            raise PerdureError(f"Cannot listen on {place}; try another --host or --port.") from error
        with listener:
            yield listener
        return


def _banner(console: Console, address: str, about: Any, *, moved_from: int | None) -> None:
    if moved_from is not None:
        console.print(f"[yellow]Port {moved_from} is taken, so this is another one.[/]")
    console.print()
    console.print(f"  [bold]Perdure demo[/]  {address}", soft_wrap=True)
    console.print(f"  [dim]database[/]      {escape(about.database)}", soft_wrap=True)
    console.print(f"  [dim]model[/]         {escape(about.model)}", soft_wrap=True)
    console.print("  [dim]stop[/]          Ctrl-C, or kill -9: the conversations stay either way")
    console.print()


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _in_url(host: str) -> str:
    if host in ANY_ADDRESS:
        return "127.0.0.1"
    return f"[{host}]" if ":" in host else host


def _version() -> str:
    try:
        return version("perdure")
    except PackageNotFoundError:
        return "unknown"
