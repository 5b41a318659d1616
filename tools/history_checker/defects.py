"""Defects of the product: each takes a guard away in the process that applies it. The checker has to notice.

Those that the simulation has, too, are its own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

SIMULATED = ("no fence", "no run id", "no compare-and-set on the queue", "no outbox key", "no dedupe")
_STALE_S = 2.0


def apply(name: str) -> None:
    """Bring a defect into this process.

    Raises:
        KeyError: there is no such defect.
    """
    if name in SIMULATED:
        import pytest

        from tests.mutants.runtime import BREAKS

        (found,) = [each for each in BREAKS if each.name == name]
        found.apply(pytest.MonkeyPatch())
    else:
        OWN[name]()


def lose_last_message() -> None:
    """Of messages that make one run the last does not reach it."""
    from perdure.engine.queue import claims

    def take(messages: tuple[Any, ...]) -> tuple[Any, ...]:
        return messages[:-1] if len(messages) > 1 else messages

    _change_claimed(claims, take)


def reverse_inbox() -> None:
    """Messages that make one run reach it in the wrong order."""
    from perdure.engine.queue import claims

    _change_claimed(claims, lambda messages: messages[::-1])


def _change_claimed(claims: Any, change: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> None:
    whole = claims.Claim._plan

    def plan(self: Any, seen: Any) -> Any:
        found = whole(self, seen)
        if not isinstance(found, claims.PlannedClaim):
            return found
        return found._replace(held=found.held._replace(messages=change(found.held.messages)))

    claims.Claim._plan = plan


def answer_twice() -> None:
    """A question takes answers although one is on its way."""
    from perdure.engine.queue import questions

    whole = questions.find_open_question

    def look(partition: Any, lane: Any, read_asked: Any) -> Any:
        return (yield from whole(partition, lane._replace(run_id=None), read_asked))

    questions.find_open_question = look


def remember_items() -> None:
    """A process answers from memory for a while after it has read an item."""
    from langgraph.store.base import GetOp

    from perdure.langgraph.store import PerdureStore

    whole = PerdureStore.abatch
    known: dict[tuple[object, ...], tuple[float, Any]] = {}

    async def abatch(self: PerdureStore, ops: Any) -> Any:
        asked = list(ops)
        if len(asked) != 1 or not isinstance(asked[0], GetOp):
            return await whole(self, asked)
        place = (self._tenant, asked[0].namespace, asked[0].key)
        if place not in known or known[place][0] < time.monotonic():
            (found,) = await whole(self, asked)
            known[place] = (time.monotonic() + _STALE_S, found)
        return [known[place][1]]

    PerdureStore.abatch = abatch  # type: ignore[method-assign]


def exchange_always() -> None:
    """An item is written whatever it has become since it was read."""
    from perdure.langgraph.store import PerdureStore

    def put_if_unchanged(self: PerdureStore, puts: Any, seen: Mapping[str, Any]) -> bool:
        self.batch(puts)
        return True

    PerdureStore.put_if_unchanged = put_if_unchanged  # type: ignore[method-assign]


def overwrite_turns() -> None:
    """A turn of a history replaces what was added since it was read."""
    from perdure.engine import session_histories
    from perdure.model.ops import Commit, Expect

    def commit(partition: Any, ops: Any) -> Commit:
        return Commit(partition, tuple(op._replace(expect=Expect.ANY) for op in ops))

    vars(session_histories)["Commit"] = commit


def mix_tenants() -> None:
    """All users have the threads of one tenant."""
    from perdure.server.auth import handlers

    vars(handlers)["tenant_of"] = lambda claims, names: "all"


def take_failed_back() -> None:
    """What a failed run of a server has stored is removed."""
    from perdure.runtime.options import Options

    whole = Options.__post_init__

    def post_init(self: Options) -> None:
        object.__setattr__(self, "on_failure", "rollback")
        whole(self)

    Options.__post_init__ = post_init  # type: ignore[method-assign]


OWN: dict[str, Callable[[], None]] = {
    "lost last message": lose_last_message,
    "reordered inbox": reverse_inbox,
    "answer taken twice": answer_twice,
    "stale items": remember_items,
    "items exchanged whatever they are": exchange_always,
    "turns that overwrite": overwrite_turns,
    "tenants mixed": mix_tenants,
    "failed runs taken back": take_failed_back,
}
DEFECTS = (*SIMULATED, *OWN)
