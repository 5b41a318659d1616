"""The values of DeltaChannels at a checkpoint, without their graph: the last stored value and its updates.

A DeltaChannel is stored in full only from time to time. Updates in between are combined by the rules that the
reducers of LangGraph and deepagents share: a message with the same id is replaced or removed, other items of
lists are appended, and dicts are merged, where None removes a key. A channel with updates of another form
is left out: only its reducer knows their result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import ormsgpack

from perdure.engine.threads import history
from perdure.engine.threads.chunk_reads import resolve
from perdure.langgraph.reading.plain_serde import PlainSerde
from perdure.model.checkpoint import CheckpointRecord
from perdure.model.program import Program
from perdure.model.records import Partition
from perdure.model.values import refs
from perdure.model.values.chunks import Digester
from perdure.model.values.joined_values import pack_tree
from perdure.model.values.tree import EncodedDict, EncodedList, Payload, Snapshot, Tree

_COUNTERS = "counters_since_delta_snapshot"
"""Key of a checkpoint's metadata with the DeltaChannels that have updates since they were stored in full."""
_NONE = b"\xc0"
_OVERWRITE = "langgraph.types.Overwrite"
_OVERWRITE_KEY = "__overwrite__"
_REMOVE, _REMOVE_ALL = "remove", "__remove_all__"
_serde = PlainSerde()


def load_deltas(
    partition: Partition, record: CheckpointRecord, digest: Digester, names: Iterable[str] | None = None
) -> Program[dict[str, Tree]]:
    """Return the values of the DeltaChannels that a checkpoint does not have in full, by channel.

    Args:
        partition: The thread.
        record: The checkpoint.
        digest: Names the chunks.
        names: The channels to return; all of them by default.
    """
    wanted = find_deltas(record)
    if names is not None:
        wanted &= set(names)
    if not wanted:
        return {}
    found = yield from history.read_delta_history(partition, record, sorted(wanted))
    named: dict[str, bytes] = {}
    for name, carried in found.items():
        if carried.seed is not None:
            named[f"{name}\0"] = carried.seed
        named.update((f"{name}\0{number}", write.ref) for number, write in enumerate(carried.writes))
    trees, _ = yield from resolve(partition, named, digest)
    out: dict[str, Tree] = {}
    for name, carried in found.items():
        updates = [trees[f"{name}\0{number}"] for number in range(len(carried.writes))]
        value = fold(trees.get(f"{name}\0"), updates)
        if value is not None:
            out[name] = value
    return out


def find_deltas(record: CheckpointRecord) -> set[str]:
    """Return the DeltaChannels that a checkpoint does not have in full."""
    counters: object = _serde.unpack(record.metadata).get(_COUNTERS)
    if isinstance(counters, dict):
        return set(cast("dict[str, object]", counters)) - record.refs.keys()
    return set()


def unwrap_snapshot(tree: Tree) -> Tree:
    """Return a value without the mark that it is one of a DeltaChannel."""
    if isinstance(tree, Snapshot):
        return tree.inner
    return tree


def fold(seed: Tree | None, updates: Sequence[Tree]) -> Tree | None:
    """Return the value that updates make of an earlier one, ``None`` if only the reducer knows it."""
    base = None if seed is None else unwrap_snapshot(seed)
    begin = 0
    for number, update in enumerate(updates):
        is_reset, value = _read_overwrite(update)
        if is_reset:
            base, begin = value, number + 1
    rest = updates[begin:]
    if base is None and not rest:
        return None
    if not rest:
        return base
    if all(isinstance(each, EncodedDict) for each in (*rest, *(() if base is None else (base,)))):
        return _merge(base, cast("Sequence[EncodedDict]", rest))
    if base is None or isinstance(base, EncodedList):
        return _extend([] if base is None else base.items, rest)
    return None


def _merge(base: Tree | None, updates: Iterable[EncodedDict]) -> EncodedDict:
    items = dict(base.items) if isinstance(base, EncodedDict) else {}
    for update in updates:
        for key, value in update.items:
            if isinstance(value, Payload) and pack_tree(value) == _NONE:
                items.pop(key, None)
            else:
                items[key] = value
    return EncodedDict(list(items.items()))


def _extend(base: Sequence[Tree], updates: Sequence[Tree]) -> EncodedList | None:
    new: list[Tree] = []
    for update in updates:
        if isinstance(update, EncodedList):
            new += update.items
        elif _identify(update) is not None:
            new.append(update)
        else:
            return None
    identities = [_identify(item) for item in new]
    for number in range(len(new) - 1, -1, -1):
        if identities[number] == (_REMOVE, _REMOVE_ALL):
            base, new, identities = [], new[number + 1 :], identities[number + 1 :]
            break
    items: list[Tree | None] = list(base)
    places: dict[str, int] = {}
    if any(identity is not None and identity[1] for identity in identities):
        old = enumerate(map(_identify, base))
        places = {identity[1]: place for place, identity in old if identity is not None and identity[1]}
    for item, identity in zip(new, identities, strict=True):
        kind, name = identity or ("", "")
        if name and kind == _REMOVE:
            if name in places:
                items[places.pop(name)] = None
        elif name in places:
            items[places[name]] = item
        else:
            if name:
                places[name] = len(items)
            items.append(item)
    left = [item for item in items if item is not None]
    return EncodedList([b""] * len(left), left)


def _read_overwrite(update: Tree) -> tuple[bool, Tree | None]:
    """Return whether an update replaces the value, and with what."""
    if isinstance(update, EncodedDict):
        key = ormsgpack.packb(_OVERWRITE_KEY)
        if [name for name, _ in update.items] == [key]:
            return (True, update.items[0][1])
        return (False, None)
    if isinstance(update, Payload) and update.type == refs.MSGPACK:
        plain = plain_of(update)
    else:
        plain = None
    if not isinstance(plain, dict) or plain.get("type") != _OVERWRITE:
        return False, None
    held = plain.get("value")
    value = held.get("value") if isinstance(held, dict) else held
    if isinstance(value, list):
        items = [_make_payload(item) for item in cast("list[object]", value)]
        return True, EncodedList([b""] * len(items), cast("list[Tree]", items))
    if isinstance(value, dict):
        pairs = cast("dict[str, object]", value).items()
        return True, EncodedDict([(ormsgpack.packb(key), _make_payload(each)) for key, each in pairs])
    return True, None if value is None else _make_payload(value)


def _make_payload(value: object) -> Payload:
    return Payload(refs.MSGPACK, ormsgpack.packb(value))


def plain_of(tree: Tree) -> Any:
    """Return a value as plain data; objects become the fields that they were stored with."""
    return _serde.unpack(pack_tree(tree))


def _identify(tree: Tree) -> tuple[str, str] | None:
    """Return the kind and id of a message, ``None`` for another value; the id is empty if it has none."""
    fields = read_message_fields(plain_of(tree))
    if not is_message(fields):
        return None
    name = fields.get("id")
    return str(fields.get("type", fields.get("role"))), name if isinstance(name, str) else ""


def is_message(fields: Mapping[str, Any]) -> bool:
    """Return True for the fields of a message."""
    return "content" in fields and ("type" in fields or "role" in fields)


def read_message_fields(value: object) -> Mapping[str, Any]:
    """Return the fields of a message, whatever type it was stored with."""
    if not isinstance(value, dict):
        return {}
    fields = cast("dict[str, Any]", value)
    inner = fields.get("value")
    if isinstance(inner, dict) and "content" not in fields:
        return cast("dict[str, Any]", inner)
    return fields
