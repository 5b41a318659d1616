"""References that change keys: the same value under other names, and a content digest that no key changes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.errors import Corrupt
from perdure.model.values import refs
from perdure.model.values.chunks import CHUNK_MAX, Digester
from perdure.model.values.joined_values import join_tree
from perdure.model.values.rekey import Named, ReferenceRenaming
from perdure.model.values.tree import Builder, Expansion

KEYS = [Digester(), Digester(b"a" * 32), Digester(b"b" * 32)]

leaves = st.binary(max_size=200).map(lambda body: (refs.MSGPACK, body)) | st.sampled_from(
    [(refs.NULL, b""), (refs.BYTES, b"x" * 100), (refs.BYTES, b"x" * 99), (refs.MSGPACK, b"\xc0")]
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=40)
        | st.dictionaries(st.binary(min_size=1, max_size=4), inner, max_size=30)
        | inner.map(lambda value: ("snapshot", value))
    ),
    max_leaves=60,
)


def build(builder: Builder, value: Any) -> bytes:
    if isinstance(value, list):
        return builder.add_list([build(builder, item) for item in value])
    if isinstance(value, dict):
        return builder.add_dict([(key, build(builder, item)) for key, item in value.items()])
    if value[0] == "snapshot":
        return builder.add_snapshot(build(builder, value[1]))
    return builder.add_payload(*value)


def read(ref: bytes, chunks: dict[bytes, bytes], digest: Digester) -> Any:
    expansion = Expansion()
    while (tree := expansion.try_expand(ref)) is None:
        expansion.feed({name: chunks[name] for name in expansion.take_missing()})
    return tree


def grafted(
    ref: bytes, chunks: dict[bytes, bytes], source: Digester, target: Digester
) -> tuple[Named, dict[bytes, bytes]]:
    """A reference at the target, with all the chunks that it has there."""
    graft = ReferenceRenaming(source, target)
    while not graft.explore(ref):
        graft.feed({name: chunks[name] for name in graft.take_missing()})
    out = {graft.arrive(name, chunks[name]): chunks[name] for name in graft.payloads}
    named = graft.rename(ref)
    assert graft.names == {*out, *graft.fresh}
    return named, {**out, **graft.fresh}


@settings(max_examples=60)
@given(values, st.sampled_from(KEYS), st.sampled_from(KEYS))
def test_a_value_is_the_same_under_another_key(value: Any, source: Digester, target: Digester) -> None:
    builder = Builder(source)
    ref = build(builder, value)
    named, chunks = grafted(ref, builder.fresh, source, target)
    assert all(target.matches_name(name, body) for name, body in chunks.items())
    assert read(named.name, chunks, target) == _renamed(
        read(ref, builder.fresh, source), named, chunks, target
    )
    native = Builder(target)
    there, _ = grafted(build(native, value), native.fresh, target, target)
    assert there.content == named.content
    back, _ = grafted(named.name, chunks, target, source)
    assert back.content == named.content


def _renamed(before: Any, named: Named, chunks: dict[bytes, bytes], target: Digester) -> Any:
    """What is to be read at the target: the same payloads in the same places."""
    after = read(named.name, chunks, target)
    assert _plain(after) == _plain(before)
    return after


def _plain(tree: Any) -> Any:
    kind = type(tree).__name__
    if kind == "Payload":
        return tree.type, tree.body
    if kind == "EncodedList":
        return [_plain(item) for item in tree.items]
    if kind == "EncodedDict":
        return [(key, _plain(item)) for key, item in tree.items]
    return "snapshot", _plain(tree.inner)


@given(values, values)
def test_content_digests_tell_values_apart(one: Any, other: Any) -> None:
    found = []
    for value in (one, other):
        builder = Builder(KEYS[0])
        found.append(grafted(build(builder, value), builder.fresh, KEYS[0], KEYS[0])[0].content)
    same = one == other and list(_order(one)) == list(_order(other))
    assert (found[0] == found[1]) == same


def _order(value: Any) -> Any:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _order(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _order(inner)
    elif value[0] == "snapshot":
        yield from _order(value[1])


@pytest.mark.parametrize("target", KEYS[1:])
def test_a_list_of_many_levels_and_a_value_of_many_pieces(target: Digester) -> None:
    items = [(refs.MSGPACK, b"\xc4\xc8" + n.to_bytes(4, "big") * 50) for n in range(5000)]
    large = (refs.BYTES, bytes(range(256)) * (CHUNK_MAX // 100))
    value = [{b"\xa1a": items, b"\xa1b": large}]
    builder = Builder(KEYS[0])
    ref = build(builder, value)
    named, chunks = grafted(ref, builder.fresh, KEYS[0], target)
    assert _plain(read(named.name, chunks, target)) == _plain(read(ref, builder.fresh, KEYS[0]))
    assert join_tree(read(named.name, chunks, target)) == join_tree(read(ref, builder.fresh, KEYS[0]))
    assert not set(chunks) & set(builder.fresh)


def test_without_another_key_nothing_is_renamed() -> None:
    items = [(refs.MSGPACK, b"\xc4\xc8" + n.to_bytes(4, "big") * 50) for n in range(500)]
    for source, target in ((KEYS[0], KEYS[0]), (KEYS[1], KEYS[1])):
        builder = Builder(source)
        ref = build(builder, [items, items[:300]])
        named, chunks = grafted(ref, builder.fresh, source, target)
        assert named.name == ref
        assert chunks == {name: body for name, body in builder.fresh.items() if name in chunks}


def test_what_is_not_what_its_name_says_is_refused() -> None:
    builder = Builder(KEYS[0])
    ref = build(builder, [(refs.MSGPACK, bytes([n]) * 100) for n in range(100)])
    graft = ReferenceRenaming(KEYS[0], KEYS[0])
    while not graft.explore(ref):
        graft.feed({name: builder.fresh[name] for name in graft.take_missing()})
    name = next(iter(graft.payloads))
    with pytest.raises(Corrupt, match=name.hex()):
        graft.arrive(name, builder.fresh[name] + b"x")
    with pytest.raises(Corrupt, match="does not hold"):
        graft.feed({name: b""})
    with pytest.raises(Corrupt, match="unknown tag"):
        graft.explore(b"\xff")
    with pytest.raises(Corrupt, match="empty"):
        graft.explore(b"")
