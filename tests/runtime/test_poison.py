"""Runs that fail: tried again, given up, and out of the way of everything else.

Covers perdure.runtime.worker.uncounted_attempts.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.engine.queue.runs import EXCUSES_MOST
from perdure.errors import Unavailable
from perdure.model.ops import Commit, Fetch, Get, Put
from perdure.model.program import Effect
from perdure.model.records import CHECKPOINT, EPOCH, INBOX, LANE, RUN, WRITE, Partition
from perdure.model.runs.messages import MESSAGE_MAX, NODE, TRACEBACK, VERSION, Message
from perdure.runtime import Agent, Options, Runtime, Settings, Ticket
from tests.runtime.graphs import (
    HOUR_US,
    Heard,
    Post,
    Storage,
    Talk,
    eventually,
    eventually_stored,
    go,
    settings,
    spoken,
    vanish,
    working,
)

_BOOM = {"error": "RuntimeError: boom", "kind": "RuntimeError"}


def test_a_message_that_always_fails_is_given_up(storage: Storage, talk: Talk) -> None:
    post, heard = Post(), Heard()

    async def main() -> None:
        database = storage.database()
        options: dict[str, Any] = {
            "channels": {"post": post.channel()},
            "settings": settings(attempts=3),
            "observers": [heard],
        }
        async with working(database, talk.graph, **options) as runtime:
            await runtime.wait(await runtime.accept("ada", "hello", channel="post"), 30)
            poison = await runtime.accept("ada", "boom", channel="post", coalesce=False)
            behind = await runtime.accept("ada", "after", channel="post", coalesce=False)
            run = await runtime.wait(poison, 30)
            assert (run.state, run.attempts) == ("failed", 3)
            noted = {NODE: "talk", TRACEBACK: run.note[TRACEBACK], VERSION: run.graph_version}
            assert run.note == {**_BOOM, **noted}
            assert run.note[TRACEBACK].startswith("RuntimeError: boom\n")
            assert (await runtime.wait(behind, 30)).state == "done"
            await eventually(lambda: len(post.sent) == 3)
        apology = Agent(talk.graph).apology
        assert post.texts == ["echo: hello", apology, "echo: after"]
        assert post.sent[1][0] == f"{run.id}:0"
        assert heard.count("run.attempt_failed") == 3
        assert await spoken(database, talk.graph, "ada") == ["hello", "echo: hello", "after", "echo: after"]
        assert database.fsck("ada") == []

    go(main())


def test_what_a_failed_run_stored_may_be_kept(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        database = near.database()
        keep = settings(attempts=2, on_failure="keep")
        quiet = Agent(talk.graph, apology=None)
        async with working(database, quiet, settings=keep) as runtime:
            run = await runtime.wait(await runtime.accept("ada", "boom", channel="post"), 30)
            assert (run.state, run.attempts) == ("failed", 2)
            assert await runtime.replies("ada") == ()
        assert await spoken(database, talk.graph, "ada") == ["boom"]
        assert database.fsck("ada") == []

    go(main())


def test_what_goes_well_at_last_counts(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        database, heard = near.database(), Heard()
        async with working(database, talk.graph, observers=[heard]) as runtime:
            original = talk._answer

            async def unlucky(said: list[str]) -> Any:
                if len(talk.calls) < 3:
                    raise RuntimeError("the model is away")
                return await original(said)

            talk._answer = unlucky  # type: ignore[method-assign, assignment]
            run = await runtime.wait(await runtime.accept("ada", "hello"), 30)
            assert (run.state, run.attempts) == ("done", 3)
        assert heard.count("run.attempt_failed") == 2
        assert await spoken(database, talk.graph, "ada") == ["hello", "echo: hello"]

    go(main())


def test_a_pause_comes_before_the_next_attempt(near: Storage, talk: Talk) -> None:
    """Nobody tries a run again before its time: not its worker, not another one, not for a new message."""

    async def main() -> None:
        heard = Heard()
        slow = settings(backoff=600, max_backoff=600, poll=0.02)
        async with (
            working(near.database(), talk.graph, settings=slow, observers=[heard]) as one,
            working(near.database(), talk.graph, settings=slow) as two,
        ):
            ticket = await one.accept("ada", "boom")
            await eventually(lambda: heard.count("run.attempt_failed"))
            await two.accept("ada", "more")
            for n in range(5):
                await two.wait(await one.accept(f"t{n}", "hello"), 30)
            standing = await one.look(ticket)
            assert standing.run is not None
            assert (standing.run.attempts, standing.run.note["error"]) == (1, "RuntimeError: boom")
        late, line = near.open()
        line.ahead_us = HOUR_US
        async with working(late, talk.graph, settings=slow):
            await eventually(lambda: len([1 for thread, _ in talk.calls if thread == "ada"]) == 2)

    go(main())


@given(
    backoff=st.floats(0.001, 1000),
    most=st.floats(0.001, 1000),
    attempt=st.integers(1, 10_000),
    spread=st.floats(0, 1),
)
def test_pauses_grow_up_to_the_longest(backoff: float, most: float, attempt: int, spread: float) -> None:
    chosen = Settings(backoff=backoff, max_backoff=most)
    pause = chosen.pause_us(attempt, spread)
    assert 0 <= pause <= most * 1_000_000 + 1
    assert pause <= chosen.pause_us(attempt + 1, spread)
    assert chosen.pause_us(attempt, 0) * 2 <= chosen.pause_us(attempt, 1) + 2
    if attempt < 40 and backoff * 2**attempt <= most:
        assert abs(chosen.pause_us(attempt + 1, spread) - 2 * pause) <= 2


def test_state_that_cannot_be_stored_is_hopeless_at_once(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        database = near.database()
        async with working(database, talk.graph, settings=settings(backoff=600, attempts=5)) as runtime:
            run = await runtime.wait(await runtime.accept("ada", "odd", channel="post"), 30)
            assert (run.state, run.attempts) == ("failed", 1)
            assert "Opaque" in run.note["error"]
            assert len(await runtime.replies("ada")) == 1
            assert (await runtime.wait(await runtime.accept("ada", "after"), 30)).state == "done"
        assert await spoken(database, talk.graph, "ada") == ["after", "echo: after"]

    go(main())


def test_a_run_that_takes_too_long_is_given_up(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        database = near.database()
        async with working(database, talk.graph, settings=settings(deadline=0.5)) as runtime:
            run = await runtime.wait(await runtime.accept("ada", "hold", channel="post"), 30)
            assert (run.state, run.attempts) == ("failed", 1)
            assert run.note["error"] == "it took longer than 0.5 s"
            assert talk.under_way == 0
        # Without the deadline, which a busy machine may not meet.
        async with working(database, talk.graph) as runtime:
            assert (await runtime.wait(await runtime.accept("ada", "after"), 30)).state == "done"
        assert await spoken(database, talk.graph, "ada") == ["after", "echo: after"]

    go(main())


def test_a_deadline_counts_from_the_first_attempt(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        database, line = near.open()
        strict = settings(deadline=600)
        async with working(database, talk.graph, settings=strict) as gone:
            ticket = await gone.accept("ada", "hold")
            await eventually(lambda: talk.under_way)
            vanish(gone, line)
        later, line = near.open()
        line.ahead_us = HOUR_US
        async with working(later, talk.graph, settings=strict) as runtime:
            assert (await runtime.wait(ticket, 30)).state == "failed"

    go(main())


def test_a_message_that_ends_every_worker_is_given_up(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        for attempt in range(1, 4):
            database, line = near.open()
            line.ahead_us = attempt * HOUR_US
            async with working(database, talk.graph, settings=settings(attempts=3)) as gone:
                if attempt == 1:
                    ticket = await gone.accept("ada", "hold", channel="post")
                await eventually(lambda: talk.under_way)
                assert (await gone.look(ticket)).run.attempts == attempt  # type: ignore[union-attr]
                vanish(gone, line)
            await eventually(lambda: not talk.under_way)
        database, line = near.open()
        line.ahead_us = 4 * HOUR_US
        async with working(database, talk.graph, settings=settings(attempts=3)) as runtime:
            run = await runtime.wait(ticket, 30)
            assert run.state == "failed"
            assert "its worker ended each time" in run.note["error"]
            assert len(await runtime.replies("ada")) == 1
        assert len(talk.calls) == 3
        assert await spoken(database, talk.graph, "ada") == []

    go(main())


def test_other_threads_go_on_meanwhile(near: Storage, talk: Talk) -> None:
    async def main() -> None:
        patient = settings(attempts=1000, concurrency=2)
        async with working(near.database(), talk.graph, settings=patient) as runtime:
            bad = [await runtime.accept(f"bad{n}", "boom") for n in range(4)]
            good = [await runtime.accept(f"good{n}", "hello") for n in range(20)]
            for ticket in good:
                assert (await runtime.wait(ticket, 30)).state == "done"
            for ticket in bad:
                run = (await runtime.look(ticket)).run
                assert run is None or run.state == "open"
                if run is not None:
                    await runtime.stop(ticket.thread_id, run.id)

    go(main())


@pytest.mark.parametrize(
    "text", ["x" * (MESSAGE_MAX + 1), "half a \ud800 character"], ids=["too long", "not text"]
)
def test_an_error_that_cannot_be_noted_is_no_reason_to_wait(memory: Storage, talk: Talk, text: str) -> None:
    """What a failed run says of itself comes from anywhere; noting it must not fail, or the thread would wait
    for the lease's end at each attempt."""
    talk.error = RuntimeError(text)

    async def main() -> None:
        async with working(memory.database(), talk.graph, settings=settings(attempts=2)) as runtime:
            ticket = await runtime.accept("ada", "boom")
            run = await runtime.wait(ticket, 20)
            assert (run.state, run.attempts) == ("failed", 2)

    go(main())


