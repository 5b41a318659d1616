"""Tracebacks of failed runs as text of bounded size: the frames of the application's own code come first."""

from __future__ import annotations

import re
import sysconfig
import traceback
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Any

from perdure.errors import LimitPending
from perdure.model.runs.messages import (
    LIMIT,
    NODE,
    TRACEBACK,
    replace_surrogates,
    shorten_error,
    text_of_error,
)
from perdure.runtime.failures.failure_location import is_of_library

TRACEBACK_MAX = 8000
"""Maximum size of a stored traceback, in bytes of UTF-8."""

_MESSAGE_MAX = 500
_NODE_MAX = 500
_CHAIN_MAX = 4
_OWN_MAX = 20
_OTHERS_MAX = 30
_CUT = "\n[the rest was left out]\n"
_TASK_NOTE = re.compile(r"During task with name '(.*)' and id '([^']*)'")
"""Note that LangGraph adds to an error for each task that it passes through, the innermost first."""
_FOREIGN = tuple(
    {path for name in ("stdlib", "platstdlib", "purelib", "platlib") if (path := sysconfig.get_path(name))}
)


def make_failure_note(error: BaseException) -> dict[str, Any]:
    """Return the data that is stored with a failed run: the error's text, type name and traceback, and the
    node that raised it, if one did, or the limit that postpones the run."""
    note = {"error": shorten_error(error), "kind": type(error).__name__, TRACEBACK: write_traceback(error)}
    # The node comes after those that lead to it, as in "team|writer".
    if node := replace_surrogates("|".join(name for name, _ in list_tasks(error)))[:_NODE_MAX]:
        note[NODE] = node
    if isinstance(error, LimitPending):
        note[LIMIT] = error.limit
    return note


def list_tasks(error: BaseException) -> list[tuple[str, str]]:
    """Return the names and ids of the tasks that an error passed through, the outermost first."""
    # A node that is tried again may raise the same object.
    notes = dict.fromkeys(note for note in getattr(error, "__notes__", ()) if isinstance(note, str))
    found = [match for note in notes if (match := _TASK_NOTE.fullmatch(note)) is not None]
    return [(match[1], match[2]) for match in reversed(found)]


def write_traceback(error: BaseException) -> str:
    """Return the traceback of an error and of those that caused it, without values of variables.

    For each error the frames of the application come first; those of libraries follow at the end, as far as
    ``TRACEBACK_MAX`` has room for them.
    """
    parts: list[str] = []
    others: list[str] = []
    for place, each in enumerate(_walk_chain(error)):
        own, foreign = _split_frames(each.__traceback__)
        parts.append(f"{'caused by ' if place else ''}{text_of_error(each)}"[:_MESSAGE_MAX] + "\n")
        parts += own
        if not place:
            others = foreign
    if others:
        parts += ["frames of libraries:\n", *others]
    text = replace_surrogates("".join(parts))
    encoded = text.encode()
    if len(encoded) <= TRACEBACK_MAX:
        return text
    return encoded[: TRACEBACK_MAX - len(_CUT)].decode(errors="ignore") + _CUT


def _walk_chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen and len(seen) < _CHAIN_MAX:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (None if current.__suppress_context__ else current.__context__)


def _split_frames(trace: TracebackType | None) -> tuple[list[str], list[str]]:
    """Return the frames of the application and of libraries as text, the outermost first."""
    own: list[TracebackType] = []
    foreign: list[TracebackType] = []
    while trace is not None:
        filename = trace.tb_frame.f_code.co_filename
        is_foreign = filename.startswith(("<frozen", *_FOREIGN)) or filename == "<string>"
        (foreign if is_foreign or is_of_library(trace.tb_frame) else own).append(trace)
        trace = trace.tb_next
    return _format_frames(own, _OWN_MAX), _format_frames(foreign, _OTHERS_MAX)


def _format_frames(frames: Sequence[TracebackType], most: int) -> list[str]:
    """Return the innermost ``most`` frames as text, after the number of those that are left out."""
    texts = [
        text
        for trace in frames[-most:]
        for text in traceback.StackSummary.extract(iter([(trace.tb_frame, trace.tb_lineno)])).format()
    ]
    omitted = len(frames) - most
    if omitted > 0:
        return [f"  [{omitted} frames before these]\n", *texts]
    return texts
