"""Who may ask for a webhook, and where it goes: to the address that was checked, and nowhere else."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from perdure.errors import BadSetting
from perdure.model.runs.messages import DEAD, SENT
from perdure.runtime import Options, Runtime, Settings
from perdure.runtime.options import WEBHOOK
from perdure.server.app import create_app
from perdure.server.auth.identity import OpenGate
from perdure.server.resources import ServerState
from perdure.server.runs.outbound_policy import OutboundPolicy
from perdure.server.runs.webhooks import Webhooks, of_variables
from tests.runtime.graphs import Heard, Storage, eventually, eventually_stored, go
from tests.server.receiving import NEAR, SECRET, begun, made, notices, receiving, said, texts

# ---------------------------------------------------------------- nowhere else


def reaching(*answers: list[str]) -> OutboundPolicy:
    """A reach whose names have these addresses, each time the next ones."""
    left = list(answers)

    async def resolve(host: str, port: int) -> list[str]:
        assert host == "hooks.example"
        return left.pop(0) if len(left) > 1 else left[0]

    return OutboundPolicy(NEAR.names, NEAR.networks, resolve)


def test_a_name_of_a_private_address_is_refused_when_it_is_sent(memory: Storage) -> None:
    async def main() -> None:
        async with receiving() as receiver:
            private = OutboundPolicy(resolve=reaching(["127.0.0.1"]).resolve)
            async with made(memory, private) as runtime:
                await begun(runtime, f"http://hooks.example:{receiver.port}/?{SECRET}", "chat", "hi")
                (notice,) = await notices(runtime, DEAD)
        assert receiver.calls == []
        assert notice.error == (
            "Undeliverable: the webhook's URL may not be called: its host has no public address"
        )

    go(main())


def test_a_literal_address_is_refused_when_it_is_sent_too(memory: Storage) -> None:
    async def main() -> None:
        async with receiving() as receiver, made(memory, OutboundPolicy()) as runtime:
            await begun(runtime, receiver.url, "chat", "hi")
            (notice,) = await notices(runtime, DEAD)
        assert receiver.calls == []
        assert "not a public address" in str(notice.error)

    go(main())


def test_the_address_that_was_checked_is_the_one_that_is_called(
    memory: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that is looked up again may lead elsewhere: the second time here, nobody looks."""
    looked_up: list[str] = []
    lookup = socket.getaddrinfo

    def watched(host: Any, *args: Any, **more: Any) -> Any:
        looked_up.append(str(host))
        return lookup(host, *args, **more)

    async def main() -> None:
        async with receiving() as receiver, made(memory, reaching(["127.0.0.1"], ["10.0.0.1"])) as runtime:
            await begun(runtime, f"http://hooks.example:{receiver.port}/in", "chat", "hi")
            await notices(runtime, SENT)
            (call,) = receiver.calls
            assert call.headers["host"] == f"hooks.example:{receiver.port}"
            await begun(runtime, f"http://hooks.example:{receiver.port}/in", "chat", "hi")
            await notices(runtime, SENT, DEAD)
        assert len(receiver.calls) == 1

    monkeypatch.setattr(socket, "getaddrinfo", watched)
    go(main())
    assert "hooks.example" not in looked_up


def test_the_next_address_is_called_when_nobody_is_at_the_first(memory: Storage) -> None:
    async def main() -> None:
        async with receiving() as receiver, made(memory, reaching(["127.0.0.99", "127.0.0.1"])) as runtime:
            await begun(runtime, f"http://hooks.example:{receiver.port}/", "chat", "hi")
            (notice,) = await notices(runtime, SENT)
        assert notice.attempts == 1

    go(main())


def test_a_certificate_is_asked_for_by_the_name(memory: Storage) -> None:
    """The handshake names the host, not the address; with a certificate of nobody's it goes no further."""
    names: list[str | None] = []

    async def main() -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.sni_callback = lambda _, name, __: names.append(name)
        server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0, ssl=context)
        port = server.sockets[0].getsockname()[1]
        async with server, made(memory, reaching(["127.0.0.1"])) as runtime:
            await begun(runtime, f"https://hooks.example:{port}/", "chat", "hi")
            await eventually(lambda: names)
        assert names[0] == "hooks.example"

    go(main())


