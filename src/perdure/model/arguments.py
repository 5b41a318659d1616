"""Validation of arguments whose wrong type would fail later, or pass for something else."""

from __future__ import annotations

_TEXT = (str, bytes, bytearray, memoryview)


def refuse_text(what: str, values: object) -> None:
    """Raise ``TypeError`` for text or bytes where a sequence of names is expected. ``what`` names the
    argument."""
    if isinstance(values, _TEXT):
        raise TypeError(f"{what} takes a sequence, not {type(values).__name__}; for one name write [name]")


def require_text(what: str, value: object) -> None:
    """Raise ``TypeError`` for anything but text. ``what`` names the argument."""
    if not isinstance(value, str):
        raise TypeError(f"{what} is text, not {type(value).__name__}")
