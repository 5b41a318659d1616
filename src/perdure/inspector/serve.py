"""Process of ``perdure inspect``: it serves the pages of one database until it is stopped."""

from __future__ import annotations

import socket
import threading
import webbrowser
from collections.abc import Callable

import uvicorn

from perdure.inspector.access import Access
from perdure.inspector.web import create_app

_STOPPING_S = 2


class InspectorServer(uvicorn.Server):
    """uvicorn's server, which calls ``ready`` once requests are answered."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._ready()


async def serve(
    access: Access,
    listener: socket.socket,
    *,
    loopback: bool,
    ready: Callable[[], None],
    open_browser: str | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM.

    Args:
        access: The rights of the viewers.
        listener: The listening socket.
        loopback: True if it listens on the loopback address.
        ready: Called once requests are answered.
        open_browser: Address to open in a browser, if any.
    """

    def started() -> None:
        ready()
        if open_browser is not None:
            threading.Thread(target=webbrowser.open, args=(open_browser,), daemon=True).start()

    config = uvicorn.Config(
        create_app(access, loopback=loopback),
        log_level="warning",
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=_STOPPING_S,
    )
    await InspectorServer(config, started).serve(sockets=[listener])
