"""What one user, and one request, may ask of a server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from types import SimpleNamespace

import httpx
import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from perdure.server.auth.identity import Refusal, User
from perdure.server.config import Cors, Http, RequestLimits
from perdure.server.request_limits import USERS_MOST, Bounded, Throttle
from tests.backends import EMPTY
from tests.runtime.graphs import eventually
from tests.server.hosting import run, serving, tenants

ADA, BOB = User("ada", ""), User("bob", "")


@pytest.fixture
def url() -> Iterator[str]:
    with EMPTY["sqlite"]() as url:
        yield url


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def refused(throttle: Throttle, user: User = ADA) -> int | None:
    """After how many seconds a refused request may come again."""
    try:
        throttle.request(user)
    except Refusal as refusal:
        return int(refusal.headers["Retry-After"]) if refusal.status == 429 else -1
    return None


def test_a_minutes_worth_may_come_at_once_and_grows_back_evenly() -> None:
    clock = Clock()
    throttle = Throttle(RequestLimits(requests_per_minute=6), clock)
    assert [refused(throttle) for _ in range(8)] == [None] * 6 + [10, 10]
    assert refused(throttle, BOB) is None
    assert refused(throttle, User("ada", "another tenant")) is None
    clock.now += 9
    assert refused(throttle) == 1
    clock.now += 1
    assert [refused(throttle), refused(throttle)] == [None, 10]
    clock.now += 3600
    assert [refused(throttle) for _ in range(7)] == [None] * 6 + [10]


def test_users_are_not_counted_without_end() -> None:
    throttle = Throttle(RequestLimits(requests_per_minute=1), Clock())
    for number in range(USERS_MOST + 10):
        assert refused(throttle, User(str(number), "")) is None
    assert len(throttle._left) == USERS_MOST
    assert refused(throttle, User(str(USERS_MOST + 9), "")) == 60


def opens(throttle: Throttle, user: User) -> bool:
    """Whether a user may open one more stream, which is closed again."""
    try:
        with throttle.count_stream(user):
            return True
    except Refusal:
        return False


def test_a_stream_counts_until_it_is_closed() -> None:
    throttle = Throttle(RequestLimits(streams=2))
    with throttle.count_stream(ADA):
        with throttle.count_stream(ADA):
            assert not opens(throttle, ADA)
            assert opens(throttle, BOB)
        assert opens(throttle, ADA)
    assert throttle._open == {}


def test_without_limits_nothing_is_refused() -> None:
    throttle = Throttle(RequestLimits(total_streams=None, total_waiting_runs=None), waiting=lambda: 10**6)
    for _ in range(3000):
        throttle.request(ADA)
        with throttle.count_arrival():
            throttle.request(ADA)
    with ExitStack() as stack:
        for _ in range(3000):
            stack.enter_context(throttle.count_stream(ADA))
    assert not throttle._left
    assert not throttle._open


def test_the_process_has_a_number_of_streams_of_which_a_user_has_half() -> None:
    throttle = Throttle(RequestLimits(total_streams=5))
    nobody = User("", "")
    with ExitStack() as stack:
        for _ in range(2):
            stack.enter_context(throttle.count_stream(ADA))
        with pytest.raises(Refusal, match="This user has 2 streams") as refusal:
            stack.enter_context(throttle.count_stream(ADA))
        assert (refusal.value.status, refusal.value.headers) == (429, {"Retry-After": "5"})
        for _ in range(2):
            stack.enter_context(throttle.count_stream(nobody))
        with (
            throttle.count_stream(nobody),
            pytest.raises(Refusal, match="This server has 5 streams") as refusal,
        ):
            stack.enter_context(throttle.count_stream(BOB))
        assert (refusal.value.status, refusal.value.headers) == (503, {"Retry-After": "5"})
        assert opens(throttle, BOB)
    assert throttle._open == {}


def test_a_run_for_which_a_request_waits_is_refused_behind_many_others() -> None:
    waiting = 3
    throttle = Throttle(RequestLimits(total_waiting_runs=4), waiting=lambda: waiting)
    for _ in range(2):
        with (
            throttle.count_arrival(),
            pytest.raises(Refusal, match="4 runs wait for a slot") as refusal,
            throttle.count_arrival(),
        ):
            raise AssertionError("it was to be refused")
    waiting = 4
    with pytest.raises(Refusal, match="4 runs wait for a slot"), throttle.count_arrival():
        raise AssertionError("it was to be refused")
    assert (refusal.value.status, refusal.value.headers) == (503, {"Retry-After": "5"})


@run
async def test_other_protocols_refuse_a_run_behind_many_others_too(url: str) -> None:
    async with serving(url) as server:
        http = await server.http()
        server.host.throttle._waiting = lambda: 300
        part = {"kind": "text", "text": "hello"}
        message = {"role": "user", "parts": [part], "messageId": "m", "kind": "message"}
        calls = (
            ("/a2a/aware", "message/send", {"message": message}),
            ("/mcp/", "tools/call", {"name": "aware", "arguments": {"messages": []}}),
        )
        for path, method, params in calls:
            asked = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            accept = {"Accept": "application/json, text/event-stream"}
            answer = await http.post(path, json=asked, headers=accept)
            assert "300 runs wait for a slot of this server" in answer.text, answer.text
        assert (await http.post("/threads/count", json={})).json() == 0


@run
async def test_streams_and_calls_that_wait_count_over_other_protocols_too(url: str) -> None:
    async with serving(url, limits=RequestLimits(streams=1), gate=tenants()) as server:
        http, throttle = await server.http("ada"), server.host.throttle
        part = {"kind": "text", "text": "10"}
        said = {"kind": "message", "role": "user", "messageId": "m", "parts": [part]}
        given = {"messages": [{"role": "user", "content": "10"}]}
        calls = (
            ("/a2a/slow", "message/stream", {"message": said}),
            ("/a2a/slow", "message/send", {"message": said | {"messageId": "n"}}),
            ("/mcp/", "tools/call", {"name": "slow", "arguments": given}),
        )

        def ask(path: str, method: str, params: dict[str, object]) -> httpx.Request:
            asked = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            return http.build_request(
                "POST", path, json=asked, headers={"Accept": "application/json, text/event-stream"}
            )

        for call in calls:
            count = (await http.post("/threads/count", json={})).json()
            asking = asyncio.create_task(http.send(ask(*call)))
            await eventually(lambda: throttle._open)
            for other in calls:
                answer = await http.send(ask(*other))
                assert "This user has 1 streams and waiting requests open" in answer.text, answer.text
            assert (await http.post("/threads/count", json={})).json() <= count + 1
            asking.cancel()
            await eventually(lambda: not throttle._open)


@run
async def test_of_a_storm_all_that_is_accepted_is_done_and_the_rest_is_refused_with_nothing_stored(
    url: str,
) -> None:
    limits = RequestLimits(total_waiting_runs=10, total_streams=60)
    async with serving(url, limits=limits, concurrency=4) as server:
        http = await server.http()
        body = {"assistant_id": "slow", "input": {"messages": [{"role": "user", "content": "0.05"}]}}

        async def ask(number: int) -> tuple[int, str, bool]:
            path = "/runs/stream" if number % 2 else "/runs/wait"
            answer = await http.post(path, json={**body, "on_completion": "keep"})
            return answer.status_code, answer.headers.get("Retry-After", ""), "rested" in answer.text

        answers = await asyncio.gather(*map(ask, range(100)))
        accepted = [answer for answer in answers if answer[0] == 200]
        assert {answer for answer in answers if answer[0] != 200} == {(503, "5", False)}
        # Those of the slots, those that wait, and those for which a slot became free meanwhile.
        assert 10 <= len(accepted) <= 60
        assert all(has_answer for _, _, has_answer in accepted)
        assert (await http.post("/threads/count", json={})).json() == len(accepted)
        # What does not wait is accepted however many wait.
        assert (await http.post("/runs", json=body)).status_code == 200
        assert (await ask(0))[0] == 200
        assert server.host.throttle._open == {}


@run
async def test_a_body_that_is_too_large_is_refused_before_it_was_read(url: str) -> None:
    cors = Http(cors=Cors(allow_origins=("https://a.example",)))
    async with serving(url, limits=RequestLimits(body_bytes=1000), http=cors) as server:
        http = await server.http()
        origin = {"Origin": "https://a.example", "Content-Type": "application/json"}
        for body in (b" " * 1001, b" " * 20_000_000):
            answer = await http.post("/threads", content=body, headers=origin)
            assert answer.status_code == 413
            assert "1000 bytes" in answer.json()["detail"]
            assert answer.headers["X-Request-Id"]
            assert answer.headers["Access-Control-Allow-Origin"] == "https://a.example"
        fits = b'{"metadata": {}}'
        assert (
            await http.post("/threads", content=fits + b" " * (1000 - len(fits)), headers=origin)
        ).status_code == 200
        # The rest of what is too large never comes: the answer does not wait for it.
        begun = b"POST /threads HTTP/1.1\r\nHost: a\r\n"
        for sent in (
            b"Content-Length: 99999999\r\n\r\n",
            b"Transfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\n"
            + b"3e8\r\n" + b" " * 1000 + b"\r\n1\r\n \r\n",
        ):  # fmt: skip
            reader, writer = await asyncio.open_connection("127.0.0.1", int(server.url.rpartition(":")[2]))
            writer.write(begun + sent)
            assert b" 413 " in await asyncio.wait_for(reader.readline(), 60)
            writer.close()
            await writer.wait_closed()
        assert len(await (await server.client()).threads.search()) == 1


@pytest.mark.parametrize(
    ("declared", "status"), [(b"1" * 5000, 413), (b"1001", 413), (b"1000", 200), (b"\xb2", 200)]
)
def test_a_declared_length_of_any_form_is_answered(declared: bytes, status: int) -> None:
    """Other servers than uvicorn, such as a function's, may pass it on as it came."""

    async def answer(request: Request) -> Response:
        return PlainTextResponse("well")

    app = Starlette(routes=[Route("/", answer, methods=["POST"])], middleware=[Middleware(Bounded)])
    app.state.perdure = SimpleNamespace(limits=RequestLimits(body_bytes=1000))

    async def post() -> int:
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://a") as http:
            sent = http.build_request("POST", "/", headers=[(b"content-length", declared)], content=b"x")
            return (await http.send(sent)).status_code

    assert asyncio.run(post()) == status