def test_replies_that_cannot_be_stored_are_hopeless_at_once(memory: Storage, talk: Talk) -> None:
    async def main() -> None:
        agent = Agent(talk.graph, to_replies=lambda values, messages: [object()])
        async with working(memory.database(), agent) as runtime:
            ticket = await runtime.accept("ada", "hello", channel="post")
            run = await runtime.wait(ticket, 20)
            assert run.state == "failed"

    go(main())


@pytest.mark.parametrize("seed", range(3))
def test_a_database_that_is_away_now_and_then_loses_nothing(memory: Storage, talk: Talk, seed: int) -> None:
    post = Post()
    away = set(random.Random(seed).sample(range(3, 120), 10))
    texts = [f"m{n}" for n in range(12)]

    async def insist(runtime: Runtime, text: str) -> Ticket:
        while True:
            try:
                return await runtime.accept("ada", text, channel="post", dedupe_key=text, coalesce=False)
            except Unavailable:
                await asyncio.sleep(0.01)

    async def main() -> None:
        database, line = memory.open()
        rough = settings(lease=0.6, poll=0.05, attempts=1000)
        channels = {"post": post.channel(timeout=0.5)}
        async with working(database, talk.graph, settings=rough, channels=channels) as runtime:
            line.failing = lambda number: number in away
            tickets = [await insist(runtime, text) for text in texts]
            calm = memory.database()
            async with working(calm, talk.graph, works=False) as front:
                for ticket in tickets:
                    assert (await front.wait(ticket, 50)).state == "done"

                async def is_sent() -> bool:
                    replies = await front.replies("ada")
                    return {reply.state for reply in replies} == {"sent"} and len(replies) == len(texts)

                await eventually_stored(is_sent)
        assert max(away) < line.count, "it was away each time"
        said = await spoken(calm, talk.graph, "ada")
        assert said == [part for text in texts for part in (text, f"echo: {text}")]
        assert list(dict.fromkeys(post.texts)) == [f"echo: {text}" for text in texts]
        assert calm.fsck("ada") == []

    go(main())


