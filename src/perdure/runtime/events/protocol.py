"""Run events for clients of the event streaming protocol.

The protocol has events for messages by content block, tools, checkpoint references, subgraph lifecycle, and
each interrupt once. Values, updates, tasks and custom data are published under their own names, for all
subscribers. Events that only this protocol has are published under ``protocol/`` in their wire form:
``data``, and the node, if there is one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Protocol

# LangGraph itself builds the events of a finished message with this function.
from langchain_core.language_models._compat_bridge import message_to_events
from langchain_core.messages import BaseMessage, RemoveMessage, ToolMessage

from perdure.model.arguments import read_mapping
from perdure.model.runs.messages import read_message
from perdure.model.write_records import INTERRUPT

MODES = ("checkpoints", "custom", "messages", "tasks", "tools", "updates", "values")
"""Stream modes that are requested from LangGraph."""

BY_BLOCK = "__pregel_stream_messages_v2"
"""Key of LangGraph's config that makes models stream content blocks."""

OWN = "protocol/"

_MODEL = "ls_model_type"
"""Key that LangChain sets in the metadata of a model's messages."""
_ROLES = {"human": "human", "system": "system"}


class Emit(Protocol):
    """Signature of a callback that publishes an event and reserves ``room`` sequence numbers for it."""

    def __call__(self, name: str, data: Any, room: int = 1) -> object: ...


def room_of(mode: str, payload: Any) -> int:
    """Return the number of protocol events that a part becomes: updates become one event for each node or
    interrupt."""
    if mode != "updates" or not isinstance(payload, Mapping):
        return 1
    questions = payload.get(INTERRUPT)
    return max(1, len(questions) if isinstance(questions, Sequence) else len(payload))


