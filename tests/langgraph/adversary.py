"""A thread that changes a state in place all the time, and a record of every state that there was.

Each change is one call into C, so that other threads see it done or not done. It is written down before it is
made: at any moment the state is what the record comes to, with or without its last entry.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

Change = Callable[[Any], object]
"""Makes one change in a state."""

BIG = "x" * 5000


def fresh_state() -> dict[str, Any]:
    return {
        "facts": {"deep": {"n": 0, "list": [1]}, "long": {"text": BIG, "n": 0}},
        "rows": [{"n": n, "in": {"list": [n]}} for n in range(4)] + [{"text": BIG, "in": {"n": 0}}],
        "messages": [message(f"m{n}", HumanMessage if n % 2 else AIMessage, long=n == 3) for n in range(5)],
    }


def message(name: str, kind: Any = HumanMessage, *, long: bool = False) -> Any:
    meta = {"tokens": {"n": 0, "of": [1]}, "long": {"text": BIG if long else ""}}
    return kind("hello", id=name, response_metadata=meta)


def _set(*path: Any, value: Any) -> Change:
    *way, last = path

    def change(state: Any) -> None:
        for step in way:
            state = state.__dict__[step] if isinstance(state, BaseMessage) else state[step]
        if isinstance(state, BaseMessage):
            state.__dict__[last] = value() if callable(value) else value
        else:
            state[last] = value() if callable(value) else value

    return change


def _call(*path: Any, name: str, args: tuple[Any, ...] = ()) -> Change:
    def change(state: Any) -> None:
        for step in path:
            state = state.__dict__[step] if isinstance(state, BaseMessage) else state[step]
        getattr(state, name)(*deepcopy(args))

    return change


def changes(rng: random.Random) -> Iterator[list[Change]]:
    """Groups of changes for ever, each to be made in this order. What is put in is made anew by each call."""
    number, of = 0, ("response_metadata", "tokens", "of")
    while True:
        number += 1
        n, row, name = number % 7, rng.randrange(4), f"k{rng.randrange(5)}"
        yield rng.choice(
            [
                [_set("facts", "deep", "n", value=n), _set("facts", "long", "n", value=n)],
                [_set("facts", name, value=lambda n=n: {"list": [n]})],
                [_set("facts", name, value=n), _call("facts", name="pop", args=(name, 0))],
                [_call("facts", "deep", "list", name="append", args=(n,))],
                [_call("facts", "deep", "list", name="clear")],
                [_set("rows", row, "n", value=n), _set("rows", 4, "in", "n", value=n)],
                [_set("rows", row, value=lambda n=n: {"n": n, "in": {"list": []}})],
                [_set("rows", row, name, value=n), _call("rows", row, name="popitem")],
                [
                    _call("rows", name="append", args=({"n": n, "in": {}},)),
                    _call("rows", name="pop"),
                ],
                [_call("rows", 4, "in", name="update", args=({name: [1]},))],
                [_call("rows", 4, "in", name="clear")],
                [_set("messages", row, "content", value=f"said {n}")],
                [_set("messages", row, "additional_kwargs", value=lambda n=n: {"n": n})],
                [_set("messages", row, "response_metadata", "tokens", "n", value=n)],
                [_call("messages", row, *of, name="append", args=(1,))],
                [_call("messages", row, *of, name="clear")],
                [_set("messages", row, "response_metadata", name, value=n),
                 _call("messages", row, "response_metadata", name="pop", args=(name, 0))],
                [_call("messages", row, "additional_kwargs", name="clear")],
                [
                    _call("messages", name="append", args=(message(f"new {n}"),)),
                    _call("messages", name="pop"),
                ],
            ]
        )  # fmt: skip


class Adversary:
    """Changes a state in another thread from ``start`` to ``stop``."""

    def __init__(self, rng: random.Random) -> None:
        self._source = changes(rng)
        self._made: list[Change] = []
        self._live: Any = None
        self._thread: threading.Thread | None = None
        self._is_over = False
        self.error: BaseException | None = None

    def start(self, live: Any) -> None:
        """Begin to change a state."""
        self._live, self._is_over, self._made = live, False, []
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    @property
    def at(self) -> int:
        """How many changes were written down since the start."""
        return len(self._made)

    def stop(self) -> list[Change]:
        """End; the changes since the start, in order."""
        self._is_over = True
        if self._thread is not None:
            self._thread.join()
        if self.error is not None:
            raise self.error
        return self._made

    def _work(self) -> None:
        made, live = self._made, self._live
        try:
            for number, group in enumerate(self._source):
                if self._is_over:
                    return
                for change in group:
                    made.append(change)
                    change(live)
                if number % 8 == 7:
                    time.sleep(0.0002 * (number % 64 == 63))
        except BaseException as error:
            self.error = error


def parts(channel: str, value: Any) -> list[Any]:
    """A channel's value in parts that are each as of one moment: plain data is one part. Messages are packed
    by their own code, one by one, and so is the list that they stand in."""
    if channel != "messages":
        return [value]
    return [[m.id for m in value], *map(said, value)]


def said(one: Any) -> Any:
    return (type(one), one.id, one.content, one.additional_kwargs, one.response_metadata)
