"""Runtime: durable acceptance of messages, the workers that run graphs for them, and delivery of replies."""

from perdure.engine.queue.events import Event
from perdure.engine.queue.inbox import Standing
from perdure.model.model_calls import Price, Prices
from perdure.model.runs.messages import Message, Reply, Run
from perdure.runtime.agents.agent import Agent
from perdure.runtime.nodes.effects import effect, effect_key, effects, effects_sync
from perdure.runtime.nodes.graphs_without_checkpoints import let_steps_end
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

let_steps_end()
