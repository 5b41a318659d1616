"""The WebSocket of the event streaming protocol, with LangGraph's own clients and without.

Covers perdure.server.origins.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from langchain_core.messages.utils import convert_to_messages
from langgraph_sdk import get_sync_client
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

import perdure
from perdure.runtime import Runtime, Settings
from perdure.server.app import create_app
from perdure.server.auth.identity import OpenGate, User
from perdure.server.config import Cors, Http, RequestLimits
from perdure.server.resources import ServerState
from perdure.web.connections import LimitedConnection
from tests.backends import EMPTY
from tests.chaos import fleet, talker
from tests.server.acceptance.saying import said
from tests.server.acceptance.serving import run
from tests.server.graphs import graphs
from tests.server.hosting import owners, serving
from tests.server.listening import Revocable, Told, phase, place
from tests.server.ports import served


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path / 'threads.db'}"


def new() -> str:
    return str(uuid.uuid4())


@asynccontextmanager
async def socket(address: str, thread_id: str, **more: Any) -> AsyncIterator[ClientConnection]:
    at = f"{address.replace('http', 'ws', 1)}/threads/{thread_id}/stream/events"
    async with connect(at, proxy=None, **more) as opened:
        yield opened


async def command(opened: ClientConnection, method: str, number: int = 1, **params: Any) -> Told:
    """Send a command and return its response; events that come before it are passed over."""
    await opened.send(json.dumps({"id": number, "method": method, "params": params}))
    while True:
        frame: Told = json.loads(await opened.recv())
        if frame["type"] != "event":
            assert frame["id"] == number
            return frame


async def until(opened: ClientConnection, wanted: str) -> list[Told]:
    """The events up to the first root lifecycle event of a phase."""
    told: list[Told] = []
    async for text in opened:
        told.append(json.loads(text))
        if phase(told[-1]) == wanted and not told[-1]["params"]["namespace"]:
            return told
    raise AssertionError(f"closed before {wanted}")


@run
async def _sdk(url: str) -> None:
    async with (
        place(url) as here,
        here.client() as client,
        client.threads.stream(assistant_id="chat", transport="websocket") as thread,
    ):
        await thread.run.start(input=said("hi"))
        assert len((await thread.output)["messages"]) == 2


def test_langgraph_s_client_streams_over_a_websocket(url: str) -> None:
    _sdk(url)


@run
async def _sync_sdk(url: str) -> None:
    async with place(url) as here:

        def talk() -> int:
            with (
                get_sync_client(url=here.url, api_key=None) as client,
                client.threads.stream(assistant_id="chat", transport="websocket") as thread,
            ):
                thread.run.start(input=said("hi"))
                return len(thread.output["messages"])

        assert await asyncio.to_thread(talk) == 2


def test_langgraph_s_blocking_client_streams_over_a_websocket(url: str) -> None:
    _sync_sdk(url)


@run
async def _subscriptions(url: str) -> None:
    async with place(url) as here, socket(here.url, new()) as opened:
        first = await command(opened, "subscription.subscribe", channels=["lifecycle"])
        assert first["type"] == "success"
        started = await command(opened, "run.start", 2, assistant_id="chat", input=said("hi"))
        assert started["result"]["run_id"]
        assert "applied_through_seq" in started["meta"]
        told = await until(opened, "completed")
        assert {event["method"] for event in told} == {"lifecycle"}
        last = told[-1]["seq"]

        second = await command(opened, "subscription.subscribe", 3, channels=["values"], since=0)
        values = json.loads(await opened.recv())
        assert values["method"] == "values"
        name = second["result"]["subscription_id"]
        assert name != first["result"]["subscription_id"]
        # The same subscription, of other channels, from the beginning.
        again = await command(
            opened, "subscription.reconnect", 4, subscription_id=name, channels=["messages"], since=0
        )
        assert again["result"] == {"subscription_id": name}
        while json.loads(await opened.recv())["method"] != "messages":
            pass
        assert (await command(opened, "subscription.unsubscribe", 5, subscription_id=name))["result"] == {}
        missing = await command(opened, "subscription.unsubscribe", 6, subscription_id=name)
        assert missing["error"] == "no_such_subscription"
        # The first one goes on.
        await command(opened, "run.start", 7, assistant_id="chat", input=said("more"))
        more = await until(opened, "completed")
        assert {event["method"] for event in more} <= {"lifecycle"}
        assert more[0]["seq"] > last


def test_subscriptions_begin_end_and_begin_again(url: str) -> None:
    _subscriptions(url)


@run
async def _wrong(url: str) -> None:
    async with place(url) as here, socket(here.url, new()) as opened:
        for text, part in (
            ("not json", "not JSON"),
            ("[1]", "is a JSON object"),
            ("[" * 100_000, "not JSON"),
            ('{"id": -1, "method": "x"}', "needs an id"),
            ('{"id": 1}', "needs a method"),
        ):
            await opened.send(text)
            told = json.loads(await opened.recv())
            assert (told["type"], told["error"]) == ("error", "invalid_argument")
            assert part in told["message"]
        wrong: list[dict[str, Any]] = [
            {},
            {"channels": []},
            {"channels": ["gossip"]},
            {"channels": ["values"], "since": "x"},
        ]
        for params in wrong:
            told = await command(opened, "subscription.subscribe", 2, **params)
            assert told["error"] == "invalid_argument"
        assert (await command(opened, "subscription.unsubscribe", 3))["error"] == "invalid_argument"
        assert (await command(opened, "no.such", 4))["error"] == "unknown_command"
        for number in range(32):
            made = await command(opened, "subscription.subscribe", number, channels=["values"])
            assert made["type"] == "success"
        told = await command(opened, "subscription.subscribe", 99, channels=["values"])
        assert "at most 32 subscriptions" in told["message"]


def test_a_wrong_command_is_answered_and_the_connection_stays(url: str) -> None:
    _wrong(url)


async def until_closed(opened: ClientConnection) -> None:
    with suppress(ConnectionClosed):
        while True:
            await opened.recv()


async def closed(address: str, thread_id: str, **more: Any) -> tuple[int, str]:
    """The code and the reason with which a server closes a connection."""
    async with socket(address, thread_id, **more) as opened:
        await until_closed(opened)
        return opened.close_code or 0, opened.close_reason or ""


@run
async def _refused(url: str) -> None:
    async with serving(url, gate=owners()) as server:
        assert (await closed(server.url, new()))[0] == 4401
        ada = await server.client("ada")
        thread_id = (await ada.threads.create())["thread_id"]
        as_ada, as_bob = [
            {"additional_headers": {"Authorization": f"Bearer {name}"}} for name in ("ada", "bob")
        ]
        async with (
            socket(server.url, thread_id, **as_ada) as hers,
            socket(server.url, thread_id, **as_bob) as his,
        ):
            for one in (hers, his):
                await command(one, "subscription.subscribe", channels=["values", "lifecycle"], since=0)
            await command(hers, "run.start", 2, assistant_id="aware", input=said("secret"))
            told = await until(hers, "completed")
            assert "secret" in json.dumps(told)
            # As for a thread that does not exist: no event, no run.
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(his.recv(), 0.5)
            refused = await command(his, "run.start", 2, assistant_id="aware", input=said("mine"))
            assert refused["type"] == "error"


def test_a_stranger_is_refused_and_another_user_learns_nothing(url: str) -> None:
    _refused(url)


@pytest.mark.parametrize(
    ("cors", "origin", "is_open"),
    [
        (Cors(), "https://evil.example", False),
        (Cors(), "null", False),
        (Cors(), "https://[::1", False),
        (Cors(allow_origins=("https://app.example",)), "https://app.example", True),
        (Cors(allow_origins=("https://app.example",)), "https://app.example.evil", False),
        (Cors(allow_origins=("*",)), "https://any.example", True),
        (Cors(allow_origin_regex=r"https://.*\.example"), "https://a.example", True),
        (Cors(allow_origin_regex=r"https://.*\.example"), "https://a.example.evil", False),
        (Cors(), "self", True),
        (Cors(), None, True),
    ],
)
def test_pages_of_other_origins_may_not_connect(
    url: str, cors: Cors, origin: str | None, is_open: bool
) -> None:
    @run
    async def main() -> None:
        async with serving(url, http=Http(cors=cors)) as server:
            sent = server.url if origin == "self" else origin
            if not is_open:
                assert (await closed(server.url, new(), origin=sent))[0] == 4403
                return
            async with socket(server.url, new(), origin=sent) as opened:
                assert (await command(opened, "subscription.subscribe", channels=["values"]))[
                    "type"
                ] == "success"

    main()


@run
async def _limits(url: str) -> None:
    async with serving(url, limits=RequestLimits(streams=1, body_bytes=2000)) as server:
        async with socket(server.url, new()) as opened:
            await command(opened, "subscription.subscribe", channels=["values"])
            assert (await closed(server.url, new()))[0] == 4429
            await opened.send(json.dumps({"id": 1, "method": "run.start", "params": {"input": "x" * 3000}}))
            with pytest.raises(ConnectionClosed):
                await opened.recv()
            assert opened.close_code == 1009
        # The count is given back.
        async with socket(server.url, new()) as opened:
            assert (await command(opened, "subscription.subscribe", channels=["values"]))["type"] == "success"


def test_limits_hold(url: str) -> None:
    _limits(url)


@run
async def _expires(url: str) -> None:
    gate = Revocable()
    async with place(url, gate=gate) as here:

        async def left(*changed: tuple[str, Any], sends: bool) -> int:
            """The code with which an open connection is closed after a change of the gate."""
            gate.user, gate.conditions = User("ada", ""), None
            thread_id = new()
            async with socket(here.url, thread_id) as opened:
                await command(opened, "subscription.subscribe", channels=["values"])
                for name, value in changed:
                    setattr(gate, name, value)
                if sends:
                    params = {"assistant_id": "chat", "input": said("hi")}
                    await opened.send(json.dumps({"id": 2, "method": "run.start", "params": params}))
                await asyncio.wait_for(until_closed(opened), 60)
            assert await here.host.runtime.for_tenant("").threads.find(thread_id) is None
            return opened.close_code or 0

        # A command is refused before it has any effect.
        assert await left(("user", None), sends=True) == 4401
        assert await left(("user", User("bob", "")), sends=True) == 4401
        # Without commands a check at an interval finds it.
        here.host.limits = RequestLimits(recheck=0.05)
        assert await left(("user", None), sends=False) == 4401
        assert await left(("conditions", {"owner": "ada"}), sends=False) == 4403


def test_a_connection_does_not_outlive_its_token(url: str) -> None:
    _expires(url)


@run
async def _counted(url: str) -> None:
    # One of them is the connection itself.
    async with (
        serving(url, limits=RequestLimits(requests_per_minute=5)) as server,
        socket(server.url, new()) as opened,
    ):
        for number in range(4):
            assert (await command(opened, "no.such", number))["error"] == "unknown_command"
        await opened.send(json.dumps({"id": 9, "method": "no.such"}))
        await asyncio.wait_for(until_closed(opened), 60)
        assert opened.close_code == 4429


def test_each_command_counts_as_a_request(url: str) -> None:
    _counted(url)


@asynccontextmanager
async def restarted_at(url: str, port: int) -> AsyncIterator[int]:
    """A server on a port that is known, which another one had before."""
    async with (
        perdure.connect(url, migrate=True) as db,
        Runtime(db, graphs(), settings=Settings(poll=0.1), all_tenants=True) as runtime,
    ):
        app, host = create_app(None), ServerState.over(runtime, OpenGate())
        app.state.perdure = host
        server = uvicorn.Server(
            uvicorn.Config(app, http=LimitedConnection, port=port, log_level="warning", lifespan="off")
        )
        serving = asyncio.create_task(server.serve())
        while not server.started:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        try:
            yield server.servers[0].sockets[0].getsockname()[1]
        finally:
            await host.close()
            server.should_exit = True
            await serving


@run
async def _restart(url: str) -> None:
    thread_id = new()
    async with restarted_at(url, 0) as port:
        address = f"http://127.0.0.1:{port}"
        async with socket(address, thread_id) as opened:
            await command(opened, "subscription.subscribe", channels=["lifecycle", "values"])
            await command(opened, "run.start", 2, assistant_id="chat", input=said("hi"))
            told = await until(opened, "completed")
            seen = {event["event_id"] for event in told}
    with pytest.raises(ConnectionClosed) as stopped:
        await opened.recv()
    assert stopped.value.rcvd is None or stopped.value.rcvd.code in (1000, 1012)
    async with restarted_at(url, port), socket(address, thread_id) as opened:
        await command(
            opened, "subscription.subscribe", channels=["lifecycle", "values"], since=told[0]["seq"]
        )
        replayed = await until(opened, "completed")
        assert {event["event_id"] for event in replayed} == seen - {told[0]["event_id"]}


def test_events_go_on_after_a_restart_of_the_server(url: str) -> None:
    _restart(url)


class Working(fleet.Server):
    """A server process that works on the runs that it accepts."""

    def __init__(self, database: str, folder: Path) -> None:
        super().__init__("server", database, folder)
        shutil.copy(talker.__file__, folder / "agents.py")
        (folder / "perdure.toml").write_text("[runtime]\nlease = 2.0\npoll = 0.1\n")
        self._words = tuple(word for word in self._words if word != "--no-work")


async def whole_log(address: str, thread_id: str) -> list[Told]:
    """The events of a thread from the first to the end of its run."""
    async with socket(address, thread_id) as opened:
        await command(opened, "subscription.subscribe", channels=["lifecycle", "messages", "values"], since=0)
        return await until(opened, "completed")


@run
async def _kill(url: str, folder: Path) -> None:
    server, thread_id, told = Working(url, folder), new(), list[Told]()
    channels = ["lifecycle", "messages", "values"]
    server.start()
    try:
        await server.ready()
        async with socket(server.url, thread_id) as opened:
            await command(opened, "subscription.subscribe", channels=channels)
            question = said(f"{talker.LENGTHY}tides")
            await command(opened, "run.start", 2, assistant_id=fleet.GRAPH, input=question)
            with suppress(ConnectionClosed):
                while True:
                    told.append(json.loads(await opened.recv()))
                    if sum(event["method"] == "messages" for event in told) == 5:
                        server.kill()
        assert not any(phase(event) == "completed" for event in told)
        server.start()
        await server.ready()
        async with socket(server.url, thread_id) as opened:
            since = told[-1]["seq"]
            await command(opened, "subscription.subscribe", channels=channels, since=since)
            rest = await until(opened, "completed")
        heard = [(event["seq"], event["event_id"]) for event in (*told, *rest)]
        assert heard == sorted(set(heard)), "an event came twice, or out of order"
        # What was told last before the kill need not have been stored.
        whole = await asyncio.wait_for(whole_log(server.url, thread_id), 60)
        stored = [(event["seq"], event["event_id"]) for event in whole]
        assert [event for event in heard if event in set(stored)] == stored, "a stored event was not heard"
        assert set(heard) - set(stored) <= {(event["seq"], event["event_id"]) for event in told[2:]}
        async with server.client() as client:
            values: Any = (await client.threads.get_state(thread_id))["values"]
        texts = [message.text for message in convert_to_messages(values["messages"])]
        assert texts == [f"{talker.LENGTHY}tides", talker.reply_to(f"{talker.LENGTHY}tides")]
        assert talker.repeated((folder / "notes").read_text()) == []
        assert await server.stop() == 0
    finally:
        server.kill()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_a_subscription_goes_on_where_a_killed_process_left_it(backend: str, tmp_path: Path) -> None:
    with EMPTY[backend]() as url:
        with perdure.connect_sync(url, migrate=True):
            """Only its schema is wanted."""
        _kill(url, tmp_path)


@run
async def _stop(url: str) -> None:
    async with (
        perdure.connect(url, migrate=True) as db,
        Runtime(db, graphs(), settings=Settings(poll=0.1), all_tenants=True) as runtime,
    ):
        host = ServerState.over(runtime, OpenGate())
        async with served(create_app(None), host) as address, socket(address, new()) as opened:
            await command(opened, "subscription.subscribe", channels=["values"])
            await host.close()
            await until_closed(opened)
            assert opened.close_code == 1012


def test_a_stop_of_the_server_tells_the_client_to_connect_again(url: str) -> None:
    _stop(url)
