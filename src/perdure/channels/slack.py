"""Slack: the Events API, buttons and slash commands, through the Slack SDK."""

from __future__ import annotations

import html
import logging
from collections.abc import Awaitable
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

import aiohttp
from slack_sdk.errors import SlackApiError
from slack_sdk.signature import SignatureVerifier
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from perdure.channels import questions
from perdure.channels.addresses import ChatAddress
from perdure.channels.chat_channel import ChatChannel, SendUncertain
from perdure.channels.incoming import ButtonPress, ChatMessage
from perdure.channels.options import ChatOptions
from perdure.channels.receiving import Received, Receiver
from perdure.channels.slack_events import channel_of, command_of, message_of, position_of_ts, press_of
from perdure.channels.webhook import RejectedRequest, body_of, json_of
from perdure.model.runs.messages import Message, Reply
from perdure.runtime import NotSent, Undeliverable
from perdure.runtime.worker.delivery import InDoubt

_API = "https://slack.com/api/"
_METADATA = "perdure_reply"
_LIMITED_S = 30.0
_PATIENCE_S = 60.0
"""Pause before another attempt with a token that Slack refuses."""
_SEARCHED = 100
_TIMEOUT_S = 15
_TOKEN_ERRORS = ("invalid_auth", "not_authed", "token_revoked", "token_expired", "account_inactive")
_SERVER_ERRORS = ("internal_error", "fatal_error", "service_unavailable", "request_timeout")


class _Read(NamedTuple):
    challenge: str = ""
    message: ChatMessage | None = None
    press: ButtonPress | None = None
    text: str = ""
    command: ChatMessage | None = None


