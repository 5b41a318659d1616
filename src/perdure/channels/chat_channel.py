"""Base of the chat channels: the runtime's outbox channel and the web routes of one provider's bot."""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import Any, Protocol, Self, runtime_checkable

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from perdure.channels import questions
from perdure.channels.addresses import ChatAddress
from perdure.channels.incoming import ButtonPress, ChatMessage
from perdure.channels.options import ChatOptions
from perdure.channels.receiving import ChatLocks, Received, Receiver
from perdure.channels.retry_after import ChatBackoff
from perdure.channels.splitting import split_text
from perdure.channels.webhook import endpoint
from perdure.model.records import Partition
from perdure.model.runs.messages import Message, Reply
from perdure.runtime import Channel, NotSent, Runtime, Undeliverable
from perdure.runtime.worker.delivery import InDoubt

_log = logging.getLogger("perdure.channels")


class SendUncertain(Exception):
    """Raised by a sender: the provider may or may not have the reply. The error has no details, because
    details from a client library may contain a token or a text."""


@runtime_checkable
class FindsReplies(Protocol):
    """A channel whose provider can be asked for a reply that it may have, as ``"reconcile"`` needs."""

    async def find(self, thread_id: str, reply: Reply) -> str | None:
        """Return the provider's id of a reply, ``None`` if it does not have the reply."""
        ...


