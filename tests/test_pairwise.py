"""A product that is thinned keeps each pair of its values, and the whole product for the slow tests."""

from __future__ import annotations

from itertools import combinations, product

from hypothesis import given
from hypothesis import strategies as st

from tests.pairwise import meeting_pairs, pairwise


@given(st.lists(st.integers(1, 4), min_size=2, max_size=4))
def test_each_pair_of_the_product_is_met(sizes: list[int]) -> None:
    every = list(product(*(range(size) for size in sizes)))
    chosen = meeting_pairs(every)
    assert chosen <= set(every)
    for one, other in combinations(range(len(sizes)), 2):
        assert {(values[one], values[other]) for values in chosen} == set(
            product(range(sizes[one]), range(sizes[other]))
        )


def test_a_large_product_of_three_is_as_many_tests_as_its_two_longest_parameters_have_pairs() -> None:
    assert len(meeting_pairs(product(range(3), range(17), range(8)))) == 17 * 8


def test_the_rest_is_slow_and_nothing_is_left_out() -> None:
    mark = pairwise(a="xy", b="uv", c="st").mark
    names, tests = mark.args
    assert names == ("a", "b", "c")
    assert [test.values for test in tests] == list(product("xy", "uv", "st"))
    assert sum(not test.marks for test in tests) == 4
    assert {mark.name for test in tests for mark in test.marks} == {"slow"}
