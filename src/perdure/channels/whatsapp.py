"""WhatsApp: webhooks and messages of the Cloud API, through pywa."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable
from typing import TypeVar

import httpx
from pywa.errors import AuthorizationError, ThrottlingError, WhatsAppError
from pywa.utils import HUB_CH, HUB_SIG, HUB_VT, webhook_updates_validator
from pywa_async.client import WhatsApp
from pywa_async.types.callback import Button
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from perdure.channels import questions
from perdure.channels.addresses import ChatAddress
from perdure.channels.chat_channel import ChatChannel, SendUncertain
from perdure.channels.incoming import ButtonPress, message_id_of, payload_of
from perdure.channels.options import ChatOptions
from perdure.channels.receiving import Receiver
from perdure.channels.webhook import RejectedRequest, body_of, json_of
from perdure.channels.whatsapp_updates import read_updates
from perdure.model.runs.messages import Message, Reply
from perdure.runtime import NotSent, Undeliverable
from perdure.runtime.worker.delivery import InDoubt

_TIMEOUT_S = 15.0
_LIMITED_S = 6.0
"""Pause of a chat whose rate is limited: WhatsApp names no duration, and admits one message to a person
every 6 s."""
_PATIENCE_S = 60.0
"""Pause before another attempt with a token that WhatsApp refuses."""
_TYPING_S = 20.0

R = TypeVar("R")


class WhatsAppPhone(ChatChannel):
    """Phone number at WhatsApp's Cloud API.

    WhatsApp has no idempotency keys and cannot be asked for a message: a reply whose outcome is unknown is
    sent again (``"resend"``), or held for a person (``"hold"``).

    Args:
        phone_id: The id of the phone number.
        token: The access token.
        app_secret: The app's secret, which signs the webhook's requests.
        verify_token: The text with which WhatsApp verifies the webhook once.
        name: The name of the channel.
        options: The options that all channels share.
        in_doubt: The policy for replies that WhatsApp may or may not have.
        api_url: The URL of the Graph API with its version, if it is not Meta's own.

    Raises:
        ValueError: An argument cannot be used.
    """

    length = 4096
    question_length = 1024
    methods = ("GET", "POST")

    def __init__(
        self,
        phone_id: str,
        *,
        token: str,
        app_secret: str,
        verify_token: str,
        name: str = "whatsapp",
        options: ChatOptions | None = None,
        in_doubt: InDoubt = "resend",
        api_url: str | None = None,
    ) -> None:
        given = {"phone_id": phone_id, "token": token, "app_secret": app_secret, "verify_token": verify_token}
        if empty := next((name for name, value in given.items() if not value.strip()), None):
            raise ValueError(f"{empty} is empty; copy it from the WhatsApp page of your app at Meta")
        super().__init__(name, options, in_doubt)
        # The debug messages of pywa contain texts.
        logging.getLogger("pywa.api").setLevel(logging.INFO)
        self._session = httpx.AsyncClient(timeout=_TIMEOUT_S)
        self.client = WhatsApp(phone_id, token, session=self._session)
        if api_url is not None:
            self._session.base_url = httpx.URL(api_url)
        self._phone_id = phone_id
        self._app_secret = app_secret
        self._verify_token = verify_token.encode()

    async def close(self) -> None:
        await self._session.aclose()

    # Incoming from WhatsApp

    async def handle(self, request: Request, receiver: Receiver) -> Response:
        if request.method != "POST":
            # WhatsApp's challenge, by which it verifies the address.
            given = request.query_params.get(HUB_VT, "").encode("utf-8", "replace")
            if not hmac.compare_digest(given, self._verify_token):
                raise RejectedRequest(403, "the verify token is missing or wrong")
            return PlainTextResponse(request.query_params.get(HUB_CH, ""))
        body = await body_of(request, self.options.body_bytes)
        signature = request.headers.get(HUB_SIG, "")
        if not signature.isascii() or not webhook_updates_validator(self._app_secret, body, signature):
            raise RejectedRequest(401, "the signature is missing or wrong")
        try:
            events = list(read_updates(json_of(body), self._phone_id))
        except (ValueError, LookupError, TypeError, AttributeError):
            raise RejectedRequest(400, "the body is not an update of WhatsApp") from None
        for event in events:
            if isinstance(event, ButtonPress):
                received = await receiver.accept_press(event)
            else:
                received = await receiver.accept_message(event)
            await self.show_notice(event, received)
        return Response()

    # Outgoing to WhatsApp

    async def deliver(self, address: ChatAddress, text: str, reply: Reply) -> str | None:
        shown = [Button(each.text, each.data) for each in questions.list_buttons(reply.payload)]
        call = self.client.send_message(address.chat, text, buttons=shown or None, tracker=reply.id)
        return str((await self._call(address.chat, call)).id)

    async def show_activity(self, address: ChatAddress, message: Message) -> None:
        answered = message_id_of(payload_of(message))
        while answered is not None:
            self.backoff.check(address.chat)
            await self._call(address.chat, self.client.indicate_typing(answered))
            await asyncio.sleep(_TYPING_S)

    async def _call(self, chat: str, call: Awaitable[R]) -> R:
        """Await a call of the Cloud API. The errors have no details: those may contain a text."""
        try:
            return await call
        except ThrottlingError:
            raise self.backoff.note_limit(chat, _LIMITED_S) from None
        except AuthorizationError:
            raise NotSent("WhatsApp refused the access token", retry_after=_PATIENCE_S) from None
        except WhatsAppError as error:
            if error.status_code == 429:
                raise self.backoff.note_limit(chat, _LIMITED_S) from None
            if error.status_code is None or error.status_code >= 500 or error.is_transient:
                raise SendUncertain(f"WhatsApp failed with code {error.code}") from None
            raise Undeliverable(f"WhatsApp refused it with code {error.code}") from None
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ProxyError):
            raise NotSent("no connection to WhatsApp") from None
        except Exception as error:
            # pywa raises several kinds of errors for an answer that is not JSON or not of the documented
            # form.
            raise SendUncertain(f"WhatsApp did not answer as documented ({type(error).__name__})") from None
