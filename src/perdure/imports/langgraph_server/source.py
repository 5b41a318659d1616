"""The threads and the store of a LangGraph server, read over its HTTP API, as a source of an import."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from tempfile import TemporaryFile
from typing import Any

import orjson
from langgraph.pregel import Pregel

from perdure.errors import Contention, NotFound
from perdure.imports.langgraph_server.api import ServerApi
from perdure.imports.langgraph_server.states import (
    Built,
    NamespaceStates,
    check,
    entry_of,
    find_namespaces,
)
from perdure.imports.langgraph_server.steps import GraphSteps
from perdure.imports.order import find_missing
from perdure.imports.payloads import SERDE
from perdure.imports.source import (
    DAMAGED,
    CheckpointEntry,
    DamagedItem,
    Outline,
    Source,
    SourceCheckpoint,
    SourceItem,
    SourceWrite,
    WriteSlot,
)
from perdure.langgraph.values.serde import Serde
from perdure.model.times import read_time

Key = tuple[str, str]
_UNKNOWN_TIME = "1970-01-01T00:00:00Z"


class ServerSource(Source):
    """A LangGraph server. The states of the thread that is being imported are kept in a temporary file.

    Args:
        api: The server.
        graphs: The graphs of its threads, by their names at the server; the name ``""`` is for all threads.
    """

    def __init__(
        self, api: ServerApi, graphs: Mapping[str, Pregel[Any, Any, Any, Any]] | None = None
    ) -> None:
        self.api = api
        self.name = api.name
        self._steps = {name: GraphSteps(graph) for name, graph in (graphs or {}).items()}
        # With graphs, values may have any of their types; without them only messages have a type.
        self._serde = Serde("imported" if graphs else "listed")
        self._file = TemporaryFile()  # noqa: SIM115 - as long as the source
        self._places: dict[Key, tuple[int, int]] = {}
        self._thread: str | None = None

    def count(self) -> int | None:
        """Return the number of threads."""
        return self.api.count()

    def threads(self) -> Iterator[str]:
        """Yield the ids of the threads, each once."""
        seen: set[str] = set()
        for thread in self.api.threads():
            if (name := str(thread["thread_id"])) not in seen:
                seen.add(name)
                yield name

    def outline(self, thread: str) -> Outline:
        """Read the states of a thread into the file, and return the thread's outline."""
        self._thread = thread
        self._places.clear()
        self._file.seek(0)
        self._file.truncate()
        outline = Outline()
        waiting, queued_before = [""], {""}
        graph: GraphSteps | None = None
        while waiting:
            namespace = waiting.pop(0)
            raw = self._spool(thread, namespace)
            if not raw:
                continue
            if namespace == "":
                graph = self._find_steps(thread, self._load_state(next(iter(raw.values()))))
            steps = self._find_steps_in(graph, namespace)
            for built in self._build(raw, steps):
                outline.checkpoints.append(built.entry)
                outline.writes += [write.slot for write in built.writes]
                self._store_built(built)
            for entry in raw:
                for inner in find_namespaces(self._load_state(raw[entry])):
                    if inner not in queued_before:
                        queued_before.add(inner)
                        waiting.append(inner)
        outline.checkpoints.sort(key=lambda entry: entry.id)
        return outline

    def _find_steps(self, thread: str, state: Mapping[str, Any]) -> GraphSteps | None:
        """Return the graph of a thread, by the name in its state or, with Aegra, in the thread's metadata."""
        if not self._steps:
            return None
        name = (state.get("metadata") or {}).get("graph_id") or self.api.graph_of(thread)
        return self._steps.get(str(name)) or self._steps.get("")

    def _find_steps_in(self, graph: GraphSteps | None, namespace: str) -> GraphSteps | None:
        if graph is None or namespace == "":
            return graph
        inner = graph.subgraph(namespace)
        if inner is None:
            return None
        return GraphSteps(inner)

    def _spool(self, thread: str, namespace: str) -> dict[CheckpointEntry, tuple[int, int]]:
        """Write the states of a namespace to the file; return their places there, the newest first."""
        found: dict[CheckpointEntry, tuple[int, int]] = {}
        try:
            for state in self.api.states(thread, namespace):
                check(state)
                entry = entry_of(state)
                if entry.namespace == namespace:
                    found[entry] = self._append(orjson.dumps(state))
        except NotFound:
            return {}
        return found

    def _build(
        self, raw: Mapping[CheckpointEntry, tuple[int, int]], steps: GraphSteps | None
    ) -> Iterator[Built]:
        states = NamespaceStates(steps)
        parents = {
            entry.parent_id
            for entry, place in raw.items()
            if (self._load_state(place).get("metadata") or {}).get("source") == "loop"
        }
        for entry in find_missing(raw, {}):
            yield states.build(self._load_state(raw[entry]), is_leaf=entry.id not in parents)

    def _store_built(self, built: Built) -> None:
        body = {
            "checkpoint": built.checkpoint,
            "metadata": built.metadata,
            "writes": [
                [list(write.slot), write.task_path, write.channel, *self._serde.payload(write.value)]
                for write in built.writes
            ],
        }
        self._places[built.entry[:2]] = self._append(self._serde.pack(body))

    def _append(self, body: bytes) -> tuple[int, int]:
        place = self._file.seek(0, 2)
        self._file.write(body)
        return place, len(body)

    def _read(self, place: tuple[int, int]) -> bytes:
        self._file.seek(place[0])
        return self._file.read(place[1])

    def _load_state(self, place: tuple[int, int]) -> Any:
        return orjson.loads(self._read(place))

    def _read_kept(self, thread: str, key: Key) -> Any:
        if thread != self._thread:
            self.outline(thread)
        if key not in self._places:
            raise Contention(f"checkpoint {key[1]} is gone from {self.name}")
        return SERDE.unpack_plain(self._read(self._places[key]))

    def checkpoints(self, thread: str, wanted: Sequence[CheckpointEntry]) -> Iterator[SourceCheckpoint]:
        """Yield checkpoints in the given order."""
        for entry in wanted:
            kept = self._read_kept(thread, entry[:2])
            yield SourceCheckpoint(entry, kept["checkpoint"], kept["metadata"])

    def writes(self, thread: str, wanted: Sequence[WriteSlot]) -> Iterator[SourceWrite]:
        """Yield pending writes in the given order."""
        key: Key | None = None
        writes_by_slot: dict[WriteSlot, SourceWrite] = {}
        for slot in wanted:
            if slot[:2] != key:
                key = slot[:2]
                writes_by_slot = {write.slot: write for write in self._writes(thread, key)}
            yield writes_by_slot[slot]

    def _writes(self, thread: str, key: Key) -> Iterator[SourceWrite]:
        for slot, *rest in self._read_kept(thread, key)["writes"]:
            yield SourceWrite(WriteSlot(*slot), *rest)

    def slots_of(self, thread: str, entry: CheckpointEntry) -> Sequence[WriteSlot]:
        """Return the slots of a checkpoint's pending writes."""
        return [write.slot for write in self._writes(thread, entry[:2])]

    def latest(self, thread: str, namespace: str, outline: Outline) -> str:
        """Return the checkpoint that the server shows as the latest."""
        entries = {entry.id for entry in outline.checkpoints if entry.namespace == namespace}
        if namespace == "":
            shown = (self.api.latest(thread).get("checkpoint") or {}).get("checkpoint_id")
            if shown not in entries:
                raise Contention(f"the thread went on at {self.name} while it was read")
            return str(shown)
        return max(entries)

    def items(self) -> Iterator[SourceItem | DamagedItem]:
        """Yield the items of the store."""
        for item in self.api.items():
            try:
                yield SourceItem(
                    tuple(item["namespace"]),
                    item["key"],
                    item["value"],
                    # Aegra shows no times: an item that was changed at the target then counts as newer.
                    read_time(item.get("created_at") or _UNKNOWN_TIME),
                    read_time(item.get("updated_at") or _UNKNOWN_TIME),
                )
            except DAMAGED as error:
                yield DamagedItem(f"an item of {self.name} cannot be read ({type(error).__name__})")

    def close(self) -> None:
        """Remove the temporary file, and close the connections."""
        self._file.close()
        self.api.close()
