"""Protection of a server without authentication from pages of other sites, and what its stop logs."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Collection
from contextlib import closing
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from perdure.server.auth.identity import Gate, OpenGate
from perdure.server.config import Cors
from perdure.server.hosting.process import Server, guard
from perdure.web.listening import listen
from tests.server.hosting import owners

STUDIO = Cors(allow_origins=("https://studio.example",))


def status(
    method: str = "GET",
    *,
    gate: Gate | None = None,
    address: str = "127.0.0.1",
    hosts: Collection[str] = (),
    **headers: str,
) -> int:
    """The status of a request to a server that listens on an address."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    route = Route("/threads", lambda request: PlainTextResponse("ok"), methods=["GET", "POST"])
    app = Starlette(routes=[route])

    async def send(listener: socket.socket) -> int:
        transport = httpx.ASGITransport(app=guard(app, gate or OpenGate(), STUDIO, listener, hosts))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:2024") as client:
            return (await client.request(method, "/threads", headers=sent)).status_code

    with closing(listen(address, 0)) as listener:
        return asyncio.run(send(listener))


@pytest.mark.parametrize("host", ["127.0.0.1:2024", "localhost:2024", "[::1]:2024"])
def test_its_own_names_are_answered(host: str) -> None:
    assert status(host=host) == status("POST", host=host) == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:2024", "127.0.0.1.evil.example", ""])
def test_a_name_that_points_at_this_machine_is_refused(host: str) -> None:
    assert status(host=host) == status("POST", host=host) == 403


def test_pages_of_other_origins_may_not_write_unless_they_are_allowed() -> None:
    assert status("POST", origin="https://evil.example") == 403
    assert status("POST", origin="https://[::1") == 403
    assert status("POST", origin="https://studio.example", sec_fetch_site="cross-site") == 200
    assert status("POST", origin="https://studio.example", host="evil.example") == 403


def test_a_server_that_authenticates_answers_to_every_name() -> None:
    assert status(gate=owners(), host="agents.example") == 200
    assert status(gate=owners(), address="0.0.0.0", host="agents.example") == 200  # noqa: S104


EVERYWHERE: Any = {"address": "0.0.0.0"}  # noqa: S104


@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "host", ["agents.example", "agents.example:2024", "10.0.0.8.example", "10.0.0.8.", ""]
)
def test_a_name_that_points_at_a_server_in_the_network_is_refused(method: str, host: str) -> None:
    assert status(method, **EVERYWHERE, host=host) == 403
    assert status(method, **EVERYWHERE, host=host, origin=f"http://{host}") == 403


@pytest.mark.parametrize("host", ["10.0.0.8", "10.0.0.8:2024", "[fd00::8]:2024", "perdure:2024", "localhost"])
def test_addresses_and_names_that_nobody_else_can_own_are_answered(host: str) -> None:
    assert status("POST", **EVERYWHERE, host=host, origin=f"http://{host}") == 200
    assert status("POST", **EVERYWHERE, host=host, origin="http://evil.example") == 403


@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1"])  # noqa: S104
def test_names_that_are_listed_are_answered(address: str) -> None:
    for hosts in ["agents.example"], ["*"]:
        assert status("POST", address=address, host="agents.example:80", hosts=hosts) == 200
    assert status("POST", address=address, host="other.example", hosts=["agents.example"]) == 403


@pytest.mark.parametrize("hosts", [[], [b"localhost", b"localhost"], [b"localhost", b"evil.example"]])
@pytest.mark.parametrize("address", ["0.0.0.0", "127.0.0.1"])  # noqa: S104
def test_a_request_has_one_host(address: str, hosts: list[bytes]) -> None:
    reached: list[Any] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        reached.append(scope)

    async def send(message: Any) -> None:
        reached.append(message)

    scope = {
        "type": "http", "method": "GET", "path": "/", "headers": [(b"host", host) for host in hosts],
    }  # fmt: skip
    with closing(listen(address, 0)) as listener:
        asyncio.run(guard(app, OpenGate(), STUDIO, listener, ["*"])(scope, None, send))  # type: ignore[arg-type]
    assert reached[0]["status"] == 400


def test_streams_that_end_with_the_server_are_no_error_from_the_signal_on(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A server that ran in this process before may have set up these loggers.
    for name in ("uvicorn", "uvicorn.error"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
        monkeypatch.setattr(logging.getLogger(name), "disabled", False)
        monkeypatch.setattr(logging.getLogger(name), "handlers", [])
    caplog.set_level(logging.ERROR, "uvicorn.error")

    async def nothing() -> None:
        """Neither before the start nor before the stop."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        """Answers nothing."""

    log = logging.getLogger("uvicorn.error")
    server = Server(uvicorn.Config(app, log_config=None), nothing, nothing)
    aborted = "ASGI callable returned without completing response."
    with server.capture_signals():
        log.error(aborted)
        server.should_exit = True  # as the signal does, which the streams of the whole process would heed
        log.error(aborted)
        log.error("something else")
    log.error(aborted)
    assert [record.getMessage() for record in caplog.records] == [aborted, "something else", aborted]
