"""The store under any sequence of operations, against LangGraph's own store in memory.

Two stores over one database take turns, blocking or awaited in a loop of their own, under a clock that is
moved by hand. Where the stock store has no answer, the model adds one: items end, those written last are
found first, as in the stock stores of databases, and a namespace without items is not listed.
"""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from langgraph.store.base import GetOp, ListNamespacesOp, MatchCondition, Op, PutOp, SearchItem, SearchOp
from langgraph.store.memory import InMemoryStore

from perdure.model.store_items import MINUTE
from perdure.storage.encryption import DataKeys, Keyring
from perdure.testing.conformance import Backend
from perdure.testing.conformance.expiry import Hand
from tests.backends import BACKENDS, fresh

Namespace = tuple[str, ...]

LABELS = st.sampled_from(["a", "b", "ab", "a b", "A", "a\x01", "\x02", "é", "*", "a/b"])
NAMESPACES = st.lists(LABELS, min_size=1, max_size=3).map(tuple)
PREFIXES = st.lists(LABELS, max_size=2).map(tuple)
KEYS = st.sampled_from(["k", "K", "k\0", "l", "", "é"])
NUMBERS = st.sampled_from([0, 1, 2, 2.5, -1])
PARTS = st.sampled_from(
    [
        None,
        True,
        0,
        1,
        10,
        1.0,
        -0.0,
        "x",
        "",
        'a"b\\',
        "1",
        [1, 2],
        [],
        {"e": 1},
        {"p": "x"},
        {"e": {"f": "x"}},
    ]
)
VALUES = st.fixed_dictionaries({"n": NUMBERS}, optional={"p": PARTS, "q": PARTS})
FILTERS = st.none() | st.fixed_dictionaries(
    {},
    optional={
        "n": NUMBERS
        | st.dictionaries(
            st.sampled_from(["$eq", "$ne", "$gt", "$gte", "$lt", "$lte"]),
            NUMBERS | st.sampled_from([float("inf"), float("-inf"), 1.0, True, -0.0]),
            min_size=1,
            max_size=2,
        ),
        "p": PARTS
        | st.sampled_from([1.0, False, -0.0, 10])
        | st.fixed_dictionaries({"$ne": PARTS})
        | st.just({"e": {"$eq": 1}}),
    },
)
MINUTES = st.none() | st.sampled_from([1.0, 3.0])

GETS = st.builds(GetOp, NAMESPACES, KEYS, st.booleans())
PUTS = st.builds(PutOp, NAMESPACES, KEYS, VALUES, st.none(), MINUTES)
DELETES = st.builds(PutOp, NAMESPACES, KEYS, st.none(), st.none(), st.none())
SEARCHES = st.builds(
    SearchOp, PREFIXES, FILTERS, st.integers(0, 6), st.integers(0, 3), st.none(), st.booleans()
)
CONDITIONS = st.builds(MatchCondition, st.sampled_from(["prefix", "suffix"]), NAMESPACES)
LISTINGS = st.builds(
    ListNamespacesOp,
    st.lists(CONDITIONS, max_size=2).map(tuple),
    st.none() | st.integers(1, 3),
    st.integers(0, 5),
    st.integers(0, 2),
)


class Model:
    """The stock store, with an end for items and an order by their last write."""

    def __init__(self, clock: Hand) -> None:
        self.clock = clock
        self.store = InMemoryStore()
        self.ends: dict[tuple[Namespace, str], tuple[float, int]] = {}
        self.written: dict[tuple[Namespace, str], int] = {}

    def batch(self, ops: list[Op]) -> list[Any]:
        for (namespace, key), (_, end) in list(self.ends.items()):
            if end <= self.clock():
                self.store.delete(namespace, key)
                del self.ends[namespace, key]
        written = {(op.namespace, op.key): op for op in ops if isinstance(op, PutOp)}
        answers = [self._read(op) for op in ops]
        self.store.batch([op for op in ops if isinstance(op, PutOp)])
        for place, op in written.items():
            self.written[place] = len(self.written) + max(self.written.values(), default=0) + 1
            self.ends.pop(place, None)
            if op.value is not None and op.ttl is not None:
                self.ends[place] = (op.ttl, self._end(op.ttl))
        return answers

    def _read(self, op: Op) -> Any:
        if isinstance(op, PutOp):
            return None
        if isinstance(op, ListNamespacesOp):
            return self._living().batch([op])[0]
        if isinstance(op, GetOp):
            found = self.store.batch([op])[0]
            self._touch([found] if found and op.refresh_ttl else [])
            return found
        answers: list[Any] = self.store.batch([op._replace(limit=10**6, offset=0)])
        whole = answers[0]
        whole.sort(key=lambda item: self.written[item.namespace, item.key], reverse=True)
        page = whole[op.offset : op.offset + op.limit]
        self._touch(page if op.refresh_ttl else [])
        return page

    def _touch(self, items: list[Any]) -> None:
        for item in items:
            place = (item.namespace, item.key)
            if place in self.ends:
                ttl, _ = self.ends[place]
                self.ends[place] = (ttl, self._end(ttl))

    def _end(self, ttl: float) -> int:
        return self.clock() + round(ttl * MINUTE)

    def _living(self) -> InMemoryStore:
        out = InMemoryStore()
        for namespace, items in self.store._data.items():
            for key in items:
                out.put(("kept",), key, {}) if not namespace else out.batch([PutOp(namespace, key, {})])
        return out


