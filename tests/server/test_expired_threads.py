"""An expired thread reads as absent on every route: each answers as for a thread that never was."""

from __future__ import annotations

import asyncio
import re
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import httpx
import pytest

import perdure
from perdure import Retention
from perdure.runtime import Runtime, Settings
from perdure.server.app import create_app
from perdure.server.auth.identity import OpenGate
from perdure.server.resources import ServerState
from tests.backends import EMPTY
from tests.retention.test_expiring_driver import Kept, wait
from tests.server.attempts import OWN, Attempt, attempts
from tests.server.graphs import graphs
from tests.server.ports import served
from tests.server.tenants import Names, names_of_nothing, said
from tests.server.test_isolation import routes_of

__all__ = ["wait"]
SECRET = "what was written before"
_VARYING = re.compile(
    r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}|\d{4}-\d\d-\d\dT[\d:.]+(\+\d\d:\d\d|Z)?"
)


def places() -> dict[int, Attempt]:
    """The first and the last attempt for each route that can name a thread, by their places in the list."""
    names = names_of_nothing()
    theirs = (names.idle, names.asks, names.failed, names.busy, names.live)
    each: dict[tuple[str, str], list[int]] = {}
    every = list(attempts(names))
    for place, one in enumerate(every):
        if OWN not in one.sent and any(name in one.sent for name in theirs):
            each.setdefault((one.method, one.route), []).append(place)
    chosen = sorted({place for found in each.values() for place in (found[0], found[-1])})
    return {place: every[place] for place in chosen}


def test_every_route_of_a_thread_is_tried() -> None:
    every = {each for each in routes_of(create_app(None).routes) if "{thread_id}" in each[1]}
    tried = {(one.method, one.route) for one in places().values()}
    assert every - tried == set(), "routes of a thread that are not tried: add attempts"
    assert len(every) > 20


async def thread(http: httpx.AsyncClient) -> Names:
    """A thread with a run, as all the threads of the names."""
    made = str(uuid.uuid4())
    body = {
        "assistant_id": "chat",
        "input": said(SECRET),
        "if_not_exists": "create",
        "stream_resumable": True,
    }
    started = (await http.post(f"/threads/{made}/runs", json=body)).json()["run_id"]
    await http.get(f"/threads/{made}/runs/{started}/join")
    at = (await http.get(f"/threads/{made}/state")).json()["checkpoint"]["checkpoint_id"]
    (await http.put(f"/threads/{made}/tags/mine", json={})).raise_for_status()
    runs = ("idle_run", "asks_run", "failed_run", "running", "pending", "live_run")
    return replace(
        names_of_nothing(),
        **dict.fromkeys(("idle", "asks", "failed", "busy", "live"), made),
        **dict.fromkeys(runs, started),
        checkpoint=at,
    )


async def ask(http: httpx.AsyncClient, one: Attempt) -> tuple[int, str]:
    """The status, and the answer unless the route goes on for ever."""
    async with http.stream(one.method, one.url, json=one.body, headers=dict(one.headers)) as answer:
        text = "" if one.kind == "listens" else (await answer.aread()).decode()
        return answer.status_code, _VARYING.sub("…", text)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.anyio
@pytest.mark.parametrize("backend", ["memory", "sqlite", "postgresql", "redis", "d1"])
async def test_every_route_answers_as_for_a_thread_that_never_was(
    backend: str, wait: Callable[[float], None]
) -> None:
    rule = Retention(idle="1h", keep_tagged=False)
    with EMPTY[backend]() as url, perdure.connect_sync(url, migrate=True, retention=rule) as opened:
        kept = Kept(opened, wait, rule)
        async with Runtime(
            kept.db, graphs(), settings=Settings(poll=0.1, shared_threads=True), all_tenants=True
        ) as runtime:
            host = ServerState.over(runtime, OpenGate())
            async with (
                served(create_app(None), host) as address,
                httpx.AsyncClient(base_url=address, timeout=60, trust_env=False) as http,
            ):
                chosen = places()
                made = dict(zip(chosen, await asyncio.gather(*(thread(http) for _ in chosen)), strict=True))
                ids = {names.idle for names in made.values()}
                listed = (await http.post("/threads/search", json={"limit": 1000})).json()
                assert {each["thread_id"] for each in listed} == ids
                wait(2)
                runtime._context.clock._asked_at = None
                wrong: dict[str, Any] = {}
                for place, names in made.items():
                    expired, never = (
                        list(attempts(each))[place]
                        for each in (names, replace(names_of_nothing(), assistant=names.assistant))
                    )
                    found, wanted = await ask(http, expired), await ask(http, never)
                    if found != wanted or SECRET in found[1]:
                        wrong[str(expired)] = found, wanted
                assert wrong == {}
                found_ids = (await http.post("/threads/search", json={"limit": 1000})).json()
                alive = {one.idle for place, one in made.items() if chosen[place].kind == "claims"}
                assert {each["thread_id"] for each in found_ids} & ids <= alive
                # What was stored is hidden, and was not removed by a look.
                assert len(list(kept.whole.threads())) > len(ids) // 2
