"""An application on a port of its own, in the test's loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI

from perdure.server.resources import ServerState
from perdure.web.connections import LimitedConnection


@asynccontextmanager
async def served(app: FastAPI, host: ServerState) -> AsyncIterator[str]:
    """The address of an application over a host that is open, for as long as the block lasts."""
    app.state.perdure = host
    # Of a socket that says it is TCP's asyncio sends small answers at once.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        server = uvicorn.Server(
            uvicorn.Config(app, http=LimitedConnection, log_level="warning", lifespan="off")
        )
        serving = asyncio.create_task(server.serve([listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            await host.close()
            server.should_exit = True
            await serving
