"""Payloads of stored values: their kinds, the codes of what MessagePack has no form for, and reading them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import ormsgpack

from perdure.errors import Corrupt
from perdure.model.values import refs

# LangGraph's extension codes (langgraph.checkpoint.serde.jsonplus), and two of our own.
NUMPY_EXT, SNAPSHOT_EXT = 6, 7
SURROGATES_EXT = 64
CODEC_EXT = 65

UNPACK_OPTIONS = ormsgpack.OPT_NON_STR_KEYS


class PayloadReader(ABC):
    """Reads payloads. What becomes of a stored object is decided by the class that unpacks it."""

    @abstractmethod
    def unpack(self, body: bytes) -> Any:
        """Unpack a value."""

    def value(self, payload_type: int, body: bytes) -> Any:
        """Return the value of a payload."""
        if payload_type == refs.MSGPACK:
            return self.unpack(body)
        if payload_type == refs.NULL:
            return None
        if payload_type == refs.BYTES:
            return body
        if payload_type == refs.BYTEARRAY:
            return bytearray(body)
        raise Corrupt(f"a payload of the unknown type {payload_type}")
