"""A way to store values of a type that has none of its own: an explicit choice of the program."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from perdure.errors import Unserialisable

_NATIVE = (str, int, float, bool, bytes, bytearray, memoryview, list, tuple, dict, type(None))


@dataclass(frozen=True, slots=True)
class Codec:
    """How objects of exactly one class are stored.

    ``dump`` makes bytes or plain data of an object, ``load`` makes an equal object of that. Stored values
    remember ``name``, by default the class's: a codec of that name has to be passed wherever they are read.
    ``load`` is given what a row holds, so it must be safe for bytes that somebody else wrote.
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

    def dumped(self, value: Any) -> Any:
        """What is stored of a value. ``Unserialisable`` where ``dump`` fails."""
        try:
            return self.dump(value)
        except Exception as error:
            raise Unserialisable(
                f"the codec of {self.name} could not dump a value: {type(error).__name__}"
            ) from error
