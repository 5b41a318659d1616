"""Log of a long-running command."""

from __future__ import annotations

import logging
from enum import StrEnum


class LogLevel(StrEnum):
    """Minimum level of Perdure's own log."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


def write_log(level: LogLevel) -> None:
    """Write the log to the standard error, with that of libraries from warnings on."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    logging.getLogger("perdure").setLevel(level.upper())
