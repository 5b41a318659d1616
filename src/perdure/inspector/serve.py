"""Process of ``perdure inspect``: it serves the pages of one database until it is stopped."""

from __future__ import annotations

import socket
import threading
import webbrowser
from collections.abc import Callable
from typing import NamedTuple

import uvicorn

from perdure.inspector.access import Access
from perdure.inspector.web import create_app
from perdure.web.connections import make_server_config

_STOPPING_S = 2


class InspectorServer(uvicorn.Server):
    """uvicorn's server, which calls ``ready`` once requests are answered."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


class Presentation(NamedTuple):
    """Address and scope of a started inspector.

    Attributes:
        loopback: True if it listens on the loopback address; requests with other host names are then refused.
        ready: Called once requests are answered.
        open_browser: Address to open in a browser, if any.
    """

    loopback: bool
    ready: Callable[[], None]
    open_browser: str | None = None


async def serve(access: Access, listener: socket.socket, shown: Presentation) -> None:
    """Serve the viewers with these rights until SIGINT or SIGTERM."""

    def show_ready() -> None:
        shown.ready()
        if shown.open_browser is not None:
            threading.Thread(target=webbrowser.open, args=(shown.open_browser,), daemon=True).start()

    config = make_server_config(create_app(access, loopback=shown.loopback), _STOPPING_S, ws="none")
    await InspectorServer(config, show_ready).serve(sockets=[listener])
