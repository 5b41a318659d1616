"""No tenant learns of another's threads, runs, assistants and items, or changes them, on any route."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, NamedTuple

import httpx
import pytest
from langgraph_sdk import get_client
from langgraph_sdk.errors import NotFoundError
from starlette.routing import BaseRoute, WebSocketRoute

from perdure.server.app import create_app
from tests.backends import EMPTY
from tests.server.acceptance.serving import run
from tests.server.attempts import MINE, OWN, Attempt, attempts
from tests.server.tenants import (
    ALICE,
    COLLEAGUE,
    EACH_WAY,
    SECRET_OF_ALICE,
    WAYS,
    WITH_FILTERS,
    Names,
    estate,
    held,
    names_of_nothing,
    said,
    serving,
    strangers,
)

OPEN = {
    "/",
    "/ok",
    "/live",
    "/ready",
    "/info",
    "/metrics",
    "/openapi.json",
    "/docs",
    "/docs/oauth2-redirect",
    "/redoc",
    "/chat",
    "/chat/about.json",
}
"""What is everybody's, without a word of who asks."""

MAKING = ("own", "claims")
"""The kinds of attempts after which there is more of whoever tries."""

_LISTENS_S = 1.0


@pytest.fixture
def url() -> Iterator[str]:
    with EMPTY["sqlite"]() as url:
        yield url


def routes_of(routes: Iterable[BaseRoute]) -> set[tuple[str, str]]:
    """Every verb and path, those of included routers too."""
    found: set[tuple[str, str]] = set()
    for route in routes:
        included = getattr(route, "original_router", None)
        if included is not None:
            found |= routes_of(included.routes)
            continue
        if isinstance(route, WebSocketRoute):
            # Tried in the tests of the socket.
            continue
        path = getattr(route, "path", None)
        assert path is not None, f"a {type(route).__name__} that nobody tries"
        found |= {(verb, path) for verb in getattr(route, "methods", None) or ("GET",)}
    return found


def test_there_is_an_attempt_for_every_route() -> None:
    app = create_app(None)
    described = {(verb.upper(), path) for path, verbs in app.openapi()["paths"].items() for verb in verbs}
    every = routes_of(app.routes)
    assert described <= every
    closed = {(verb, path) for verb, path in every if path not in OPEN}
    tried = {(one.method, one.route) for one in attempts(names_of_nothing())}
    assert closed - tried == set(), (
        "routes that are tried by nobody: add an Attempt for each in tests/server/attempts.py"
    )
    assert tried - closed == set(), "attempts for routes that there are not"


class Said(NamedTuple):
    """An answer, or how a stream begins."""

    status: int
    headers: dict[str, str]
    text: str


async def ask(http: httpx.AsyncClient, attempt: Attempt) -> Said:
    headers = dict(attempt.headers)
    async with http.stream(attempt.method, attempt.url, json=attempt.body, headers=headers) as answer:
        text = ""
        try:
            # What has an end ends long before; what has none is left.
            async with asyncio.timeout(_LISTENS_S if attempt.kind == "listens" else 60):
                async for part in answer.aiter_text():
                    text += part
        except TimeoutError:
            assert attempt.kind == "listens", f"{attempt} goes on and on"
        return Said(answer.status_code, dict(answer.headers), text)


async def ask_all(http: httpx.AsyncClient, tried: list[Attempt]) -> list[Said]:
    """One after the other, but for those that only listen."""
    listening = [asyncio.create_task(ask(http, one)) for one in tried if one.kind == "listens"]
    done = {id(one): await ask(http, one) for one in tried if one.kind != "listens"}
    heard = iter(await asyncio.gather(*listening))
    return [next(heard) if one.kind == "listens" else done[id(one)] for one in tried]


def nothing_leaks(attempt: Attempt, answer: Said, names: Names, known: str = "") -> None:
    """``known`` is what whoever tries has sent, and so may be told again where it is said to make sense."""
    whole = f"{answer.headers} {answer.text}"
    assert SECRET_OF_ALICE not in whole, f"{attempt} tells {answer}"
    assert ALICE["Authorization"].partition(" ")[2] not in whole
    known = known if attempt.kind in MAKING else attempt.sent
    told = {name for name in names.all() if name in whole and name not in known}
    assert not told, f"{attempt} tells {told}"


_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_WHEN = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(\+\d\d:\d\d|Z)?")
_OF_A_REQUEST = ("date", "x-request-id", "content-length")


