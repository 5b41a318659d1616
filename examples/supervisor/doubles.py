"""Telegram and WhatsApp without accounts: doubles of both on this machine, and a way to write to them.

The channels, and the client libraries in them, are the genuine ones. For real bots leave out ``api_url``, and
take the tokens of your own accounts.
"""

from __future__ import annotations

import time
from contextlib import AsyncExitStack
from typing import Any, Literal

from fastapi import APIRouter, HTTPException, Request
from pydantic import BaseModel, Field
from starlette.routing import Route

from perdure.channels import ChatOptions, TelegramBot, WhatsAppPhone
from perdure.runtime import Runtime
from perdure.testing.channels import ProviderDouble, TelegramDouble, telegram, whatsapp
from perdure.testing.channels.whatsapp import WhatsAppDouble

REPLY_S = 30.0
_NEW_YEAR_S = 1_767_225_600


class LastingDouble(ProviderDouble):
    """Double whose messages have new ids after a restart, too: the database knows those of earlier starts."""

    def __init__(self) -> None:
        super().__init__()
        self._first = int((time.time() - _NEW_YEAR_S) * 16)

    def next_id(self) -> int:
        return self._first + super().next_id()


class LastingTelegram(LastingDouble, TelegramDouble):
    """Double of Telegram that goes on over restarts."""


class LastingWhatsApp(LastingDouble, WhatsAppDouble):
    """Double of WhatsApp that goes on over restarts."""


class Written(BaseModel):
    """Text that a person writes at a provider. A chat is the number of a phone."""

    chat: str = Field(pattern=r"^[1-9][0-9]{0,14}$")
    text: str = Field(min_length=1, max_length=4096)


class Doubles:
    """Doubles of both providers, open within a block, with the channels that talk to them. ``debounce`` is
    the seconds for which a channel waits for more messages."""

    def __init__(self, debounce: float) -> None:
        self._options = ChatOptions(debounce=debounce)

    async def __aenter__(self) -> Doubles:
        self._stack = AsyncExitStack()
        self.telegram = await self._stack.enter_async_context(LastingTelegram())
        self.whatsapp = await self._stack.enter_async_context(LastingWhatsApp())
        bot = TelegramBot(
            telegram.TOKEN, secret=telegram.SECRET, api_url=self.telegram.url, options=self._options
        )
        phone = WhatsAppPhone(
            whatsapp.PHONE_ID,
            token=whatsapp.TOKEN,
            app_secret=whatsapp.APP_SECRET,
            verify_token="double",
            api_url=f"{self.whatsapp.url}/v1",
            options=self._options,
        )
        self._bots = [await self._stack.enter_async_context(each) for each in (bot, phone)]
        self.channels = {name: channel for each in self._bots for name, channel in each.channels.items()}
        return self

    async def __aexit__(self, *raised: Any) -> None:
        await self._stack.aclose()

    def routes(self, runtime: Runtime) -> list[Route]:
        """Return the webhooks, which the providers call."""
        return [route for each in self._bots for route in each.routes(runtime)]

    def router(self) -> APIRouter:
        """Return the endpoint by which a person writes at a provider."""
        router = APIRouter()

        @router.post("/doubles/{provider}")
        async def write(
            provider: Literal["telegram", "whatsapp"], written: Written, request: Request
        ) -> dict[str, list[str]]:
            """Let a person write, and return what the bot sends until it has answered."""
            double = self.telegram if provider == "telegram" else self.whatsapp
            host, port = request.scope["server"]
            double.webhook = f"http://{f'[{host}]' if ':' in host else host}:{port}/channels/{provider}"
            before = len(double.texts(written.chat))
            if isinstance(double, TelegramDouble):
                # A private chat has the id of the person.
                person = {"from": {"id": int(written.chat), "is_bot": False, "first_name": "Ada"}}
                await double.say(int(written.chat), written.text, topic=None, **person)
            else:
                await double.say(written.chat, written.text)
            try:
                await double.until_shown(before + 1, written.chat, within=REPLY_S)
            except TimeoutError:
                raise HTTPException(504, f"The bot sent nothing within {REPLY_S:.0f} seconds.") from None
            return {"replies": double.texts(written.chat)[before:]}

        return router
