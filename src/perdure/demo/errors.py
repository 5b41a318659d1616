"""What keeps the demo from having a model, and what to install for it."""

from __future__ import annotations

from perdure.errors import PerdureError

INSTALL = 'pip install "perdure[demo]"'


class BadModel(PerdureError):
    """The model that was asked for cannot be used."""
