"""Conversion of run events to events of the streaming protocol, and filters over them.

A run event becomes one or more events of the protocol, and has as many sequence numbers. The result depends
on the run event alone, so that a client that resumes after a number receives the same events again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from perdure.model.runs.messages import DONE, FAILED
from perdure.model.write_records import INTERRUPT
from perdure.runtime import Event
from perdure.runtime.events.protocol import OWN, reference
from perdure.runtime.failures.failure_location import shows_texts
from perdure.runtime.json_encoding import to_json
from perdure.server.error_handlers import make_event_data, make_recorded_message
from perdure.server.responses import reminder

CHANNELS = (
    "values",
    "updates",
    "messages",
    "tools",
    "lifecycle",
    "input",
    "tasks",
    "checkpoints",
    "custom",
)
_CUSTOM = "custom:"
_ENDED = {DONE: "completed", FAILED: "failed"}


def is_channel(name: Any) -> bool:
    """Return True if there is such a channel. Each name under which a graph writes custom events has a
    channel of its own, ``custom:NAME``."""
    return isinstance(name, str) and (name in CHANNELS or (name.startswith(_CUSTOM) and name != _CUSTOM))


class EventFilter(NamedTuple):
    """Events that a client subscribes to: of ``channels``, within ``namespaces`` and at most ``depth`` levels
    below."""

    channels: frozenset[str]
    namespaces: tuple[tuple[str, ...], ...] | None = None
    depth: int | None = None

    def includes(self, channel: str) -> bool:
        """Return True if any event of a channel may be wanted."""
        return channel in self.channels or (
            channel == "custom" and any(name.startswith(_CUSTOM) for name in self.channels)
        )

    def includes_custom(self, name: Any) -> bool:
        """Return True if a custom event of this name is wanted; None stands for an event without a name."""
        return "custom" in self.channels or f"{_CUSTOM}{name}" in self.channels

    def reaches(self, namespace: Sequence[str]) -> bool:
        """Return True if events of a namespace are wanted."""
        if not self.namespaces:
            return True
        return any(
            _is_below(namespace, prefix)
            and (self.depth is None or len(namespace) - len(prefix) <= self.depth)
            for prefix in self.namespaces
        )


def _is_below(namespace: Sequence[str], prefix: Sequence[str]) -> bool:
    """Return True if a namespace starts with a prefix. A part of the prefix without a task's id matches every
    task of its node."""
    return len(prefix) <= len(namespace) and all(
        part == prefix_part or (":" not in prefix_part and part.partition(":")[0] == prefix_part)
        for part, prefix_part in zip(namespace, prefix, strict=False)
    )


class ProtocolEvent(NamedTuple):
    """An event of the protocol: its number, its method, and all of it as JSON text."""

    seq: int
    method: str
    text: str


def project(event: Event, wanted: EventFilter) -> Iterator[ProtocolEvent]:
    """Yield those protocol events of a run event that are wanted."""
    name, *namespace = event.name.split("|")
    if not wanted.reaches(namespace):
        return
    match name:
        case "metadata" if wanted.includes("lifecycle"):
            yield _make_event(event.seq, "lifecycle", namespace, to_json(_to_running(event)))
        case "end" if wanted.includes("lifecycle"):
            yield _make_event(event.seq, "lifecycle", namespace, to_json(_to_end(event)))
        case "values" if wanted.includes("values"):
            yield _make_event(event.seq, "values", namespace, _without_interrupts(event.data))
        case "tasks" if wanted.includes("tasks"):
            yield _make_event(event.seq, "tasks", namespace, make_event_data("tasks", event.data))
        case "checkpoints" if wanted.includes("checkpoints"):
            text = to_json(reference(json.loads(event.data)))
            yield _make_event(event.seq, "checkpoints", namespace, text)
        case "custom" if wanted.includes("custom"):
            custom = _to_custom(json.loads(event.data))
            if wanted.includes_custom(custom.get("name")):
                yield _make_event(event.seq, "custom", namespace, to_json(custom))
        case "reminder" if wanted.includes("custom") and wanted.includes_custom(name):
            custom = _to_custom({"name": name, **reminder(event.data)})
            yield _make_event(event.seq, "custom", namespace, to_json(custom))
        case "updates" if wanted.includes("updates") or wanted.includes("input"):
            yield from _make_updates(event, namespace, wanted)
        case _ if name.startswith(OWN) and wanted.includes(method := name.removeprefix(OWN)):
            content = event.data
            if method == "tools":
                content = _make_tool_event(content)
            yield _make_frame(event.seq, method, namespace, content[1:-1])
        case _:
            pass  # a channel that is not wanted, or an event without a channel in this protocol


def _make_tool_event(text: str) -> str:
    """Return a tool's event without the text of an exception, unless clients may see such texts."""
    if shows_texts.get() or '"tool-error"' not in text:
        return text
    event = json.loads(text)
    if isinstance(data := event.get("data"), dict) and data.get("event") == "tool-error":
        event["data"] = {**data, "message": make_recorded_message("", str(data.get("message", "")))}
    return to_json(event)


