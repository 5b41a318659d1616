"""What runs told, as events of the streaming protocol: which of them a client wants, and how they are sent.

An event that a run told becomes one event of the protocol, or several: then it took as many numbers. What an
event becomes depends on nothing but itself, so that whoever comes back with a number gets the same again.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from perdure.engine.events import END
from perdure.model.messages import DONE, FAILED
from perdure.runtime import Event
from perdure.runtime.encoding import encoded
from perdure.runtime.events.protocol import OWN, QUESTIONS, reference
from perdure.server.error_handlers import sentence_of

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
    """Whether there is such a channel; what a graph writes under a name has one of its own."""
    return isinstance(name, str) and (name in CHANNELS or (name.startswith(_CUSTOM) and name != _CUSTOM))


class EventFilter(NamedTuple):
    """What a client wants to be told: of ``channels``, within ``namespaces`` down to a ``depth`` below."""

    channels: frozenset[str]
    namespaces: tuple[tuple[str, ...], ...] | None = None
    depth: int | None = None

    def includes(self, channel: str) -> bool:
        """Whether anything of a channel may be wanted."""
        return channel in self.channels or (
            channel == "custom" and any(held.startswith(_CUSTOM) for held in self.channels)
        )

    def names(self, name: Any) -> bool:
        """Whether what a graph wrote under a name, or none, is wanted."""
        return "custom" in self.channels or f"{_CUSTOM}{name}" in self.channels

    def reaches(self, namespace: Sequence[str]) -> bool:
        """Whether what is told in a namespace is wanted."""
        if not self.namespaces:
            return True
        return any(
            _begins(namespace, prefix) and (self.depth is None or len(namespace) - len(prefix) <= self.depth)
            for prefix in self.namespaces
        )


def _begins(namespace: Sequence[str], prefix: Sequence[str]) -> bool:
    """A prefix without the id of a task matches every task of its node."""
    return len(prefix) <= len(namespace) and all(
        held == asked or (":" not in asked and held.partition(":")[0] == asked)
        for held, asked in zip(namespace, prefix, strict=False)
    )


class ProtocolEvent(NamedTuple):
    """An event of the protocol: its number, its method, and all of it as JSON text."""

    seq: int
    method: str
    text: str


def project(event: Event, wanted: EventFilter) -> Iterator[ProtocolEvent]:
    """What becomes of an event that a run told, as far as it is wanted."""
    name, *namespace = event.name.split("|")
    if not wanted.reaches(namespace):
        return
    match name:
        case "metadata" | "end" if wanted.includes("lifecycle"):
            begun = name != END
            data = _begun(event) if begun else _ended(event)
            yield _said(event.seq, "lifecycle", namespace, encoded(data))
        case "values" if wanted.includes("values"):
            yield _said(event.seq, "values", namespace, _values(event.data))
        case "tasks" if wanted.includes("tasks"):
            yield _said(event.seq, "tasks", namespace, event.data)
        case "checkpoints" if wanted.includes("checkpoints"):
            text = encoded(reference(json.loads(event.data)))
            yield _said(event.seq, "checkpoints", namespace, text)
        case "custom" if wanted.includes("custom"):
            written = _written(json.loads(event.data))
            if wanted.names(written.get("name")):
                yield _said(event.seq, "custom", namespace, encoded(written))
        case "updates" if wanted.includes("updates") or wanted.includes("input"):
            yield from _updates(event, namespace, wanted)
        case _ if name.startswith(OWN) and wanted.includes(method := name.removeprefix(OWN)):
            yield _framed(event.seq, method, namespace, event.data[1:-1])
        case _:
            pass  # a channel that is not wanted, or what this protocol has no channel for


def _begun(event: Event) -> dict[str, Any]:
    told = json.loads(event.data)
    return {"event": "running", **({"graph_name": told["graph_id"]} if "graph_id" in told else {})}


def _ended(event: Event) -> dict[str, Any]:
    told = json.loads(event.data)
    phase = _ENDED.get(told.get("state"), "interrupted")
    return {"event": phase, **({"error": _failure(str(told.get("error", "")))} if phase == "failed" else {})}


def _failure(noted: str) -> str:
    """An error as it was noted with a run, its kind before its text."""
    kind, colon, said = noted.partition(": ")
    return f"{kind}{colon}{sentence_of(kind, said)}"


def _values(text: str) -> str:
    if f'"{QUESTIONS}"' not in text:
        return text
    values = json.loads(text)
    return encoded({k: v for k, v in values.items() if k != QUESTIONS}) if isinstance(values, dict) else text


def _written(data: Any) -> dict[str, Any]:
    """What a graph wrote, with its own fields, which clients in Python read, and as the ``payload``, which
    those in JavaScript read."""
    if not isinstance(data, dict):
        return {"payload": data}
    return data if "payload" in data else {**data, "payload": data}


def _updates(event: Event, namespace: Sequence[str], wanted: EventFilter) -> Iterator[ProtocolEvent]:
    told = json.loads(event.data)
    if not isinstance(told, dict):
        return
    if QUESTIONS not in told:
        if wanted.includes("updates"):
            for seq, (node, values) in enumerate(told.items(), event.seq - len(told) + 1):
                data = encoded({"node": node, "values": values})
                yield _said(seq, "updates", namespace, data, node)
        return
    if not wanted.includes("input"):
        return
    for seq, asked in enumerate(told[QUESTIONS], event.seq - len(told[QUESTIONS]) + 1):
        # Clients in Python read the one, those in JavaScript the other.
        value = asked.get("value")
        shown = {"interrupt_id": asked.get("id"), "payload": value, "value": value}
        if "response_schema" in asked:
            shown["response_schema"] = asked["response_schema"]
        data = encoded(shown)
        yield _said(seq, "input.requested", namespace, data)


def _said(
    seq: int, method: str, namespace: Sequence[str], data: str, node: str | None = None
) -> ProtocolEvent:
    by = "" if node is None else f',"node":{encoded(node)}'
    return _framed(seq, method, namespace, f'"data":{data}{by}')


def _framed(seq: int, method: str, namespace: Sequence[str], rest: str) -> ProtocolEvent:
    head = f'{{"type":"event","event_id":"{seq}","seq":{seq},"method":"{method}"'
    # Numbers are microseconds.
    where = f'"namespace":{encoded(list(namespace))},"timestamp":{seq // 1000}'
    return ProtocolEvent(seq, method, f'{head},"params":{{{where},{rest}}}}}')
