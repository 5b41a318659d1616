"""Whatever two processes do at once with items of the store comes out as one after the other: puts,
deletions, searches, expiry and its postponement, with an index and without.

Covers perdure.engine.items.nearest_items.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

import pytest
from langgraph.store.base import GetOp, Item, Op, PutOp

from perdure.database.opening import make_database
from perdure.imports.importer import ImportOptions
from perdure.imports.items import ItemImporter
from perdure.imports.source import SourceItem
from perdure.langgraph.search.index import SearchIndex
from perdure.langgraph.store import Clock, PerdureStore
from perdure.model.ops import Fetch, Range
from perdure.model.program import ask
from perdure.model.records import ITEM
from perdure.model.store_items import MINUTE, partition_of
from perdure.storage.port import Driver, WrappingDriver
from tests.interleavings.explorer import Case, World, check

R = TypeVar("R")
HOME, OTHER = ("users", "ada"), ("users", "eve")
START = 4_000_000_000_000_000
"""Far in the future, so that no backend removes an item by itself."""
TTL = 10


class Plain(WrappingDriver):
    """A driver that reads what it keeps of an item that is put again, as some backends do."""

    def __init__(self, inner: Driver) -> None:
        super().__init__(inner)
        self.capabilities = replace(self.capabilities, keeps_fields=False)

    def perform(self, effect: Any) -> Any:
        return self._inner.perform(effect)

    async def aperform(self, effect: Any) -> Any:
        return await self._inner.aperform(effect)


def embed(texts: list[str]) -> list[list[float]]:
    return [[1.0, float(len(text))] for text in texts]


class Items(World):
    """A tenant's store. Each operation has a store of its own, as another process, and a time of its own."""

    has_index = False
    is_plain = False

    def store(self, minutes: float = 0) -> PerdureStore:
        index = SearchIndex({"dims": 2, "embed": embed, "fields": ["text"]}) if self.has_index else None
        time = START + round(minutes * MINUTE)
        driver = Plain(self.driver) if self.is_plain else self.driver
        return PerdureStore(driver, tenant=self.tenant, clock=Clock(lambda: time), index=index)


class Indexed(Items):
    has_index = True


def value(item: Item | None) -> Any:
    return None if item is None else (item.key, item.value, item.created_at, item.updated_at)


def read(world: Items) -> Any:
    seen: list[Any] = []
    for labels in (HOME, OTHER):
        (records,) = world.run(ask(Fetch(partition_of(world.tenant, labels), (Range(ITEM),))))
        seen += [(record.key, dict(record.fields), record.body) for record in records]
    store = world.store(5)
    found = store.search(("users",), query="a text", refresh_ttl=False) if world.has_index else []
    return seen, sorted((item.namespace, item.key, item.score) for item in found), store.list_namespaces()


def put(minutes: float, key: str, text: str, ttl: float | None = None) -> Callable[[Items], None]:
    return lambda w: w.store(minutes).put(HOME, key, {"text": text}, ttl=ttl)


def put_together(world: Items) -> None:
    puts: list[Op] = [PutOp(HOME, key, {"text": "together"}, None, None) for key in ("a", "b", "c")]
    world.store(1.5).batch(puts)


def put_and_delete(world: Items) -> None:
    world.store(1.6).batch([PutOp(HOME, "c", {"text": "swapped"}, None, None), PutOp(HOME, "a", None, None)])


def put_if_unchanged(world: Items) -> bool:
    op = PutOp(HOME, "a", {"text": "checked"}, None, None)
    return world.store(1.7).put_if_unchanged([op], {"a": {"text": "first"}, "b": None})


def delete(world: Items) -> None:
    world.store(1.8).delete(HOME, "a")


def put_after(act: Callable[[Items], Any], world: Items) -> Any:
    done = act(world)
    put(TTL + 2, "a", "two")(world)
    return done


def bring(minutes: float, world: Items) -> int:
    """Import two items of a time from another store."""
    time = START + round(minutes * MINUTE)
    items = [SourceItem(HOME, key, {"text": f"imported {key}"}, time, time) for key in ("a", "c")]
    options = ImportOptions(tenant=world.tenant)
    now = START + 5 * MINUTE
    return ItemImporter(make_database(world.driver, tenant=world.tenant), options, now).run(items).written


def search_again(world: Items) -> Any:
    """Return what a process finds that has searched before and knows the index."""
    store = world.store(4)
    store.search(("users",), query="a text")
    return sorted(((value(item), item.score) for item in store.search(("users",), query="a text")), key=repr)


