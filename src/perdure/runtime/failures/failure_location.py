"""Failures of graphs: their place in the graph's own code, without anything that a user wrote, and the text
that clients get."""

from __future__ import annotations

import logging
from contextvars import ContextVar
from pathlib import Path
from types import FrameType

from perdure.model.runs.messages import TIMEOUT
from perdure.runtime.failures.own_code import write_traceback

_LIBRARIES = {"perdure", "langgraph", "langchain_core", "asyncio", "concurrent", "threading", "contextvars"}
_log = logging.getLogger("perdure.failures")
if _log.level == logging.NOTSET:
    # Messages and tracebacks may quote users, so a lower level of the root logger must not include them.
    _log.setLevel(logging.INFO)


shows_texts: ContextVar[bool] = ContextVar("shows_texts", default=True)
"""True if clients get the text of a graph's exception, which may quote what is secret. A process that serves
without ``--dev`` sets it to False when it starts, for all that it does."""

_OWN_KINDS = frozenset({TIMEOUT, "GivenUp", "GraphRecursionError"})
"""Recorded kinds of errors whose texts are written by Perdure or LangGraph, not by an application."""


def write_text_for_clients(kind: str, text: str) -> str:
    """Return the text of an exception, or a sentence in its place unless ``shows_texts``.

    Args:
        kind: the name of its type, or "" if that is not known.
        text: its text as it was recorded.
    """
    if shows_texts.get() or kind in _OWN_KINDS:
        return text
    named = f" ({kind})" if kind.isidentifier() else ""
    return f"The graph failed{named}; the server's log says where."


def show_failures() -> None:
    """Log the messages and tracebacks of failing graphs in this process, for development. The frames of the
    user's own code come first."""
    _log.setLevel(logging.DEBUG)
    _log.addFilter(_show_own_frames_first)


def _show_own_frames_first(record: logging.LogRecord) -> bool:
    if record.exc_info and record.exc_info[1] is not None:
        # Formatters use this text where there is one.
        record.exc_text = write_traceback(record.exc_info[1])
    return True


def is_of_library(frame: FrameType) -> bool:
    """Return True if a frame is of LangGraph's, Perdure's or asyncio's code."""
    return frame.f_globals.get("__name__", "").partition(".")[0] in _LIBRARIES


def place_of(error: BaseException) -> str:
    """Return the innermost file and line that an error passed outside of LangGraph's and Perdure's code;
    empty if there is none."""
    place, trace = "", error.__traceback__
    while trace is not None:
        if not is_of_library(trace.tb_frame):
            place = f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"
        trace = trace.tb_next
    return place


def log_failure(run_id: str, error: BaseException) -> None:
    """Log an error with its message and traceback at debug level, as both may quote users."""
    _log.debug("run %s failed", run_id, exc_info=error)