@pytest.mark.parametrize("how", ["steps", "notes", "renewals"])
def test_a_database_that_is_away_is_no_failure_of_the_run(near: Storage, talk: Talk, how: str) -> None:
    """More often than a run may fail: for the commits of its steps, for those and the note of the failure, or
    for the renewals of its lease."""
    is_away, heard = asyncio.Event(), Heard()

    def fails(effect: Effect[Any]) -> bool:
        if not is_away.is_set() or not isinstance(effect, Commit):
            return False
        kinds = {op.kind for op in effect.ops if isinstance(op, Put)}
        if how == "renewals":
            return kinds == {LANE} and EPOCH in {op.kind for op in effect.ops}
        return bool(kinds & {CHECKPOINT, WRITE}) or (how == "notes" and kinds == {LANE, RUN})

    async def main() -> None:
        database, line = near.open()

        async def before(effect: Effect[Any]) -> None:
            if fails(effect):
                raise Unavailable("the database is away")

        line.before = before
        rough = settings(lease=0.3, poll=0.05, attempts=2)
        async with working(database, talk.graph, settings=rough, observers=[heard]) as runtime:
            is_away.set()
            ticket = await runtime.accept("ada", "hold hello")
            await eventually(lambda: heard.count("run.claimed") > 6)
            is_away.clear()
            talk.gate.set()
            run = await runtime.wait(ticket, 30)
        assert run.state == "done"
        assert run.attempts > 6
        assert await spoken(database, talk.graph, "ada") == ["hold hello", "echo: hold hello"]
        assert database.fsck("ada") == []

    go(main())


