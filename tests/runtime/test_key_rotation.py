"""Processes of which one has not been given the new key yet."""

from __future__ import annotations

from pathlib import Path

import pytest
from langchain_core.runnables import RunnableConfig

import perdure
from perdure.errors import DecryptionError
from tests.runtime.graphs import Heard, Post, Talk, eventually, go, settings, working

OLD, NEW = bytes(range(32)), bytes(range(32, 64))


def test_what_the_new_key_sealed_is_left_to_those_that_have_it(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason='pip install "perdure[encryption]"')
    url = f"sqlite:///{tmp_path}/t.db"
    late, ready = Talk(), Talk()

    async def main() -> None:
        with (
            perdure.connect_sync(url, migrate=True, encryption_key=OLD) as before,
            perdure.connect_sync(url, encryption_key=[NEW, OLD]) as after,
        ):
            async with working(before, late.graph, settings=settings(poll=0.05)) as behind:
                async with working(after, ready.graph, works=False) as front:
                    ticket = await front.accept("ada", "hello")
                    with pytest.raises(DecryptionError):
                        await behind.wait(ticket, 30.0)
                assert late.calls == []
                async with working(after, ready.graph) as worker:
                    assert (await worker.wait(ticket, 60.0)).state == "done"
            assert late.calls == []
            assert [thread for thread, _ in ready.calls] == ["ada"]

    go(main())


def test_a_state_that_the_new_key_sealed_costs_no_message_its_attempts(tmp_path: Path) -> None:
    """The message, and the run before it, are of the old key; the state was changed by a process with the new
    one."""
    pytest.importorskip("cryptography", reason='pip install "perdure[encryption]"')
    url = f"sqlite:///{tmp_path}/t.db"
    late, ready, heard = Talk(), Talk(), Heard()

    async def main() -> None:
        with (
            perdure.connect_sync(url, migrate=True, encryption_key=OLD) as before,
            perdure.connect_sync(url, encryption_key=[NEW, OLD]) as after,
        ):
            options = {"settings": settings(poll=0.05, attempts=2), "observers": [heard]}
            async with working(before, late.graph, **options) as behind:
                assert (await behind.wait(await behind.accept("ada", "one"), 60.0)).state == "done"
                async with working(after, ready.graph, works=False) as front:
                    at: RunnableConfig = {"configurable": {"thread_id": "ada"}}
                    await front.graph("agent").aupdate_state(at, {"heard": ["changed"]}, as_node="talk")
                ticket = await behind.accept("ada", "two")
                await eventually(lambda: heard.count("run.attempt_failed") > 4)
            async with working(after, ready.graph) as worker:
                assert (await worker.wait(ticket, 60.0)).state == "done"
            assert late.calls == [("ada", "one")]
            assert ready.calls == [("ada", "two")]

    go(main())


def test_a_key_that_is_removed_too_early_costs_nothing_once_it_is_back(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason='pip install "perdure[encryption]"')
    url = f"sqlite:///{tmp_path}/t.db"
    talk, post, heard = Talk(), Post(), Heard()
    quick = settings(poll=0.05, attempts=2)

    async def main() -> None:
        with perdure.connect_sync(url, migrate=True, encryption_key=OLD) as before:
            async with working(before, talk.graph, settings=quick) as first:
                for thread, channel in (("ada", ""), ("zoe", "post")):
                    ticket = await first.accept(thread, "one", channel=channel)
                    assert (await first.wait(ticket, 60.0)).state == "done"
            async with working(before, talk.graph, works=False) as first:
                waiting = [await first.accept(thread, "two", channel="post") for thread in ("ada", "bob")]
        with perdure.connect_sync(url, encryption_key=[NEW, OLD]):
            pass
        options = {"settings": quick, "channels": {"post": post.channel(attempts=2)}}
        with perdure.connect_sync(url, encryption_key=NEW) as early:
            async with working(early, talk.graph, observers=[heard], **options) as hasty:
                fresh = await hasty.accept("eve", "three", channel="post")
                assert (await hasty.wait(fresh, 60.0)).state == "done"
                await eventually(lambda: heard.count("worker.error") > 4)
        assert talk.calls == [("ada", "one"), ("zoe", "one"), ("eve", "three")]
        with perdure.connect_sync(url, encryption_key=[NEW, OLD]) as again:
            async with working(again, talk.graph, **options) as worker:
                for ticket in waiting:
                    assert (await worker.wait(ticket, 60.0)).state == "done"
                await eventually(lambda: len(post.sent) >= 4)
        assert sorted(post.texts) == ["echo: one", "echo: three", "echo: two", "echo: two"]
        assert sorted(talk.calls[3:]) == [("ada", "two"), ("bob", "two")]

    go(main())
