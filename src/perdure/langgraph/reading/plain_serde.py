"""Unpacks stored values into plain data: no type is built."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import ormsgpack

from perdure.langgraph.values.serde import SURROGATES_EXT, Serde


class PlainSerde(Serde):
    """Unpacks every typed value into plain data: ``{"type": "module.Name", "value": …}``."""

    def _make_unpack_ext(self) -> Callable[[int, bytes], Any]:
        def hook(code: int, data: bytes) -> Any:
            if code == SURROGATES_EXT:
                return data.decode("utf-8", "surrogatepass")
            inner = ormsgpack.unpackb(data, ext_hook=hook, option=ormsgpack.OPT_NON_STR_KEYS)
            if code == 65:
                payload = inner[1]
                return {
                    "type": inner[0],
                    "value": text_of(payload) if isinstance(payload, bytes) else payload,
                }
            if isinstance(inner, list) and len(inner) >= 3 and code < 6:
                return {"type": f"{inner[0]}.{inner[1]}", "value": inner[2]}
            return {
                "type": {6: "numpy.ndarray", 7: "snapshot"}.get(code, f"extension {code}"),
                "value": inner,
            }

        return hook


def text_of(body: bytes) -> str:
    """Return bytes as text, in base64."""
    return base64.b64encode(body).decode()
