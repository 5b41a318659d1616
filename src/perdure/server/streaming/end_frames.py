"""Selection of clients that receive the frame that ends a stream of a run.

The frame lets a client distinguish a finished stream from one that was cut off, without another request. A
client that does not know this frame mistakes it for one more part of the result.
"""

from __future__ import annotations

import re

from starlette.requests import Request

HEADER = "x-end-frame"
"""Header by which any client requests or declines the frame: ``true`` or ``false``."""

_PYTHON = re.compile(r"langgraph-sdk-py/(\d+)\.(\d+)\.(\d+)")
_FIRST_RELEASE = (0, 4, 14)
"""First release of LangGraph's SDK for Python that knows the frame."""
_JAVASCRIPT_AGENTS = re.compile(r"^(node|undici|Deno/|Bun/|Mozilla/)", re.IGNORECASE)
"""User agents of LangGraph's SDK for JavaScript, which sends no name of its own and does not know the
frame."""


def wants_end(request: Request) -> bool:
    """Return True if the client of a request gets the frame. ``HEADER`` decides, if it is sent. Without it
    all clients get the frame except JavaScript runtimes and older releases of LangGraph's SDK for Python,
    which do not know it."""
    asked = request.headers.get(HEADER, "").lower()
    if asked in ("true", "false"):
        return asked == "true"
    agent = request.headers.get("user-agent", "")
    if version := _PYTHON.match(agent):
        return tuple(map(int, version.groups())) >= _FIRST_RELEASE
    return _JAVASCRIPT_AGENTS.match(agent) is None
