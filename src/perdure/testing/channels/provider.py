"""Base of the doubles: deliveries to a webhook, the bot's messages, and the faults of both."""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Self

from perdure.errors import MissingExtra

try:
    from aiohttp import ClientError, ClientSession, ClientTimeout
    from aiohttp import web as web
except ImportError as missing:
    raise MissingExtra("perdure.testing.channels needs aiohttp: pip install 'perdure[telegram]'") from missing

FaultKind = Literal["limit", "fail", "lose", "refuse", "slow"]
"""Faults of a call of the bot. ``limit``: its rate is limited. ``fail``: it fails with an error of the
server. ``lose``: it succeeds and its answer is lost, as if the bot had died before it noted the success.
``refuse``: the connection ends before anything is done. ``slow``: it takes longer."""


@dataclass(slots=True)
class ProviderFault:
    """Fault of the bot's next messages.

    Attributes:
        kind: The kind of fault.
        chat: The chat whose messages it concerns; ``None`` for any.
        times: The number of messages that it concerns.
        seconds: The pause that the provider asks for, or the duration of a slow call.
    """

    kind: FaultKind
    chat: str | None = None
    times: int = 1
    seconds: float = 1.0


class Shown(NamedTuple):
    """Message of the bot, as people see it in a chat."""

    chat: str
    topic: str
    text: str
    id: str
    buttons: Mapping[str, str]


class WebhookCall(NamedTuple):
    """Request to a webhook: its body and its headers."""

    body: bytes
    headers: Mapping[str, str]


@dataclass(kw_only=True)
class DeliveryFaults:
    """Faults of the deliveries to the webhook.

    Attributes:
        copies: The number of times that each delivery is sent, even if it was acknowledged.
        delay: Maximum seconds by which a delivery is delayed, at random.
        shuffle: The number of deliveries that are held back and sent in random order.
        seed: The seed of the randomness.
    """

    copies: int = 1
    delay: float = 0.0
    shuffle: int = 1
    seed: int = 0
    random: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)


class ProviderDouble(ABC):
    """Double of a provider. An async context manager; ``url`` is the address of its API.

    Args:
        webhook: The URL to which it delivers; may be set later, and changed.
        deliveries: Faults of the deliveries.
        patience: Seconds for which a delivery is repeated until it is acknowledged.
    """

    def __init__(
        self, webhook: str = "", *, deliveries: DeliveryFaults | None = None, patience: float = 30.0
    ) -> None:
        self.webhook = webhook
        self.deliveries = deliveries or DeliveryFaults()
        self.faults: list[ProviderFault] = []
        self.shown: list[Shown] = []
        self.calls: list[tuple[str, Mapping[str, Any]]] = []
        self.tries = 0
        self._patience = patience
        self._held: list[WebhookCall] = []
        self._count = 0
        self._waiting: set[asyncio.Task[int]] = set()

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=16 * 1024 * 1024)
        self.add_routes(app)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"
        self._client = ClientSession(timeout=ClientTimeout(total=10.0))
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._waiting:
            task.cancel()
        await asyncio.gather(*self._waiting, return_exceptions=True)
        await self._client.close()
        await self._runner.cleanup()

    @abstractmethod
    def add_routes(self, app: web.Application) -> None:
        """Add the routes of the provider's API."""

    def next_id(self) -> int:
        """Return a number that was not used before, greater than all before."""
        self._count += 1
        return self._count

    def texts(self, chat: str | int) -> list[str]:
        """Return the texts of the bot's messages in a chat, in the order in which they were shown."""
        return [each.text for each in self.shown if each.chat == str(chat)]

    async def until_shown(self, count: int, chat: str | int | None = None, *, within: float = 30.0) -> None:
        """Wait until the bot has sent ``count`` messages, in a chat or in all.

        Raises:
            TimeoutError: The bot has not sent them ``within`` these seconds.
        """
        async with asyncio.timeout(within):
            while len(self.shown if chat is None else self.texts(chat)) < count:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    # Deliveries

    async def deliver(self, delivery: WebhookCall) -> int:
        """Send a delivery to the webhook until it is acknowledged, with the faults of deliveries. Return
        the status of the last answer; 0 if it is held back, to be delivered with later ones or by ``flush``.

        Raises:
            TimeoutError: It was not acknowledged.
        """
        faults = self.deliveries
        if faults.shuffle > 1:
            self._held.append(delivery)
            if len(self._held) >= faults.shuffle:
                return await self.flush()
            return 0
        return await self._deliver(delivery)

    async def flush(self) -> int:
        """Deliver what is held back, in random order. Return the status of the last answer."""
        held, self._held = self._held, []
        self.deliveries.random.shuffle(held)
        status = 0
        for delivery in held:
            status = await self._deliver(delivery)
        return status

    async def _deliver(self, delivery: WebhookCall) -> int:
        status = 0
        for _ in range(self.deliveries.copies):
            if self.deliveries.delay:
                await asyncio.sleep(self.deliveries.random.uniform(0, self.deliveries.delay))
            try:
                async with asyncio.timeout(self._patience):
                    while not 200 <= (status := await self.post(delivery)) < 300:  # noqa: ASYNC110
                        await asyncio.sleep(0.05)
            except TimeoutError:
                raise TimeoutError(
                    f"the bot acknowledged nothing within {self._patience:g} s (last status {status}); check "
                    f"that it runs, and polls this double or serves {self.webhook or 'a webhook'}"
                ) from None
        return status

    async def post(self, delivery: WebhookCall) -> int:
        """Send a request to the webhook once. Return the status of the answer, 0 without an answer."""
        self.tries += 1
        try:
            async with self._client.post(
                self.webhook, data=delivery.body, headers=delivery.headers
            ) as answer:
                await answer.read()
                return answer.status
        except (ClientError, TimeoutError):
            return 0

    # Messages of the bot

    async def take(
        self, request: web.Request, shown: Shown, accepted: Any, *, limited: web.Response
    ) -> web.StreamResponse:
        """Take a message of the bot, or do what the next fault says.

        Args:
            request: The request.
            shown: The message.
            accepted: The JSON of the answer.
            limited: The answer to a bot that sends too much.
        """
        match self._next_fault(shown.chat):
            case ProviderFault("limit"):
                return limited
            case ProviderFault("fail"):
                return web.json_response({"ok": False, "error": "internal"}, status=500)
            case ProviderFault("refuse"):
                return self._hang_up(request)
            case ProviderFault("lose"):
                self.shown.append(shown)
                return self._hang_up(request)
            case ProviderFault("slow", seconds=seconds):
                await asyncio.sleep(seconds)
            case _:
                pass
        self.shown.append(shown)
        return web.json_response(accepted)

    def pause_for(self, chat: str) -> float:
        """Return the seconds that the next limit of a chat tells the bot to wait."""
        return next((each.seconds for each in self.faults if each.chat in (None, chat)), 1.0)

    def _next_fault(self, chat: str) -> ProviderFault | None:
        for fault in self.faults:
            if fault.chat in (None, chat) and fault.times > 0:
                fault.times -= 1
                if not fault.times:
                    self.faults.remove(fault)
                return fault
        return None

    def _hang_up(self, request: web.Request) -> web.Response:
        if request.transport is not None:
            request.transport.close()
        return web.Response()


def buttons_of(rows: Sequence[Sequence[Mapping[str, Any]]], text: str, data: str) -> dict[str, str]:
    """Return buttons as texts with their data.

    Args:
        rows: The rows of buttons.
        text: The key of a button's text.
        data: The key of its data.
    """
    return {each[text]: each[data] for row in rows for each in row}
