"""Replies: in order, under one key each, and what becomes of those of which nobody knows."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from perdure.errors import Conflict, NotFound
from perdure.model.records import LANE, OUTBOX
from perdure.model.runs.messages import Reply
from perdure.runtime import Agent, Channel, NotSent, Runtime, Settings, Undeliverable
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
    vanish,
    working,
)


def several(talk: Talk) -> Agent:
    """It answers each message with as many replies as it has words."""

    def replies(values: Any, messages: Any) -> list[Any]:
        words = messages[-1].payload["message"]["content"].split()
        return [{"role": "assistant", "content": word} for word in words]

    return Agent(talk.graph, to_replies=replies)


async def states(runtime: Runtime) -> list[str]:
    """Of the replies, oldest first."""
    return [reply.state for reply in reversed(await runtime.replies("ada"))]


async def settled(runtime: Runtime, *expected: str) -> list[Reply]:
    """The replies, oldest first, once they are in these states."""

    async def is_settled() -> bool:
        return await states(runtime) == list(expected)

    try:
        await eventually_stored(is_settled)
    except TimeoutError:
        assert await states(runtime) == list(expected)
    return list(reversed(await runtime.replies("ada")))


def test_replies_arrive_in_order_under_keys_of_their_own(storage: Storage) -> None:
    post = Post()

    async def main() -> None:
        channels = {"post": post.channel()}
        async with working(storage.database(), several(Talk()), channels=channels) as runtime:
            ids = [
                (await runtime.accept("ada", text, channel="post", coalesce=False)).id
                for text in ("a b c", "d", "e f")
            ]
            replies = await settled(runtime, *["sent"] * 6)
        one, two, three = ids
        keys = [f"{one}:0", f"{one}:1", f"{one}:2", f"{two}:0", f"{three}:0", f"{three}:1"]
        assert post.sent == list(zip(keys, "abcdef", strict=True))
        assert [(r.id, r.seq, r.attempts) for r in replies] == [(k, n + 1, 1) for n, k in enumerate(keys)]
        assert [r.provider_id for r in replies] == [f"provider-{n}" for n in range(1, 7)]

    go(main())


def test_a_run_without_a_channel_has_no_replies(memory: Storage) -> None:
    post = Post()

    async def main() -> None:
        channels = {"post": post.channel()}
        async with working(memory.database(), Talk().graph, channels=channels) as runtime:
            await runtime.wait(await runtime.accept("ada", "hello"), 30)
            assert await runtime.replies("ada") == ()

    go(main())


def test_what_was_not_sent_is_sent_again_before_what_comes_after(near: Storage) -> None:
    post = Post(refuse=lambda reply: NotSent("busy") if len(post.tried) < 4 else None)

    async def main() -> None:
        channels = {"post": post.channel()}
        async with working(near.database(), several(Talk()), channels=channels) as runtime:
            ticket = await runtime.accept("ada", "a b", channel="post")
            first, second = await settled(runtime, "sent", "sent")
        assert post.tried == [f"{ticket.id}:0"] * 4 + [f"{ticket.id}:1"]
        assert post.texts == ["a", "b"]
        assert (first.attempts, second.attempts) == (4, 1)
        assert first.error is None

    go(main())


def test_a_pause_comes_before_the_next_attempt_to_send(near: Storage) -> None:
    refuse = True
    post = Post(refuse=lambda reply: NotSent("busy") if refuse else None)
    slow = settings(backoff=600, max_backoff=600, poll=0.02)

    async def main() -> None:
        nonlocal refuse
        options: dict[str, Any] = {"channels": {"post": post.channel()}, "settings": slow}
        async with working(near.database(), several(Talk()), **options) as runtime:
            await runtime.accept("ada", "a", channel="post")
            await eventually(lambda: post.tried)
            # A reply that comes after it waits behind it, and does not hurry it.
            await runtime.wait(await runtime.accept("ada", "b", channel="post"), 30)
            for n in range(3):
                await runtime.wait(await runtime.accept(f"t{n}", "x"), 30)
            assert len(post.tried) == 1
            assert await states(runtime) == ["ready", "ready"]
        refuse = False
        database, line = near.open()
        line.ahead_us = HOUR_US
        async with working(database, several(Talk()), **options) as runtime:
            await settled(runtime, "sent", "sent")
        assert post.texts == ["a", "b"]

    go(main())


def test_what_can_never_be_delivered_keeps_nothing_up(storage: Storage) -> None:
    def refuse(reply: Reply) -> Exception | None:
        return Undeliverable("blocked") if reply.payload["content"] == "b" else None

    post = Post(refuse=refuse)

    async def main() -> None:
        channels = {"post": post.channel()}
        async with working(storage.database(), several(Talk()), channels=channels) as runtime:
            await runtime.accept("ada", "a b c", channel="post")
            replies = await settled(runtime, "sent", "dead", "sent")
            assert (replies[1].attempts, replies[1].error) == (1, "Undeliverable: blocked")
            post.refuse = lambda reply: None
            again = await runtime.retry_reply("ada", replies[1].seq)
            assert (again.id, again.seq) == (replies[1].id, 4)
            await settled(runtime, "sent", "sent", "sent")
            for number, error in ((1, Conflict), (2, NotFound), (9, NotFound)):
                with pytest.raises(error):
                    await runtime.retry_reply("ada", number)
        assert post.texts == ["a", "c", "b"]
        assert post.tried.count(again.id) == 2, "it is known to the provider by one key"

    go(main())


@pytest.mark.parametrize(
    ("error", "policy", "state"),
    [
        (NotSent("busy"), "resend", "dead"),
        (OSError("broken"), "resend", "dead"),
        (NotSent("busy"), "hold", "dead"),
        (OSError("broken"), "reconcile", "unknown"),
    ],
)
def test_attempts_to_send_come_to_an_end(memory: Storage, error: Exception, policy: Any, state: str) -> None:
    post = Post(refuse=lambda reply: error if reply.payload["content"] == "a" else None)

    async def main() -> None:
        channels = {"post": post.channel(attempts=3, in_doubt=policy, find=post.find)}
        async with working(memory.database(), several(Talk()), channels=channels) as runtime:
            await runtime.accept("ada", "a b", channel="post")
            first, _ = await settled(runtime, state, "sent")
            assert (first.attempts, len(post.tried)) == (3, 4)
            assert str(error) in (first.error or "")

    go(main())


def test_whatever_a_sender_says_is_noted(storage: Storage) -> None:
    """A number for an id, and an error that is not text: neither may keep a reply that was sent from being
    marked."""
    said: list[Any] = [NotSent("half a \ud800 character" + "x" * 500_000), 4711]

    async def send(thread: str, reply: Reply) -> Any:
        answer = said.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def main() -> None:
        database = storage.database()
        channels = {"post": Channel(send)}
        async with working(database, several(Talk()), channels=channels) as runtime:
            await runtime.accept("ada", "a", channel="post")
            (reply,) = await settled(runtime, "sent")
            assert (reply.provider_id, reply.attempts) == ("4711", 2)

    go(main())


def test_a_provider_that_cannot_be_asked_does_not_keep_a_thread_for_ever(memory: Storage) -> None:
    post = Post(refuse=lambda reply: OSError("broken") if len(post.tried) == 1 else None)

    async def find(thread: str, reply: Reply) -> str | None:
        raise OSError("nobody to ask")

    async def main() -> None:
        channels = {"post": post.channel(attempts=3, in_doubt="reconcile", find=find)}
        async with working(memory.database(), several(Talk()), channels=channels) as runtime:
            await runtime.accept("ada", "a b", channel="post")
            first, _ = await settled(runtime, "unknown", "sent")
            assert "nobody to ask" in (first.error or "")
            assert post.texts == ["b"]

    go(main())


def test_a_reply_in_doubt_is_held_at_the_first_unclear_answer(memory: Storage) -> None:
    post = Post(refuse=lambda reply: OSError("broken") if len(post.tried) == 1 else None)

    async def main() -> None:
        channels = {"post": post.channel(in_doubt="hold")}
        async with working(memory.database(), several(Talk()), channels=channels) as runtime:
            await runtime.accept("ada", "a b", channel="post")
            held, _ = await settled(runtime, "unknown", "sent")
            assert held.error == "OSError: broken"
            await runtime.retry_reply("ada", held.seq)
            await settled(runtime, "sent", "sent")
        assert post.texts == ["b", "a"]

    go(main())


def test_a_provider_that_does_not_answer_leaves_the_reply_in_doubt(memory: Storage) -> None:
    async def main() -> None:
        talk, tried = Talk(), 0

        async def send(thread: str, reply: Reply) -> str | None:
            nonlocal tried
            tried += 1
            if tried == 1:
                await talk.gate.wait()
            return None

        channels = {"post": Channel(send, timeout=0.2)}
        async with working(memory.database(), several(talk), channels=channels) as runtime:
            await runtime.accept("ada", "a", channel="post")
            (reply,) = await settled(runtime, "sent")
            assert (reply.attempts, tried) == (2, 2)

    go(main())


@pytest.mark.parametrize("policy", ["resend", "reconcile", "hold"])
def test_a_sender_that_ended_after_the_provider_accepted_leaves_its_reply_in_doubt(
    storage: Storage, policy: Any
) -> None:
    _ended_while_it_sent(storage, policy, has_it=True)


@pytest.mark.parametrize("policy", ["resend", "reconcile", "hold"])
def test_a_sender_that_ended_before_the_provider_accepted_leaves_its_reply_in_doubt(
    near: Storage, policy: Any
) -> None:
    _ended_while_it_sent(near, policy, has_it=False)


def _ended_while_it_sent(storage: Storage, policy: Any, *, has_it: bool) -> None:
    talk, post = Talk(), Post()

    async def main() -> None:
        database, line = storage.open()

        def die(reply: Reply) -> None:
            line.is_dead = True

        def lose(reply: Reply) -> Exception:
            die(reply)
            return OSError("the call never left")

        post.after = die
        if not has_it:
            post.refuse = lose
        options = {"channels": {"post": post.channel(in_doubt=policy, find=post.find)}}
        async with working(database, several(talk), **options) as gone:
            ticket = await gone.accept("ada", "a b", channel="post")
            await eventually(lambda: line.is_dead)
            vanish(gone, line)
        post.after, post.refuse = (lambda reply: None), (lambda reply: None)
        again, line = storage.open()
        line.ahead_us = HOUR_US
        async with working(again, several(talk), **options) as runtime:
            state = "unknown" if policy == "hold" else "sent"
            first, second = await settled(runtime, state, "sent")
        key = f"{ticket.id}:0"
        assert first.id == key
        known = policy == "hold" or (policy == "reconcile" and has_it)
        assert post.tried.count(key) == (1 if known else 2)
        assert post.texts[-1] == "b"
        if policy == "reconcile":
            assert first.provider_id == "provider-1"
            assert post.texts == ["a", "b"], "it was delivered once"
        assert second.attempts == 1

    go(main())


def test_a_sender_that_was_overtaken_marks_nothing(near: Storage) -> None:
    """It slept while it sent, longer than its lease; another one has delivered the reply since."""
    talk, post, heard = Talk(), Post(), Heard()

    async def main() -> None:
        begun = asyncio.Event()

        async def slow(thread: str, reply: Reply) -> str | None:
            begun.set()
            await talk.gate.wait()
            raise Undeliverable("said too late")

        options: dict[str, Any] = {"observers": [heard], "channels": {"post": Channel(slow)}}
        async with working(near.database(), several(talk), **options) as first:
            ticket = await first.accept("ada", "a b", channel="post")
            await first.wait(ticket, 30)
            await begun.wait()
            database, line = near.open()
            line.ahead_us = HOUR_US
            async with working(database, several(talk), channels={"post": post.channel()}) as second:
                replies = await settled(second, "sent", "sent")
                talk.gate.set()
                await eventually(lambda: heard.count("reply.lost"))
                assert list(reversed(await second.replies("ada"))) == replies
        assert post.texts == ["a", "b"]

    go(main())


def test_nobody_is_told_before_the_run_has_ended(near: Storage) -> None:
    talk, post = Talk(), Post()

    async def main() -> None:
        channels = {"post": post.channel()}
        async with working(near.database(), talk.graph, channels=channels) as runtime:
            ticket = await runtime.accept("ada", "hold", channel="post")
            await eventually(lambda: talk.under_way)
            assert await runtime.replies("ada") == ()
            talk.gate.set()
            run = await runtime.wait(ticket, 30)
            (reply,) = await settled(runtime, "sent")
            assert (reply.run_id, reply.ord, reply.channel) == (run.id, 0, "post")

    go(main())


def test_a_reply_is_sent_by_whoever_has_its_channel(memory: Storage) -> None:
    post, chat = Post(), Post()

    async def main() -> None:
        async with (
            working(memory.database(), several(Talk()), channels={"post": post.channel()}) as one,
            working(memory.database(), several(Talk()), channels={"chat": chat.channel()}) as two,
        ):
            await one.accept("ada", "a b", channel="post")
            await two.accept("ada", "c", channel="chat")
            await one.accept("ada", "d", channel="post")
            await settled(one, *["sent"] * 4)
        assert (post.texts, chat.texts) == (["a", "b", "d"], ["c"])

    go(main())


def test_a_channel_has_to_answer_within_the_lease(memory: Storage) -> None:
    channel = Post().channel(timeout=30.0)
    with pytest.raises(ValueError, match="make the lease longer"):
        Runtime(memory.database(), Talk().graph, channels={"post": channel}, settings=Settings(lease=30))
    with pytest.raises(ValueError, match="needs a name"):
        Runtime(memory.database(), Talk().graph, channels={"": channel})


def test_replies_are_counted_from_where_they_were_kept(memory: Storage) -> None:
    """The rows say what the outbox did: one a reply, and a lane that has nothing to do."""
    post = Post()

    async def main() -> None:
        database = memory.database()
        async with working(database, several(Talk()), channels={"post": post.channel()}) as runtime:
            await runtime.accept("ada", "a b c", channel="post")
            await settled(runtime, *["sent"] * 3)
        assert len(memory.rows("ada", OUTBOX)) == 3
        lane = next(r for r in memory.rows("ada", LANE) if r.key == ("outbox",))
        assert (lane.fields["last"], lane.fields["bound"], lane.fields["due_at"]) == (3, 3, None)

    go(main())


def test_a_pause_that_a_provider_asks_for_uses_up_no_attempt_and_delays_no_other_thread(
    memory: Storage,
) -> None:
    limits = iter([NotSent("limited", retry_after=0.3)] * 3)

    def refuse(reply: Reply) -> Exception | None:
        return next(limits, None) if reply.payload["content"].endswith("slow") else None

    post = Post(refuse=refuse)

    async def main() -> None:
        channels = {"post": post.channel(attempts=2)}
        async with working(memory.database(), Talk().graph, channels=channels) as runtime:
            await runtime.accept("ada", "slow", channel="post")
            await runtime.accept("bob", "quick", channel="post")
            (reply,) = await settled(runtime, "sent")
        assert reply.attempts == 1
        assert post.texts == ["echo: quick", "echo: slow"]

    go(main())


def test_a_channel_divides_replies_and_asks_questions(memory: Storage) -> None:
    post = Post()
    shown: list[str] = []

    def split(payload: Any) -> list[Any]:
        return [{**payload, "content": word} for word in payload["content"].split()]

    async def indicate(partition: Any, message: Any) -> None:
        shown.append(partition.thread)
        raise RuntimeError("an indicator has no effect on the run")

    async def main() -> None:
        ask: Any = lambda name, value: {"content": f"{value} {len(name)}"}  # noqa: E731
        channel = post.channel(split=split, ask=ask, indicate=indicate)
        async with working(memory.database(), Talk().graph, channels={"post": channel}) as runtime:
            await runtime.accept("ada", "one two", channel="post")
            await settled(runtime, "sent", "sent", "sent")
            await runtime.accept("ada", "ask", channel="post")
            await settled(runtime, *["sent"] * 5)
            await runtime.answer("ada", "yes")
            await settled(runtime, *["sent"] * 9)
        assert post.texts == ["echo:", "one", "two", "really?", "32", "echo:", "you", "said", "yes"]
        assert shown == ["ada"] * 3

    go(main())