def test_the_secret_of_a_url_is_in_no_log_and_no_error(
    memory: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        heard = Heard()
        async with receiving(500, 500, 404, 200) as receiver, made(memory, observers=[heard]) as runtime:
            await begun(runtime, receiver.url, "chat", "hi")
            (dead,) = await notices(runtime, DEAD)
            await begun(runtime, receiver.url, "chat", "hi")
            await notices(runtime, DEAD, SENT)
        assert SECRET not in f"{heard.events} {dead.error}"

    with caplog.at_level(logging.DEBUG):
        go(main())
    assert SECRET not in caplog.text
    assert "/hook" not in caplog.text


# ---------------------------------------------------------------- asking for it


@asynccontextmanager
async def api(runtime: Runtime, reach: OutboundPolicy | None) -> AsyncIterator[httpx.AsyncClient]:
    app = create_app(None)
    app.state.perdure = host = ServerState.over(runtime, OpenGate(), webhooks=reach)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://server") as client:
        yield client
    await host.close()


def body(url: str, **more: Any) -> dict[str, Any]:
    return {"assistant_id": "chat", "input": said("hi"), "webhook": url, **more}


def test_a_client_asks_for_it_with_a_run(memory: Storage) -> None:
    async def main() -> None:
        async with receiving() as receiver, made(memory) as runtime, api(runtime, NEAR) as client:
            await client.post("/threads", json={"thread_id": "ada"})
            asked = body(receiver.url, metadata={"who": "ada"})
            created = (await client.post("/threads/ada/runs", json=asked)).json()
            (told,) = await receiver.told()
            shown = (await client.get(f"/threads/ada/runs/{created['run_id']}")).json()
        assert told["run_id"] == created["run_id"]
        assert told["metadata"]["who"] == "ada"
        assert told["assistant_id"] == created["assistant_id"]
        assert {**told, "values": 0}.items() >= {**shown, "updated_at": told["updated_at"]}.items()
        assert shown["kwargs"]["webhook"] == receiver.url
        rest = {**shown, "kwargs": {**shown["kwargs"], "webhook": ""}}
        assert SECRET not in json.dumps(rest)

    go(main())


@pytest.mark.parametrize("path", ["/runs", "/runs/wait"])
def test_a_thread_of_its_own_stays_until_it_is_told(memory: Storage, path: str) -> None:
    async def main() -> None:
        async with (
            receiving(500, 500, 200) as receiver,
            made(memory) as runtime,
            api(runtime, NEAR) as client,
        ):
            answer = await client.post(path, json=body(receiver.url))
            assert answer.status_code == 200
            told = await receiver.told(3)
            assert texts(told[2]) == ["hi", "echo hi"]

            async def is_gone() -> bool:
                return (await client.get(f"/threads/{told[0]['thread_id']}")).status_code == 404

            await eventually_stored(is_gone)
        assert len(receiver.calls) == 3

    go(main())


@pytest.mark.parametrize(
    "url",
    [
        "http://169.254.169.254/latest/meta-data",
        "http://10.0.0.1/",
        "http://[::ffff:7f00:1]/",
        "http://localhost/",
        "/own/route",
        "https://ada:s3cret@hooks.example/",
    ],
)
def test_a_url_that_may_not_be_called_is_refused_and_nothing_is_stored(memory: Storage, url: str) -> None:
    async def main() -> None:
        async with made(memory) as runtime, api(runtime, OutboundPolicy()) as client:
            await client.post("/threads", json={"thread_id": "ada"})
            for path in ("/threads/ada/runs", "/runs/wait"):
                answer = await client.post(path, json=body(url))
                assert answer.status_code == 422
                assert answer.json()["detail"].startswith("the webhook's URL may not be called: ")
                assert "s3cret" not in answer.text
            assert await runtime.runs("ada") == ()

    go(main())


def test_webhooks_can_be_disabled(memory: Storage) -> None:
    async def main() -> None:
        async with made(memory) as runtime, api(runtime, None) as client:
            answer = await client.post("/runs", json=body("https://hooks.example/"))
            assert answer.status_code == 422
            assert "disabled" in answer.json()["detail"]
            plain = await client.post("/runs/wait", json=body(""))
            assert plain.status_code == 200

    go(main())


def test_a_channel_of_this_name_is_for_webhooks_only(memory: Storage) -> None:
    async def main() -> None:
        async with made(memory) as runtime:
            with pytest.raises(ValueError, match="'webhook'"):
                await runtime.accept("ada", "hi", graph="chat", channel=WEBHOOK)
            with pytest.raises(ValueError, match="'webhook'"):
                await runtime.accept("ada", "hi", graph="chat", options=Options(webhook="https://h.example"))
        assert memory.rows("ada") == []

    go(main())


def test_a_notice_takes_less_time_than_a_lease() -> None:
    for lease in (1.0, 30.0, 600.0):
        channel = Webhooks(OutboundPolicy()).channels(Settings(lease=lease))[WEBHOOK]
        assert channel.timeout < lease
    assert channel.in_doubt == "resend"


def test_variables_say_who_may_be_called() -> None:
    told = of_variables({"PERDURE_HTTP_WEBHOOK_HOSTS": "hooks.internal, 10.1.0.0/16"})
    assert told is not None
    assert told.reach.names == {"hooks.internal"}
    assert [str(network) for network in told.reach.networks] == ["10.1.0.0/16"]
    assert of_variables({}) is not None
    assert of_variables({"PERDURE_HTTP_DISABLE_WEBHOOKS": "true"}) is None
    near = of_variables({"LANGGRAPH_DEV": "true"})
    assert near is not None
    near.reach.check_url("http://localhost:3000/")
    with pytest.raises(BadSetting, match="PERDURE_HTTP_WEBHOOK_HOSTS"):
        of_variables({"PERDURE_HTTP_WEBHOOK_HOSTS": "http://hooks.internal"})


@pytest.mark.parametrize("path", ["/own/route", "/", "//hooks.example/x"])
def test_a_path_of_one_s_own_application_is_refused_in_words_that_say_so(memory: Storage, path: str) -> None:
    async def main() -> None:
        async with made(memory) as runtime, api(runtime, NEAR) as client:
            answer = await client.post("/runs/wait", json=body(path))
            assert answer.status_code == 422
            assert "it is a path" in answer.json()["detail"]
            assert "http.webhook_hosts" in answer.json()["detail"]

    go(main())
