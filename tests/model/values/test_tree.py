"""Values become chunks and come back; what changes little writes little."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import Corrupt
from perdure.model.values import refs
from perdure.model.values.chunks import CHUNK_MAX, Digester
from perdure.model.values.tree import (
    Builder,
    EncodedDict,
    EncodedList,
    Expansion,
    ListCuts,
    Payload,
    Snapshot,
    Tree,
)

DIGEST = Digester()
BODIES = st.one_of(
    st.binary(max_size=8), st.binary(min_size=60, max_size=90), st.sampled_from([b"", b"a", b"b"])
)
# A value as nested tuples: ("leaf", body), ("list", items), ("dict", pairs), ("snapshot", value).
LEAVES = st.tuples(st.just("leaf"), BODIES)


def wider(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.tuples(st.just("list"), st.lists(inner, max_size=30).map(tuple)),
        st.tuples(
            st.just("dict"),
            st.dictionaries(st.binary(max_size=40), inner, max_size=20).map(lambda d: tuple(d.items())),
        ),
        st.tuples(st.just("snapshot"), inner),
    )


VALUES = st.recursive(LEAVES, wider, max_leaves=120)


def build(builder: Builder, value: Any) -> bytes:
    kind, content = value
    if kind == "leaf":
        return builder.add_payload(refs.MSGPACK, content)
    if kind == "list":
        return builder.add_list([build(builder, item) for item in content])
    if kind == "dict":
        return builder.add_dict([(key, build(builder, item)) for key, item in content])
    return builder.add_snapshot(build(builder, content))


def as_value(tree: Tree) -> Any:
    if isinstance(tree, Payload):
        return ("leaf", tree.body)
    if isinstance(tree, EncodedList):
        return ("list", tuple(map(as_value, tree.items)))
    if isinstance(tree, EncodedDict):
        return ("dict", tuple((key, as_value(item)) for key, item in tree.items))
    return ("snapshot", as_value(tree.inner))


def expand(ref: bytes, store: dict[bytes, bytes], expansion: Expansion | None = None) -> Tree:
    """Expand in rounds, as a reader does; every round has to ask for something new."""
    expansion = expansion or Expansion()
    asked: set[bytes] = set()
    while (tree := expansion.try_expand(ref)) is None:
        wanted = expansion.take_missing()
        assert wanted - asked, "a round that asks for nothing new never ends"
        asked |= wanted
        expansion.feed({digest: store[digest] for digest in wanted})
    return tree


@given(VALUES)
def test_any_value_comes_back(value: Any) -> None:
    builder = Builder(DIGEST)
    assert as_value(expand(build(builder, value), builder.fresh)) == value


@given(VALUES, VALUES)
def test_equal_values_have_equal_references_and_others_have_others(left: Any, right: Any) -> None:
    one, two = build(Builder(DIGEST), left), build(Builder(DIGEST), right)
    assert build(Builder(DIGEST), left) == one
    assert (one == two) == (left == right)


@given(VALUES)
def test_what_is_stored_is_not_written_again(value: Any) -> None:
    first = Builder(DIGEST)
    ref = build(first, value)
    second = Builder(DIGEST, nodes=first.seen, stored=set(first.fresh))
    assert build(second, value) == ref
    assert second.fresh == {}


@given(VALUES)
def test_without_payloads_exactly_the_needed_digests_are_named(value: Any) -> None:
    builder = Builder(DIGEST)
    ref = build(builder, value)
    nodes_only = Expansion(payloads=False)
    while nodes_only.try_expand(ref) is None:
        nodes_only.feed({digest: builder.fresh[digest] for digest in nodes_only.take_missing()})
    full = Expansion()
    expand(ref, builder.fresh, full)
    assert nodes_only.used == full.used == set(builder.fresh)


@pytest.mark.parametrize("size", [0, 64, 65, CHUNK_MAX, CHUNK_MAX + 1, 3 * CHUNK_MAX, 20 * CHUNK_MAX + 7])
def test_no_chunk_is_larger_than_a_backend_takes(size: int) -> None:
    builder = Builder(DIGEST)
    body = random.Random(size).randbytes(size)
    ref = builder.add_payload(refs.MSGPACK, body)
    assert len(ref) <= refs.REF_MAX
    assert all(len(chunk) <= CHUNK_MAX for chunk in builder.fresh.values())
    assert expand(ref, builder.fresh) == Payload(refs.MSGPACK, body)


@given(VALUES, st.data())
def test_a_reference_cut_short_never_reads_as_another_value(value: Any, data: st.DataObject) -> None:
    builder = Builder(DIGEST)
    ref = build(builder, ("list", (value, ("leaf", b"end"))))
    short = ref[: data.draw(st.integers(0, len(ref) - 1))]
    with pytest.raises((Corrupt, KeyError)):  # KeyError: the store of this test has no such chunk
        expand(short, builder.fresh)


# What a change costs. n elements of one shape; the cost is the bytes of the chunks that are not stored yet.

Maker = Callable[[random.Random, int], bytes]


def distinct(rng: random.Random, place: int) -> bytes:
    return place.to_bytes(4, "big") + rng.randbytes(120)


def tiny(rng: random.Random, place: int) -> bytes:
    return place.to_bytes(3, "big")


def equal(rng: random.Random, place: int) -> bytes:
    return b"the same words again and again, long enough for a chunk of their own" * 2


def equal_and_tiny(rng: random.Random, place: int) -> bytes:
    return b"x"


def mixed(rng: random.Random, place: int) -> bytes:
    return rng.randbytes(rng.choice([1, 30, 64, 65, 400, 5000]))


SHAPES: list[Maker] = [distinct, tiny, equal, equal_and_tiny, mixed]
_LEAF = 3 * 4096  # a leaf is cut at 4 kB; an edit touches the one before it and the one after it


def allowance(n: int) -> int:
    """Leaves next to the change, and on each level above them an unfinished run of at most 64 digests."""
    levels = 1 + math.ceil(math.log(n + 1, 2))
    return _LEAF + levels * 64 * 16 // 2


def cost(stored: Builder, elements: list[bytes]) -> tuple[int, Builder]:
    """The bytes of fresh nodes (elements themselves aside) that the list needs, and its builder."""
    builder = Builder(DIGEST, stored=set(stored.stored) | set(stored.fresh))
    payloads = [builder.add_payload(refs.MSGPACK, body) for body in elements]
    own = set(builder.fresh)
    builder.add_list(payloads)
    return sum(len(body) for digest, body in builder.fresh.items() if digest not in own), builder


@pytest.mark.parametrize("n", [1, 10, 1000, 20_000])
@pytest.mark.parametrize("make", SHAPES)
def test_a_small_change_of_a_long_list_writes_little(make: Maker, n: int) -> None:
    rng = random.Random(n)
    elements = [make(rng, place) for place in range(n)]
    _, base = cost(Builder(DIGEST), elements)
    middle = n // 2
    for changed in (
        [*elements, make(rng, n + 1)],
        elements[1:],
        elements[n // 3 :],
        [*elements[:middle], make(rng, n + 2), *elements[middle + 1 :]],
        [*elements[:middle], make(rng, n + 3), *elements[middle:]],
        [*elements[:middle], *elements[middle + 1 :]],
    ):
        assert cost(base, changed)[0] <= allowance(n)


@pytest.mark.parametrize("make", [distinct, tiny, mixed])
def test_growing_one_by_one_writes_n_log_n_and_not_n_squared(make: Maker) -> None:
    rng = random.Random(7)
    n = 2000
    elements: list[bytes] = []
    builder = Builder(DIGEST)
    shape: ListCuts | None = None
    written = 0
    for place in range(n):
        before = len(elements)
        elements.append(builder.add_payload(refs.MSGPACK, make(rng, place)))
        builder = Builder(DIGEST, nodes=builder.seen, stored=builder.stored | set(builder.fresh))
        _, shape = builder.add_list_like(elements, shape, before)
        written += sum(map(len, builder.fresh.values()))
    assert written / n <= 64 * math.log2(n)


def test_huge_elements_do_not_swell_the_nodes() -> None:
    body = random.Random(3).randbytes(CHUNK_MAX + 1)
    elements = [place.to_bytes(4, "big") + body for place in range(40)]
    _, base = cost(Builder(DIGEST), elements)
    fresh, _ = cost(base, elements[1:])
    assert fresh <= allowance(40)


@settings(max_examples=60)
@given(st.data())
def test_a_list_cut_like_its_predecessor_is_cut_as_from_scratch(data: st.DataObject) -> None:
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    make = data.draw(st.sampled_from([*SHAPES, lambda r, p: bytes([r.randrange(3)])]))
    maker = Builder(DIGEST)

    def element() -> bytes:
        return maker.add_payload(refs.MSGPACK, make(rng, rng.randrange(10_000)))

    elements = [element() for _ in range(data.draw(st.integers(0, 700)))]
    ref, shape = maker.add_list_like(elements, None, 0)
    assert ref == Builder(DIGEST).add_list(elements)
    for _ in range(4):
        same = data.draw(st.integers(0, len(elements)))
        # What follows may be alike or not: `same` is a lower bound.
        rest = [element() for _ in range(data.draw(st.integers(0, 300)))]
        elements = elements[:same] + (elements[same + 1 :] if data.draw(st.booleans()) else rest)
        later = Builder(DIGEST, nodes=maker.nodes, stored=set(maker.fresh))
        ref, shape = later.add_list_like(elements, shape, same)
        scratch = Builder(DIGEST)
        assert ref == scratch.add_list(elements)
        assert later.seen.keys() <= scratch.seen.keys()
        assert shape == scratch.add_list_like(elements, None, 0)[1]
        maker.fresh.update(later.fresh)
        tree = expand(ref, maker.fresh)
        assert isinstance(tree, EncodedList)
        assert tree.refs == elements


def test_a_snapshot_is_not_its_value() -> None:
    builder = Builder(DIGEST)
    inner = builder.add_list([builder.add_payload(refs.MSGPACK, b"x")])
    assert isinstance(expand(builder.add_snapshot(inner), builder.fresh), Snapshot)
    assert isinstance(expand(inner, builder.fresh), EncodedList)
