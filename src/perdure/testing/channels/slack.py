"""Double of Slack: events, buttons and slash commands to a webhook, and the methods that an app uses."""

from __future__ import annotations

import html
import json
import math
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlencode

from perdure.errors import MissingExtra
from perdure.testing.channels.provider import DeliveryFaults, ProviderDouble, Shown, WebhookCall, web

try:
    from slack_sdk.signature import SignatureVerifier
except ImportError as missing:
    raise MissingExtra("the double of Slack needs an extra: pip install 'perdure[slack]'") from missing

TOKEN = "xoxb-double-token"  # noqa: S105 - of the double
SIGNING_SECRET = "double-signing-secret"  # noqa: S105
TEAM, BOT = "T1", "UBOT"
_USER = "U7"


class SlackDouble(ProviderDouble):
    """Double of Slack. Pass ``SlackApp(TOKEN, signing_secret=SIGNING_SECRET, api_url=double.url + "/api/")``.

    Channels whose id begins with ``D`` are direct messages. Arguments are those of ``ProviderDouble``.
    """

    def __init__(
        self, webhook: str = "", *, deliveries: DeliveryFaults | None = None, patience: float = 30.0
    ) -> None:
        super().__init__(webhook, deliveries=deliveries, patience=patience)
        self.secret = SIGNING_SECRET
        self.history: list[dict[str, Any]] = []
        self.search_limits: list[int] = []
        """Pauses, in seconds, with which the next searches are refused."""

    def add_routes(self, app: web.Application) -> None:
        app.router.add_route("*", "/api/{method}", self._answer_call)

    def next_ts(self) -> str:
        """Return the time of a new message, later than all before."""
        return f"{int(time.time())}.{self.next_id():06}"

    def sign(self, body: bytes, kind: str, *, age: int = 0) -> WebhookCall:
        """Return a body as a signed request.

        Args:
            body: The body.
            kind: Its media type.
            age: Seconds since it was signed.
        """
        stamp = str(int(time.time()) - age)
        signature = SignatureVerifier(self.secret).generate_signature(timestamp=stamp, body=body) or ""
        headers = {
            "Content-Type": kind,
            "X-Slack-Request-Timestamp": stamp,
            "X-Slack-Signature": signature,
        }
        return WebhookCall(body, headers)

    def event(self, channel: str, text: str, *, kind: str = "message", **more: Any) -> WebhookCall:
        """Return an event as a request.

        Args:
            channel: The id of the channel.
            text: The text.
            kind: The type of the event.
            more: Further fields of the event.
        """
        event = {"type": kind, "channel": channel, "user": _USER, "text": text, "ts": self.next_ts()}
        if kind == "message":
            event["channel_type"] = "im" if channel.startswith("D") else "channel"
        body = {
            "type": "event_callback",
            "team_id": TEAM,
            "event_id": f"Ev{self.next_id()}",
            "authorizations": [{"team_id": TEAM, "user_id": BOT, "is_bot": True}],
            "event": event | more,
        }
        return self.sign(json.dumps(body).encode(), "application/json")

    async def say(self, channel: str, text: str, **more: Any) -> None:
        """Let a person write a text; return when it was acknowledged. The arguments are those of
        ``event``."""
        await self.deliver(self.event(channel, text, **more))

    async def press(self, shown: Shown, button: str) -> None:
        """Let a person press a button of a message of the app."""
        message = {"ts": shown.id, "text": html.escape(shown.text, quote=False)}
        if shown.topic:
            message["thread_ts"] = shown.topic
        payload = {
            "type": "block_actions",
            "team": {"id": TEAM},
            "channel": {"id": shown.chat},
            "user": {"id": _USER},
            "message": message,
            "actions": [{"value": shown.buttons[button], "action_ts": self.next_ts()}],
        }
        body = urlencode({"payload": json.dumps(payload)}).encode()
        await self.deliver(self.sign(body, "application/x-www-form-urlencoded"))

    async def command(self, channel: str, command: str) -> None:
        """Let a person use a slash command."""
        form = {
            "command": command,
            "team_id": TEAM,
            "channel_id": channel,
            "user_id": _USER,
            "trigger_id": f"t{self.next_id()}",
        }
        body = urlencode(form).encode()
        await self.deliver(self.sign(body, "application/x-www-form-urlencoded"))

    async def _answer_call(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return web.json_response({"ok": False, "error": "invalid_auth"})
        method = request.match_info["method"]
        given: dict[str, Any] = dict(request.query)
        if "json" in request.content_type:
            given |= await request.json()
        self.calls.append((method, given))
        if method in ("conversations.history", "conversations.replies"):
            if self.search_limits:
                pause = str(self.search_limits.pop(0))
                answer = {"ok": False, "error": "ratelimited"}
                return web.json_response(answer, status=429, headers={"Retry-After": pause})
            found = [each for each in self.history if each["channel"] == given["channel"]]
            if method == "conversations.history":
                found.reverse()
            first = int(given.get("cursor") or 0)
            last = first + int(given["limit"])
            more = {"next_cursor": str(last) if last < len(found) else ""}
            return web.json_response({"ok": True, "messages": found[first:last], "response_metadata": more})
        if method != "chat.postMessage":
            return web.json_response({"ok": True})
        return await self._post(request, given)

    async def _post(self, request: web.Request, given: Mapping[str, Any]) -> web.StreamResponse:
        if not given.get("text"):
            return web.json_response({"ok": False, "error": "no_text"})
        elements = [e for b in given.get("blocks") or () if b["type"] == "actions" for e in b["elements"]]
        shown = Shown(
            given["channel"],
            given.get("thread_ts") or "",
            # The text as people see it; ``calls`` has it as the app sent it.
            html.unescape(given["text"]),
            self.next_ts(),
            {each["text"]["text"]: each["value"] for each in elements},
        )
        pause = math.ceil(self.pause_for(shown.chat))
        limited = web.json_response(
            {"ok": False, "error": "ratelimited"}, status=429, headers={"Retry-After": str(pause)}
        )
        before = len(self.shown)
        answer = {"ok": True, "channel": shown.chat, "ts": shown.id}
        try:
            return await self.take(request, shown, answer, limited=limited)
        finally:
            if len(self.shown) > before:
                message = {"channel": shown.chat, "ts": shown.id, "metadata": given.get("metadata")}
                self.history.append(message)
