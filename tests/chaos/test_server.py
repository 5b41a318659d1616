"""Two servers and two workers on PostgreSQL, and clients that go from one server to the other: processes are
killed, the database is stopped hard, and everything is restarted, all under load. Nothing is lost, nothing
happens twice, and streams go on where they were.

A short run by default, 50 turns and an outage of 10 s with ``PERDURE_CHAOS=full``. What a run came to is
appended, a line of JSON each, to the file that ``PERDURE_FIGURES`` names.
"""

from __future__ import annotations

import asyncio
import functools
import os
import random
import secrets
import signal
import time
import uuid
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, NamedTuple, ParamSpec

import httpx
import pytest
from langgraph_sdk.client import LangGraphClient
from langgraph_sdk.sse import SSEDecoder

from tests.chaos.figures import publish
from tests.chaos.fleet import GRAPH, WITHIN_S, Fleet, Member, Server, fleet
from tests.chaos.talker import BRIEF, LENGTHY, reply_to
from tests.chaos.turns import ALL, Place, Turn, faults, heard, replay, said, steadily, take
from tests.servers import postgres

FULL = os.environ.get("PERDURE_CHAOS") == "full"
TURNS = 50 if FULL else 10
GAP_S = 10.0 if FULL else 3.5
BLINKS_S = (0.6, 1.0, 1.3, 1.6) * (3 if FULL else 1)
"""How long the database is away again, about as long as it is waited for: what fails then may be told so."""
CLIENTS = 10
AGAIN_S = 60.0
"""The longest that a client may take to go on once the database stays, on a busy machine."""
BUSY_S = 0.9
"""How long a turn takes at least; a process is killed somewhere in it."""

P = ParamSpec("P")

pytestmark = [
    pytest.mark.timeout(1800 if FULL else 240),
    pytest.mark.filterwarnings("ignore:Reconnecting without a Last-Event-ID"),
    pytest.mark.filterwarnings("ignore:Request failed, attempting reconnect"),
]


