"""Double of WhatsApp: signed updates to a webhook, and the messages endpoint of the Cloud API."""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from typing import Any

from perdure.testing.channels.provider import ProviderDouble, Shown, WebhookCall, web

TOKEN = "double-access-token"  # noqa: S105 - of the double
APP_SECRET = "double-app-secret"  # noqa: S105
PHONE_ID = "1001"
_PAIR_LIMIT = 131056


class WhatsAppDouble(ProviderDouble):
    """Double of WhatsApp. Pass ``WhatsAppPhone(PHONE_ID, token=TOKEN, app_secret=APP_SECRET, …)`` with
    ``api_url=double.url + "/v1"``. Arguments are those of ``ProviderDouble``."""

    secret = APP_SECRET

    def add_routes(self, app: web.Application) -> None:
        app.router.add_post("/v1/{phone}/messages", self._accept_message)

    def sign(self, body: bytes) -> WebhookCall:
        """Return a body as a signed request."""
        digest = hmac.new(self.secret.encode(), body, hashlib.sha256).hexdigest()
        return WebhookCall(
            body, {"Content-Type": "application/json", "X-Hub-Signature-256": f"sha256={digest}"}
        )

    def update(self, chat: str, *, phone_id: str = PHONE_ID, **message: Any) -> WebhookCall:
        """Return an update with one message as a request.

        Args:
            chat: The phone number of the person.
            phone_id: The id of the phone number that it was sent to.
            message: The type of the message and its content.
        """
        number = self.next_id()
        sent = {"from": chat, "id": f"wamid.{number}", "timestamp": str(int(time.time()) + number), **message}
        value = {
            "messaging_product": "whatsapp",
            "metadata": {"display_phone_number": "1", "phone_number_id": phone_id},
            "contacts": [{"wa_id": chat, "profile": {"name": "Ada"}}],
            "messages": [sent],
        }
        change = {"field": "messages", "value": value}
        body = {"object": "whatsapp_business_account", "entry": [{"id": "1", "changes": [change]}]}
        return self.sign(json.dumps(body).encode())

    def text(self, chat: str, text: str, **more: Any) -> WebhookCall:
        """Return a text of a person as a request. The further arguments are those of ``update``."""
        return self.update(chat, type="text", text={"body": text}, **more)

    async def say(self, chat: str, text: str) -> None:
        """Let a person write a text; return when it was acknowledged."""
        await self.deliver(self.text(chat, text))

    async def press(self, shown: Shown, button: str) -> None:
        """Let a person press a button of a message of the phone number."""
        reply = {"type": "button_reply", "button_reply": {"id": shown.buttons[button], "title": button}}
        about = {"from": "1", "id": shown.id}
        await self.deliver(self.update(shown.chat, type="interactive", context=about, interactive=reply))

    async def _accept_message(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") != f"Bearer {TOKEN}":
            return _error(401, 190)
        given: dict[str, Any] = await request.json()
        self.calls.append(("status" if "status" in given else "message", given))
        if "status" in given:
            return web.json_response({"success": True})
        buttons: dict[str, str] = {}
        if given["type"] == "interactive":
            text, most = given["interactive"]["body"]["text"], 1024
            for each in given["interactive"]["action"]["buttons"]:
                buttons[each["reply"]["title"]] = each["reply"]["id"]
        else:
            text, most = given["text"]["body"], 4096
        if not 0 < len(text) <= most:
            return _error(400, 131009)
        shown = Shown(given["to"], "", text, f"wamid.{self.next_id()}", buttons)
        answer = {
            "messaging_product": "whatsapp",
            "contacts": [{"input": given["to"], "wa_id": given["to"]}],
            "messages": [{"id": shown.id}],
        }
        return await self.take(request, shown, answer, limited=_error(400, _PAIR_LIMIT))


def _error(status: int, code: int) -> web.Response:
    return web.json_response(
        {"error": {"code": code, "message": "refused", "type": "OAuthException"}}, status=status
    )
