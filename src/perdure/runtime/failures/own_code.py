"""Distinguishes the code of a user's project from that of libraries; and tracebacks that show it first."""

from __future__ import annotations

import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path

_PERDURE = str(Path(__file__).resolve().parents[2])
_INSTALLED = frozenset({"site-packages", "dist-packages"})
_LOADING = (f"{_PERDURE}/runtime/agents/loading.py", f"{_PERDURE}/runtime/agents/module_files.py")
"""Files whose frames are in every error of an import, and do not help to explain it."""
_EARLIER_MAX = 8
"""Maximum number of errors of one chain that are shown."""


@cache
def _list_libraries() -> tuple[str, ...]:
    paths = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    resolved = {str(Path(path).resolve()) for path in paths}
    return tuple(f"{path}/" for path in paths | resolved)


def is_own(file: str) -> bool:
    """Return True if a source file is the project's: not of Python, an installed package or Perdure."""
    if file.startswith(("<", _PERDURE)) or not _INSTALLED.isdisjoint(Path(file).parts):
        return False
    return not file.startswith(_list_libraries())


def list_own_files() -> frozenset[str]:
    """Return the absolute paths of the project's modules that this process has imported."""
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return frozenset(str(Path(file).absolute()) for file in files if isinstance(file, str) and is_own(file))


def write_traceback(error: BaseException) -> str:
    """Return an error with the frames of the project first, those of libraries after them, and the errors
    that led to it in the same form."""
    lines = list(_describe(traceback.TracebackException.from_exception(error), _EARLIER_MAX))
    return "".join(lines).rstrip("\n")


def list_own_places(error: BaseException) -> frozenset[str]:
    """Return the absolute paths of the project's files in which an error, or one that led to it, occurred, a
    file that cannot be parsed included."""
    found: set[str] = set()
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        found |= {frame.filename for frame in traceback.extract_tb(current.__traceback__)}
        if isinstance(current, SyntaxError) and current.filename is not None:
            found.add(current.filename)
        waiting += [current.__cause__, current.__context__]
    return frozenset(str(Path(file).absolute()) for file in found if is_own(file))


def _describe(error: traceback.TracebackException, most: int) -> Iterable[str]:
    own = _select_frames(error, is_own)
    libraries = _select_frames(
        error, lambda file: not is_own(file) and not file.startswith(("<frozen", *_LOADING))
    )
    if own:
        yield "Traceback of your code (most recent call last):\n"
        yield from own.format()
    yield from error.format_exception_only()
    if libraries:
        yield "Frames of libraries (most recent call last):\n"
        yield from libraries.format()
    for inner in error.exceptions or ():
        if most > 1:
            yield "\nOne of its errors:\n"
            yield from _describe(inner, most - 1)
    earlier = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    if earlier is not None and most > 1:
        yield "\nCaused by:\n" if error.__cause__ else "\nWhile this was being handled:\n"
        yield from _describe(earlier, most - 1)


def _select_frames(
    error: traceback.TracebackException, belongs: Callable[[str], bool]
) -> traceback.StackSummary:
    return traceback.StackSummary.from_list([frame for frame in error.stack if belongs(frame.filename)])
