"""Delivery of a thread's replies through a channel: send, retry, give up, or hold for a person."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, cast

from perdure.engine.queue import outbox
from perdure.engine.queue.claims import Unserved
from perdure.engine.queue.outbox import DeliveryOutcome, Sending
from perdure.engine.queue.runs import Ending
from perdure.errors import Fenced
from perdure.model.records import Partition
from perdure.model.runs.messages import (
    DEAD,
    READY,
    SENDING,
    SENT,
    UNKNOWN,
    WAITING,
    Message,
    Reply,
    check_reply,
    replace_surrogates,
    replace_surrogates_in,
    shorten_error,
)
from perdure.runtime.contained_exits import contain
from perdure.runtime.jitter import spread
from perdure.runtime.runtime_context import RuntimeContext
from perdure.runtime.worker.backlog import Foreign

Indicate = Callable[[Partition, Message], Coroutine[Any, Any, None]]
InDoubt = Literal["resend", "reconcile", "hold"]
"""Policy for a reply that the provider may or may not have: send it again under the same key, ask the
provider first, or hold it for a person."""


class Undeliverable(Exception):
    """Raised by a sender: this reply can never be delivered, so it is given up at once."""


_RETRY_AFTER_MAX_S = 3600.0
"""Longest pause that a provider may ask for."""


class NotSent(Exception):
    """Raised by a sender: the provider certainly does not have this reply, so it may be sent again.

    Args:
        message: The reason.
        retry_after: Seconds after which the provider takes messages again, at most an hour; the attempt then
            does not count. With ``None`` the runtime's backoff applies, and it counts.
    """

    def __init__(self, message: str = "", *, retry_after: float | None = None) -> None:
        super().__init__(message)
        if retry_after is not None:
            retry_after = min(max(0.0, retry_after), _RETRY_AFTER_MAX_S)
        self.retry_after = retry_after


@dataclass(frozen=True)
class Channel:
    """Delivers replies to people.

    Args:
        send: Called with the thread and the reply, whose ``id`` is the idempotency key; returns the
            provider's id for it, if any. Raises ``NotSent`` if the provider certainly does not have the
            reply, ``Undeliverable`` if it can never be delivered. After any other error, or no answer within
            ``timeout``, the reply is in doubt.
        in_doubt: The policy for replies in doubt.
        find: Asks the provider for a reply by its key; returns the provider's id, or ``None`` if the provider
            does not have it. Required by ``in_doubt="reconcile"``.
        attempts: The number of attempts, at least 1.
        timeout: Seconds for one call, more than 0.
        send_in: Given in place of ``send``; called with the partition, which includes the thread's tenant,
            and the reply.
        split: Divides a reply, or a question, into several replies, each of which is stored, sent and retried
            by itself, for providers that limit the length of a message.
        ask: Makes the reply that asks for the answer to an interrupt, from its id and its value; ``None``
            asks nothing.
        indicate: Called when an attempt at a run begins, with the partition and the run's last message, to
            show that an answer is being written. It is cancelled when the attempt ends, and its errors have
            no effect.

    ``split`` and ``ask`` are applied by the process that executes the run, so all workers need the channel.

    Raises:
        ValueError: An argument is out of range, or not exactly one of ``send`` and ``send_in`` is given.
    """

    send: Callable[[str, Reply], Awaitable[str | None]] | None = None
    in_doubt: InDoubt = "resend"
    find: Callable[[str, Reply], Awaitable[str | None]] | None = None
    attempts: int = 10
    timeout: float = 20.0
    send_in: Callable[[Partition, Reply], Awaitable[str | None]] | None = None
    split: Callable[[Any], Sequence[Any]] | None = None
    ask: Callable[[str, Any], Any] | None = None
    indicate: Indicate | None = None

    def __post_init__(self) -> None:
        if (self.send is None) == (self.send_in is None):
            raise ValueError("a channel needs send=…, which delivers a reply, or send_in=…, and not both")
        if self.in_doubt not in ("resend", "reconcile", "hold"):
            raise ValueError(f"in_doubt is 'resend', 'reconcile' or 'hold', not {self.in_doubt!r}")
        if self.in_doubt == "reconcile" and self.find is None:
            raise ValueError("in_doubt='reconcile' needs find=…, which asks the provider for a reply")
        if self.attempts < 1:
            raise ValueError(f"attempts is {self.attempts}; it has to be at least 1")
        if self.timeout <= 0:
            raise ValueError(f"timeout is {self.timeout} s; it has to be more than 0")

    async def deliver(self, partition: Partition, reply: Reply) -> str | None:
        """Send a reply of a thread and return the provider's id, if any."""
        if self.send is not None:
            return await self.send(partition.thread, reply)
        return await cast(Callable[[Partition, Reply], Awaitable[str | None]], self.send_in)(partition, reply)

    def format_replies(self, ending: Ending) -> Ending:
        """Return the ending of a run with its replies in the form in which they are sent: no provider takes
        half of a character.

        Raises:
            Exception: ``ask`` or ``split`` raises this.
            TypeError: ``split`` returns something other than a list.
            Unserialisable: A reply is not plain JSON data.
            TooLarge: A reply is larger than can be stored.
        """
        replies = tuple(ending.replies)
        if ending.state == WAITING:
            ask = self.ask
            replies = () if ask is None else tuple(ask(each["id"], each["value"]) for each in replies)
        replies = tuple(map(replace_surrogates_in, replies))
        if self.split is not None:
            replies = tuple(part for each in replies for part in _divide(self.split, each))
        for reply in replies:
            check_reply(reply)
        return replace(ending, replies=replies)


