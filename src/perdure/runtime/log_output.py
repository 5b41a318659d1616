"""Writes the log of a process to the standard error, so that no text in it can steer a terminal."""

from __future__ import annotations

import logging
import re

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Control characters, except tabs and ends of lines, and characters that change the direction of text."""


class _LegibleFormatter(logging.Formatter):
    """Formatter that shows control characters as escapes: tracebacks have the texts of exceptions, which may
    have come from anyone."""

    def format(self, record: logging.LogRecord) -> str:
        return _CONTROL.sub(lambda found: ascii(found[0])[1:-1], super().format(record))


def configure_logging(level: str) -> None:
    """Write the log of Perdure from a level on, and that of libraries from warnings on. If the program
    has set up its log before, that stays as it is."""
    output = logging.StreamHandler()
    output.setFormatter(_LegibleFormatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[output])
    logging.getLogger("perdure").setLevel(level.upper())
