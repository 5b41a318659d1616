"""A store with an index under any sequence of operations, against LangGraph's own store in memory.

Two stores over one database, each with an index of its own as another process has it, take turns, blocking or
awaited, under a clock that is moved by hand. Equal scores may come in any order. What has no entry in the
index is not found by a query; the stock store adds such items behind the others, without a score.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from langgraph.store.base import Op, PutOp, Result, SearchItem, SearchOp
from langgraph.store.memory import InMemoryStore

from perdure.storage.encryption import DataKeys, Keyring
from perdure.testing.conformance import Backend
from perdure.testing.conformance.expiry import Hand
from perdure.testing.conformance.meaning import DIMS, WORDS, embed, new_index
from tests.backends import BACKENDS, fresh
from tests.conversation.histories import how_many
from tests.langgraph.test_store_model import Model

LABELS = st.sampled_from(["a", "b", "ab", "A", "a b", "é", "a/b"])
NAMESPACES = st.lists(LABELS, min_size=1, max_size=3).map(tuple)
PREFIXES = st.lists(LABELS, max_size=2).map(tuple)
KEYS = st.sampled_from(["k", "K", "l", "é", "k\0"])
# None is empty: the stock store indexes empty texts, too.
TEXTS = st.lists(st.sampled_from([*WORDS, "Tee", "茶", "🙂"]), min_size=1, max_size=4).map(" ".join)
PARTS = st.one_of(
    TEXTS, st.just(3), st.none(), st.lists(TEXTS, max_size=2), st.fixed_dictionaries({"x": TEXTS})
)
VALUES = st.fixed_dictionaries(
    {"n": st.integers(0, 2)},
    optional={"text": PARTS, "x": PARTS, "notes": st.lists(st.fixed_dictionaries({"x": TEXTS}), max_size=2)},
)
# Not "$", which the stock store takes for the name of a key in a put, and for the whole value in its fields.
PATHS = st.sampled_from([None, None, None, False, ["x"], ["text", "x"], ["notes[*].x"], ["notes[-1].x"]])
PUTS = st.builds(PutOp, NAMESPACES, KEYS, VALUES, PATHS, st.none() | st.just(1.0))
DELETES = st.builds(PutOp, NAMESPACES, KEYS, st.none(), st.none(), st.none())
SEARCHES = st.builds(
    SearchOp,
    PREFIXES,
    st.none() | st.fixed_dictionaries({"n": st.integers(0, 2)}),
    st.integers(0, 6),
    st.integers(0, 3),
    TEXTS,
    st.just(False),
)
WHOLE = 10_000


class Stock(InMemoryStore):
    """The stock store. A put replaces all vectors of an item, not only those of the paths that it names.

    A text may occur more than once in a batch, which the original refuses.
    """

    __slots__ = ()

    def _insertinmem_store(self, to_embed: dict[str, list[Any]], embeddings: list[list[float]]) -> None:
        pairs = zip(to_embed.values(), embeddings, strict=True)
        super()._insertinmem_store(to_embed, [vector for places, vector in pairs for _ in places])

    def batch(self, ops: Iterable[Op]) -> list[Result]:
        ops = list(ops)
        places = dict.fromkeys((op.namespace, op.key) for op in ops if isinstance(op, PutOp))
        super().batch([PutOp(*place, None) for place in places])
        return super().batch(ops)


class IndexedModel(Model):
    """The stock store with an index, and an end for items."""

    def __init__(self, clock: Hand) -> None:
        super().__init__(clock)
        self.store = Stock(index={"dims": DIMS, "embed": embed, "fields": ["text"]})

    def _read(self, op: Op) -> Any:
        if not isinstance(op, SearchOp) or op.query is None:
            return super()._read(op)
        answers: list[Any] = self.store.batch([op._replace(limit=WHOLE, offset=0)])
        return [item for item in answers[0] if item.score is not None]


def place(item: SearchItem) -> tuple[Any, ...]:
    return item.namespace, item.key


def check(op: SearchOp, page: list[SearchItem], whole: list[SearchItem]) -> None:
    """Fail unless a page of a search has the items that it should of all that are found, best first."""
    scores = {place(item): item.score for item in whole}
    assert len({place(item) for item in page}) == len(page)
    for item in page:
        assert abs(scores[place(item)] - item.score) < 1e-4, (item, scores)  # type: ignore[operator]
    best = sorted(scores.values(), reverse=True)[op.offset : op.offset + op.limit]  # type: ignore[type-var]
    assert len(page) == len(best)
    assert all(abs(item.score - score) < 1e-4 for item, score in zip(page, best, strict=True))  # type: ignore[operator]
    values = {place(item): item.value for item in whole}
    assert all(values[place(item)] == item.value for item in page)


class IndexedStores(RuleBasedStateMachine):
    backend = "memory"
    keyring: Keyring | None = None

    @initialize()
    def open(self) -> None:
        self.stack = ExitStack()
        driver = self.stack.enter_context(fresh(self.backend))
        self.clock = Hand()
        backend = Backend(driver, self.keyring)
        self.stores = [backend.store(clock=self.clock, index=new_index()) for _ in range(2)]
        self.stores[1]._clock = self.stores[0]._clock
        self.model = IndexedModel(self.clock)

    def teardown(self) -> None:
        if hasattr(self, "stack"):
            self.stack.close()

    def _compare(self, ops: list[Op], which: int, awaited: bool = False) -> None:
        store = self.stores[which]
        wanted = self.model.batch(ops)
        found = asyncio.run(store.abatch(ops)) if awaited else store.batch(ops)
        for op, page, whole in zip(ops, found, wanted, strict=True):
            if isinstance(op, SearchOp):
                check(op, page, whole)  # type: ignore[arg-type]

    @rule(
        ops=st.lists(PUTS | DELETES | SEARCHES, min_size=1, max_size=6),
        which=st.integers(0, 1),
        awaited=st.booleans(),
    )
    def several(self, ops: list[Op], which: int, awaited: bool) -> None:
        self._compare(ops, which, awaited)

    @rule(ops=st.lists(PUTS, min_size=3, max_size=9), which=st.integers(0, 1))
    def fill(self, ops: list[Op], which: int) -> None:
        self._compare(ops, which)

    @rule(minutes=st.sampled_from([0.45, 1.1]))
    def wait(self, minutes: float) -> None:
        self.clock.forward(minutes)

    @rule(which=st.integers(0, 1))
    def sweep(self, which: int) -> None:
        self.stores[which].sweep_ttl()

    @rule(which=st.integers(0, 1))
    def restart(self, which: int) -> None:
        """Another process, which has read nothing yet."""
        clock = self.stores[which]._clock
        driver = self.stores[which]._driver
        self.stores[which] = type(self.stores[which])(driver, clock=clock, index=new_index())

    @invariant()
    def both_find_the_same(self) -> None:
        if hasattr(self, "stores"):
            for which in range(2):
                self._compare([SearchOp((), None, WHOLE, 0, "green tea", False)], which)


def machine(backend: str, sealed: bool) -> Any:
    keyring = Keyring(DataKeys.create(0)) if sealed else None
    kind: Any = type(f"Indexed_{backend}", (IndexedStores,), {"backend": backend, "keyring": keyring})
    test = kind.TestCase
    few, full = {"memory": (30, 1_000), "sqlite": (10, 200)}.get(backend, (3, 40))
    test.settings = settings(
        max_examples=how_many(few, full if not sealed else full // 4),
        stateful_step_count=20 if backend in ("memory", "sqlite") else 10,
        deadline=None,
    )
    return test


for _backend, _sealed in (*((b, False) for b in BACKENDS), ("memory", True)):
    _case = machine(_backend, _sealed)
    _case.__name__ = _case.__qualname__ = f"TestIndexed_{_backend}{'_sealed' if _sealed else ''}"
    globals()[_case.__name__] = _case if _backend in ("memory", "sqlite") else pytest.mark.slow(_case)
del _case