def shape(answer: Said, names: Names) -> tuple[int, dict[str, str], str]:
    """An answer without the names that are in it."""

    def bare(text: str) -> str:
        for name in names.all():
            text = text.replace(name, "NAME")
        return _WHEN.sub("WHEN", _ID.sub("NAME", text))

    headers = {name: bare(held) for name, held in answer.headers.items() if name not in _OF_A_REQUEST}
    return answer.status, headers, bare(answer.text)


def is_refused(attempt: Attempt, answer: Said, *, has_own: bool) -> bool:
    """Whether it is the answer that the contract has for what is another's."""
    match attempt.kind:
        case "missing" if attempt.route.endswith("/copy"):
            return answer.status in (403, 409) and list(json.loads(answer.text)) == ["detail"]
        case "missing" if attempt.route.endswith("/runs/{run_id}/stream") and answer.status == 200:
            return answer.text.count("data:") == 1 and "event: error" in answer.text
        case "missing":
            return answer.status in (403, 404) and list(json.loads(answer.text)) == ["detail"]
        case "empty":
            return answer.status in (200, 204)
        case "refused command":
            body = json.loads(answer.text)
            return answer.status == 200 and body["type"] == "error" and "meta" not in body
        case "refused call":
            return answer.status == 200 and '"error"' in answer.text and '"result":' not in answer.text
        case "listens":
            return answer.status == 200 and "data:" not in answer.text
        case "own":
            return answer.status in (200, 400, 404)
        case "contradictory":
            return answer.status in (403, 404, 422) and list(json.loads(answer.text)) == ["detail"]
        case "claims" if has_own:
            return answer.status in (200, 409)
        case "claims" if attempt.route.endswith("/commands"):
            return bool(json.loads(answer.text)["type"] == "error")
        case "claims" if attempt.route.startswith("/a2a/"):
            return answer.status == 200 and "error" in json.loads(answer.text)
        case "claims":
            return answer.status == 404


@pytest.mark.parametrize("way", EACH_WAY)
@run
async def test_another_gets_nothing_and_changes_nothing(url: str, way: str) -> None:
    apart = WAYS[way]
    async with serving(url, apart.gate()) as server, server.http(ALICE) as alice:
        names = await estate(alice)
        before = await held(alice, names)
        combinations = 0
        for who, headers in apart.others.items():
            has_own = who in apart.have_names_of_their_own
            async with server.http(headers) as http:
                mine = {"assistant_id": "chat", "input": MINE, "if_not_exists": "create"}
                (await http.post(f"/threads/{OWN}-{who}/runs/wait", json=mine)).raise_for_status()
                shapes: dict[Names, list[tuple[int, dict[str, str], str]]] = {}
                nothing = names_of_nothing()
                # Those that make something come last, as what was made is found by the others.
                for makes, those in itertools.product((False, True), (names, nothing)):
                    tried = [one for one in attempts(those) if (one.kind in MAKING) is makes]
                    tried = [own(one, who) for one in tried]
                    answers = await ask_all(http, tried)
                    shapes[those] = [shape(answer, those) for answer in answers]
                    combinations += len(tried)
                    if those is nothing:
                        for one, theirs, none in zip(tried, shapes[names], shapes[nothing], strict=True):
                            if not makes:
                                assert theirs == none, f"{one} tells what is there from what is not"
                            elif has_own:
                                assert theirs[0] == none[0], f"{one} is refused for another's name"
                        continue
                    for one, answer in zip(tried, answers, strict=True):
                        assert is_refused(one, answer, has_own=has_own), f"{one} got {answer}"
                        nothing_leaks(one, answer, names, known=" ".join(sent.sent for sent in tried))
        print(f"{way}: {combinations} requests of others")
        assert combinations >= 200
        assert await held(alice, names) == before


def own(attempt: Attempt, who: str) -> Attempt:
    """An attempt from a thread of its own for each who tries."""
    whole = json.dumps([dict(attempt.ids), attempt.body]).replace(f'"{OWN}"', f'"{OWN}-{who}"')
    ids, body = json.loads(whole)
    return Attempt(attempt.method, attempt.route, ids, body, attempt.query, attempt.headers, attempt.kind)


