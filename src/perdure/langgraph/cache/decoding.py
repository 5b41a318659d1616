"""Builds channel values from what was read or is cached; no two owners of a value share anything mutable."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain, count
from typing import Any

from perdure.langgraph.cache.change_tracking import Template
from perdure.langgraph.cache.thread_cache import (
    Elements,
    KnownValue,
    LastLoad,
    ThreadCache,
)
from perdure.langgraph.values.serde import Serde
from perdure.model.values import refs
from perdure.model.values.joined_values import (
    join_tree,
    pack_array_header,
    pack_tree,
)
from perdure.model.values.tree import EncodedList, Expansion, Tree


def decode_into_cache(
    serde: Serde,
    cache: ThreadCache,
    namespace: str,
    trees: Mapping[str, Tree],
    expansion: Expansion,
    references: Mapping[str, bytes],
    *,
    generation: int,
    root: str | None,
    are_roots: bool,
) -> dict[str, Any]:
    """Return the values of trees that were read, and remember them for the next load and put.

    Args:
        serde: Unpacks the values.
        cache: The thread's cache.
        namespace: The namespace of the checkpoint.
        trees: The values that were read, by channel.
        expansion: The chunks and nodes that were read for them.
        references: The references of the checkpoint, by channel.
        generation: The thread's collection generation.
        root: The head of the thread's root.
        are_roots: True if all that was read belongs to that head.
    """
    out: dict[str, Any] = {}
    known = cache.enter(generation, root)
    # The chunks of the root's head exist if the head does; pending writes and subgraphs come after it.
    (known.stored if are_roots else known.recent).update(expansion.places)
    known.nodes.update(expansion.nodes)
    known.note_end()
    for channel, tree in trees.items():
        slot = (namespace, channel)
        if isinstance(tree, EncodedList):
            bodies = [pack_tree(item) for item in tree.items]
            elements = Elements(tree.refs, list(map(len, bodies)), 0, bodies, None, None)
            out[channel], held = _build_list(serde, elements, references[channel], generation)
        else:
            payload = join_tree(tree)
            held = KnownValue(references[channel], generation, payload=payload)
            out[channel] = serde.value(*payload)
        cache.hold({slot: held})
    return out


def recall(serde: Serde, held: KnownValue, generation: int) -> tuple[Any, KnownValue]:
    """Return a cached value for a new owner, and the record that replaces ``held`` in the cache.

    Args:
        serde: Unpacks the value.
        held: The value as it is cached.
        generation: The collection generation of the load.
    """
    if held.elements is not None:
        # Loading it proves that its chunks are stored in the generation of the load.
        return _build_list(serde, held.elements, held.ref, generation)
    payload = held.payload or (refs.NULL, b"")
    return serde.value(*payload), held


def _build_list(
    serde: Serde, elements: Elements, ref: bytes, generation: int
) -> tuple[list[Any], KnownValue]:
    """Build a list for a new owner, which shares nothing mutable with any other."""
    sources, earlier = elements.sources, elements.last_load
    new = iter(_unpack(serde, [source for source in sources if isinstance(source, bytes)]))
    template, opaque, start = Template(), dict[int, bytes](), 0
    if earlier is not None and elements.kept == len(earlier.refs):
        template, opaque, start = earlier.template, earlier.opaque.copy(), elements.kept
    fresh: dict[int, Any] = {}
    rest: list[Any] = []
    for place, source in enumerate(chain(range(start, elements.kept), sources), start):
        if isinstance(source, bytes):
            opaque[place] = source
            fresh[place] = next(new)
            rest.append(fresh[place])
        elif earlier is not None:
            rest.append(earlier.template.values[source])

    def make(place: int) -> Any:
        if place in fresh:
            return fresh[place]
        return serde.unpack(opaque[place])

    template = template.extend(rest)
    values, watch = template.make_copies(make)
    if earlier is not None:
        # Dropping the old watch frees as many objects as were made, both while the collector pauses, so it
        # need not run afterwards.
        earlier = elements.last_load = earlier._replace(watch=None)
    bodies = {place: opaque[place] for place in template.opaque}
    last_load = LastLoad(template, bodies, watch, elements.refs, elements.sizes, elements.weight)
    new_elements = Elements(elements.refs, elements.sizes, len(elements.refs), (), elements.shape, last_load)
    return values, KnownValue(ref, generation, new_elements)


def _unpack(serde: Serde, bodies: list[bytes]) -> list[Any]:
    """Decode packed values in one call."""
    if bodies:
        values: list[Any] = serde.unpack(pack_array_header(len(bodies)) + b"".join(bodies))
    else:
        values = []
    return values


class ListingDecoder:
    """Decoded elements shared by the checkpoints of one listing: each is decoded once and copied out.

    Lists that have most of their elements in common are copied from one template: making a template costs
    more than the copies.
    """

    def __init__(self, serde: Serde) -> None:
        self._serde = serde
        self._elements: dict[bytes, tuple[Any, bytes]] = {}
        self._template = Template()
        self._places: dict[bytes, int] = {}

    def value(self, tree: Tree) -> Any:
        """Return the value of a tree, which shares nothing mutable with other values."""
        if not isinstance(tree, EncodedList):
            return self._serde.value(*join_tree(tree))
        known = self._elements
        new = {
            ref: pack_tree(item) for ref, item in zip(tree.refs, tree.items, strict=True) if ref not in known
        }
        decoded = _unpack(self._serde, list(new.values()))
        known.update(zip(new, zip(decoded, new.values(), strict=True), strict=True))
        missing = [ref for ref in dict.fromkeys(tree.refs) if ref not in self._places]
        is_shared = len(self._places) + len(missing) <= 2 * len(tree.refs)
        if not is_shared or len(set(tree.refs)) < len(tree.refs):
            # The list has little in common with the others, or has an element twice, which must be two
            # objects.
            return self._copy(Template().extend(known[ref][0] for ref in tree.refs), tree.refs)
        if missing:
            self._template = self._template.extend(known[ref][0] for ref in missing)
            self._places.update(zip(missing, count(len(self._places))))
        copies = self._copy(self._template, list(self._places))
        return [copies[self._places[ref]] for ref in tree.refs]

    def _copy(self, template: Template, names: Sequence[bytes]) -> list[Any]:
        known = self._elements
        return template.make_copies(lambda at: self._serde.unpack(known[names[at]][1]), is_watched=False)[0]
