"""Finds records across partitions: every bucket is asked, and the answers are merged in order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from perdure.model.ops import Find, FindRecords, FindThreads, IndexHit
from perdure.storage.kv.keys import decode_partition, encode_partition, encode_text, find_layout, successor
from perdure.storage.redis import scripts
from perdure.storage.redis.cluster import Call, evaluate
from perdure.storage.redis.requests import Keyspace, parse_indexed

Ask = Callable[[Sequence[Call]], list[Any]]
"""Makes calls and returns their answers, or raises."""


@dataclass(slots=True)
class _Bucket:
    """The progress in one bucket's catalogue: it was read up to ``last``; ``more`` is True if some follow."""

    number: int
    low: bytes
    last: bytes = b""
    more: bool = True
    entries: list[bytes] = field(default_factory=list)


def find(space: Keyspace, effect: Find, ask: Ask) -> tuple[IndexHit, ...]:
    if isinstance(effect, FindThreads):
        return tuple(_find_threads(space, effect, ask))
    if isinstance(effect, FindRecords):
        return tuple(_find_indexed(space, effect, ask))
    raise TypeError(f"not a request to Redis: {type(effect).__name__}")


def _find_threads(space: Keyspace, effect: FindThreads, ask: Ask) -> list[IndexHit]:
    low, high = _find_bounds(effect)
    buckets = [_Bucket(number, low) for number in range(space.buckets)]
    size = 16 + 2 * effect.limit // space.buckets
    to_read = buckets
    while True:
        answers = ask([_make_page_call(space, effect, bucket, high, size) for bucket in to_read])
        for bucket, (more, last, *entries) in zip(to_read, answers, strict=True):
            bucket.more, bucket.last = bool(more), last
            bucket.low = b"(" + last
            bucket.entries += entries
        unfinished = sorted((b for b in buckets if b.more), key=lambda b: b.last)
        # Entries beyond the least advanced unfinished bucket are not certain: it may have others before them.
        certain = sorted(e for b in buckets for e in b.entries if not unfinished or e <= unfinished[0].last)
        found = [p for p in map(decode_partition, certain) if p.thread.startswith(effect.prefix)]
        if not unfinished or len(found) >= effect.limit:
            return [IndexHit(partition) for partition in found[: effect.limit]]
        to_read = unfinished[: 1 + len(unfinished) // 2]


def _find_bounds(effect: FindThreads) -> tuple[bytes, bytes]:
    low, high = b"-", b"+"
    if effect.tenant is not None:
        base = encode_text(effect.tenant) + encode_text(effect.space) + effect.prefix.encode()
        low, high = b"[" + base, b"(" + successor(base)
    if effect.after is not None:
        edge = b"(" + encode_partition(effect.after._replace(space=effect.space))
        low = edge if low == b"-" or edge[1:] >= low[1:] else low
    return low, high


def _make_page_call(space: Keyspace, effect: FindThreads, bucket: _Bucket, high: bytes, size: int) -> Call:
    key = space.catalogue(bucket.number, effect.space)
    args = (bucket.low, high, b"%d" % size, space.records(bucket.number))
    return evaluate(
        scripts.THREADS, space.slot(bucket.number), (key, space.mark(bucket.number)), args, safe=True
    )


def _find_indexed(space: Keyspace, effect: FindRecords, ask: Ask) -> list[IndexHit]:
    kind, (lowest, highest) = effect.kind, effect.span
    prefix = kind.name.encode() + b":"
    low, tenant = prefix, b""
    if lowest is not None:
        low += find_layout(kind).index_prefix(lowest)
    high = successor(prefix + find_layout(kind).index_prefix(highest))
    if effect.tenant is not None:
        tenant = encode_text(effect.tenant)
    args = (b"[" + low, b"(" + high, b"%d" % effect.limit, tenant)
    polled = scripts.is_polled(kind)
    buckets: Sequence[int] = range(space.buckets)
    if polled:
        # Mostly no bucket has an entry, and finding that out without a script costs a hundredth.
        answers = ask([_make_first_call(space, number, *args[:2]) for number in buckets])
        buckets = [number for number, entries in zip(buckets, answers, strict=True) if entries]
    calls = [
        evaluate(
            scripts.INDEXED,
            space.slot(number),
            (space.index(number, polled=polled), space.mark(number)),
            (*args, space.records(number)),
            safe=True,
        )
        for number in buckets
    ]
    hits = (hit for answer in ask(calls) for hit in parse_indexed(kind, answer))
    by = kind.index or ""
    found = sorted(hits, key=lambda hit: (hit[1].fields[by], hit[0], hit[1].key))
    return [IndexHit(partition, record) for partition, record in found[: effect.limit]]


def _make_first_call(space: Keyspace, number: int, low: bytes, high: bytes) -> Call:
    """Return the call that reads the first entry within bounds of a bucket's polled index."""
    key = space.index(number, polled=True)
    return Call(space.slot(number), (b"ZRANGEBYLEX", key, low, high, b"LIMIT", b"0", b"1"), safe=True)
