"""Unpacks stored values into plain data: no type is built, and no package of a type is imported."""

from __future__ import annotations

import base64
from typing import Any

import ormsgpack

from perdure.errors import Corrupt
from perdure.langgraph.values.payloads import (
    CODEC_EXT,
    NUMPY_EXT,
    SNAPSHOT_EXT,
    SURROGATES_EXT,
    UNPACK_OPTIONS,
    PayloadReader,
)

_TYPES = {NUMPY_EXT: "numpy.ndarray", SNAPSHOT_EXT: "snapshot"}


class PlainSerde(PayloadReader):
    """Unpacks every typed value into plain data: ``{"type": "module.Name", "value": …}``."""

    def unpack(self, body: bytes) -> Any:
        """Unpack a value; raise ``Corrupt`` if it is damaged."""
        try:
            return ormsgpack.unpackb(body, ext_hook=_read_ext, option=UNPACK_OPTIONS)
        except (ormsgpack.MsgpackDecodeError, ValueError) as error:
            raise Corrupt(f"a stored value cannot be unpacked: {error}") from error


def _read_ext(code: int, data: bytes) -> Any:
    if code == SURROGATES_EXT:
        return data.decode("utf-8", "surrogatepass")
    inner = ormsgpack.unpackb(data, ext_hook=_read_ext, option=UNPACK_OPTIONS)
    if code == CODEC_EXT:
        payload = inner[1]
        return {"type": inner[0], "value": text_of(payload) if isinstance(payload, bytes) else payload}
    if isinstance(inner, list) and len(inner) >= 3 and code < NUMPY_EXT:
        return {"type": f"{inner[0]}.{inner[1]}", "value": inner[2]}
    return {"type": _TYPES.get(code, f"extension {code}"), "value": inner}


def text_of(body: bytes) -> str:
    """Return bytes as text, in base64."""
    return base64.b64encode(body).decode()
