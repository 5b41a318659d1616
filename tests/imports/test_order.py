"""The order in which the checkpoints of a source are stored, and those that are left out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.imports.order import missing
from perdure.imports.source import CheckpointEntry


@st.composite
def trees(draw: st.DrawFn) -> list[CheckpointEntry]:
    ids = draw(st.lists(st.text("abcdef", min_size=1, max_size=3), unique=True, max_size=12))
    return [
        CheckpointEntry("", name, draw(st.sampled_from([None, "gone", *ids[:place]])))
        for place, name in enumerate(ids)
    ]


@given(trees())
def test_parents_come_first_and_nothing_is_lost(tree: list[CheckpointEntry]) -> None:
    ordered = missing(tree, set())
    assert sorted(ordered) == sorted(tree)
    place = {entry.id: n for n, entry in enumerate(ordered)}
    assert all(place[e.parent_id] < place[e.id] for e in tree if e.parent_id in place)


@given(st.lists(st.text("abcdef", min_size=1, max_size=3), unique=True))
def test_without_skewed_clocks_the_order_is_that_of_the_ids(ids: list[str]) -> None:
    names = sorted(ids)
    tree = [CheckpointEntry("", name, names[n - 1] if n else None) for n, name in enumerate(names)]
    assert [e.id for e in missing(reversed(tree), set())] == names


def test_ancestors_that_were_pruned_at_the_target_stay_away() -> None:
    tree = [CheckpointEntry("", str(n), str(n - 1) if n else None) for n in range(6)]
    fork = CheckpointEntry("", "7", "1")
    assert [e.id for e in missing([*tree, fork], {("", "3")})] == ["4", "5", "7"]


def test_checkpoints_in_a_circle_are_not_among_them() -> None:
    assert missing([CheckpointEntry("", "a", "b"), CheckpointEntry("", "b", "a")], set()) == []