def test_an_attempt_that_always_finds_the_database_away_is_given_up_in_the_end(
    memory: Storage, talk: Talk
) -> None:
    talk.error = Unavailable("of some other database")
    heard = Heard()

    async def main() -> None:
        database = memory.database()
        options: dict[str, Any] = {"settings": settings(attempts=2), "observers": [heard]}
        async with working(database, talk.graph, **options) as runtime:
            run = await runtime.wait(await runtime.accept("ada", "boom"), 60)
        assert run.state == "failed"
        assert heard.count("run.claimed") == EXCUSES_MOST + 2

    go(main())


@pytest.mark.parametrize(
    "options",
    [
        {"durability": "for ever"},
        {"stream": {"modes": ["thoughts"], "subgraphs": False, "kept": True, "by": ""}},
        {"stream": {"modes": ["values"]}},
        {"stream": "values"},
        {"config": ["a", "list"]},
        {"attempts": "three"},
        {"config": {"configurable": {"__pregel_read": 1}}, "webhook": "https://127.0.0.1/"},
    ],
    ids=lambda options: "-".join(map(str, options)),
)
def test_a_run_whose_options_cannot_be_read_is_given_up(
    memory: Storage, talk: Talk, options: dict[str, Any]
) -> None:
    """Options that another release has stored, or that were damaged."""
    heard = Heard()

    async def main() -> None:
        database, line = memory.open()
        async with working(database, talk.graph, works=False) as runtime:
            channel = "webhook" if "webhook" in options else ""
            asked = Options(webhook=options.get("webhook"))
            poison = await runtime.accept("ada", "hello", coalesce=False, channel=channel, options=asked)
            behind = await runtime.accept("ada", "after", coalesce=False)
            other = await runtime.accept("bob", "hello")
        (found,) = line.perform(Fetch(Partition("", "ada"), (Get(INBOX, (1,)),)))[0]
        message = replace(Message.read(found), options=options)
        line.perform(Commit(Partition("", "ada"), (message.put(found.version),)))
        async with working(database, talk.graph, observers=[heard]) as runtime:
            run = await runtime.wait(poison, 20)
            assert (run.state, run.attempts, run.note["kind"]) == ("failed", 1, "Corrupt")
            assert "options" in run.note["error"]
            assert "https" not in run.note["error"]
            assert (await runtime.wait(behind, 20)).state == "done"
            assert (await runtime.wait(other, 20)).state == "done"
        assert heard.count("run.failed") == 1
        assert heard.count("worker.error") == 0
        assert database.fsck("ada") == []

    go(main())
