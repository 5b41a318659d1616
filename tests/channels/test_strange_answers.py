"""Answers of a provider, or of a proxy before it, that are none of its API's: the outcome is unknown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

import pytest

from perdure import channels
from perdure.channels import ChatAddress
from perdure.channels.chat_channel import ChatChannel, SendUncertain
from perdure.model.runs.messages import Reply
from perdure.runtime import NotSent
from perdure.testing.channels import slack, telegram, whatsapp

TEXT = "the text of the reply"
_PAGE = f"<html>{TEXT}</html>"


class Provider(NamedTuple):
    """A channel and the id of a chat."""

    name: str
    chat: str
    make: Callable[[str], ChatChannel]


PROVIDERS = (
    Provider(
        "telegram",
        "1",
        lambda url: channels.TelegramBot(telegram.TOKEN, secret=telegram.SECRET, api_url=url),
    ),
    Provider(
        "slack",
        "T1.D1",
        lambda url: channels.SlackApp(
            slack.TOKEN, signing_secret=slack.SIGNING_SECRET, api_url=f"{url}/api/"
        ),
    ),
    Provider(
        "whatsapp",
        "491234",
        lambda url: channels.WhatsAppPhone(
            whatsapp.PHONE_ID, token="t", app_secret="s", verify_token="v", api_url=f"{url}/v1/"
        ),
    ),
)


def _answer(status: str, kind: str, body: bytes | str, *more: str, length: int | None = None) -> bytes:
    content = body if isinstance(body, bytes) else body.encode()
    size = len(content) if length is None else length
    head = [f"HTTP/1.1 {status}", f"Content-Type: {kind}", f"Content-Length: {size}", *more]
    return "\r\n".join([*head, "Connection: close", "", ""]).encode() + content


STRANGE = {
    "a page": _answer("200 OK", "text/html", _PAGE),
    "a page that is called JSON": _answer("200 OK", "application/json", _PAGE),
    "text": _answer("200 OK", "text/plain", TEXT),
    "nothing": _answer("200 OK", "application/json", ""),
    "a list": _answer("200 OK", "application/json", f'["{TEXT}"]'),
    "null": _answer("200 OK", "application/json", "null"),
    "an empty object": _answer("200 OK", "application/json", "{}"),
    "success without a message": _answer("200 OK", "application/json", '{"ok": true}'),
    "half of an answer": _answer("200 OK", "application/json", '{"ok": tr', length=100),
    "no UTF-8": _answer("200 OK", "application/json; charset=utf-8", b'{"ok": "\xff\xfe"}'),
    "a redirect": _answer("302 Found", "text/html", _PAGE, "Location: /elsewhere"),
    "a failure without a reason": _answer("500 Error", "application/json", '{"ok": false}'),
    "a failure of a proxy": _answer("502 Bad Gateway", "text/html", _PAGE),
    "an end": b"",
    "half of a head": b"HTTP/1.1 200 OK\r\nContent-",
    "no HTTP": b"nonsense\r\n\r\n",
}


@asynccontextmanager
async def answering(answer: bytes) -> AsyncIterator[str]:
    """The URL of a server that reads a request and gives the same answer to each."""

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
            if lengths:
                await reader.readexactly(int(lengths[0].partition(b":")[2]))
            elif b"chunked" in head.lower():
                await reader.readuntil(b"0\r\n\r\n")
            writer.write(answer)
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(answered, "127.0.0.1", 0)
    async with server, asyncio.timeout(60):
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def _send(provider: Provider, url: str) -> None:
    async with provider.make(url) as bot:
        address = ChatAddress(provider.name, provider.chat)
        await bot.notify(address, TEXT)
        await bot.deliver(address, TEXT, Reply(1, "run", 0, provider.name, {"content": TEXT}))


@pytest.mark.parametrize("provider", PROVIDERS, ids=lambda each: each.name)
@pytest.mark.parametrize("what", STRANGE)
def test_a_strange_answer_leaves_the_outcome_unknown(
    provider: Provider, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with answering(STRANGE[what]) as url:
            with pytest.raises(SendUncertain) as raised:
                await _send(provider, url)
            assert TEXT not in str(raised.value)
            is_bare = raised.value.__suppress_context__ or raised.value.__context__ is None
            assert is_bare, "a traceback would show what was answered"

    asyncio.run(main())
    assert "a notice was not sent (SendUncertain)" in caplog.text
    assert TEXT not in caplog.text


@pytest.mark.parametrize("provider", PROVIDERS[1:], ids=lambda each: each.name)
def test_a_limit_of_a_proxy_is_a_limit(provider: Provider) -> None:
    async def main() -> None:
        async with answering(_answer("429 Too Many Requests", "text/html", _PAGE)) as url:
            with pytest.raises(NotSent) as raised:
                await _send(provider, url)
            assert raised.value.retry_after

    asyncio.run(main())
