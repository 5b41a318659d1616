"""Validation of arguments that take several names: a single text would pass for a list of its letters."""

from __future__ import annotations

_TEXT = (str, bytes, bytearray, memoryview)


def refuse_text(what: str, values: object) -> None:
    """Raise ``TypeError`` for text or bytes where a sequence of names is expected. ``what`` names the
    argument."""
    if isinstance(values, _TEXT):
        raise TypeError(f"{what} takes a sequence, not {type(values).__name__}; for one name write [name]")
