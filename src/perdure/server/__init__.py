"""HTTP server: graphs served to LangGraph's clients, over any of the databases.

The names exported here are for existing FastAPI applications. They are imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from perdure.errors import MissingExtra

if find_spec("fastapi") is None:
    raise MissingExtra("perdure.server needs an extra: pip install 'perdure[server]'")

if TYPE_CHECKING:
    from perdure.config.checkpoint_lifespan import compile_graph
    from perdure.server.error_handlers import answer_error
    from perdure.server.hosting.embedding import (
        RequestThreadId,
        perdure_app,
        perdure_router,
        thread_id_of_request,
    )
    from perdure.server.hosting.lifespan import Opened, OpenedNow, checkpoint_lifespan

__all__ = [
    "Opened",
    "OpenedNow",
    "RequestThreadId",
    "answer_error",
    "checkpoint_lifespan",
    "compile_graph",
    "perdure_app",
    "perdure_router",
    "thread_id_of_request",
]

_OF = {
    "answer_error": ("server.error_handlers", "answer_error"),
    "checkpoint_lifespan": ("server.hosting.lifespan", "checkpoint_lifespan"),
    "compile_graph": ("config.checkpoint_lifespan", "compile_graph"),
    "Opened": ("server.hosting.lifespan", "Opened"),
    "OpenedNow": ("server.hosting.lifespan", "OpenedNow"),
    "perdure_app": ("server.hosting.embedding", "perdure_app"),
    "perdure_router": ("server.hosting.embedding", "perdure_router"),
    "RequestThreadId": ("server.hosting.embedding", "RequestThreadId"),
    "thread_id_of_request": ("server.hosting.embedding", "thread_id_of_request"),
}
"""Module of each exported name, below ``perdure``, and its name there."""


def __getattr__(name: str) -> Any:
    if name not in _OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, own = _OF[name]
    return getattr(import_module(f"perdure.{module}"), own)