class Delivery:
    """Delivers the due replies of threads in order."""

    def __init__(self, context: RuntimeContext, channels: Mapping[str, Channel]) -> None:
        self._channels = dict(channels)
        self._database = context.database
        self._settings = context.settings
        self._clock = context.clock
        self._observers = context.observers
        self._owner = context.owner

    async def deliver(self, partition: Partition) -> bool | Foreign | None:
        """Deliver the due replies of a thread. Return True, ``None`` if there were none, or the channel that
        this worker does not serve."""
        take = outbox.Take(
            partition,
            self._owner,
            tuple(self._channels),
            await self._clock.now(),
            self._settings.lease_us,
            20,
        )
        sending = await self._database.arun(take.take())
        if sending is None:
            return None
        if isinstance(sending, Unserved):
            return Foreign("channel", sending.name)
        try:
            while sending is not None:
                sending = await self._deliver_first(sending)
        except Fenced:
            self._observers.thread_event("reply.lost", partition)
        return True

    async def _deliver_first(self, sending: Sending) -> Sending | None:
        """Deliver the first reply, and return the next one to deliver, if any."""
        channel, reply = self._channels[sending.reply.channel], sending.reply
        if sending.in_doubt:
            outcome, sending = await self._resolve_doubt(channel, sending)
        else:
            outcome = await self._send(channel, sending)
        self._observers.event(f"reply.{outcome.state}", **_fields(sending))
        now = await self._clock.now()
        if outcome.state in (READY, SENDING) and outcome.again_at is None:
            pause = self._settings.pause_us(reply.attempts, spread())
            outcome = outcome._replace(again_at=now + pause)
        return await self._database.arun(
            outbox.record_outcome(sending, outcome, tuple(self._channels), now, self._settings.lease_us)
        )

    async def _resolve_doubt(self, channel: Channel, sending: Sending) -> tuple[DeliveryOutcome, Sending]:
        """Resolve a reply that may have been sent already, by the channel's policy."""
        reply = sending.reply
        if channel.in_doubt == "hold":
            return DeliveryOutcome(UNKNOWN, error="its sender ended while it was being sent"), sending
        if channel.find is not None and channel.in_doubt == "reconcile":
            try:
                async with asyncio.timeout(channel.timeout):
                    known = await contain(channel.find(sending.partition.thread, reply))
            except NotSent as error:
                return await self._decide_unasked(channel, sending, error), sending
            except Exception as error:
                return _decide_failed_question(channel, reply, error), sending
            if known is not None:
                return _to_outcome(known), sending
        again = outbox.send_again(sending, await self._clock.now(), self._settings.lease_us)
        sending = await self._database.arun(again)
        return await self._send(channel, sending), sending

    async def _decide_unasked(self, channel: Channel, sending: Sending, error: NotSent) -> DeliveryOutcome:
        """Return the outcome if the provider certainly did not take the question whether it has a reply."""
        if error.retry_after is None:
            return _decide_failed_question(channel, sending.reply, error)
        return DeliveryOutcome(
            SENDING, error=shorten_error(error), again_at=await self._add_to_now(error.retry_after)
        )

    async def _add_to_now(self, seconds: float) -> int:
        return await self._clock.now() + round(seconds * 1_000_000)

    async def _send(self, channel: Channel, sending: Sending) -> DeliveryOutcome:
        """Send a reply and return the outcome."""
        reply = sending.reply
        is_last = reply.attempts >= channel.attempts
        unsent = DEAD if is_last else READY
        try:
            with self._observers.span("send", **_fields(sending)):
                async with asyncio.timeout(channel.timeout):
                    return _to_outcome(await contain(channel.deliver(sending.partition, reply)))
        except Undeliverable as error:
            return DeliveryOutcome(DEAD, error=shorten_error(error))
        except NotSent as error:
            if error.retry_after is not None:
                again = await self._add_to_now(error.retry_after)
                return DeliveryOutcome(READY, error=shorten_error(error), again_at=again, counts=-1)
            return DeliveryOutcome(unsent, error=shorten_error(error))
        except Exception as error:
            if channel.in_doubt == "hold" or (is_last and channel.in_doubt == "reconcile"):
                return DeliveryOutcome(UNKNOWN, error=shorten_error(error))
            if channel.in_doubt == "reconcile":
                return DeliveryOutcome(SENDING, error=shorten_error(error))
            return DeliveryOutcome(unsent, error=shorten_error(error))


def _divide(split: Callable[[Any], Sequence[Any]], reply: Any) -> Sequence[Any]:
    """Return the parts of a reply."""
    parts: Any = split(reply)
    if not isinstance(parts, list | tuple):
        raise TypeError(f"split=… of a channel returns a list of replies, not {type(parts).__name__}")
    return cast(Sequence[Any], parts)


def _decide_failed_question(channel: Channel, reply: Reply, error: Exception) -> DeliveryOutcome:
    """Return the outcome if the question whether the provider has a reply failed: ask again, or after the
    last attempt hold the reply for a person."""
    state = SENDING
    if reply.attempts >= channel.attempts:
        state = UNKNOWN
    return DeliveryOutcome(state, error=shorten_error(error), counts=1)


def _to_outcome(provider_id: object) -> DeliveryOutcome:
    """Return the outcome of an accepted reply. Many providers number messages, so an id need not be text."""
    return DeliveryOutcome(SENT, None if provider_id is None else replace_surrogates(str(provider_id)))


def _fields(sending: Sending) -> dict[str, Any]:
    return {
        "tenant": sending.partition.tenant,
        "thread": sending.partition.thread,
        "channel": sending.reply.channel,
        "reply": sending.reply.id,
        "attempts": sending.reply.attempts,
    }
