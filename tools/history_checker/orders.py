"""Orders of lists that only grow: prefixes, and what the times of calls say about them."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Sequence


def is_prefix(some: Sequence[str], whole: Sequence[str]) -> bool:
    """Return True if a list is the beginning of another."""
    return list(whole[: len(some)]) == list(some)


def common_prefix(some: Sequence[str], whole: Sequence[str]) -> int:
    """Return how many elements two lists have in common at their beginnings."""
    for place, (one, other) in enumerate(zip(some, whole, strict=False)):
        if one != other:
            return place
    return min(len(some), len(whole))


def first_difference(some: Sequence[str], whole: Sequence[str]) -> str:
    """Return in words where a list is not the beginning of another."""
    at = common_prefix(some, whole)
    return f"{list(some[at : at + 2])} at {at}, where another read has {list(whole[at : at + 2])}"


def real_time_breaks(
    writes: Iterable[tuple[float, float, int]], reads: Iterable[tuple[float, float, int]]
) -> Iterator[str]:
    """Find reads that miss what had happened before they began.

    Args:
        writes: beginning, end and the length that the list has at least, once the write is acknowledged.
        reads: beginning, end and the length that was read.
    """
    known: list[tuple[float, int, str]] = [(ended, length, "was acknowledged") for _, ended, length in writes]
    reads = sorted(reads)
    known += [(ended, length, "had been read") for _, ended, length in reads]
    heapq.heapify(known)
    longest, why = 0, ""
    for began, _, length in reads:
        while known and known[0][0] < began:
            _, least, how = heapq.heappop(known)
            if least > longest:
                longest, why = least, how
        if length < longest:
            yield f"a read shows {length} elements after {longest} {why}"


def order_breaks(placed: Iterable[tuple[float, float, int, str]]) -> Iterator[str]:
    """Find elements that stand before one which was acknowledged before they were sent.

    Args:
        placed: for each element when it was first sent, when it was first acknowledged, its place, its name.
    """
    by_sending = sorted(placed)
    by_answer = sorted(by_sending, key=lambda each: each[1])
    latest, name, done = -1, "", 0
    for sent, _, place, element in by_sending:
        while done < len(by_answer) and by_answer[done][1] < sent:
            if by_answer[done][2] > latest:
                latest, name = by_answer[done][2], by_answer[done][3]
            done += 1
        if place < latest:
            yield f"{element!r} stands before {name!r}, which was acknowledged before it was sent"
