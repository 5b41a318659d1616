"""Server of the demo: one database, one graph, a chat model and the page.

They are in a child process that is replaced when it is killed. After Ctrl-C, unfinished answers are handed
over and continue when the demo is started again.
"""

from __future__ import annotations

import asyncio
import errno
import socket

from rich.console import Console
from rich.markup import escape

from perdure.demo.models import require
from perdure.errors import PerdureError
from perdure.web.listening import bind, listen

PORTS_TRIED = 20
SERVER_MODULES = (
    "cronsim",
    "cryptography",
    "dotenv",
    "fastapi",
    "httptools",
    "httpx",
    "jwt",
    "numpy",
    "snowballstemmer",
    "sse_starlette",
    "uvicorn",
    "websockets",
)
"""Modules of the extra ``demo`` that every demo needs, whatever its model is."""


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
        require(*SERVER_MODULES)
        if once is not None:
            from perdure.demo.one_message import answer_once

            return asyncio.run(answer_once(once, db_url, model, thread))
        # Import before the fork, so that a process that replaces a killed one starts without importing.
        from perdure.demo.page_server import PageServer
        from perdure.demo.replaced_process import serve_replaced

        with _listen(host, port) as listener:
            return serve_replaced(PageServer(db_url, host, port, model, open_browser), listener)
    except PerdureError as error:
        Console(stderr=True).print(f"[bold red]perdure demo:[/] {escape(str(error))}")
        return 1
    except KeyboardInterrupt:
        return 130


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on the port or, if it is taken, on one of the next ports, or else on
    any."""
    for candidate in range(port, min(port + PORTS_TRIED, 65536)) if port else ():
        try:
            return bind(host, candidate)
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                break
    return listen(host, 0)
