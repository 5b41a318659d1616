"""Runtime: durable acceptance of messages, the workers that run graphs for them, and delivery of replies.

The exported names are imported on first use: commands that only read threads need no graphs.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perdure.engine.queue.events import Event
    from perdure.engine.queue.inbox import Standing
    from perdure.model.model_calls import Price, Prices
    from perdure.model.runs.messages import Message, Reply, Run
    from perdure.runtime.agents.agent import Agent
    from perdure.runtime.nodes.effects import effect, effect_key, effects, effects_sync
    from perdure.runtime.nodes.isolated_subgraphs import isolated_subgraph
    from perdure.runtime.nodes.steering import take_messages, take_messages_sync
    from perdure.runtime.nodes.transactions import Transaction, transaction
    from perdure.runtime.nodes.waiting import Question, ask, sleep, sleep_sync, wait_for, wait_for_sync
    from perdure.runtime.observers import Logs, Observer
    from perdure.runtime.options import Options, StreamOptions
    from perdure.runtime.runtime import Runtime
    from perdure.runtime.settings import Settings
    from perdure.runtime.tickets import Ticket
    from perdure.runtime.worker.delivery import Channel, NotSent, Undeliverable

__all__ = [
    "Agent",
    "Channel",
    "Event",
    "Logs",
    "Message",
    "NotSent",
    "Observer",
    "Options",
    "Price",
    "Prices",
    "Question",
    "Reply",
    "Run",
    "Runtime",
    "Settings",
    "Standing",
    "StreamOptions",
    "Ticket",
    "Transaction",
    "Undeliverable",
    "ask",
    "effect",
    "effect_key",
    "effects",
    "effects_sync",
    "isolated_subgraph",
    "sleep",
    "sleep_sync",
    "take_messages",
    "take_messages_sync",
    "transaction",
    "wait_for",
    "wait_for_sync",
]

_NAMES = {
    "engine.queue.events": ("Event",),
    "engine.queue.inbox": ("Standing",),
    "model.model_calls": ("Price", "Prices"),
    "model.runs.messages": ("Message", "Reply", "Run"),
    "runtime.agents.agent": ("Agent",),
    "runtime.nodes.effects": ("effect", "effect_key", "effects", "effects_sync"),
    "runtime.nodes.isolated_subgraphs": ("isolated_subgraph",),
    "runtime.nodes.steering": ("take_messages", "take_messages_sync"),
    "runtime.nodes.transactions": ("Transaction", "transaction"),
    "runtime.nodes.waiting": ("Question", "ask", "sleep", "sleep_sync", "wait_for", "wait_for_sync"),
    "runtime.observers": ("Logs", "Observer"),
    "runtime.options": ("Options", "StreamOptions"),
    "runtime.runtime": ("Runtime",),
    "runtime.settings": ("Settings",),
    "runtime.tickets": ("Ticket",),
    "runtime.worker.delivery": ("Channel", "NotSent", "Undeliverable"),
}
"""Exported names by their modules, below ``perdure``."""
_MODULES = {name: module for module, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"perdure.{_MODULES[name]}"), name)