class ProtocolPublisher:
    """Publishes the parts of one run's stream as events of the protocol. Of the modes in ``withheld``, only
    interrupts and subgraphs are published."""

    def __init__(self, emit: Emit, withheld: Collection[str] = ()) -> None:
        self._emit = emit
        self._withheld = withheld
        self._pending_values: tuple[Any, tuple[str, ...]] | None = None
        self._message_ids: dict[str, str] = {}
        self._questions: dict[str, tuple[Any, tuple[str, ...]]] = {}
        self._calls: dict[str, str] = {}
        self._subgraphs: dict[tuple[str, ...], str] = {}
        self._running: set[str] = set()
        self._ends: list[tuple[tuple[str, ...], dict[str, Any]]] = []

    def publish_part(self, mode: str, payload: Any, namespace: Sequence[str]) -> None:
        """Publish one part.

        Args:
            mode: LangGraph's stream mode of the part.
            payload: The part's data.
            namespace: The path of the subgraph that the part comes from; empty for the graph itself.
        """
        path = tuple(namespace)
        if mode == "values":
            self._flush()
            # Clients pair the values of a step with its checkpoint, which LangGraph emits after them.
            self._pending_values = payload, path
            return
        if mode == "checkpoints":
            self._emit_own("checkpoints", path, reference(payload))
            self._flush()
            return
        self._flush()
        match mode:
            case "messages":
                message, metadata = payload
                self._publish_message(message, metadata, path)
            case "tools":
                self._emit_own("tools", path, payload)
            case "updates":
                self._publish_update(payload, path)
            case "tasks":
                self._publish_task(payload, path)
            case "custom":
                self._emit(_join_name(mode, path), payload)
            case _:
                pass  # a mode that a graph's transformers requested

    def publish_end(self) -> None:
        """Publish the events that were held back until the end of the stream: the last values, the ends of
        the last subgraphs, and the interrupts, which can be answered only once the run has stopped."""
        self._flush()
        self._emit_ends()
        for question, path in self._questions.values():
            self._emit(_join_name("updates", path), {INTERRUPT: [question]})

    def _flush(self) -> None:
        if self._pending_values is not None:
            (values, path), self._pending_values = self._pending_values, None
            self._emit(_join_name("values", path), values)

    def _emit_own(self, method: str, path: Sequence[str], data: Any, node: Any = None) -> None:
        event = {"data": data}
        if node is not None:
            event["node"] = node
        self._emit(_join_name(f"{OWN}{method}", path), event)

    def _publish_update(self, payload: Any, path: tuple[str, ...]) -> None:
        if isinstance(payload, Mapping) and INTERRUPT in payload:
            for question in payload[INTERRUPT]:
                # Every enclosing graph repeats the interrupt of a subgraph.
                self._questions.setdefault(question.id, (question, path))
            return
        if "updates" not in self._withheld:
            self._emit(_join_name("updates", path), payload, room_of("updates", payload))

    def _publish_message(self, message: Any, metadata: Mapping[str, Any], path: Sequence[str]) -> None:
        if isinstance(message, BaseMessage):
            if isinstance(message, ToolMessage | RemoveMessage) or _MODEL not in metadata:
                # Left out, as messages that a node returns are in the values.
                return
            # A complete message of a model, which was not streamed.
            role, message_id = _ROLES.get(message.type, "ai"), message.id or ""
            events: Iterable[Any] = message_to_events(message, message_id=message_id)
        else:
            run = str(metadata.get("run_id", ""))
            if message.get("event") == "message-start":
                self._message_ids[run] = message.get("id") or message.get("message_id") or run
            role, message_id, events = "ai", self._message_ids.get(run, run), (message,)
            if message.get("event") in ("message-finish", "error"):
                self._message_ids.pop(run, None)
        node = metadata.get("langgraph_node")
        for event in events:
            data = {**event, "message_id": message_id}
            if event["event"] == "message-start":
                about = {**event.get("metadata", {}), **_describe_message(metadata)}
                data |= {"id": message_id, "role": event.get("role") if role == "ai" else role}
                data["metadata"] = about
            self._emit_own("messages", path, data, node)

    def _publish_task(self, payload: Mapping[str, Any], path: tuple[str, ...]) -> None:
        task_id = str(payload.get("id"))
        if "result" not in payload:
            self._emit_ends()
            self._running.add(task_id)
            self._begin_subgraph(payload, path)
        if "tasks" not in self._withheld:
            self._emit(_join_name("tasks", path), payload)
        if "result" in payload:
            self._running.discard(task_id)
            self._end_subgraph(payload, path)
            if self._running - {one.rpartition(":")[2] for one in path}:
                self._emit_ends()

    def _begin_subgraph(self, task: Mapping[str, Any], path: tuple[str, ...]) -> None:
        """Publish the start of a subgraph with its first task."""
        call = _find_tool_call(task.get("input"))
        if call is not None:
            self._calls[str(task.get("id"))] = call
        if not path or path in self._subgraphs:
            return
        name, _, parent = path[-1].partition(":")
        self._subgraphs[path] = parent
        agent = (task.get("metadata") or {}).get("lc_agent_name")
        data: dict[str, Any] = {"event": "started", "graph_name": agent or name}
        if parent:
            data["trigger_call_id"] = parent
        if agent and parent in self._calls:
            data["cause"] = {"type": "toolCall", "tool_call_id": self._calls[parent]}
        self._emit_own("lifecycle", path, data)

    def _end_subgraph(self, task: Mapping[str, Any], path: tuple[str, ...]) -> None:
        """Queue the end of the subgraph that a task ran.

        The end is published at once if another task runs in parallel, otherwise after the step: clients read
        the state when a graph ends, and the state has to contain the subgraph's result by then.
        """
        for below in [
            b for b, parent in self._subgraphs.items() if b[:-1] == path and parent == task.get("id")
        ]:
            del self._subgraphs[below]
            data: dict[str, Any] = {"event": "completed"}
            if task.get("interrupts"):
                data = {"event": "interrupted"}
            elif (error := task.get("error")) is not None:
                data = {"event": "failed", "error": read_message(error)}
            self._ends.append((below, data))

    def _emit_ends(self) -> None:
        for below, data in self._ends:
            self._emit_own("lifecycle", below, data)
        self._ends.clear()


def _join_name(name: str, path: Iterable[str]) -> str:
    return "|".join((name, *path))


def _describe_message(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metadata for the start of a message."""
    names = ("langgraph_node", "langgraph_step", "ls_provider", "ls_model_name", "run_id", "lc_agent_name")
    found = {name: metadata[name] for name in names if isinstance(metadata.get(name), str | int)}
    return {
        {"ls_provider": "provider", "ls_model_name": "model"}.get(name, name): value
        for name, value in found.items()
    }


def reference(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the protocol's reference to a checkpoint."""
    here = (payload.get("config") or {}).get("configurable", {})
    parent = (payload.get("parent_config") or {}).get("configurable", {})
    about = payload.get("metadata") or {}
    named = {"id": here.get("checkpoint_id"), "step": about.get("step"), "source": about.get("source")}
    if "checkpoint_id" in parent:
        return {**named, "parent_id": parent["checkpoint_id"]}
    return named


def _find_tool_call(task_input: Any) -> str | None:
    """Return the id of the tool call for which a task was created, from the task's input."""
    call = read_mapping(task_input).get("tool_call")
    if call is None and isinstance(task_input, list):
        call = next((one for one in task_input if isinstance(one, Mapping) and "id" in one), None)
    call_id = read_mapping(call).get("id")
    if isinstance(call_id, str):
        return call_id
    return None
