"""Pages of other sites in the browser of a user whose cookies the server takes: they change nothing.

Covers perdure.server.origins, perdure.web.guard.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI, Request, WebSocket
from langgraph_sdk import Auth
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

import perdure
from perdure.runtime import Runtime, Settings
from perdure.server.app import create_app
from perdure.server.auth.handlers import Handlers
from perdure.server.auth.identity import Gate, OpenGate
from perdure.server.config import Cors, Http
from perdure.server.hosting.embedding import perdure_router
from perdure.server.hosting.mounting import mount
from perdure.server.resources import ServerState
from tests.server.hosting import graphs, run
from tests.server.ports import served
from tests.server.test_isolation import routes_of

FOREIGN = {"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}
FORMS = ["text/plain", "text/plain; a=application/json", "application/x-www-form-urlencoded", "", None]
START = '{"id": 1, "method": "run.start", "params": {"assistant_id": "remembers", "input": {"messages": []}}}'
COOKIE = {"Cookie": "user=ann"}


def by_cookie() -> Gate:
    auth = Auth()

    @auth.authenticate
    async def authenticate(headers: dict[bytes, bytes]) -> str:
        name, _, user = headers.get(b"cookie", b"").decode().partition("=")
        if name != "user":
            raise Auth.exceptions.HTTPException(status_code=401, detail="Who are you?")
        return user

    return Handlers(auth)


def own() -> FastAPI:
    """An application beside the API."""
    app = FastAPI()

    @app.post("/own")
    async def change(request: Request) -> str:
        return (await request.body()).decode()

    @app.websocket("/own/socket")
    async def talk(websocket: WebSocket) -> None:
        await websocket.accept()
        await websocket.send_text("hello")

    return app


class Place:
    """A server with an application beside its API, or an application with the API in it."""

    def __init__(self, folder: Path, gate: Gate, cors: Cors, *, is_embedded: bool = False) -> None:
        self.url = f"sqlite:///{folder / 'threads.db'}"
        self.gate, self.http, self.is_embedded = gate, Http(cors=cors, page=True, inspector=True), is_embedded

    async def asked(self, work: Any) -> None:
        async with (
            perdure.connect(self.url, migrate=True) as db,
            Runtime(db, graphs(), settings=Settings(poll=0.2), all_tenants=True) as runtime,
        ):
            host = ServerState.over(runtime, self.gate)
            if self.is_embedded:
                app = own()
                app.include_router(perdure_router(self.http))
                async with served(app, host) as address:
                    await work(address, app)
                return
            app = create_app(None, self.http)
            async with mount(app, own(), None), served(app, host) as address:
                await work(address, app)


def _foreign(kind: str | None) -> dict[str, str]:
    return {**FOREIGN, **COOKIE, **({} if kind is None else {"Content-Type": kind})}


@pytest.mark.parametrize("is_embedded", [False, True])
@run
async def test_a_page_of_another_site_runs_no_graph_for_a_user_with_a_cookie(
    tmp_path: Path, is_embedded: bool
) -> None:
    async def asked(address: str, app: FastAPI) -> None:
        async with httpx.AsyncClient(base_url=address) as http:
            for kind in FORMS:
                answer = await http.post("/threads/t/commands", content=START, headers=_foreign(kind))
                assert answer.status_code == 403, (kind, answer.text)
                body = '{"channels": ["values"]}'
                answer = await http.post("/threads/t/stream/events", content=body, headers=_foreign(kind))
                assert answer.status_code == 403, (kind, answer.text)
            assert (await http.get("/threads/t", headers=COOKIE)).status_code == 404
            # Neither is it taken from a program, which sends no origin.
            for kind in FORMS:
                headers = {**COOKIE, **({} if kind is None else {"Content-Type": kind})}
                for path, body in (("commands", START), ("stream/events", '{"channels": ["values"]}')):
                    answer = await http.post(f"/threads/t/{path}", content=body, headers=headers)
                    assert answer.status_code == 400, (kind, answer.text)
            assert (await http.get("/threads/t", headers=COOKIE)).status_code == 404

    await Place(tmp_path, by_cookie(), Cors(), is_embedded=is_embedded).asked(asked)


@pytest.mark.parametrize("is_embedded", [False, True])
@run
async def test_every_route_that_changes_something_refuses_such_a_page(
    tmp_path: Path, is_embedded: bool
) -> None:
    async def asked(address: str, app: FastAPI) -> None:
        every = sorted(
            {each for each in routes_of(app.routes) if each[0] not in ("GET", "HEAD", "WEBSOCKET")}
        )
        every = [(method, path) for method, path in every if not (is_embedded and path == "/own")]
        assert len(every) > 40
        async with httpx.AsyncClient(base_url=address) as http:
            (await http.post("/threads", json={"thread_id": "t"}, headers=COOKIE)).raise_for_status()
            for method, path in every:
                for kind in FORMS:
                    at = path.replace("{thread_id}", "t")
                    answer = await http.request(method, at, content=b"", headers=_foreign(kind))
                    assert answer.status_code == 403, (method, path, kind, answer.status_code)
            (thread,) = (await http.post("/threads/search", json={}, headers=COOKIE)).json()
            assert thread["thread_id"] == "t"

    await Place(tmp_path, by_cookie(), Cors(), is_embedded=is_embedded).asked(asked)


@pytest.mark.parametrize(
    ("headers", "is_refused"),
    [
        ({"Origin": "https://evil.example"}, True),
        ({"Origin": "null"}, True),
        ({"Sec-Fetch-Site": "same-site"}, True),
        ({"Sec-Fetch-Site": "cross-site"}, True),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "https://behind-a-proxy.example"}, False),
        ({"Sec-Fetch-Site": "none"}, False),
        ({"Origin": "https://chat.example", "Sec-Fetch-Site": "cross-site"}, False),
        ({"Origin": "https://evil.example", "Content-Type": "application/json"}, False),
        ({}, False),
    ],
)
@run
async def test_who_a_page_is_of_decides(tmp_path: Path, headers: dict[str, str], is_refused: bool) -> None:
    async def asked(address: str, app: FastAPI) -> None:
        async with httpx.AsyncClient(base_url=address, headers=COOKIE) as http:
            (await http.post("/threads", json={"thread_id": "t"})).raise_for_status()
            for path in ("/threads/t/copy", "/own"):
                answer = await http.post(path, headers=headers)
                assert (answer.status_code == 403) is is_refused, (path, answer.text)
            # A page of the server itself has its origin.
            answer = await http.post("/threads/t/copy", headers={"Origin": address.rstrip("/")})
            assert answer.status_code == 200
            for query, refused in (("?cancel_on_disconnect=1", is_refused), ("", False)):
                answer = await http.get(f"/threads/t/runs/none/join{query}", headers=headers)
                is_json = "Content-Type" in headers
                assert (answer.status_code == 403) is (refused and not is_json)

    await Place(tmp_path, by_cookie(), Cors(allow_origins=("https://chat.example",))).asked(asked)


@run
async def test_a_socket_of_such_a_page_is_closed_on_every_route(tmp_path: Path) -> None:
    async def asked(address: str, app: FastAPI) -> None:
        base = address.replace("http", "ws", 1)
        for path in ("/own/socket", "/threads/t/stream/events"):
            async with connect(f"{base}{path}", additional_headers=FOREIGN | COOKIE) as socket:
                with pytest.raises(ConnectionClosed) as closed:
                    await socket.recv()
                assert closed.value.rcvd is not None
                assert closed.value.rcvd.code == 4403
        async with connect(f"{base}/own/socket") as socket:
            assert await socket.recv() == "hello"

    await Place(tmp_path, by_cookie(), Cors()).asked(asked)


@run
async def test_providers_reach_their_webhooks(tmp_path: Path) -> None:
    """They send forms, too, and no origin."""

    async def asked(address: str, app: FastAPI) -> None:
        async with httpx.AsyncClient(base_url=address) as http:
            answer = await http.post("/own", data={"payload": "{}"})
            assert (answer.status_code, answer.json()) == (200, "payload=%7B%7D")

    await Place(tmp_path, OpenGate(), Cors()).asked(asked)
