"""One thread under any sequence of calls, against a plain dict of deep copies by the stock serializer.

Two savers with caches of their own write to the same thread; several loops are open at once, each with the
live objects that it was handed or that it put, and changes them in place at any time.
"""

from __future__ import annotations

import random
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)
from langchain_core.messages import HumanMessage

from tests.langgraph.cache.test_encoding import config, put, stock
from tests.langgraph.savers import opened
from tests.langgraph.specimens import ELEMENTS, LISTS, OBJECTS, OWN, change, likeness

SEEDS = st.integers(0, 2**32)


@dataclass
class Loop:
    """An open loop: where its next checkpoint goes, and the objects that it holds."""

    saver: Any
    at: Any
    live: dict[str, Any]


def _messages(loop: Loop) -> list[Any]:
    """Return the messages of a loop; none if a change has put another value in their place."""
    messages = loop.live.get("messages")
    return list(messages) if isinstance(messages, list) else []


class Thread(RuleBasedStateMachine):
    loops: Bundle[Loop] = Bundle("loops")
    driver = "memory"

    def __init__(self) -> None:
        super().__init__()
        self._folder = tempfile.TemporaryDirectory()
        self._opened = opened(self.driver, Path(self._folder.name))
        self.db = self._opened.__enter__()
        self.savers = [self.db.checkpointer(allow=OWN, on_conflict="fork") for _ in range(2)]
        self.model: dict[str, dict[str, Any]] = {}
        self.writes: dict[str, list[Any]] = {}
        self.head = ""
        self.step = 0

    def teardown(self) -> None:
        self._opened.__exit__(None, None, None)
        self._folder.cleanup()

    def _put(self, loop: Loop) -> None:
        try:
            wanted = {name: likeness(stock(value)) for name, value in loop.live.items()}
        except TypeError:
            # Changed into something that nobody can store: the next load starts afresh.
            loop.live = {"messages": []}
            wanted = {"messages": likeness([])}
        self.step += 1
        loop.at = put(loop.saver, loop.at, loop.live, self.step)
        self.head = f"{self.step:06d}"
        self.model[self.head] = wanted

    def _check(self, found: Any) -> None:
        checkpoint = found.checkpoint
        assert {n: likeness(v) for n, v in checkpoint["channel_values"].items()} == self.model[
            checkpoint["id"]
        ]
        wanted = self.writes.get(checkpoint["id"], [])
        assert sorted((t, repr(likeness(v))) for t, _, v in found.pending_writes) == sorted(
            (t, repr(v)) for t, v in wanted
        )

    @initialize(messages=LISTS, facts=OBJECTS)
    def start(self, messages: list[Any], facts: dict[str, Any]) -> None:
        self._put(Loop(self.savers[0], config("t"), {"messages": messages, "state": {"facts": facts}}))

    @rule(target=loops, which=st.integers(0, 1))
    def load(self, which: int) -> Loop:
        found = self.savers[which].get_tuple(config("t"))
        assert found is not None
        assert found.checkpoint["id"] == self.head
        self._check(found)
        return Loop(self.savers[which], found.config, found.checkpoint["channel_values"])

    @rule(target=loops, which=st.integers(0, 1), data=st.data())
    def load_an_old_one(self, which: int, data: st.DataObject) -> Loop:
        old = data.draw(st.sampled_from(sorted(self.model)))
        found = self.savers[which].get_tuple(config("t", checkpoint_id=old))
        assert found is not None
        self._check(found)
        return Loop(self.savers[which], found.config, found.checkpoint["channel_values"])

    @rule(loop=loops, seed=SEEDS)
    def change_in_place(self, loop: Loop, seed: int) -> None:
        change(loop.live, random.Random(seed))

    @rule(loop=loops, other=loops)
    def share_objects(self, loop: Loop, other: Loop) -> None:
        """What one loop holds turns up in another's state."""
        loop.live["messages"] = [*_messages(other), HumanMessage("shared", id="s")]

    @rule(loop=loops, element=ELEMENTS, at=st.integers(0, 3))
    def edit(self, loop: Loop, element: Any, at: int) -> None:
        messages = _messages(loop)
        loop.live["messages"] = [*messages[:at], element, *messages[at + 1 :]]

    @precondition(lambda self: self.model)
    @rule(loop=loops)
    def put(self, loop: Loop) -> None:
        parent = loop.at["configurable"]["checkpoint_id"]
        if parent in self.model:
            self._put(loop)

    @rule(loop=loops)
    def put_writes(self, loop: Loop) -> None:
        parent = loop.at["configurable"]["checkpoint_id"]
        value = loop.live.get("messages")
        if parent not in self.model:
            return
        try:
            wanted = likeness(stock(value))
        except TypeError:
            return
        task = f"task{self.step}-{len(self.writes.get(parent, []))}"
        loop.saver.put_writes(loop.at, [("messages", value)], task)
        self.writes.setdefault(parent, []).append((task, wanted))

    @rule(which=st.integers(0, 1), keep=st.integers(1, 3))
    def prune(self, which: int, keep: int) -> None:
        self.savers[which].prune(["t"], keep_last=keep)
        newest = sorted(self.model)[-keep:]
        self.model = {name: v for name, v in self.model.items() if name in newest or name == self.head}
        left = {t.checkpoint["id"]: t for t in self.savers[which].list(config("t"))}
        assert set(left) == set(self.model)
        for name in list(self.writes):
            if name in left:
                kept = {task for task, _, _ in left[name].pending_writes or []}
                # Writes of a loop whose checkpoint was removed may go with it.
                self.writes[name] = [(task, v) for task, v in self.writes[name] if task in kept]

    @rule(loop=consumes(loops))
    def end(self, loop: Loop) -> None:
        """The loop's objects are let go; their identities may be taken by others."""

    @rule()
    def delete_and_start_again(self) -> None:
        """One process deletes the thread; the others do not know."""
        live = {"messages": [HumanMessage("again " * 30, id="1")], "state": {"text": "and again " * 30}}
        self.savers[1].delete_thread("t")
        self.model, self.writes = {}, {}
        self._put(Loop(self.savers[0], config("t"), live))

    @invariant()
    def a_stranger_reads_what_was_put(self) -> None:
        if self.head:
            found = self.db.checkpointer(allow=OWN).get_tuple(config("t"))
            assert found is not None
            assert found.checkpoint["id"] == self.head
            self._check(found)

    @rule()
    def list_all(self) -> None:
        found = list(self.savers[0].list(config("t")))
        assert {t.checkpoint["id"] for t in found} == set(self.model)
        for item in found:
            self._check(item)


class ThreadOnSqlite(Thread):
    driver = "sqlite"


TestThreadInMemory = Thread.TestCase
TestThreadInMemory.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
TestThreadOnSqlite = ThreadOnSqlite.TestCase
TestThreadOnSqlite.settings = settings(max_examples=12, stateful_step_count=20, deadline=None)
