"""Where records are in a partition's item collection, and what one query reads of it.

Covers perdure.storage.dynamodb.places, perdure.storage.dynamodb.query_spans,
perdure.storage.dynamodb.reading.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.model.ops import Fetch, Get, Range
from perdure.model.records import BLOB, CHECKPOINT, CHUNK, HEAD, KINDS, PACK, TAG, WRITE, Key, Kind
from perdure.storage.dynamodb import places
from perdure.storage.dynamodb.driver import DynamoDriver
from perdure.storage.memory import MemoryDriver
from perdure.storage.url import open_driver as open_migrated
from perdure.testing.conformance import rows
from perdure.testing.conformance.rows import HERE
from tests.servers import dynamodb
from tests.servers.dynamodb_wire import watched

PARTS = {
    "text": st.text(alphabet="\x00\x01ab\u00ff", max_size=3),
    "bytes": st.binary(max_size=3) | st.sampled_from((b"\x00\x01", b"\xff", b"\xff\xff")),
    "integer": st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(-2, 2),
}
KEYED = [kind for kind in KINDS if kind.key]


@st.composite
def keys_of_a_kind(draw: Any) -> tuple[Kind, list[Key]]:
    kind = draw(st.sampled_from(KEYED))
    key = st.tuples(*(PARTS[column.kind] for column in kind.key))
    return kind, draw(st.lists(key, min_size=1, max_size=6))


@given(keys_of_a_kind())
def test_places_are_in_the_order_of_the_keys_and_tell_them(case: tuple[Kind, list[Key]]) -> None:
    kind, keys = case
    ordered = sorted(set(keys), key=lambda key: _comparable(key))
    found: list[Key] = []
    for start in places.find_place_prefixes(kind, ()):
        own = sorted(
            (place for key in ordered if (place := places.place_of(kind, key)).startswith(start)),
            reverse=places.is_mirrored(kind),
        )
        found += [places.record_at(place)[1] for place in own]
    assert found == ordered
    assert all(places.record_at(places.place_of(kind, key)) == (kind, key) for key in keys)


def _comparable(key: Key) -> tuple[Any, ...]:
    return tuple(part.encode() if isinstance(part, str) else part for part in key)


def test_every_kind_has_a_place_of_its_own() -> None:
    assert len({places.find_place_prefixes(kind, ()) for kind in KEYED}) == len(KEYED) - 1, (
        "checkpoints share theirs"
    )


# What one query reads


@pytest.fixture
def pair() -> Iterator[tuple[DynamoDriver, MemoryDriver]]:
    """The table, and a model of it."""
    with dynamodb.empty() as url:
        driver = open_migrated(url, migrate=True)
        assert isinstance(driver, DynamoDriver)
        yield driver, MemoryDriver()
        driver.close()


def name_of(number: int) -> bytes:
    return number.to_bytes(16, "big")


THREAD = [
    *(rows.checkpoint(f"c{n}", n) for n in range(9)),
    *(rows.write("task", index, at=f"c{n}") for n in range(9) for index in range(2)),
    *(rows.checkpoint(f"s{n}", n, namespace="sub") for n in range(3)),
    *(rows.write("task", 0, at=f"s{n}", namespace="sub") for n in range(3)),
    *(rows.chunk(name_of(n)) for n in range(5)),
    *(rows.pack(block, name_of(1)) for block in (-1, 0, 1, 300)),
    rows.head("sub"),
    rows.tag("t"),
]


def load_of(namespace: str, name: str, packs: int = 256) -> tuple[Get | Range, ...]:
    return (
        Get(HEAD, ("",)),
        Get(CHECKPOINT, (namespace, name)),
        Range(WRITE, (namespace, name)),
        Range(CHUNK, limit=1000),
        Range(PACK, reverse=True, limit=packs),
    )


@pytest.mark.parametrize(
    ("wanted", "queries", "why"),
    [
        (load_of("", "c8"), 1, "the latest checkpoint"),
        (load_of("", "c8")[1:3], 1, "a checkpoint and its writes"),
        (load_of("", "c8")[2:], 1, "writes without their checkpoint"),
        (load_of("", "c8")[2:] + load_of("", "c8")[2:3], 2, "the same writes twice"),
        ((*load_of("", "c8")[2:], Range(CHECKPOINT, ("", "c8"))), 1, "a checkpoint as a range"),
        (load_of("", "c3"), 2, "later checkpoints come between"),
        (load_of("sub", "s1"), 2, "the place of subgraphs is apart"),
        (load_of("", "c8", packs=2), 2, "of many packs only a few are wanted"),
        (load_of("", "a"), 2, "a checkpoint that is not there"),
        ((Range(CHUNK), Range(PACK, reverse=True)), 1, "chunks and packs without limits"),
        ((Range(CHUNK), Range(PACK)), 2, "packs from the oldest on"),
        ((Range(CHUNK, bodies=False), Range(PACK, reverse=True)), 2, "without bodies"),
        ((Range(CHUNK, limit=1000, after=(bytes(16),)), Range(PACK, reverse=True)), 2, "a later page"),
        ((Range(PACK, reverse=True), Range(BLOB)), 1, "nothing in the second"),
        ((Range(CHECKPOINT, ("",)), Range(WRITE, ("",)), Range(CHUNK)), 3, "a history"),
        ((Range(CHECKPOINT), Range(WRITE)), 4, "a history with its subgraphs"),
        ((Get(CHECKPOINT, ("", "c8")), Get(CHECKPOINT, ("", "c8")), Range(CHUNK)), 1, "the same twice"),
        ((Range(CHECKPOINT, ("", "c8")), Range(WRITE, ("", "c8")), Range(TAG)), 2, "one key as a range"),
    ],
)
def test_neighbours_are_read_by_one_query(
    pair: tuple[DynamoDriver, MemoryDriver], wanted: tuple[Get | Range, ...], queries: int, why: str
) -> None:
    for one in pair:
        rows.store_ops(one, *THREAD)
    driver, model = pair
    with watched(driver) as wire:
        answers = driver.perform(Fetch(HERE, wanted))
    for item, answer, right in zip(wanted, answers, model.perform(Fetch(HERE, wanted)), strict=True):
        assert answer == right, (why, item)
    assert wire.count()["Query"] == queries, why


def test_a_query_of_neighbours_ends_where_a_limit_is_reached(
    pair: tuple[DynamoDriver, MemoryDriver],
) -> None:
    for one in pair:
        for n in range(0, 300, 50):
            rows.store_ops(one, *(rows.chunk(name_of(n + k)) for k in range(50)))
            rows.store_ops(one, *(rows.pack(n + k, name_of(n)) for k in range(50)))
    wanted = (Range(CHUNK, limit=256), Range(PACK, reverse=True, limit=256))
    driver, model = pair
    assert driver.perform(Fetch(HERE, wanted)) == model.perform(Fetch(HERE, wanted))


def test_names_past_the_length_of_a_key_and_large_bodies_are_among_neighbours(
    pair: tuple[DynamoDriver, MemoryDriver],
) -> None:
    stem = "n" * 1100
    names = [stem + end for end in ("b", "a", "c")]
    for one in pair:
        for n, name in enumerate(names):
            rows.store_ops(one, rows.checkpoint(name, n, body=b"x" * 300_000))
        rows.store_ops(one, *(rows.write("task", index, at=name) for name in names for index in (1, 0)))
        rows.store_ops(one, rows.chunk(name_of(1)), rows.pack(4, name_of(1)))
    driver, model = pair
    for name in names:
        last = Range(WRITE, reverse=True, limit=2)
        wanted = (*load_of("", name)[1:], Range(WRITE), last, Range(CHECKPOINT))
        for item, answer, right in zip(
            wanted, driver.perform(Fetch(HERE, wanted)), model.perform(Fetch(HERE, wanted)), strict=True
        ):
            assert answer == right, item
