"""Telegram: updates by webhook or by polling, and the Bot API, through aiogram."""

from __future__ import annotations

import asyncio
import hmac
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, TypeVar

import aiohttp
from aiogram import Bot
from aiogram.client.session.aiohttp import AiohttpSession
from aiogram.client.telegram import PRODUCTION, TelegramAPIServer
from aiogram.exceptions import (
    AiogramError,
    RestartingTelegram,
    TelegramBadRequest,
    TelegramConflictError,
    TelegramEntityTooLarge,
    TelegramForbiddenError,
    TelegramMigrateToChat,
    TelegramNetworkError,
    TelegramNotFound,
    TelegramRetryAfter,
    TelegramUnauthorizedError,
)
from aiogram.methods import TelegramMethod
from aiogram.types import BotCommand, CallbackQuery, InlineKeyboardButton, InlineKeyboardMarkup, Update
from aiogram.types import Message as TelegramMessage
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from perdure.channels import questions
from perdure.channels.addresses import ChatAddress
from perdure.channels.chat_channel import ChatChannel, SendUncertain
from perdure.channels.incoming import ButtonPress
from perdure.channels.options import ChatOptions
from perdure.channels.polling import PolledUpdate, Polling, PollingRefused
from perdure.channels.polling_lease import PollingLease
from perdure.channels.receiving import Received, Receiver
from perdure.channels.splitting import count_utf16
from perdure.channels.telegram_updates import is_addressed, message_of
from perdure.channels.webhook import RejectedRequest, body_of, json_of
from perdure.model.runs.messages import Message, Reply
from perdure.runtime import NotSent, Runtime, Undeliverable
from perdure.runtime.worker.delivery import InDoubt

_HEADER = "x-telegram-bot-api-secret-token"
_SECRET = re.compile(r"[A-Za-z0-9_-]{16,256}")
_NOTICE_LENGTH = 200
_TYPING_S = 4.5
_TIMEOUT_S = 15
_PATIENCE_S = 60.0
"""Pause before another attempt with a token that Telegram refuses."""

_UPDATES = ["message", "edited_message", "callback_query"]
_TOPIC = "@"
"""Mark in a button's data before the topic."""

_REFUSALS = (TelegramBadRequest, TelegramForbiddenError, TelegramNotFound, TelegramEntityTooLarge)

R = TypeVar("R")

_POLL_S = 10
"""Seconds for which Telegram waits for an update before it answers without any."""
_NOT_ACCEPTED = "Your message could not be accepted. Please send it again later."
_HAS_WEBHOOK = (
    "Telegram calls a webhook for this bot, so it cannot be polled: use another bot here, or remove the "
    "webhook with https://api.telegram.org/bot<token>/deleteWebhook"
)
_OTHER_PROGRAM = (
    "another program polls for the updates of this bot: stop that one, or use another bot here; processes of "
    "one database take turns"
)


class _GetUpdates(TelegramMethod[list[dict[str, Any]]]):
    """Request for updates as plain data, so that an update that cannot be read does not make the others
    fail."""

    __returning__ = list[dict[str, Any]]
    __api_method__ = "getUpdates"

    offset: int | None = None
    timeout: int
    allowed_updates: list[str]


def _chat_of(update: Mapping[str, Any]) -> str:
    """Return the id of the chat of an update, "" if none is found."""
    found: Any = update.get("callback_query", update)
    for name in ("message", "edited_message"):
        if isinstance(found, Mapping) and isinstance(message := found.get(name), Mapping):
            if isinstance(chat := message.get("chat"), Mapping):
                return str(chat.get("id", ""))
            break
    return ""


def _topic_of(address: ChatAddress) -> int | None:
    if address.topic:
        return int(address.topic)
    return None