class SlackApp(ChatChannel):
    """App at Slack.

    Each message has the id of its reply in its metadata, so a reply whose outcome is unknown is looked for in
    the channel before it is sent again (``"reconcile"``), which needs the scopes ``channels:history``,
    ``groups:history`` and ``im:history``.

    Args:
        token: The bot's token.
        signing_secret: The signing secret of the app.
        name: The name of the channel.
        options: The options that all channels share.
        in_doubt: The policy for replies that Slack may or may not have.
        api_url: The URL of the Web API, if it is not Slack's own.

    Raises:
        ValueError: An argument cannot be used.
    """

    length = 4000
    question_length = 3000

    def __init__(
        self,
        token: str,
        *,
        signing_secret: str,
        name: str = "slack",
        options: ChatOptions | None = None,
        in_doubt: InDoubt = "reconcile",
        api_url: str | None = None,
    ) -> None:
        if not token.startswith("xox"):
            raise ValueError("the token of a Slack bot begins with xoxb-; copy it again")
        if not signing_secret.strip():
            raise ValueError("the signing secret of the Slack app is empty; copy it again")
        super().__init__(name, options, in_doubt)
        log = logging.getLogger("perdure.channels.slack.client")
        log.setLevel(logging.INFO)  # debug messages contain texts
        # A repeated request would be a second message, so the client repeats none.
        self.client = AsyncWebClient(
            token,
            base_url=api_url or _API,
            timeout=_TIMEOUT_S,
            retry_handlers=[],
            trust_env_in_session=False,
            logger=log,
        )
        self._verifier = SignatureVerifier(signing_secret)

    # Incoming from Slack

    async def handle(self, request: Request, receiver: Receiver) -> Response:
        body = await body_of(request, self.options.body_bytes)
        self._verify(request, body)
        try:
            read = self._read(request, body)
        except (ValueError, LookupError, TypeError, AttributeError):
            raise RejectedRequest(400, "the body is not an event of Slack") from None
        if read.challenge:
            return JSONResponse({"challenge": read.challenge})
        if read.command is not None:
            return await self._answer_command(read.command, receiver)
        if read.press is not None:
            received = await receiver.accept_press(read.press)
            await self.show_notice(read.press, received)
            if received.decided:
                await self._replace_buttons(read.press, read.text, received)
        if read.message is not None:
            await self.show_notice(read.message, await receiver.accept_message(read.message))
        return Response()

    def _verify(self, request: Request, body: bytes) -> None:
        """Raise ``RejectedRequest`` unless Slack signed the body in the last five minutes."""
        try:
            is_valid = self._verifier.is_valid(
                body,
                request.headers.get("x-slack-request-timestamp"),
                request.headers.get("x-slack-signature"),
            )
        except (ValueError, TypeError):
            is_valid = False
        if not is_valid:
            raise RejectedRequest(401, "the signature is missing, wrong or too old")

    def _read(self, request: Request, body: bytes) -> _Read:
        """Return the content of a request for the bot, without accepting it, so that errors of acceptance are
        not taken for errors of the body."""
        if "json" in request.headers.get("content-type", ""):
            event = json_of(body)
            if event["type"] == "url_verification":
                return _Read(challenge=str(event["challenge"]))
            if event["type"] != "event_callback":
                return _Read()
            return _Read(message=message_of(event, self.options.groups))
        form = dict(parse_qsl(body.decode()))
        if "payload" in form:
            payload = json_of(form["payload"])
            if (press := press_of(payload)) is None:
                return _Read()
            return _Read(press=press, text=str(payload["message"].get("text") or ""))
        return _Read(command=command_of(form, request.headers["x-slack-request-timestamp"]))

    async def _answer_command(self, command: ChatMessage, receiver: Receiver) -> Response:
        if not channel_of(command.chat).startswith("D"):
            # Slack does not tell from which thread of a channel a command comes, so the session is not
            # known.
            notice = f"In a channel, mention me in the thread: @… {command.text}"
        else:
            notice = (await receiver.accept_message(command)).notice
        return JSONResponse({"response_type": "ephemeral", "text": notice or "OK"})

    async def _replace_buttons(self, press: ButtonPress, text: str, received: Received) -> None:
        """Show the decision in place of the buttons. A failure is ignored: the next message shows the
        outcome."""
        decided = f"{text}\n[{received.decided}]"
        call = self.client.chat_update(
            channel=channel_of(press.chat), ts=press.question, text=decided, blocks=[]
        )
        try:
            await self._call(press.chat, call)
        except (NotSent, Undeliverable, SendUncertain):
            return

    # Outgoing to Slack

    def position(self, provider_id: str) -> int | None:
        return position_of_ts(provider_id)

    def measure(self, text: str) -> int:
        return len(_escape(text))

    async def deliver(self, address: ChatAddress, text: str, reply: Reply) -> str | None:
        call = self.client.chat_postMessage(
            channel=channel_of(address.chat),
            text=_escape(text),
            blocks=_make_blocks(text, reply.payload),
            thread_ts=address.topic or None,
            metadata={"event_type": _METADATA, "event_payload": {"id": reply.id}},
        )
        if (ts := (await self._call(address.chat, call)).get("ts")) is None:
            raise SendUncertain("Slack did not answer as documented (no ts)")
        return str(ts)

    async def find(self, thread_id: str, reply: Reply) -> str | None:
        address = ChatAddress.of(thread_id)
        asked: dict[str, Any] = {
            "channel": channel_of(address.chat),
            "include_all_metadata": True,
            "limit": _SEARCHED,
            "oldest": f"{reply.created_at / 1_000_000 - 60:.6f}",
        }
        while True:
            if address.topic:
                call = self.client.conversations_replies(ts=address.topic, **asked)
            else:
                call = self.client.conversations_history(**asked)
            page = await self._call(address.chat, call)
            for message in page["messages"]:
                metadata = message.get("metadata") or {}
                if metadata.get("event_payload", {}).get("id") == reply.id:
                    return str(message["ts"])
            # A page may have fewer messages than were asked for, or none, before the last one.
            asked["cursor"] = (page.get("response_metadata") or {}).get("next_cursor")
            if not asked["cursor"]:
                return None

    async def show_activity(self, address: ChatAddress, message: Message) -> None:
        if not address.topic:
            # Slack shows a status in threads only.
            return
        self.backoff.check(address.chat)
        call = self.client.assistant_threads_setStatus(
            channel_id=channel_of(address.chat), thread_ts=address.topic, status="is writing…"
        )
        await self._call(address.chat, call)

    async def _call(self, chat: str, call: Awaitable[Any]) -> Any:
        """Await a call of the Web API. The errors have no details: those may contain the token or a text."""
        try:
            return await call
        except SlackApiError as error:
            raise self._make_error(chat, error) from None
        except aiohttp.ClientConnectorError:
            raise NotSent("no connection to Slack") from None
        except Exception as error:
            # The SDK raises several kinds of errors for an answer that is not JSON, or does not have the
            # documented form.
            raise SendUncertain(f"Slack did not answer as documented ({type(error).__name__})") from None

    def _make_error(self, chat: str, error: SlackApiError) -> Exception:
        response: Any = error.response
        is_read = isinstance(response, AsyncSlackResponse)
        # If the SDK cannot read an answer, the error has the response of its HTTP client.
        status, headers = response.status_code if is_read else response.status, response.headers
        code = None
        if is_read and isinstance(response.data, dict):
            code = response.get("error")
        if status == 429 or code in ("ratelimited", "rate_limited"):
            after = str(headers.get("Retry-After") or headers.get("retry-after") or "")
            return self.backoff.note_limit(chat, float(after) if after.isdecimal() else _LIMITED_S)
        if status >= 500 or code in _SERVER_ERRORS:
            return SendUncertain(f"Slack failed with status {status}")
        if code in _TOKEN_ERRORS:
            return NotSent("Slack refused the bot's token", retry_after=_PATIENCE_S)
        if code is None and status < 400:
            return SendUncertain(f"Slack did not answer as documented (status {status})")
        return Undeliverable(f"Slack refused it ({code or status})")


def _escape(text: str) -> str:
    """Return a text without Slack's control sequences, such as ``<!channel>``."""
    return html.escape(text, quote=False)


def _make_blocks(text: str, payload: Any) -> list[dict[str, Any]] | None:
    """Return the blocks of a question with buttons, ``None`` for a plain reply."""
    shown = questions.list_buttons(payload)
    if not shown:
        return None
    elements = [
        {
            "type": "button",
            "text": {"type": "plain_text", "text": each.text},
            "value": each.data,
            "action_id": f"perdure_{each.text.lower()}",
        }
        for each in shown
    ]
    section = {"type": "section", "text": {"type": "plain_text", "text": text}}
    return [section, {"type": "actions", "elements": elements}]
