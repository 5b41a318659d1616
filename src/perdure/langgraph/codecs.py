"""Codecs, with which a program stores values of types that have no stored form of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perdure.errors import Unserialisable

_NATIVE = (str, int, float, bool, bytes, bytearray, memoryview, list, tuple, dict, type(None))


@dataclass(frozen=True, slots=True)
class Codec:
    """The stored form of objects of exactly one class.

    Args:
        type: The class; subclasses are not included.
        dump: Returns bytes or plain data for an object.
        load: Returns an equal object for a result of ``dump``. It receives what a row holds, so it must be
            safe for bytes from an untrusted writer.
        name: The name under which values are stored, by default the class's. A codec of that name has to be
            passed by every program that reads them.
    """

    type: type
    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]
    name: str = ""

    def __post_init__(self) -> None:
        if not inspect.isclass(self.type) or self.type in _NATIVE:
            raise ValueError(f"a codec is for a class of objects that need one, not for {self.type!r}")
        if not self.name:
            object.__setattr__(self, "name", f"{self.type.__module__}.{self.type.__qualname__}")

    def dump_value(self, value: Any) -> Any:
        """Return the stored form of a value; raise ``Unserialisable`` if ``dump`` fails."""
        try:
            return self.dump(value)
        except Exception as error:
            raise Unserialisable(
                f"the codec of {self.name} could not dump a value: {type(error).__name__}"
            ) from error
