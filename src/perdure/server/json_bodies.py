"""Bodies of requests in JSON, read so that a value which cannot be stored is refused with its position.

Python's reader refuses a whole body for an integer of more than 4,300 digits, without the place. Here such an
integer is cut to one that is still larger than 64 bits, and than any float: the check of its field refuses
it.
"""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request

_DIGITS = 400
"""Number of digits, with the sign, of which an integer is larger than any float."""


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: it is not JSON.
        RecursionError: it is nested too deeply.
    """
    return json.loads(text, parse_int=_parse_integer)


def _parse_integer(digits: str) -> int:
    return int(digits[:_DIGITS])


class JsonRequest(Request):
    """A request whose ``json`` is read by ``parse_json``."""

    async def json(self) -> Any:
        """Return the body's value, read once."""
        if not hasattr(self, "_json"):
            self._json = parse_json(await self.body())
        return self._json