def seen(answer: Any) -> Any:
    """An answer without its times, which the two stores keep differently."""
    if isinstance(answer, list):
        return [seen(part) for part in answer]
    if hasattr(answer, "value"):
        score = ("score", answer.score) if isinstance(answer, SearchItem) else None
        return type(answer), answer.namespace, answer.key, answer.value, score
    return answer


class Stores(RuleBasedStateMachine):
    backend = "memory"
    keyring: Keyring | None = None

    @initialize()
    def open(self) -> None:
        self.stack = ExitStack()
        driver = self.stack.enter_context(fresh(self.backend))
        # Time stands still between moves, but writes are told apart.
        self.clock = Hand()
        self.stores = [Backend(driver, self.keyring).store(clock=self.clock) for _ in range(2)]
        # One clock: what is written by either comes after what the other wrote.
        self.stores[1]._clock = self.stores[0]._clock
        self.model = Model(self.clock)

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.stack.close()

    def _compare(self, ops: list[Op], which: int, awaited: bool) -> None:
        store = self.stores[which]
        wanted = self.model.batch(ops)
        found = asyncio.run(store.abatch(ops)) if awaited else store.batch(ops)
        assert seen(found) == seen(wanted)

    @rule(op=PUTS | GETS | DELETES | SEARCHES | LISTINGS, which=st.integers(0, 1), awaited=st.booleans())
    def one(self, op: Op, which: int, awaited: bool) -> None:
        self._compare([op], which, awaited)

    @rule(ops=st.lists(PUTS, min_size=3, max_size=9), which=st.integers(0, 1))
    def fill(self, ops: list[Op], which: int) -> None:
        self._compare(ops, which, False)

    @rule(
        ops=st.lists(PUTS | GETS | DELETES | SEARCHES | LISTINGS, max_size=8),
        which=st.integers(0, 1),
        awaited=st.booleans(),
    )
    def many(self, ops: list[Op], which: int, awaited: bool) -> None:
        self._compare(ops, which, awaited)

    @rule(minutes=st.sampled_from([0.45, 1.1, 2.7]))
    def wait(self, minutes: float) -> None:
        # Never just at an end: a write's time is some microseconds ahead of a clock that stands.
        self.clock.forward(minutes)

    @rule(which=st.integers(0, 1))
    def sweep(self, which: int) -> None:
        self.stores[which].sweep_ttl()

    @invariant()
    def the_whole_is_the_same(self) -> None:
        if hasattr(self, "stores"):
            every = SearchOp((), None, 10**6, 0, None, False)
            self._compare([every, ListNamespacesOp(limit=10**6)], 0, False)


def machine(backend: str, sealed: bool) -> Any:
    name = f"{backend}{'_sealed' if sealed else ''}"
    keyring = Keyring(DataKeys.create(0)) if sealed else None
    kind: Any = type(f"Stores_{name}", (Stores,), {"backend": backend, "keyring": keyring})
    local = backend in ("memory", "sqlite")
    test = kind.TestCase
    test.settings = settings(
        max_examples=4 if not local else 15 if sealed or backend == "sqlite" else 50,
        stateful_step_count=25 if local else 10,
        deadline=None,
    )
    return test


for _backend, _sealed in (*((b, False) for b in BACKENDS), ("memory", True)):
    _case = machine(_backend, _sealed)
    _case.__name__ = _case.__qualname__ = f"TestStores_{_backend}{'_sealed' if _sealed else ''}"
    globals()[_case.__name__] = _case
del _case
