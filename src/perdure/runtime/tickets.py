"""Tickets of accepted messages, and the messages that are stored for them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from perdure.engine.queue.questions import ReadAsked
from perdure.engine.queue.signals import Signal, Signalled, signal_key
from perdure.langgraph.reading.open_interrupts import is_by_name
from perdure.model.arguments import require_text
from perdure.model.records import Partition
from perdure.model.runs.messages import ANSWERS, Message, Mode, copy_plain, dedupe_digest
from perdure.runtime.options import WEBHOOK, Options


class Ticket(NamedTuple):
    """Receipt of an accepted message, which is durable. ``number`` is its place on the thread, and ``id`` its
    identity however often it was sent; ``is_duplicate`` is True if it had been accepted before."""

    thread_id: str
    number: int
    id: str
    is_duplicate: bool
    tenant: str


class SignalReceipt(NamedTuple):
    """Receipt of a signal, which is durable. ``run_id`` is the run that goes on with it, ``None`` while the
    thread keeps it for a wait that has not begun; ``is_duplicate`` is True if it had been given before."""

    thread_id: str
    name: str
    run_id: str | None
    is_duplicate: bool

    @classmethod
    def of(cls, signal: Signal, signalled: Signalled) -> SignalReceipt:
        """Return the receipt of a signal that was stored."""
        run_id = None
        if signalled.accepted is not None:
            run_id = signalled.accepted.id
        return cls(signal.partition.thread, signal.name, run_id, signalled.is_duplicate)


def partition_of(ticket: object) -> Partition:
    """Return the thread of a ticket; raise ``TypeError`` for anything else, such as the id of a run."""
    if not isinstance(ticket, Ticket):
        raise TypeError(
            f"a ticket is what accept, submit and answer return, not {type(ticket).__name__}; for the id of "
            "a run use find(thread_id, run_id)"
        )
    return Partition(ticket.tenant, ticket.thread_id)


def message_of(
    graph: str,
    payload: Mapping[str, Any],
    mode: Mode,
    dedupe_key: str | None,
    channel: str,
    options: Options,
    *,
    answers: Sequence[str] | None = None,
) -> Message:
    """Return the message to store, under a new id, with copies of its payload and options.

    Args:
        graph: The name of the graph; empty for an answer.
        payload: The message, input, answer or command.
        mode: The way in which it joins messages that wait.
        dedupe_key: The sender's key, if any.
        channel: The channel for replies; empty for none.
        options: The options of its run.
        answers: The ids of the interrupts that an answer names.

    Raises:
        ValueError: The key is empty, or the channel does not match the webhook option.
        TypeError: The key or the channel is not text.
        Unserialisable: The payload or an option is not plain JSON data.
        TooLarge: They exceed ``MESSAGE_MAX``.
    """
    if dedupe_key is not None:
        require_text("dedupe_key", dedupe_key)
        if not dedupe_key:
            raise ValueError("dedupe_key is empty; give the sender's key of the message, or None")
    require_text("channel", channel)
    if (channel == WEBHOOK) != (options.webhook is not None):
        raise ValueError(f"runs with a webhook have the channel {WEBHOOK!r}, and no others have it")
    stored = options.dump()
    if answers is not None:
        stored[ANSWERS] = list(answers)
    dedupe = b"" if dedupe_key is None else dedupe_digest(dedupe_key)
    # Copies, so that a sender that changes the object for another message does not change this one.
    payload, stored = copy_plain([payload, stored], "message")
    return Message(make_id(), payload, graph, channel, mode, stored, dedupe=dedupe)


def address_answer(value: Any, interrupt_id: str | None) -> tuple[Any, list[str]]:
    """Return an answer as LangGraph takes it, and the ids of the interrupts that it names."""
    if interrupt_id is not None:
        return {interrupt_id: value}, [interrupt_id]
    if is_by_name(value):
        return value, list(value)
    return value, []


def make_id() -> str:
    """Return a new id of a message."""
    return str(uuid.uuid4())


def make_signal(
    partition: Partition,
    name: str,
    value: object,
    key: str | None,
    *,
    to_all: bool,
    now: int,
    fresh: int,
    read_asked: ReadAsked,
) -> Signal:
    """Return the signal to store, with a copy of its value. ``key`` is the sender's, if any; the other
    arguments are those of ``Signal``.

    Raises:
        Unserialisable: The value is not plain JSON data.
        TooLarge: The value is too large.
    """
    stored_key = b""
    if key is not None:
        stored_key = signal_key(name, key)
    copied = copy_plain(value, "signal")
    return Signal(partition, name, copied, stored_key, to_all, make_id(), now, fresh, read_asked)


def options_of(config: Mapping[str, Any] | None, options: Options | None) -> Options:
    """Return the options with the config that was given beside them.

    Raises:
        ValueError: The config is given twice.
        TypeError: The options are not ``Options``.
    """
    if options is not None and not isinstance(cast(object, options), Options):
        raise TypeError(f"options is perdure.runtime.Options(…), not {type(options).__name__}")
    if config is None:
        return options or Options()
    if options is not None and options.config:
        raise ValueError("the config is given twice, by itself and in the options; give it once")
    return replace(options or Options(), config=config)