def _to_running(event: Event) -> dict[str, Any]:
    data, shown = json.loads(event.data), {"event": "running"}
    if "graph_id" in data:
        shown["graph_name"] = data["graph_id"]
    return shown


def _to_end(event: Event) -> dict[str, Any]:
    data = json.loads(event.data)
    shown = {"event": _ENDED.get(data.get("state"), "interrupted")}
    if shown["event"] == "failed":
        shown["error"] = _describe_failure(str(data.get("error", "")))
    return shown


def _describe_failure(noted: str) -> str:
    """Return the message of a run's recorded error, which is its type followed by its text."""
    kind, colon, text = noted.partition(": ")
    return f"{kind}{colon}{make_recorded_message(kind, text)}"


def _without_interrupts(text: str) -> str:
    if f'"{INTERRUPT}"' not in text:
        return text
    values = json.loads(text)
    if isinstance(values, dict):
        return to_json({k: v for k, v in values.items() if k != INTERRUPT})
    return text


def _to_custom(data: Any) -> dict[str, Any]:
    """Return a custom event with its own fields, which Python clients read, and as ``payload``, which
    JavaScript clients read."""
    if not isinstance(data, dict):
        return {"payload": data}
    if "payload" in data:
        return data
    return {**data, "payload": data}


def _make_updates(event: Event, namespace: Sequence[str], wanted: EventFilter) -> Iterator[ProtocolEvent]:
    updates = json.loads(event.data)
    if not isinstance(updates, dict):
        return
    if INTERRUPT not in updates:
        if wanted.includes("updates"):
            for seq, (node, values) in enumerate(updates.items(), event.seq - len(updates) + 1):
                data = to_json({"node": node, "values": values})
                yield _make_event(seq, "updates", namespace, data, node)
        return
    if not wanted.includes("input"):
        return
    for seq, asked in enumerate(updates[INTERRUPT], event.seq - len(updates[INTERRUPT]) + 1):
        # Python clients read ``value``, JavaScript clients ``payload``.
        value = asked.get("value")
        shown = {"interrupt_id": asked.get("id"), "payload": value, "value": value}
        if "response_schema" in asked:
            shown["response_schema"] = asked["response_schema"]
        data = to_json(shown)
        yield _make_event(seq, "input.requested", namespace, data)


def _make_event(
    seq: int, method: str, namespace: Sequence[str], data: str, node: str | None = None
) -> ProtocolEvent:
    node_field = "" if node is None else f',"node":{to_json(node)}'
    return _make_frame(seq, method, namespace, f'"data":{data}{node_field}')


def _make_frame(seq: int, method: str, namespace: Sequence[str], rest: str) -> ProtocolEvent:
    head = f'{{"type":"event","event_id":"{seq}","seq":{seq},"method":"{method}"'
    # Sequence numbers are microseconds; the protocol's timestamps milliseconds.
    where = f'"namespace":{to_json(list(namespace))},"timestamp":{seq // 1000}'
    return ProtocolEvent(seq, method, f'{head},"params":{{{where},{rest}}}}}')
