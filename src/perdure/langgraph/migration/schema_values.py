"""Conversion of stored values by the declared steps. A step gets plain data; its result is packed and read
back as if it had been stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ormsgpack
from langgraph.types import Overwrite

from perdure.errors import MigrationFailed, PerdureError
from perdure.langgraph.values.datatypes import find_own_type
from perdure.langgraph.values.object_building import METHOD, unpack_array
from perdure.langgraph.values.object_building import build as build_object
from perdure.langgraph.values.payloads import CODEC_EXT, NUMPY_EXT, SNAPSHOT_EXT, SURROGATES_EXT
from perdure.langgraph.values.serde import DeltaSnapshot, Serde, is_snapshot
from perdure.schema.steps import ChannelConverted, Converter

Payload = tuple[int, bytes]


class NeutralSerde(Serde):
    """Unpacks objects of the program's own types into plain data, so that the types need not exist: the
    fields of an object as a dict, the value of an enum. Messages and the standard library's values are
    built."""

    def _make_unpack_ext(self) -> Callable[[int, bytes], Any]:
        unpack_typed = super()._make_unpack_ext()

        def hook(code: int, data: bytes) -> Any:
            if code == SURROGATES_EXT:
                return data.decode("utf-8", "surrogatepass")
            inner = ormsgpack.unpackb(data, ext_hook=hook, option=ormsgpack.OPT_NON_STR_KEYS)
            if code == SNAPSHOT_EXT:
                return DeltaSnapshot(inner)
            if code == NUMPY_EXT:
                return unpack_array(*inner)
            if code == CODEC_EXT:
                codec = self._loads.get(inner[0])
                if codec is None:
                    return inner[1]
                return codec.load(inner[1])
            module, name, argument = inner[:3]
            if code == METHOD:
                return unpack_typed(code, data)
            found = find_own_type(module, name)
            if found is None:
                return argument
            return build_object(code, found, argument)

        return hook


class ValueConverter:
    """Conversion of the payloads of one checkpointer.

    Args:
        serde: Reads values for the graph.
    """

    def __init__(self, serde: Serde) -> None:
        self._serde = serde
        self._neutral = NeutralSerde(serde.types, codecs=serde.codecs)

    def convert_value(self, payload: Payload, steps: Sequence[ChannelConverted]) -> Any:
        """Return a channel's value after some steps; a DeltaChannel's snapshot stays one.

        Raises:
            MigrationFailed: A step raised, or its result cannot be stored.
        """
        return self._convert_payload(payload, steps, is_update=False)

    def convert_update(self, payload: Payload, steps: Sequence[ChannelConverted]) -> Any:
        """Return a write after some steps. A write that replaces the channel's value (``Overwrite``) stays
        one.

        Raises:
            MigrationFailed: A step raised, or its result cannot be stored.
        """
        return self._convert_payload(payload, steps, is_update=True)

    def convert_inner(self, value: Any, steps: Sequence[ChannelConverted]) -> Any:
        """Return a value within another one, e.g. of a graph's input, after some steps."""
        return self._convert_payload(self._serde.payload(value), steps, is_update=True)

    def _convert_payload(
        self, payload: Payload, steps: Sequence[ChannelConverted], *, is_update: bool
    ) -> Any:
        for step in steps:
            try:
                # Unpacked again for each step: its function may change what it is given.
                payload = self._serde.payload(_convert(step, self._neutral.value(*payload), is_update))
            except Exception as error:
                # An exception of the step may quote the value: only its type is repeated.
                if isinstance(error, PerdureError):
                    why = str(error)
                else:
                    why = type(error).__name__
                raise MigrationFailed(
                    f"{step} cannot be applied: {why}. The thread is unchanged; correct the step, try it "
                    "with `perdure schema plan`, and deploy again"
                ) from error
        return self._serde.value(*payload)


def _convert(step: ChannelConverted, value: Any, is_update: bool) -> Any:
    if is_snapshot(value):
        return DeltaSnapshot(_apply(step, step.value, value.value))
    if not is_update:
        return _apply(step, step.value, value)
    if isinstance(value, Overwrite):
        return Overwrite(_apply(step, step.value, value.value))
    if isinstance(value, dict) and set(value) == {"__overwrite__"}:
        return {"__overwrite__": _apply(step, step.value, value["__overwrite__"])}
    return _apply(step, step.update, value)


def _apply(step: ChannelConverted, function: Converter, value: Any) -> Any:
    """Return the result of a step's function. ``None`` for a value is refused unless the step allows it: a
    function that changes its argument in place returns ``None`` by mistake."""
    made = function(value)
    if made is None and value is not None and not step.allow_none:
        raise MigrationFailed(
            "its function returned None; let it return the new value, or declare convert(…, allow_none=True)"
        )
    return made