class ChatChannel(ABC):
    """One bot at one provider. An async context manager that closes its connections.

    Args:
        name: The name of the channel.
        options: The options that all channels share.
        in_doubt: The policy for replies that the provider may or may not have.

    Raises:
        ValueError: The name is empty, or the policy needs a ``FindsReplies``.
    """

    def __init__(self, name: str, options: ChatOptions | None, in_doubt: InDoubt) -> None:
        if not name:
            raise ValueError("a channel needs a name")
        if in_doubt not in ("resend", "hold") and not isinstance(self, FindsReplies):
            raise ValueError(
                f"in_doubt={in_doubt!r} asks the provider for a reply, which {type(self).__name__} cannot do"
                "; choose 'resend' or 'hold'"
            )
        self.name = name
        self.options = options or ChatOptions()
        self.backoff = ChatBackoff()
        self._in_doubt: InDoubt = in_doubt
        self._locks = ChatLocks()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def channels(self) -> Mapping[str, Channel]:
        """Argument for ``Runtime(channels=…)``; merge those of several bots into one."""
        return {
            self.name: Channel(
                send_in=self._send,
                in_doubt=self._in_doubt,
                find=self._make_find(self) if isinstance(self, FindsReplies) else None,
                split=self._split,
                ask=questions.make_question_reply,
                indicate=self._indicate,
            )
        }

    def routes(self, runtime: Runtime | Callable[[], Runtime], path: str | None = None) -> list[Route]:
        """Return the routes that the provider calls, for a Starlette or FastAPI application.

        Args:
            runtime: The runtime that accepts the messages, or a function that returns it, for an application
                that opens it later.
            path: The path of the webhook, by default ``/channels/`` and the name of the channel.
        """
        get_runtime = runtime if callable(runtime) else lambda: runtime

        async def handle(request: Request) -> Response:
            return await self.handle(request, self._receiver(get_runtime()))

        route_path = path or f"/channels/{self.name}"
        return [
            Route(route_path, endpoint(self.name, handle), methods=self.methods, name=f"channel {self.name}")
        ]

    def poll(self, runtime: Runtime) -> AbstractAsyncContextManager[object]:
        """Return a block in which the provider is asked for messages, if the channel has no webhook.

        Args:
            runtime: The runtime that accepts the messages.
        """
        return nullcontext()

    methods: Sequence[str] = ("POST",)
    """HTTP methods of the provider's requests."""
    length: int
    """Maximum length of a message."""
    question_length: int
    """Maximum length of a message with buttons."""

    def measure(self, text: str) -> int:
        """Return the length of a text in the provider's units."""
        return len(text)

    def position(self, provider_id: str) -> int | None:
        """Return the place of a reply in the order of the chat, ``None`` if the provider's id has none."""
        return None

    @abstractmethod
    async def handle(self, request: Request, receiver: Receiver) -> Response:
        """Answer a request of the provider: verified, then parsed, then stored, then acknowledged."""

    @abstractmethod
    async def deliver(self, address: ChatAddress, text: str, reply: Reply) -> str | None:
        """Send a text, and the buttons of a question, as one message; return the provider's id for it.

        Raises:
            NotSent: The provider certainly does not have the message.
            Undeliverable: The message can never be delivered.
            SendUncertain: The provider may have the message.
        """

    async def show_activity(self, address: ChatAddress, message: Message) -> None:
        """Show in the chat that an answer is being written, until this call is cancelled. A channel without
        such an indicator returns at once."""
        return

    async def notify(self, address: ChatAddress, text: str) -> None:
        """Send a notice that is not stored. A failure is logged by its kind."""
        reply = Reply(0, "notice", 0, self.name, {"content": text})
        try:
            async with asyncio.timeout(10):
                for part in split_text(text, self.length, self.measure):
                    self.backoff.check(address.chat)
                    await self.deliver(address, part, reply)
        except Exception as error:
            _log.warning("%s: a notice was not sent (%s)", self.name, type(error).__name__)

    async def show_notice(self, event: ChatMessage | ButtonPress, received: Received) -> None:
        """Show the notice of an acceptance in the chat of the event, if there is one."""
        if received.notice:
            await self.notify(ChatAddress(self.name, event.chat, event.topic), received.notice)

    async def close(self) -> None:
        """Close the connections to the provider."""
        return

    def _receiver(self, runtime: Runtime) -> Receiver:
        return Receiver(runtime, self.name, self.options, self.position, self._locks)

    async def _send(self, partition: Partition, reply: Reply) -> str | None:
        try:
            address = ChatAddress.of(partition.thread)
        except ValueError as error:
            raise Undeliverable(str(error)) from error
        if text_of(reply.payload) is None:
            raise Undeliverable("the reply has no text")
        sent: str | None = None
        # This is one part, unless the run was executed by a process that does not have this channel.
        parts = self._split(reply.payload)
        for number, part in enumerate(parts, 1):
            run_id = reply.run_id
            if number < len(parts):
                # Only the last part has the id of the reply, so that a search takes no other part for the
                # whole reply.
                run_id = f"{run_id}.{number}"
            try:
                self.backoff.check(address.chat)
                sent = await self.deliver(
                    address, text_of(part) or "", replace(reply, payload=part, run_id=run_id)
                )
            except (NotSent, SendUncertain) as error:
                if number == 1:
                    raise
                # Another attempt would repeat the parts before this one.
                raise Undeliverable(
                    f"{number - 1} of its {len(parts)} parts were sent, and the next one failed ({error}); "
                    "give all workers this channel, so that parts are stored and tried again one by one"
                ) from error
        return sent

    def _make_find(self, provider: FindsReplies) -> Callable[[str, Reply], Awaitable[str | None]]:
        async def find(thread_id: str, reply: Reply) -> str | None:
            self.backoff.check(ChatAddress.of(thread_id).chat)
            return await provider.find(thread_id, reply)

        return find

    async def _indicate(self, partition: Partition, message: Message) -> None:
        await self.show_activity(ChatAddress.of(partition.thread), message)

    def _split(self, payload: Any) -> Sequence[Any]:
        text = text_of(payload)
        if text is None:
            return [payload]
        if not isinstance(payload, Mapping):
            return self._split_to_length(text, payload)
        *front, last = self._split_to_length(text, payload)
        plain = {name: value for name, value in payload.items() if name != "question"}
        return [*({**plain, "content": part} for part in front), {**payload, "content": last}]

    def _split_to_length(self, text: str, payload: Any) -> list[str]:
        most = self.length
        if questions.list_buttons(payload):
            most = self.question_length
        return split_text(text, most, self.measure)


def text_of(payload: Any) -> str | None:
    """Return the text of a reply, ``None`` if it has none."""
    if isinstance(payload, Mapping):
        payload = payload.get("content")
    if isinstance(payload, str) and payload.strip():
        return payload
    return None
