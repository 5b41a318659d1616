"""What a caller hands in and gets for it: the message that is stored, and the ticket of its acceptance."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from perdure.model.messages import ANSWERS, Message, Mode, dedupe_digest
from perdure.runtime.options import WEBHOOK, Options


class Ticket(NamedTuple):
    """An accepted message: it is durable. ``number`` is its place on the thread and ``id`` its own, the same
    however often it was sent; ``is_duplicate`` says that it had been accepted before."""

    thread_id: str
    number: int
    id: str
    is_duplicate: bool
    tenant: str


def message_of(
    graph: str,
    payload: Mapping[str, Any],
    mode: Mode,
    dedupe_key: str | None,
    channel: str,
    options: Options,
    answers: Sequence[str] | None = None,
) -> Message:
    """What is stored of something said, under an id of its own. ``answers`` are the interrupts that an answer
    names."""
    if (channel == WEBHOOK) != (options.webhook is not None):
        raise ValueError(f"runs with a webhook have the channel {WEBHOOK!r}, and no others have it")
    stored = options.stored()
    if answers is not None:
        stored[ANSWERS] = list(answers)
    dedupe = dedupe_digest(dedupe_key) if dedupe_key else b""
    return Message(str(uuid.uuid4()), payload, graph, channel, mode, stored, dedupe=dedupe)


def options_of(config: Mapping[str, Any] | None, options: Options | None) -> Options:
    """The options with the config that was given beside them."""
    if config is None:
        return options or Options()
    if options is not None and options.config:
        raise ValueError("the config is given twice, by itself and in the options; give it once")
    return replace(options or Options(), config=config)