class TelegramBot(ChatChannel):
    """Bot at Telegram.

    Telegram has no idempotency keys and cannot be asked for a message: a reply whose outcome is unknown is
    sent again (``"resend"``), or held for a person (``"hold"``).

    Args:
        token: The bot's token.
        secret: The secret token of its webhook: 16 to 256 letters, digits, ``_`` and ``-``.
        polling: Ask Telegram for updates, within the block of ``poll``, in place of a webhook. The bot has no
            secret and no route then.
        name: The name of the channel.
        options: The options that all channels share.
        in_doubt: The policy for replies that Telegram may or may not have.
        api_url: The URL of another Bot API server.

    Raises:
        ValueError: An argument cannot be used.
    """

    def __init__(
        self,
        token: str,
        *,
        secret: str = "",
        polling: bool = False,
        name: str = "telegram",
        options: ChatOptions | None = None,
        in_doubt: InDoubt = "resend",
        api_url: str | None = None,
    ) -> None:
        if not polling and not _SECRET.fullmatch(secret):
            raise ValueError(
                "the secret of a Telegram webhook has 16 to 256 letters, digits, '_' and '-'; make one with "
                'python -c "import secrets; print(secrets.token_urlsafe(32))"'
            )
        if polling and secret:
            raise ValueError(
                "polling is on and a secret is set, which is of a webhook: a bot that polls has no webhook, "
                "whose calls would get a 404. Leave out polling, or the secret"
            )
        super().__init__(name, options, in_doubt)
        server = PRODUCTION
        if api_url is not None:
            server = TelegramAPIServer.from_base(api_url)
        try:
            self.bot = Bot(token, AiohttpSession(api=server, timeout=_TIMEOUT_S, json_loads=json_of))
        except AiogramError:
            raise ValueError("the token of a Telegram bot has the form 123456:ABC…; copy it again") from None
        except Exception as error:
            # aiogram raises several kinds of errors for a token that cannot be read; their messages may
            # repeat the token.
            raise ValueError(
                f"the token of a Telegram bot cannot be used ({type(error).__name__}); copy it again"
            ) from None
        self._secret = secret.encode()
        self._polls = polling

    async def close(self) -> None:
        await self.bot.session.close()

    async def register(self, url: str) -> None:
        """Tell Telegram the public URL of the webhook, with its secret, and the bot's commands.

        Raises:
            NotSent: Telegram did not answer, or refused the token.
            Undeliverable: Telegram refused the URL.
        """
        secret = self._secret.decode()
        await self._call("", self.bot.set_webhook(url, secret_token=secret, allowed_updates=_UPDATES))
        commands = [
            BotCommand(command="new", description="Begin a new conversation"),
            BotCommand(command="stop", description="Stop the current answer"),
        ]
        await self._call("", self.bot.set_my_commands(commands))

    # Incoming from Telegram

    async def handle(self, request: Request, receiver: Receiver) -> Response:
        given = request.headers.get(_HEADER, "").encode("utf-8", "replace")
        if not hmac.compare_digest(given, self._secret):
            raise RejectedRequest(401, "the secret token is missing or wrong")
        body = await body_of(request, self.options.body_bytes)
        try:
            content = json_of(body)
        except ValueError:
            raise RejectedRequest(400, "the body is not JSON") from None
        await self._accept_update(content, receiver)
        return Response()

    def routes(self, runtime: Runtime | Callable[[], Runtime], path: str | None = None) -> list[Route]:
        if self._polls:
            return []
        return super().routes(runtime, path)

    @asynccontextmanager
    async def poll(self, runtime: Runtime) -> AsyncIterator[None]:
        if not self._polls:
            yield
            return
        receiver = self._receiver(runtime)

        async def take(update: PolledUpdate) -> None:
            await self._accept_update(update.content, receiver)

        async def refuse(update: PolledUpdate) -> None:
            if update.chat:
                await self.notify(ChatAddress(self.name, update.chat, ""), _NOT_ACCEPTED)

        tenant = self.options.choose_tenant(runtime)
        lease = PollingLease(runtime, tenant, f"{self.name}:{self.bot.id}")
        loop = Polling(self.name, lease, ask=self._ask_updates, take=take, refuse=refuse)
        running = asyncio.create_task(loop.run(), name=f"polling of {self.name}")
        try:
            yield
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    async def _ask_updates(self, first: int | None) -> Sequence[PolledUpdate]:
        """Return Telegram's updates from a number on; those before it are confirmed.

        Raises:
            PollingRefused: A webhook is set, or another program polls.
            NotSent: There is no connection, or the token is refused.
        """

        async def ask() -> list[dict[str, Any]] | PollingRefused:
            method = _GetUpdates(offset=first, timeout=_POLL_S, allowed_updates=_UPDATES)
            try:
                return await self.bot(method, request_timeout=_POLL_S + _TIMEOUT_S)
            except TelegramConflictError as error:
                if "webhook" in str(error).lower():
                    return PollingRefused(_HAS_WEBHOOK, _PATIENCE_S)
                return PollingRefused(_OTHER_PROGRAM, _PATIENCE_S)

        updates = await self._call("", ask())
        if isinstance(updates, PollingRefused):
            raise updates
        return [PolledUpdate(each["update_id"], _chat_of(each), each) for each in updates]

    async def _accept_update(self, content: Any, receiver: Receiver) -> None:
        """Accept an update.

        Raises:
            RejectedRequest: The content is not an update, or Telegram does not answer who the bot is.
        """
        try:
            update = Update.model_validate(content, context={"bot": self.bot})
        except ValueError:
            raise RejectedRequest(400, "it is not an update of Telegram") from None
        if (press := update.callback_query) is not None:
            await self._handle_press(press, receiver)
        elif update.edited_message is not None:
            await self._handle_message(update.edited_message, str(update.update_id), receiver)
        elif update.message is not None:
            await self._handle_message(update.message, "", receiver)

    async def _handle_message(self, message: TelegramMessage, edit: str, receiver: Receiver) -> None:
        if message.from_user is not None and message.from_user.is_bot and message.sender_chat is None:
            return
        if edit and message.location is not None:
            # A live location has moved; that is not a changed message.
            return
        is_addressed = message.chat.type == "private" or await self._is_ours(message)
        if not is_addressed and (not edit or self.options.groups == "none"):
            return
        username = ""
        if message.entities or message.caption_entities:
            username = await self._get_own_name()
        accepted = replace(message_of(message, username, edit), is_addressed=is_addressed)
        await self.show_notice(accepted, await receiver.accept_message(accepted))

    async def _is_ours(self, message: TelegramMessage) -> bool:
        if self.options.groups == "all":
            return True
        return self.options.groups == "mention" and is_addressed(
            message, await self._get_own_name(), self.bot.id
        )

    async def _get_own_name(self) -> str:
        """Return the bot's user name; Telegram is asked once."""
        try:
            return (await self._call("", self.bot.me())).username or ""
        except (NotSent, Undeliverable, SendUncertain):
            raise RejectedRequest(503, "Telegram does not answer who the bot is") from None

    async def _handle_press(self, query: CallbackQuery, receiver: Receiver) -> None:
        message = query.message
        if message is None or query.data is None:
            return
        data, _, topic = query.data.partition(_TOPIC)
        if isinstance(message, TelegramMessage) and message.is_topic_message and message.message_thread_id:
            topic = str(message.message_thread_id)
        press = ButtonPress(
            chat=str(message.chat.id),
            topic=topic,
            position=message.message_id,
            key=query.id,
            data=data,
            question=str(message.message_id),
            sender=str(query.from_user.id),
        )
        received = await receiver.accept_press(press)
        await self._acknowledge(query, press, received)

    async def _acknowledge(self, query: CallbackQuery, press: ButtonPress, received: Received) -> None:
        """End the button's animation and remove the buttons of a question that is decided. If that fails, the
        next message shows the outcome."""
        short = received.notice[:_NOTICE_LENGTH] or questions.DECISIONS.get(received.decided, "")  # type: ignore[call-overload]
        try:
            await self._call(press.chat, self.bot.answer_callback_query(query.id, text=short))
            if received.decided:
                edit = self.bot.edit_message_reply_markup(chat_id=press.chat, message_id=press.position)
                await self._call(press.chat, edit)
        except (NotSent, Undeliverable, SendUncertain):
            return
        finally:
            await self.show_notice(press, received)

    # Outgoing to Telegram

    length = question_length = 4096

    def position(self, provider_id: str) -> int | None:
        return int(provider_id)

    def measure(self, text: str) -> int:
        return count_utf16(text)

    async def deliver(self, address: ChatAddress, text: str, reply: Reply) -> str | None:
        shown = questions.list_buttons(reply.payload)
        markup = None
        if shown:
            # Telegram does not report the topic of a message that has become inaccessible.
            place = ""
            if address.topic:
                place = f"{_TOPIC}{address.topic}"
            row = [InlineKeyboardButton(text=each.text, callback_data=each.data + place) for each in shown]
            markup = InlineKeyboardMarkup(inline_keyboard=[row])
        topic = _topic_of(address)

        def send_text(chat: str) -> Awaitable[TelegramMessage]:
            return self.bot.send_message(chat, text, message_thread_id=topic, reply_markup=markup)

        try:
            sent = await self._call(address.chat, send_text(address.chat))
        except TelegramMigrateToChat as moved:
            # The group has become another chat; Telegram does not use the old id in its updates any more.
            sent = await self._call(address.chat, send_text(str(moved.migrate_to_chat_id)))
        # aiogram may return no result for a success, although its types say that there is one.
        if (message_id := getattr(sent, "message_id", None)) is None:
            raise SendUncertain("Telegram did not answer as documented (no message)")
        return str(message_id)

    async def show_activity(self, address: ChatAddress, message: Message) -> None:
        topic = _topic_of(address)
        while True:
            self.backoff.check(address.chat)
            action = self.bot.send_chat_action(address.chat, "typing", message_thread_id=topic)
            await self._call(address.chat, action)
            await asyncio.sleep(_TYPING_S)

    async def _call(self, chat: str, call: Awaitable[R]) -> R:
        """Await a call of the Bot API. The errors have no details: those may contain the token or a text."""
        try:
            return await call
        except TelegramRetryAfter as error:
            raise self.backoff.note_limit(chat, error.retry_after) from None
        except TelegramMigrateToChat:
            raise
        except _REFUSALS as error:
            raise Undeliverable(f"Telegram refused it ({type(error).__name__})") from None
        except TelegramUnauthorizedError:
            raise NotSent("Telegram refused the bot's token", retry_after=_PATIENCE_S) from None
        except RestartingTelegram:
            raise NotSent("Telegram is restarting") from None
        except TelegramNetworkError as error:
            if isinstance(error.__cause__, aiohttp.ClientConnectorError):
                raise NotSent("no connection to Telegram") from None
            raise SendUncertain("Telegram did not answer") from None
        except Exception as error:
            # aiogram raises other errors than its own for an answer that is not text, or has no description.
            raise SendUncertain(f"Telegram failed ({type(error).__name__})") from None


__all__ = ["TelegramBot"]
