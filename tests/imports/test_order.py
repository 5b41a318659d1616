"""The order in which the checkpoints of a source are stored, and those that are left out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from perdure.imports.order import find_missing, find_pruned, make_extent
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
    ordered = find_missing(tree, set())
    assert sorted(ordered) == sorted(tree)
    place = {entry.id: n for n, entry in enumerate(ordered)}
    assert all(place[e.parent_id] < place[e.id] for e in tree if e.parent_id in place)


@given(st.lists(st.text("abcdef", min_size=1, max_size=3), unique=True))
def test_without_skewed_clocks_the_order_is_that_of_the_ids(ids: list[str]) -> None:
    names = sorted(ids)
    tree = [CheckpointEntry("", name, names[n - 1] if n else None) for n, name in enumerate(names)]
    assert [e.id for e in find_missing(reversed(tree), set())] == names


def new(tree: list[CheckpointEntry], known: set[tuple[str, str]], before: bytes = b"") -> list[str]:
    return [e.id for e in find_missing(tree, known, find_pruned(tree, known, before))]


def test_ancestors_that_were_pruned_at_the_target_stay_away() -> None:
    tree = [CheckpointEntry("", str(n), str(n - 1) if n else None) for n in range(6)]
    fork = CheckpointEntry("", "7", "1")
    assert new([*tree, fork], {("", "3")}) == ["4", "5", "7"]


@given(trees(), st.data())
def test_what_was_brought_is_not_brought_again_whatever_was_pruned(
    tree: list[CheckpointEntry], data: st.DataObject
) -> None:
    later = [CheckpointEntry("", f"z{n}", data.draw(st.sampled_from([None, "a", "z0"]))) for n in range(2)]
    known = {("", name) for name in data.draw(st.sets(st.sampled_from([e.id for e in tree] or ["none"])))}
    assert new(tree, known, make_extent(tree)) == []
    assert sorted(new([*tree, *later], known, make_extent(tree))) == ["z0", "z1"]


def test_a_source_that_has_lost_or_got_earlier_ones_is_compared_by_ancestry() -> None:
    tree = [CheckpointEntry("", str(n), str(n - 1) if n else None) for n in range(6)]
    before = make_extent(tree)
    late = CheckpointEntry("", "25", "1")
    assert new([*tree, late], {("", "5")}, before) == ["25"]
    assert new([e for e in tree if e.id != "4"], {("", "3")}, before) == ["5"]


def test_checkpoints_in_a_circle_are_not_among_them() -> None:
    assert find_missing([CheckpointEntry("", "a", "b"), CheckpointEntry("", "b", "a")], set()) == []
