"""The stream transformers of a graph, over the parts of one run's stream.

A graph compiled with ``transformers=…``, or an agent whose middleware brings some, changes its events, drops
them, and adds events of its own before a client sees them. LangGraph's own multiplexer calls the
transformers, in its order and with its scopes; what comes out of it is published.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from langgraph.pregel import Pregel
from langgraph.stream import LifecycleTransformer, ProtocolEvent, SubgraphTransformer

# LangGraph exports neither the multiplexer nor the transformers that it puts before a graph's own ones.
from langgraph.stream._convert import convert_to_protocol_event
from langgraph.stream._mux import StreamMux
from langgraph.stream.transformers import MessagesTransformer, ValuesTransformer

_BUILT_IN = (ValuesTransformer, MessagesTransformer, LifecycleTransformer, SubgraphTransformer)
_LIBRARIES = ("langgraph.", "langchain.")
_CUSTOM = "custom:"
_STATE = ("updates", "tasks")
"""Modes whose events have contents of the state besides ``values``."""

Part = tuple[str, Any, Sequence[str]]
"""LangGraph's stream mode, the data, and the namespace."""


class StreamTransformers:
    """Calls a graph's transformers for the parts of a run's stream.

    ``modes`` are the stream modes that they need. ``withheld`` are the modes whose events must not
    be published: if a transformer rewrites the values of the state, for instance to remove personal data, and
    does not need the updates or tasks, these would show the same contents unchanged.
    """

    def __init__(self, factories: Iterable[Callable[[tuple[str, ...]], Any]]) -> None:
        self._out: list[ProtocolEvent] = []
        self._mux = StreamMux(factories=[*_BUILT_IN, *factories], is_async=True)
        # The main log passes each of its events on at once, and keeps none.
        self._mux._events._wire(self._out.append)  # pyright: ignore[reportPrivateUsage]
        transformers = self._mux._transformers  # pyright: ignore[reportPrivateUsage]
        self.modes = frozenset(mode for one in transformers for mode in one.required_stream_modes)
        rewritten = {
            mode for one in transformers if one.before_builtins for mode in one.required_stream_modes
        }
        self.withheld = frozenset(set(_STATE) - rewritten if "values" in rewritten else ())

    @classmethod
    def of(cls, graph: Pregel[Any, Any, Any, Any]) -> StreamTransformers | None:
        """Return the transformers of a graph, None if none of them changes anything."""
        factories = graph.stream_transformers
        if any(map(_may_change, factories)):
            return cls(factories)
        return None

    async def transform(self, mode: str, data: Any, namespace: Sequence[str]) -> Iterator[Part]:
        """Return the parts that a part of the stream is transformed to. An error of a transformer is raised,
        so that nothing is published that it would have removed."""
        part: Any = {"type": mode, "ns": tuple(namespace), "data": data}
        event = convert_to_protocol_event(part)
        await self._mux.apush(event)
        if mode == "tasks":
            # LangGraph's transformers replace tasks by lifecycle events in the log, so the task is added
            # again.
            self._out.append(event)
        return self._take_out()

    async def end(self) -> Iterator[Part]:
        """Return the parts that the transformers add at the end of the stream."""
        await self._mux.aclose()
        return self._take_out()

    async def fail(self, error: BaseException) -> None:
        """End the transformers of a run that fails, or is cancelled."""
        await self._mux.afail(error)

    def _take_out(self) -> Iterator[Part]:
        out, self._out[:] = list(self._out), ()
        for event in out:
            mode, params = event["method"], event["params"]
            if mode.startswith(_CUSTOM):
                data = {"name": mode.removeprefix(_CUSTOM), "payload": params["data"]}
                yield "custom", data, params["namespace"]
            elif mode == "messages" and params["data"][0] is None:
                pass  # a message that a transformer has cleared
            elif mode != "lifecycle":
                yield mode, params["data"], params["namespace"]


def _may_change(factory: Any) -> bool:
    """Return True unless a transformer is one of the libraries' own that only offer another view."""
    of_library = getattr(factory, "__module__", "").startswith(_LIBRARIES)
    return not (of_library and getattr(factory, "_native", False))
