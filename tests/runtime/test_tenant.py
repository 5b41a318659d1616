"""Tickets of a thread that was deleted and created again, whose messages are numbered from the beginning."""

from __future__ import annotations

import pytest

from perdure.errors import NotFound
from tests.runtime.graphs import Storage, Talk, go, working


def test_a_ticket_of_a_deleted_message_is_not_that_of_the_next_with_its_number(
    storage: Storage, talk: Talk
) -> None:
    async def main() -> None:
        async with (
            working(storage.database(), talk.graph, works=False) as front,
            working(storage.database(), talk.graph) as runtime,
        ):
            for has_ended in (False, True):
                thread_id = f"ada {has_ended}"
                first = await front.accept(thread_id, "hello" if has_ended else "hold")
                if has_ended:
                    await runtime.wait(first)
                await front.delete(thread_id)
                talk.gate.set()
                second = await front.accept(thread_id, "hello again")
                assert second.number == first.number
                assert (await runtime.wait(second)).id == second.id
                for each in (front, runtime):
                    for asked in (each.look, each.wait):
                        with pytest.raises(NotFound, match=f"no message '{first.id}'"):
                            await asked(first)
                    assert await each.run_id(first) == first.id
                    assert (await each.look(second)).message.id == second.id
                    assert await each.run_id(second) == second.id

    go(main())


def test_a_ticket_of_a_deleted_message_is_in_no_run_of_messages_that_wait_now(
    near: Storage, talk: Talk
) -> None:
    async def main() -> None:
        async with working(near.database(), talk.graph, works=False) as front:
            first = await front.accept("ada", "hello")
            await front.delete("ada")
            waiting = [await front.accept("ada", text) for text in ("one", "two", "three")]
            joined = [waiting[0].id] * 3
            assert [await front.run_id(ticket) for ticket in waiting] == joined
            assert await front.run_id(first) == first.id
            async with working(near.database(), talk.graph):
                assert [(await front.wait(ticket)).id for ticket in waiting] == joined
            with pytest.raises(NotFound, match=f"thread 'ada' has no message '{first.id}'"):
                await front.wait(first)

    go(main())