def get_both(world: Items) -> Any:
    return [value(item) for item in world.store(4).batch([GetOp(HOME, "a"), GetOp(HOME, "b")])]  # type: ignore[arg-type]


def found(world: Items, **options: Any) -> Any:
    items = world.store(4).search(("users",), **options)
    return sorted(((value(item), item.score) for item in items), key=repr)


OPERATIONS: Mapping[str, Callable[[Items], Any]] = {
    "put": put(1, "a", "one"),
    "put otherwise": put(2, "a", "two"),
    "put for a while": put(3, "a", "three", TTL),
    "put another": put(1.2, "b", "another"),
    "put together": put_together,
    "put and delete": put_and_delete,
    "put if unchanged": put_if_unchanged,
    "import": partial(bring, 1.3),
    "import what came later": partial(bring, 3.5),
    "delete": delete,
    "put elsewhere": lambda w: w.store(1.9).put(OTHER, "a", {"text": "elsewhere"}),
    "get": lambda w: value(w.store(4).get(HOME, "a")),
    "get as it expires": lambda w: value(w.store(TTL + 0.5).get(HOME, "a")),
    "get both": get_both,
    "search": found,
    "search by value": lambda w: found(w, filter={"text": "first"}),
    "list": lambda w: w.store(4).list_namespaces(),
    "sweep": lambda w: w.store(TTL + 1).sweep_ttl(),
}
READERS = ("get", "get both", "search", "search by value", "search by meaning", "search by meaning again")
EXCUSED: Mapping[tuple[str, str], str] = {
    (reader, sweep): "a reader that is too late to postpone the expiry of an item has read it all the same"
    for reader in READERS
    for sweep in ("sweep", "sweep and put")
}
BY_MEANING: Mapping[str, Callable[[Items], Any]] = {
    **OPERATIONS,
    "search by meaning": lambda w: found(w, query="a text"),
    "search by meaning again": search_again,
    "put without an entry": lambda w: w.store(2.2).put(HOME, "a", {"text": "unindexed"}, index=False),
}
SEQUENCES: Mapping[str, Callable[[Items], Any]] = {
    "delete and put": lambda w: put_after(delete, w),
    "put twice": lambda w: (put(2, "a", "two")(w), put(2.1, "a", "three")(w)),
    "put and take back": lambda w: (put(2, "a", "two")(w), put(2.1, "a", "first")(w)),
    "sweep and put": lambda w: put_after(lambda world: world.store(TTL + 1).sweep_ttl(), w),
}


def with_items(kind: type[Items], *items: tuple[str, str, float | None]) -> Callable[[Driver], Items]:
    def new(driver: Driver) -> Items:
        world = kind(driver)
        for key, text, ttl in items:
            put(0, key, text, ttl)(world)
        return world

    return new


def plain(new: Callable[[Driver], Items]) -> Callable[[Driver], Items]:
    """Return a set-up in which the database keeps no fields by itself."""

    def new_plain(driver: Driver) -> Items:
        world = new(driver)
        world.is_plain = True
        return world

    return new_plain


def _cases() -> Iterator[tuple[str, Case[Items]]]:
    items = {
        "nothing": (),
        "an item": (("a", "first", None),),
        "two items": (("a", "first", None), ("b", "second", None)),
        "an item that expires": (("a", "first", TTL), ("b", "second", TTL)),
    }
    for name, stored in items.items():
        unindexed, indexed = with_items(Items, *stored), with_items(Indexed, *stored)
        yield name, Case(unindexed, OPERATIONS, read, EXCUSED, SEQUENCES)
        yield f"{name}, read first", Case(plain(unindexed), OPERATIONS, read, EXCUSED, SEQUENCES)
        yield f"{name}, indexed", Case(indexed, BY_MEANING, read, EXCUSED, SEQUENCES)
        yield f"{name}, indexed, read first", Case(plain(indexed), BY_MEANING, read, EXCUSED, SEQUENCES)


CASES = dict(_cases())
QUICK = 60
"""Pairs of a set-up that are explored in the quick run."""


@pytest.mark.parametrize("setting", CASES)
def test_some_pairs_come_out_as_one_after_the_other(setting: str) -> None:
    check(setting, CASES[setting], size=QUICK)


@pytest.mark.slow
@pytest.mark.parametrize("setting", CASES)
def test_all_pairs_come_out_as_one_after_the_other(setting: str) -> None:
    check(setting, CASES[setting])


@pytest.mark.slow
@pytest.mark.parametrize("setting", [name for name in CASES if "read first" not in name])
def test_some_pairs_come_out_as_one_after_the_other_in_a_database(setting: str, stored: Driver) -> None:
    check(setting, CASES[setting], stored, size=QUICK)
