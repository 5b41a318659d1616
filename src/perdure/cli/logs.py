"""The log of a process that goes on: where it is written, and from which level on."""

from __future__ import annotations

import logging
from enum import StrEnum


class LogLevel(StrEnum):
    """From which level on Perdure's own log is written."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def write_log(level: LogLevel) -> None:
    """Write it to the standard error. What libraries log is written from warnings on."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("perdure").setLevel(level.upper())
