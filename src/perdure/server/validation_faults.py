"""Texts for the faults of a request: the place, the value that was sent, and the permitted values."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

_QUOTED_MOST = 60
"""Maximum number of characters of a value that are quoted."""


def fault_text(fault: Any, *, before: str = "") -> str:
    """Return the text of a fault.

    Args:
        fault: Pydantic's details of an error.
        before: A text in front of the fault's place, such as ``params.``.
    """
    where = ".".join(map(str, fault["loc"]))
    text = str(fault["msg"])
    if fault["type"] == "too_long":
        given, most = fault["ctx"]["actual_length"], fault["ctx"]["max_length"]
        text = f"{given} entries are given, and a request has at most {most} here; send several requests"
    elif fault["type"] == "literal_error":
        text = f"{_quote(fault['input'])} is none of {fault['ctx']['expected']}"
    elif fault["type"] == "json_invalid":
        # Its place is a position in the text.
        return f"the body is not one JSON value ({fault['ctx']['error']} at character {where}); send JSON"
    if where:
        return f"{before}{where}: {text}"
    return text


def join_faults(faults: Iterable[Any]) -> str:
    """Return the texts of FastAPI's faults, without the part of the request with which their places begin."""
    return "; ".join(fault_text({**fault, "loc": _place(fault["loc"])}) for fault in faults)


def _place(location: Sequence[str | int]) -> Sequence[str | int]:
    if location and location[0] in _PARTS:
        return location[1:]
    return location


_PARTS = ("body", "query", "path")


def _quote(value: Any) -> str:
    """Return a value that was sent as text, or the beginning of a long one."""
    text = repr(value)
    if len(text) <= _QUOTED_MOST:
        return text
    return f"{text[:_QUOTED_MOST]}…"
