"""Double of Telegram: updates to a webhook or for ``getUpdates``, and the methods of the Bot API."""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Mapping
from typing import Any

from perdure.testing.channels.provider import (
    DeliveryFaults,
    ProviderDouble,
    Shown,
    WebhookCall,
    buttons_of,
    web,
)

BOT = {"id": 42, "is_bot": True, "first_name": "Bot", "username": "perdure_bot"}
TOKEN = "42:TEST-double-token-0123456789abcdefghij"  # noqa: S105 - of the double
SECRET = "double-secret-0123456789"  # noqa: S105
_PERSON = {"id": 7, "is_bot": False, "first_name": "Ada"}


class TelegramDouble(ProviderDouble):
    """Double of Telegram. Pass ``TelegramBot(TOKEN, secret=SECRET, api_url=double.url)``.

    Without a webhook updates wait for a bot with ``polling=True``, which acknowledges those below the
    ``offset`` that it passes. Chats with a negative id are groups. Arguments are those of ``ProviderDouble``.

    Attributes:
        polls: The number of requests for updates.
        conflicts: The number of requests for updates that Telegram refuses or ends with 409.
    """

    def __init__(
        self, webhook: str = "", *, deliveries: DeliveryFaults | None = None, patience: float = 30.0
    ) -> None:
        super().__init__(webhook, deliveries=deliveries, patience=patience)
        self.secret = SECRET
        self.polls = self.conflicts = 0
        self._pending: dict[int, dict[str, Any]] = {}
        self._numbers: dict[int, int] = {}

    def add_routes(self, app: web.Application) -> None:
        app.router.add_route("*", "/bot{token}/{method}", self._answer_call)

    def message(self, chat: int, text: str, *, topic: int | None = None, **more: Any) -> dict[str, Any]:
        """Return a message of a person as Telegram sends it.

        Args:
            chat: The id of the chat.
            text: The text.
            topic: The id of the topic within the chat.
            more: Further fields of the message.
        """
        message = {**self._make_message(chat, _PERSON, text), "entities": _find_entities(text)}
        if topic is not None:
            message |= {"message_thread_id": topic, "is_topic_message": True}
        return message | more

    def _make_message(self, chat: int, sender: Mapping[str, Any], text: str) -> dict[str, Any]:
        place = {"message_id": self.next_id(), "date": int(time.time()), "chat": _make_chat(chat)}
        return {**place, "from": sender, "text": text}

    def update(self, **fields: Any) -> WebhookCall:
        """Return an update, such as ``update(message=…)``, as a request to the webhook."""
        body = json.dumps({"update_id": self.next_id(), **fields}).encode()
        headers = {
            "Content-Type": "application/json",
            "X-Telegram-Bot-Api-Secret-Token": self.secret,
        }
        return WebhookCall(body, headers)

    async def say(self, chat: int, text: str, *, topic: int | None = None, **more: Any) -> dict[str, Any]:
        """Let a person send a text, and return the message when it was acknowledged. The arguments are those
        of ``message``."""
        message = self.message(chat, text, topic=topic, **more)
        await self.deliver(self.update(message=message))
        return message

    async def edit(self, message: Mapping[str, Any], text: str) -> None:
        """Let a person change a message."""
        changed = {**message, "text": text, "entities": _find_entities(text), "edit_date": int(time.time())}
        await self.deliver(self.update(edited_message=changed))

    async def press(self, shown: Shown, button: str) -> None:
        """Let a person press a button of a message of the bot."""
        message = {**self._make_message(int(shown.chat), BOT, shown.text), "message_id": int(shown.id)}
        if shown.topic:
            message |= {"message_thread_id": int(shown.topic), "is_topic_message": True}
        query = {
            "id": str(self.next_id()),
            "from": _PERSON,
            "chat_instance": "1",
            "message": message,
            "data": shown.buttons[button],
        }
        await self.deliver(self.update(callback_query=query))

    async def post(self, delivery: WebhookCall) -> int:
        """Send an update to the webhook or, without one, return 200 if it was acknowledged, otherwise 0."""
        if self.webhook:
            return await super().post(delivery)
        update = json.loads(delivery.body)
        original = update["update_id"]
        if original in self._numbers:
            if self._numbers[original] in self._pending:
                return 0
            return 200
        # Telegram numbers updates as they arrive, which a fault of deliveries may have delayed.
        number = self._numbers[original] = self.next_id()
        self._pending[number] = {**update, "update_id": number}
        return 0

    async def _answer_updates(self, given: Mapping[str, str]) -> web.Response:
        if self.webhook:
            self.conflicts += 1
            return _error(409, "Conflict: can't use getUpdates method while webhook is active")
        self.polls += 1
        number = self.polls
        offset = int(given.get("offset", 0))
        for confirmed in [each for each in self._pending if each < offset]:
            del self._pending[confirmed]
        end = time.monotonic() + int(given.get("timeout", 0))
        while True:
            if number != self.polls:
                self.conflicts += 1
                return _error(409, "Conflict: terminated by other getUpdates request")
            waiting = [self._pending[each] for each in sorted(self._pending)][:100]
            if waiting or time.monotonic() >= end:
                return web.json_response({"ok": True, "result": waiting})
            await asyncio.sleep(0.01)

    async def _answer_call(self, request: web.Request) -> web.StreamResponse:
        if request.match_info["token"] != TOKEN:
            return _error(401, "Unauthorized")
        method = request.match_info["method"]
        given: dict[str, Any] = {name: str(held) for name, held in (await request.post()).items()}
        self.calls.append((method, given))
        if method == "getMe":
            return web.json_response({"ok": True, "result": BOT})
        if method == "getUpdates":
            return await self._answer_updates(given)
        if method != "sendMessage":
            return web.json_response({"ok": True, "result": True})
        chat = given["chat_id"]
        if not 0 < len(given["text"].encode("utf-16-le")) // 2 <= 4096:
            return _error(400, "Bad Request: message is too long")
        message = self._make_message(int(chat), BOT, given["text"])
        markup = json.loads(given.get("reply_markup", "{}")).get("inline_keyboard", [])
        shown = Shown(
            chat,
            given.get("message_thread_id", ""),
            given["text"],
            str(message["message_id"]),
            buttons_of(markup, "text", "callback_data"),
        )
        pause = self.pause_for(chat)
        limited = _error(429, "Too Many Requests", retry_after=math.ceil(pause))
        return await self.take(request, shown, {"ok": True, "result": message}, limited=limited)


def _make_chat(chat: int) -> dict[str, Any]:
    if chat < 0:
        return {"id": chat, "type": "supergroup", "title": "Group"}
    return {"id": chat, "type": "private", "first_name": "Ada"}


def _find_entities(text: str) -> list[dict[str, Any]]:
    kinds = {"/": "bot_command", "@": "mention"}
    found: list[dict[str, Any]] = []
    offset = 0
    for word in text.split(" "):
        if word[:1] in kinds and len(word) > 1:
            found.append({"type": kinds[word[0]], "offset": offset, "length": len(word)})
        offset += len(word) + 1
    return found


def _error(status: int, description: str, **parameters: Any) -> web.Response:
    body: dict[str, Any] = {"ok": False, "error_code": status, "description": description}
    if parameters:
        body["parameters"] = parameters
    return web.json_response(body, status=status)