@run
async def test_too_many_requests_of_a_user(url: str) -> None:
    async with serving(url, limits=RequestLimits(requests_per_minute=3), gate=tenants()) as server:
        ada, bob, nobody = await server.http("ada"), await server.http("bob"), await server.http()
        codes = [(await ada.post("/threads/count", json={})).status_code for _ in range(5)]
        assert codes == [200, 200, 200, 429, 429]
        answer = await ada.get("/assistants/aware")
        assert 1 <= int(answer.headers["Retry-After"]) <= 20
        assert "3 requests" in answer.json()["detail"]
        assert (await bob.get("/assistants/aware")).status_code == 200
        assert [(await nobody.get("/assistants/aware")).status_code for _ in range(5)] == [401] * 5
        assert [(await ada.get(path)).status_code for path in ("/ok", "/live", "/ready", "/info")] == [
            200
        ] * 4


@run
async def test_too_many_streams_of_a_user_make_no_run(url: str) -> None:
    async with serving(url, limits=RequestLimits(streams=1), gate=tenants()) as server:
        ada, bob = await server.http("ada"), await server.http("bob")
        client = await server.client("ada")
        threads = [(await client.threads.create())["thread_id"] for _ in range(2)]
        said = {"assistant_id": "slow", "input": {"messages": [("user", "30")]}, "on_disconnect": "cancel"}
        path = [f"/threads/{one}/runs/stream" for one in threads]
        async with ada.stream("POST", path[0], json=said) as open_one:
            assert open_one.status_code == 200
            refused = await ada.post(path[1], json=said)
            assert refused.status_code == 429
            assert refused.headers["Retry-After"]
            assert await client.runs.list(threads[1]) == []
            # Other requests than streams go on, and so do other users' streams.
            assert (await ada.post("/threads/count", json={})).json() == 2
            quick = {"assistant_id": "aware", "input": {"messages": [("user", "hi")]}}
            assert "event: end" in (await bob.post("/runs/stream", json=quick)).text
        async with asyncio.timeout(60):
            while server.host.throttle._open:  # noqa: ASYNC110 - the end of a stream tells nobody
                await asyncio.sleep(0.05)
        for _ in range(3):
            answer = await ada.post(path[1], json=quick)
            assert answer.status_code == 200
            assert "event: end" in answer.text


@run
async def test_a_page_is_as_long_as_was_set(url: str) -> None:
    async with serving(url, limits=RequestLimits(page_max=5)) as server:
        http = await server.http()
        thread_id = (await http.post("/threads", json={})).json()["thread_id"]
        asked = (
            ("POST", "/threads/search"),
            ("POST", "/assistants/search"),
            ("POST", "/assistants/aware/versions"),
            ("POST", "/store/items/search"),
            ("POST", "/store/namespaces"),
            ("POST", f"/threads/{thread_id}/history"),
            ("GET", f"/threads/{thread_id}/history"),
            ("GET", f"/threads/{thread_id}/runs"),
        )
        for method, path in asked:
            for limit, status in ((5, 200), (6, 422), (0, 422)):
                given = {"params": {"limit": limit}} if method == "GET" else {"json": {"limit": limit}}
                answer = await http.request(method, path, **given)  # type: ignore[arg-type]
                assert answer.status_code == status, (method, path, limit, answer.text)
    async with serving(url, limits=RequestLimits(page_max=2000)) as server:
        http = await server.http()
        assert (await http.post("/threads/search", json={"limit": 2000})).status_code == 200