@pytest.mark.parametrize("way", WITH_FILTERS)
@run
async def test_who_is_nobody_is_refused_everywhere(url: str, way: str) -> None:
    async with serving(url, WAYS[way].gate()) as server, server.http(ALICE) as alice:
        names = await estate(alice)
        before = await held(alice, names)
        combinations = 0
        for who, headers in strangers().items():
            # None of them gets as far as to a stream.
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(server.app), base_url="http://here", headers=headers
            ) as http:
                for one in attempts(names):
                    answer = await ask(http, one)
                    combinations += 1
                    nothing_leaks(one, answer, names)
                    assert answer.status == 401, f"{who}: {one} got {answer}"
                    body = json.loads(answer.text)
                    assert list(body) == ["detail"]
                    assert isinstance(body["detail"], str)
                    token = headers.get("Authorization", "").partition(" ")[2]
                    assert len(token) < 8 or token not in f"{answer.headers} {answer.text}"
        print(f"{way}: {combinations} requests of nobody")
        assert combinations >= 200
        assert await held(alice, names) == before


@run
async def test_what_is_everybodys_says_nothing_of_anybody(url: str) -> None:
    async with serving(url, WAYS["filters"].gate()) as server, server.http(ALICE) as alice:
        names = await estate(alice)
        async with server.http({}) as http:
            for path in OPEN:
                one = Attempt("GET", path)
                answer = await ask(http, one)
                assert answer.status in (200, 307, 404), f"{one} got {answer}"
                nothing_leaks(one, answer, names)


@pytest.mark.parametrize("way", EACH_WAY)
@run
async def test_nothing_is_told_to_another_while_it_happens(url: str, way: str) -> None:
    """Those who listen before there is a thread, and while its runs speak."""
    channels = {"channels": ["values", "messages", "lifecycle", "updates", "custom", "input"]}

    async with serving(url, WAYS[way].gate()) as server, server.http(ALICE) as alice:
        others = [server.http(headers) for headers in WAYS[way].others.values()]

        async def listens(http: httpx.AsyncClient, asked: dict[str, Any], to: list[str]) -> None:
            async with http.stream("POST", "/threads/later/stream/events", json=asked) as answer:
                assert answer.status_code == 200
                async for part in answer.aiter_text():
                    to += [part]

        asked: list[dict[str, Any]] = [{**channels}, {**channels, "since": 0}]
        hers: list[str] = []
        told = asyncio.create_task(listens(alice, {**channels, "since": 0}, hers))
        theirs: list[list[str]] = [[] for _ in range(len(others) * len(asked))]
        ways = zip(theirs, itertools.product(others, asked), strict=True)
        untold = [asyncio.create_task(listens(http, body, to)) for to, (http, body) in ways]
        await asyncio.sleep(0.5)
        for _ in range(2):
            start = {"assistant_id": "chat", "input": said(SECRET_OF_ALICE)}
            body = {"id": 1, "method": "run.start", "params": start}
            assert (await alice.post("/threads/later/commands", json=body)).json()["type"] == "success"
        async with asyncio.timeout(60):
            while '"completed"' not in "".join(hers) and not told.done():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert SECRET_OF_ALICE in "".join(hers)
        await asyncio.sleep(_LISTENS_S)
        for task in (told, *untold):
            task.cancel()
        for ended in await asyncio.gather(told, *untold, return_exceptions=True):
            assert ended is None or isinstance(ended, asyncio.CancelledError), ended
        for to in theirs:
            assert "data:" not in "".join(to), to
        for http in others:
            await http.aclose()


@pytest.mark.parametrize("way", WITH_FILTERS)
@run
async def test_t23_the_sdk_finds_nothing_of_another(url: str, way: str) -> None:
    async with serving(url, WAYS[way].gate()) as server, server.http(ALICE) as alice:
        names = await estate(alice)
        async with get_client(url=server.url, api_key=None, headers=COLLEAGUE) as bob:
            tries: list[Callable[[], Awaitable[Any]]] = [
                lambda: bob.threads.get(names.idle),
                lambda: bob.threads.get_state(names.idle),
                lambda: bob.runs.join(names.busy, names.running),
                lambda: bob.runs.cancel(names.busy, names.running),
                lambda: bob.runs.wait(names.asks, "ask", command={"resume": "yes"}),
                lambda: bob.runs.create(names.idle, "chat", input=MINE),
                lambda: bob.threads.delete(names.idle),
                lambda: anext(bob.runs.stream(names.idle, "chat", input=MINE)),
            ]
            for attempt in tries:
                # What is answered late comes as what it is to httpx.
                with pytest.raises((NotFoundError, httpx.HTTPStatusError), match="not found"):
                    await attempt()
            joined = bob.runs.join_stream(names.busy, names.running, last_event_id="-1")
            assert [part.event async for part in joined] == ["error"]
            assert await bob.threads.search() == []
            assert await bob.threads.count() == 0
