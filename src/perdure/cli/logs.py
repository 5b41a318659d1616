"""Levels of the log of a long-running command."""

from __future__ import annotations

from enum import StrEnum


class LogLevel(StrEnum):
    """Minimum level of Perdure's own log."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
