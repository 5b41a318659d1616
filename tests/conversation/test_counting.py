"""Counts are remembered by message, for every message that there is, in any number of threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from langchain_core.messages import BaseMessage, HumanMessage, ToolMessage

from perdure.conversation.counting import remember_counts


class Counted:
    """A counter that counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, messages: list[BaseMessage]) -> int:
        self.calls += 1
        return len(messages)


def test_a_message_is_counted_once() -> None:
    counted = Counted()
    count = remember_counts(counted)
    assert [count([HumanMessage("a")]), count([HumanMessage("a")]), count([HumanMessage("b")])] == [1, 1, 1]
    assert counted.calls == 2


def test_what_is_not_sent_does_not_matter_and_bytes_are_counted_each_time() -> None:
    counted = Counted()
    count = remember_counts(counted)
    for artifact in (object(), object()):
        assert count([ToolMessage("x", tool_call_id="1", artifact=artifact)]) == 1
    assert counted.calls == 1
    content: list[Any] = [{"type": "file", "data": b"\xff\xfe"}]
    for _ in range(2):
        assert count([HumanMessage(content)]) == 1
    assert counted.calls == 3


def test_many_threads_share_it() -> None:
    count = remember_counts(Counted(), most=3)

    def work(part: int) -> None:
        for n in range(300):
            count([HumanMessage(f"{part} {n}")])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(8)))
