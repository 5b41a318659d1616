"""Where a graph failed: the place in its own code, which tells nothing of what anybody wrote."""

from __future__ import annotations

import logging
from pathlib import Path

_LIBRARIES = {"perdure", "langgraph", "langchain_core", "asyncio", "concurrent", "threading", "contextvars"}
_log = logging.getLogger("perdure.failures")
if _log.level == logging.NOTSET:
    # Messages and tracebacks may quote users: they are written where this logger is asked for by name, not
    # wherever the root logger's level is lowered.
    _log.setLevel(logging.INFO)


def show_failures() -> None:
    """Have this process write the messages and tracebacks of graphs that fail, for those who develop them."""
    _log.setLevel(logging.DEBUG)


def place_of(error: BaseException) -> str:
    """The file and line, in the code that is not LangGraph's or Perdure's, in which an error was raised;
    empty when it has none."""
    place, at = "", error.__traceback__
    while at is not None:
        if at.tb_frame.f_globals.get("__name__", "").partition(".")[0] not in _LIBRARIES:
            place = f"{Path(at.tb_frame.f_code.co_filename).name}:{at.tb_lineno}"
        at = at.tb_next
    return place


def log_failure(run_id: str, error: BaseException) -> None:
    """Write the error with its message and traceback, at the level of debugging: both may quote users."""
    _log.debug("run %s failed", run_id, exc_info=error)
