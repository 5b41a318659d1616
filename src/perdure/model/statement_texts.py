"""Texts of statements on the application's own tables: their parameters, and which statements a commit may
contain."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

_PARTS = re.compile(
    r"""
    (?<!\w)[eE]'(?:[^'\\]|\\.|'')*'                         # text with escapes
    | '(?:[^']|'')*'                                        # text
    | "(?:[^"]|"")*"                                        # a name
    | --[^\n]*                                              # a comment
    | /\*.*?\*/
    | (?<![\w$])\$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$ # text between dollars
    | ::
    | :(?P<name>[^\W\d]\w*)
    """,
    re.DOTALL | re.VERBOSE,
)
_BEFORE = re.compile(r"(?:\s|--[^\n]*(?:\n|$)|/\*.*?\*/|\()*", re.DOTALL)
_WORD = re.compile(r"[^\W\d_]+")
_MAY_BEGIN = (
    *("INSERT", "UPDATE", "DELETE", "MERGE", "REPLACE", "WITH", "SELECT", "VALUES"),
    *("CREATE", "ALTER", "DROP", "TRUNCATE", "CALL", "DO", "NOTIFY"),
)


DEFERRED = "COMMIT, which checks the deferred constraints"
"""Text that errors show instead of a statement's if a constraint fails that is checked at the end."""


def find_names(text: str) -> list[str]:
    """Return the names of the parameters of a text, in the order in which they first occur."""
    return list(dict.fromkeys(found["name"] for found in _PARTS.finditer(text) if found["name"]))


def replace_names(text: str, replace: Callable[[str], str]) -> str:
    """Return a text with each parameter replaced by the result of ``replace`` for its name."""
    return _PARTS.sub(lambda found: replace(found["name"]) if found["name"] else found[0], text)


def check_statement(text: str, parameters: Mapping[str, object]) -> list[str]:
    """Return the names of a statement's parameters.

    Raises:
        ValueError: The text is not a statement that a transaction may contain, or ``parameters`` are not
            those of the text.
    """
    start = _BEFORE.match(text)
    word = _WORD.match(text, start.end() if start else 0)
    if word is None or word[0].upper() not in _MAY_BEGIN:
        raise ValueError(
            f"a statement in a step's commit begins with one of {', '.join(_MAY_BEGIN)}: "
            f"{shorten(text)!r} does not; Perdure begins and ends the transaction"
        )
    names = find_names(text)
    if missing := [name for name in names if name not in parameters]:
        raise ValueError(f"parameters {missing} have no value: {shorten(text)!r}")
    if unused := sorted(parameters.keys() - set(names)):
        raise ValueError(f"parameters {unused} do not occur in the text, as :name: {shorten(text)!r}")
    return names


def refusal(text: str, error: Exception | None, reason: str = "") -> str:
    """Return the message for a statement that was refused. The driver's text may have values, so the message
    has only the class of its error; the error itself is the cause."""
    shown = reason or type(error).__name__
    return f"the database refused a statement ({shown}), and nothing of its step was stored: {shorten(text)}"


def shorten(text: str) -> str:
    """Return a statement's text in one line of at most 300 characters."""
    line = " ".join(text.split())
    if len(line) <= 300:
        return line
    return f"{line[:297]}..."
