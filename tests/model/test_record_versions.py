"""Versions grow, and two histories that part do not meet at one again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.model.record_versions import successor

CONTENT = st.lists(st.one_of(st.none(), st.integers(), st.text(), st.binary()), max_size=4)


@given(st.integers(min_value=0, max_value=1 << 54), CONTENT)
def test_a_version_is_larger_than_the_one_before_and_says_the_same_again(
    version: int, content: list[object]
) -> None:
    after = successor(version, *content)
    assert version < after <= version + (1 << 20)
    assert after == successor(version, *content)


def test_histories_that_part_stay_apart() -> None:
    """A thousand pairs of histories that go on for a hundred versions from one and the same."""
    shared = 0
    for pair in range(1000):
        ours, theirs = {0}, {0}
        for seen, name in ((ours, "ours"), (theirs, "theirs")):
            version = pair << 24
            for step in range(100):
                version = successor(version, name, step)
                seen.add(version)
        shared += len(ours & theirs) - 1
    # A hundred numbers beside a hundred, all within some fifty million, a thousand times over.
    assert shared <= 3
