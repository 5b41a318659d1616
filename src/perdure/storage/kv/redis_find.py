"""Reading across partitions: every bucket is asked, and the answers are joined in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure.model.ops import Find, Found
from perdure.model.records import CHECKPOINT, ITEM
from perdure.storage.kv import redis_scripts as scripts
from perdure.storage.kv.layout import (
    decode_partition,
    encode_partition,
    encode_text,
    shape,
    successor,
)
from perdure.storage.kv.redis_links import Call, evaluate
from perdure.storage.kv.redis_requests import Keyspace, indexed

Ask = Callable[[Sequence[Call]], list[Any]]
"""Makes calls and returns their answers, or raises."""


@dataclass(slots=True)
class _Bucket:
    """How far a bucket's catalogue was read: behind ``last``, if there is ``more``."""

    number: int
    low: bytes
    last: bytes = b""
    more: bool = True
    entries: list[bytes] = field(default_factory=list)


def find(space: Keyspace, effect: Find, ask: Ask) -> tuple[Found, ...]:
    if effect.index == "threads":
        return tuple(_threads(space, effect, ask))
    return tuple(_indexed(space, effect, ask))


def _threads(space: Keyspace, effect: Find, ask: Ask) -> list[Found]:
    low, high = _bounds(effect)
    buckets = [_Bucket(number, low) for number in range(space.buckets)]
    size = 16 + 2 * effect.limit // space.buckets
    waiting = buckets
    while True:
        answers = ask([_page(space, effect, bucket, high, size) for bucket in waiting])
        for bucket, (more, last, *entries) in zip(waiting, answers, strict=True):
            bucket.more, bucket.last = bool(more), last
            bucket.low = b"(" + last
            bucket.entries += entries
        behind = sorted((b for b in buckets if b.more), key=lambda b: b.last)
        # Beyond the first bucket that was not read to its end, something may still come in between.
        sure = sorted(e for b in buckets for e in b.entries if not behind or e <= behind[0].last)
        found = [p for p in map(decode_partition, sure) if p.thread.startswith(effect.prefix)]
        if not behind or len(found) >= effect.limit:
            return [Found(partition) for partition in found[: effect.limit]]
        waiting = behind[: 1 + len(behind) // 2]


def _bounds(effect: Find) -> tuple[bytes, bytes]:
    low, high = b"-", b"+"
    if effect.tenant is not None:
        base = encode_text(effect.tenant) + encode_text(effect.space) + effect.prefix.encode()
        low, high = b"[" + base, b"(" + successor(base)
    if effect.after is not None:
        edge = b"(" + encode_partition(effect.after._replace(space=effect.space))
        low = edge if low == b"-" or edge[1:] >= low[1:] else low
    return low, high


def _page(space: Keyspace, effect: Find, bucket: _Bucket, high: bytes, size: int) -> Call:
    key = space.catalogue(bucket.number, effect.space)
    args = (bucket.low, high, b"%d" % size, space.records(bucket.number))
    return evaluate(scripts.THREADS, space.slot(bucket.number), (key,), args, safe=True)


def _indexed(space: Keyspace, effect: Find, ask: Ask) -> list[Found]:
    kind, value = (CHECKPOINT, effect.value) if effect.index == "runs" else (ITEM, effect.until)
    prefix = kind.name.encode() + b":"
    edge = prefix + shape(kind).index_prefix(value)
    low = b"[" + (edge if effect.index == "runs" else prefix)
    args = (
        low,
        b"(" + successor(edge),
        b"%d" % effect.limit,
        b"" if effect.tenant is None else encode_text(effect.tenant),
    )
    answers = ask(
        [
            evaluate(scripts.INDEXED, space.slot(n), (space.index(n),), (*args, space.records(n)), safe=True)
            for n in range(space.buckets)
        ]
    )
    hits = (hit for answer in answers for hit in indexed(kind, answer))
    found = sorted(hits, key=lambda hit: (hit[0], hit[1].key))
    return [Found(partition, record) for partition, record in found[: effect.limit]]