def run(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    @functools.wraps(test)
    def sync(*args: P.args, **given: P.kwargs) -> None:
        asyncio.run(test(*args, **given))

    return sync


@pytest.fixture
def sailing() -> Iterator[Fleet]:
    with postgres.empty(postgres.durable(), pool=8) as url, fleet(url) as started:
        yield started


async def places_of(fleet: Fleet, stack: AsyncExitStack) -> list[Place]:
    """The servers, each with a client."""
    return [(server, await stack.enter_async_context(server.client())) for server in fleet.servers]


async def history_faults(client: LangGraphClient, thread_id: str, turns: int) -> list[str]:
    """What is wrong with a thread's checkpoints: each step of each run is there once, one after the other."""
    history = await client.threads.get_history(thread_id, limit=1000)
    metadata = [state["metadata"] or {} for state in history]
    steps = [one["step"] for one in metadata]
    runs = Counter(one["run_id"] for one in metadata)
    wrong = [] if steps == list(range(len(steps) - 2, -2, -1)) else [f"the steps are {steps}"]
    if len(runs) != turns or set(runs.values()) != {5}:
        wrong.append(f"the runs have {sorted(runs.values())} checkpoints")
    return wrong


# Killed


async def kill_one(member: Member, after_s: float) -> None:
    await asyncio.sleep(after_s)
    member.kill()
    member.start()


@pytest.mark.slow
@run
async def test_a_process_is_killed_in_each_turn_and_a_conversation_goes_on(sailing: Fleet) -> None:
    seed = secrets.randbits(32)
    chance = random.Random(seed)
    figures: Counter[str] = Counter()
    wrong: list[str] = []
    turns: list[Turn] = []
    texts: list[str] = []
    victims: list[Member] = []
    async with AsyncExitStack() as stack:
        await sailing.ready()
        places = await places_of(sailing, stack)
        thread_id = (await places[0][1].threads.create())["thread_id"]
        for number in range(TURNS):
            turn = Turn(f"turn {number} of {uuid.uuid4()}")
            order = [places[number % 2], places[1 - number % 2]]
            victims = victims or chance.sample(sailing.members, 4)
            victim = victims.pop()
            leaves = chance.random() < 0.7
            killing = asyncio.create_task(kill_one(victim, chance.uniform(0, BUSY_S)))
            await asyncio.gather(killing, take(turn, thread_id, order, leaves=leaves))
            stored = await replay(order[1][1], thread_id, turn.run_id)
            wrong += faults(turn, stored, texts)
            texts += [turn.text, reply_to(turn.text)]
            turns.append(turn)
            figures.update(
                turns=1,
                kills=1,
                resumed=turn.left,
                repeats=turn.repeats,
                attempts=sum(part.event == "metadata" for part in turn.told),
            )
        client = places[0][1]
        state = await steadily(lambda: client.threads.get_state(thread_id))
        runs = await steadily(lambda: client.runs.list(thread_id, limit=1000))
        wrong += await steadily(lambda: history_faults(client, thread_id, TURNS))
    counted = Counter(heard(state["values"]))
    repeated = sailing.repeated()
    figures["lost"] = sum(not counted[text] for text in texts)
    figures["twice"] = sum(counted[text] > 1 for text in texts) + len(repeated)
    publish("server killed", figures)
    wrong += [*repeated, *sailing.damage()]
    assert not wrong, f"seed {seed}: {wrong}"
    assert heard(state["values"]) == texts, f"seed {seed}"
    assert [(one["run_id"], one["status"]) for one in runs] == [
        (turn.run_id, "success") for turn in reversed(turns)
    ]
    assert (figures["lost"], figures["twice"]) == (0, 0)


# The database is away


@dataclass
class User:
    """Somebody with a thread, who does one thing after the other and keeps what was acknowledged. What is
    answered with anything but success or 503 is ``wrong``."""

    number: int
    clients: list[LangGraphClient]
    thread_id: str = ""
    acknowledged: dict[str, str] = field(default_factory=dict[str, str])
    threads: list[str] = field(default_factory=list[str])
    answers: Counter[str] = field(default_factory=Counter[str])
    wrong: list[str] = field(default_factory=list[str])
    _done: int = 0

    async def live(self, stop: asyncio.Event) -> None:
        chance = random.Random(self.number)
        while not stop.is_set():
            self._done += 1
            text = f"{BRIEF}{self.number}.{self._done}"
            work = chance.choice((self._create, self._wait, self._make, self._look))
            await self._until_done(work, text)
            await asyncio.sleep(chance.uniform(0.05, 0.25))

    async def _until_done(
        self, work: Callable[[LangGraphClient, str], Coroutine[Any, Any, None]], text: str
    ) -> None:
        deadline = time.monotonic() + WITHIN_S
        client = self.clients[self._done % len(self.clients)]
        while True:
            try:
                await work(client, text)
            except httpx.HTTPStatusError as error:
                self.answers[str(error.response.status_code)] += 1
                if error.response.status_code != 503:
                    self.wrong.append(f"{error.request.method} {error.request.url.path}: {error}")
                    return
            except httpx.TransportError as error:
                self.answers[type(error).__name__] += 1
            else:
                self.answers["2xx"] += 1
                return
            if time.monotonic() > deadline:
                self.wrong.append(f"{text} was never answered")
                return
            await asyncio.sleep(0.1)

    async def _create(self, client: LangGraphClient, text: str) -> None:
        made = await client.runs.create(
            self.thread_id, GRAPH, input=said(text), headers={"Idempotency-Key": text}
        )
        self.acknowledged[text] = made["run_id"]

    async def _wait(self, client: LangGraphClient, text: str) -> None:
        made: list[str] = []
        values: Any = await client.runs.wait(
            self.thread_id,
            GRAPH,
            input=said(text),
            headers={"Idempotency-Key": text},
            raise_error=False,
            on_run_created=lambda run: made.append(run["run_id"]),
        )
        self.acknowledged[text] = made[-1]
        if heard(values)[-2:] != [text, reply_to(text)]:
            self.wrong.append(f"{text} came to {heard(values)[-2:] or values}")

    async def _make(self, client: LangGraphClient, _: str) -> None:
        self.threads.append((await client.threads.create())["thread_id"])

    async def _look(self, client: LangGraphClient, _: str) -> None:
        state = await client.threads.get_state(self.thread_id)
        counted = Counter(heard(state["values"]))
        self.wrong += [f"{text} is there {n} times" for text, n in counted.items() if n > 1]

    async def audit(self, client: LangGraphClient) -> tuple[int, int]:
        """Look for all that was acknowledged; how much of it is lost, and how much is there twice."""
        for text, run_id in self.acknowledged.items():
            await client.runs.join(self.thread_id, run_id)
            status = (await client.runs.get(self.thread_id, run_id))["status"]
            if status != "success":
                self.wrong.append(f"{text}: its run is {status}")
        counted = Counter(heard((await client.threads.get_state(self.thread_id))["values"]))
        runs = await client.runs.list(self.thread_id, limit=1000)
        expected = Counter({one: 1 for text in self.acknowledged for one in (text, reply_to(text))})
        if len(runs) != len(self.acknowledged):
            self.wrong.append(f"{len(runs)} runs, and {len(self.acknowledged)} were acknowledged")
        for thread_id in self.threads:
            await client.threads.get(thread_id)
        self.wrong += await history_faults(client, self.thread_id, len(self.acknowledged))
        return (expected - counted).total(), (counted - expected).total()


async def users_of(places: list[Place], count: int) -> list[User]:
    """Users, who turn to one server, the other, or both in turn."""
    clients = [client for _, client in places]
    users: list[User] = []
    for number in range(count):
        own = clients if number % 2 else [clients[number // 2 % 2]]
        thread_id = (await clients[0].threads.create())["thread_id"]
        users.append(User(number, own, thread_id))
    return users


class Answer(NamedTuple):
    """When something was asked, when it was answered, and with which status."""

    asked: float
    answered: float
    status: int


async def watch(server: Server, path: str, until: asyncio.Event) -> list[Answer]:
    """What a server answers to somebody who asks again and again."""
    seen: list[Answer] = []
    async with server.http() as http:
        while not until.is_set():
            asked = time.monotonic()
            answer = await http.get(path)
            seen.append(Answer(asked, time.monotonic(), answer.status_code))
            await asyncio.sleep(0.1)
    return seen


async def least_since(users: list[User], done: list[int]) -> int:
    """The fewest answers that a client has got since it had ``done``; waits for the first one."""
    loop = asyncio.get_running_loop()
    until = loop.time() + AGAIN_S
    while True:
        least = min(user.answers["2xx"] - before for user, before in zip(users, done, strict=True))
        if least or loop.time() > until:
            return least
        await asyncio.sleep(0.2)


async def away(seconds: float) -> tuple[float, float]:
    """Stop the database hard, and start it again so much later; when it was gone, and when it was not."""
    database = postgres.durable()
    await asyncio.to_thread(database.stop, signal.SIGQUIT)
    gone = time.monotonic()
    try:
        await asyncio.sleep(seconds)
    finally:
        before = time.monotonic()
        await asyncio.to_thread(database.start)
    return gone, before


async def talk_on(places: list[Place], stop: asyncio.Event) -> list[str]:
    """Say one thing after the other and follow it; what was wrong."""
    # On a busy machine the database may be away before there is a thread.
    thread_id = (await steadily(places[0][1].threads.create))["thread_id"]
    texts: list[str] = []
    wrong: list[str] = []
    while not stop.is_set():
        turn = Turn(f"talk {uuid.uuid4()}")
        await take(turn, thread_id, places, leaves=False)
        wrong += faults(turn, await replay(places[-1][1], thread_id, turn.run_id), texts)
        texts += [turn.text, reply_to(turn.text)]
    return wrong


@pytest.mark.slow
@run
async def test_while_the_database_is_away_nothing_false_is_said_and_afterwards_all_is_well(
    sailing: Fleet,
) -> None:
    stop = asyncio.Event()
    async with AsyncExitStack() as stack:
        await sailing.ready()
        places = await places_of(sailing, stack)
        began = [member.process.pid for member in sailing.members]
        users = await users_of(places, CLIENTS)
        async with asyncio.TaskGroup() as group:
            for user in users:
                group.create_task(user.live(stop))
            talks = [group.create_task(talk_on(order, stop)) for order in (places, places[::-1]) * 2]
            watched = [
                group.create_task(watch(server, path, stop))
                for server in sailing.servers
                for path in ("/ready", "/ok?check_db=1", "/live")
            ]
            await asyncio.sleep(2)
            ended, back = await away(GAP_S)
            for blink in BLINKS_S:
                await asyncio.sleep(1)
                await away(blink)
            done = [user.answers["2xx"] for user in users]
            await asyncio.sleep(4)
            again = await least_since(users, done)
            stop.set()
        lost = twice = 0
        for user in users:
            missing, more = await user.audit(places[user.number % 2][1])
            lost, twice = lost + missing, twice + more
    answers = sum((user.answers for user in users), Counter[str]())
    repeated = sailing.repeated()
    publish(
        "server without database",
        {
            "seconds": GAP_S,
            "requests": answers.total(),
            "unavailable": answers["503"],
            "runs": sum(len(user.acknowledged) for user in users),
            "lost": lost,
            "twice": twice + len(repeated),
        },
    )
    wrong = [what for user in users for what in user.wrong]
    wrong += [*repeated, *sailing.damage(), *(what for talk in talks for what in talk.result())]
    assert not wrong, "\n".join(wrong)
    assert (lost, twice) == (0, 0)
    assert answers["503"] > 0
    assert again > 0, "some client cannot go on"
    for number, watching in enumerate(watched):
        seen = watching.result()
        within = {answer.status for answer in seen if ended < answer.asked and answer.answered < back}
        around = {answer.status for answer in seen if ended < answer.answered and answer.asked < back}
        if number % 3 == 2:
            assert {answer.status for answer in seen} == {200}, "a server that lives says so"
        else:
            assert within <= {503}, "a server says that it is ready, and its database is away"
            assert 503 in around, "a server does not say that its database is away"
        assert (seen[0].status, seen[-1].status) == (200, 200)
    assert [member.process.pid for member in sailing.members] == began
    assert all(member.process.is_alive() for member in sailing.members)


# Restarted in order


async def follow_raw(
    servers: list[Server], thread_id: str, run_id: str, begun: Counter[str]
) -> tuple[list[int], int]:
    """Follow a run from server to server without LangGraph's client; the ids that were told, and how many
    streams were ended by a server before the run was over. ``begun`` counts by server the streams that have
    told something."""
    ids: list[int] = []
    closed = at = 0
    while True:
        after = str(ids[-1]) if ids else ALL
        path = f"/threads/{thread_id}/runs/{run_id}/stream"
        decoder, server = SSEDecoder(), servers[at % 2]
        is_telling = False
        try:
            async with (
                server.http() as http,
                http.stream("GET", path, headers={"Last-Event-ID": after}) as answer,
            ):
                assert answer.status_code == 200, answer.status_code
                async for line in answer.aiter_lines():
                    part = decoder.decode(line.encode())
                    if part is not None and part.event == "end":
                        return ids, closed
                    if part is not None and part.event:
                        ids.append(int(part.id or 0))
                        begun[server.name] += not is_telling
                        is_telling = True
            closed += 1
        except httpx.ConnectError:
            await asyncio.sleep(0.05)
        except httpx.RemoteProtocolError:
            # Broken off between two events: clients in JavaScript come back to nothing else.
            assert is_telling, f"{server.name} took a request and answered nothing"
            closed += 1
        at += 1


async def follow_many(
    places: list[Place], stop: asyncio.Event, begun: Counter[str]
) -> tuple[int, int, list[str]]:
    """Begin runs and follow them; how many, how many streams servers ended, and what was wrong."""
    servers = [server for server, _ in places]
    thread_id = (await steadily(places[0][1].threads.create))["thread_id"]
    count = closed = 0
    wrong: list[str] = []
    while not stop.is_set():
        count += 1
        at = count % 2
        text = f"{LENGTHY}{uuid.uuid4()}"

        async def make(at: int = at, text: str = text) -> str:
            made = await places[at][1].runs.create(
                thread_id,
                GRAPH,
                input=said(text),
                stream_mode="messages-tuple",
                stream_resumable=True,
                headers={"Idempotency-Key": text},
            )
            return made["run_id"]

        run_id = await steadily(make)
        ids, ended = await follow_raw(servers[at:] + servers[:at], thread_id, run_id, begun)
        closed += ended
        told = await replay(places[1 - at][1], thread_id, run_id)
        stored = [int(part.id or 0) for part in told if part.event != "end"]
        if ids != stored:
            wrong.append(f"{text}: told were {ids}, and {stored} are stored")
    return count, closed, wrong


async def streamed(member: Member, begun: Counter[str]) -> None:
    """Return when a server has just begun to tell something to somebody."""
    before = begun[member.name]
    while isinstance(member, Server) and begun[member.name] == before:  # noqa: ASYNC110 - nobody is told
        await asyncio.sleep(0.01)


@pytest.mark.slow
@run
async def test_everything_is_restarted_in_order_and_nobody_notices(sailing: Fleet) -> None:
    stop = asyncio.Event()
    codes: list[int | None] = []
    begun: Counter[str] = Counter()
    async with AsyncExitStack() as stack:
        await sailing.ready()
        places = await places_of(sailing, stack)
        users = await users_of(places, 4)
        async with asyncio.TaskGroup() as group:
            for user in users:
                group.create_task(user.live(stop))
            follows = [group.create_task(follow_many(order, stop, begun)) for order in (places, places[::-1])]
            for member in [*sailing.servers, *sailing.workers]:
                await asyncio.sleep(0.5)
                await streamed(member, begun)
                codes.append(await member.stop())
                member.start()
                await member.ready()
            await asyncio.sleep(0.7)
            stop.set()
        lost = twice = 0
        for user in users:
            missing, more = await user.audit(places[user.number % 2][1])
            lost, twice = lost + missing, twice + more
    answers = sum((user.answers for user in users), Counter[str]())
    repeated = sailing.repeated()
    closed = sum(follow.result()[1] for follow in follows)
    publish(
        "server restarted",
        {
            "restarts": len(codes),
            "requests": answers.total(),
            "streams": sum(follow.result()[0] for follow in follows),
            "resumed": closed,
            "lost": lost,
            "twice": twice + len(repeated),
        },
    )
    wrong = [what for user in users for what in user.wrong]
    wrong += [*repeated, *sailing.damage(), *(what for follow in follows for what in follow.result()[2])]
    assert not wrong, "\n".join(wrong)
    assert (lost, twice) == (0, 0)
    assert codes == [0, 0, 0, 0], [member.said for member in sailing.members]
    # A request may meet the end of a kept connection halfway: nobody has read it then (RFC 9112, 9.5).
    assert set(answers) <= {"2xx", "ConnectError", "ReadError", "RemoteProtocolError"}, answers
    assert closed >= 2, "no stream was open when its server ended"
