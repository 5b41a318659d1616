from __future__ import annotations

import gc
from itertools import count

import pytest
from langgraph.store.base import PutOp

from perdure.langgraph.search.index import NOTHING
from perdure.langgraph.store_puts import find_last_puts

A, B = ("a",), ("b",)


def test_the_last_put_to_a_key_counts_at_the_time_of_the_first_one() -> None:
    ops = [
        PutOp(A, "x", {"n": 1}),
        PutOp(B, "x", {"n": 2}),
        PutOp(A, "y", None),
        PutOp(A, "x", {"n": 3}, ttl=1),
    ]
    puts = find_last_puts(ops, None)
    versions = count(1)
    written = {labels: list(of.writes(range(10, 14), versions, None, NOTHING)) for labels, of in puts.items()}
    assert {labels: [tuple(write) for write in writes] for labels, writes in written.items()} == {
        A: [("x", b'{"n":3}', 10, 1, 60_000_000, None), ("y", None, 12, 2, None, None)],
        B: [("x", b'{"n":2}', 11, 3, None, None)],
    }


def test_a_time_to_live_that_is_none_is_refused_with_the_batch() -> None:
    with pytest.raises(ValueError, match="a ttl is a number of minutes above 0"):
        find_last_puts([PutOp(A, "x", {}), PutOp(B, "y", {}, ttl=0)], None)


def test_a_large_batch_has_no_object_for_each_put_before_it_is_written() -> None:
    ops = [PutOp(A, f"k{n}", {"n": n}) for n in range(1000)]
    gc.collect()
    before = len(gc.get_objects())
    puts = find_last_puts(ops, None)
    assert len(puts[A].bodies) == 1000
    assert len(gc.get_objects()) - before < 100
