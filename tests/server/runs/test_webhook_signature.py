"""Signed webhooks, verified by the library of Standard Webhooks."""

from __future__ import annotations

import asyncio
import base64
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from perdure.server.runs.webhook_signature import sign
from tests.runtime.graphs import Storage
from tests.server.receiving import begun, made, receiving

OLD, NEW = ("whsec_" + base64.b64encode(bytes([n]) * 32).decode() for n in (1, 2))


def test_the_library_makes_the_same_signature() -> None:
    at = datetime.now(UTC)
    body = json.dumps({"text": "é"})
    headers = sign([OLD, NEW], "reply-1", int(at.timestamp()), body.encode())
    assert headers["webhook-signature"].split(" ") == [
        Webhook(secret).sign("reply-1", at, body) for secret in (OLD, NEW)
    ]
    for secret in (OLD, NEW):
        assert Webhook(secret).verify(body, headers) == {"text": "é"}


@pytest.mark.parametrize("part", ["body", "webhook-id", "webhook-timestamp", "webhook-signature"])
def test_what_was_changed_or_recorded_is_refused(part: str) -> None:
    body = b'{"n": 1}'
    headers = sign([NEW], "reply-1", int(datetime.now(UTC).timestamp()), body)
    if part == "body":
        body = b'{"n": 2}'
    else:
        headers[part] = {"webhook-id": "reply-2", "webhook-signature": "v1,AAAA"}.get(
            part, str(int(headers["webhook-timestamp"]) + 1)
        )
    with pytest.raises(WebhookVerificationError):
        Webhook(NEW).verify(body, headers)
    long_ago = int((datetime.now(UTC) - timedelta(hours=1)).timestamp())
    with pytest.raises(WebhookVerificationError, match="old"):
        Webhook(NEW).verify(b"{}", sign([NEW], "reply-1", long_ago, b"{}"))


def test_each_attempt_is_signed_under_one_id(storage: Storage, tmp_path: Path) -> None:
    async def main() -> None:
        async with receiving(500, 200) as receiver, made(storage, secrets=[NEW]) as runtime:
            await begun(runtime, receiver.url, "chat", "hi")
            await receiver.told(2)
        for call in receiver.calls:
            assert Webhook(NEW).verify(call.said, call.headers)["status"] == "success"
        assert len({call.headers["webhook-id"] for call in receiver.calls}) == 1
        assert receiver.calls[0].headers["webhook-id"] == receiver.keys[0]

    asyncio.run(main())


def test_without_a_secret_nothing_is_signed(storage: Storage) -> None:
    assert sign([], "reply-1", 0, b"") == {}

    async def main() -> None:
        async with receiving() as receiver, made(storage) as runtime:
            await begun(runtime, receiver.url, "chat", "hi")
            await receiver.told()
        assert not any(name.startswith("webhook-") for name in receiver.calls[0].headers)

    asyncio.run(main())
