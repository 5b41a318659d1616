"""Errors of the demo's models, and the command that installs them."""

from __future__ import annotations

from perdure.errors import PerdureError

INSTALL = 'pip install "perdure[demo]"'


class BadModel(PerdureError):
    """The requested model cannot be used."""
