"""What pruning may take: never a head, a tag or what they stand on, and never without a mark."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from perdure.model.checkpoint import CheckpointRecord
from perdure.model.retention import (
    ORIGIN,
    Name,
    Plan,
    keep_newest,
    nearest_survivor,
    plan_removal,
    plan_retention,
)


def checkpoint(namespace: str, seq: int, parent: str | None, **more: Any) -> CheckpointRecord:
    return CheckpointRecord(
        namespace=namespace,
        id=f"{namespace}#{seq}",
        seq=seq,
        parent_id=parent,
        run_id=more.pop("run_id", None),
        source=None,
        step=None,
        v=1,
        ts="",
        versions={},
        refs={},
        versions_seen={},
        updated=None,
        metadata=b"",
        **more,
    )


@st.composite
def threads(draw: Any) -> tuple[list[CheckpointRecord], dict[str, str], set[Name]]:
    """A tree of root checkpoints, and subgraphs' under them; heads; some tags."""
    roots: list[CheckpointRecord] = []
    for seq in range(1, draw(st.integers(1, 12)) + 1):
        parent = draw(st.sampled_from([None, *(c.id for c in roots)])) if roots else None
        roots.append(checkpoint("", seq, parent, run_id=draw(st.sampled_from(["r1", "r2", None]))))
    found = list(roots)
    for namespace in draw(st.sets(st.sampled_from(["sub", "sub:task", "a:1|b"]), max_size=3)):
        group: list[CheckpointRecord] = []
        for seq in range(1, draw(st.integers(1, 5)) + 1):
            names = [c.id for c in roots]
            group.append(
                checkpoint(
                    namespace,
                    seq,
                    group[-1].id if group else None,
                    root=draw(st.sampled_from([None, "never stored", *names])),
                    root_head=draw(st.sampled_from([None, *names])),
                )
            )
        found += group
    heads = {c.namespace: c.id for c in found}
    heads[""] = draw(st.sampled_from([c.id for c in roots]))
    tags = draw(st.sets(st.sampled_from([(c.namespace, c.id) for c in found]), max_size=3))
    return found, heads, tags


def survivors(found: list[CheckpointRecord], plan: Plan) -> dict[Name, CheckpointRecord]:
    gone = set(plan.removed)
    return {
        (c.namespace, c.id): plan.relinked.get((c.namespace, c.id), c)
        for c in found
        if (c.namespace, c.id) not in gone
    }


def assert_linked(found: list[CheckpointRecord], plan: Plan) -> None:
    """Survivors name survivors, ancestors stay ancestors, and a link moved exactly when it is marked."""
    left = survivors(found, plan)
    before = {(c.namespace, c.id): c for c in found}
    groups: dict[str, dict[str, CheckpointRecord]] = {}
    for c in found:
        groups.setdefault(c.namespace, {})[c.id] = c
    assert len(set(plan.removed)) == len(plan.removed)
    assert set(plan.relinked) <= set(left)
    for (namespace, checkpoint_id), now in left.items():
        old = before[namespace, checkpoint_id]
        if now.parent_id is not None:
            assert (namespace, now.parent_id) in left
        kept = {i for n, i in left if n == namespace}
        assert now.parent_id == nearest_survivor(old.parent_id, groups[namespace], kept)
        assert now.cut == (now.parent_id != old.parent_id)
        assert now.root == old.root
    for root in [c for c in left.values() if c.namespace == ""]:
        # For a replay of the root, and for one of what comes after it.
        for itself in (set[str](), {root.id}):
            was, now_is = strict(before, root.id) | itself, strict(left, root.id) | itself
            for name, sub in left.items():
                if sub.namespace:
                    assert is_before(sub, now_is, left) == is_before(before[name], was, before)


def strict(stored: dict[Name, CheckpointRecord], checkpoint_id: str) -> set[str]:
    """The ancestors of a root checkpoint that subgraphs may name."""
    at, out = stored["", checkpoint_id], {ORIGIN}
    while True:
        out.update(at.passed)
        if at.parent_id is None:
            return out
        at = stored["", at.parent_id]
        out.add(at.id)


def is_before(sub: CheckpointRecord, ancestors: set[str], stored: dict[Name, CheckpointRecord]) -> bool:
    if sub.root is not None and (sub.root in ancestors or ("", sub.root) in stored):
        return sub.root in ancestors
    return (sub.root_head or ORIGIN) in ancestors


@given(threads(), st.integers(1, 5))
def test_heads_tags_and_the_newest_survive_and_links_hold(
    thread: tuple[list[CheckpointRecord], dict[str, str], set[Name]], last: int
) -> None:
    found, heads, tags = thread
    plan = plan_retention(found, heads, tags, keep_newest(last))
    left = survivors(found, plan)
    assert ("", heads[""]) in left
    assert tags <= set(left)
    roots = sorted((c for c in found if c.namespace == ""), key=lambda c: -c.seq)
    assert {("", c.id) for c in roots[:last]} <= set(left)
    assert_linked(found, plan)


@given(threads(), st.integers(1, 3))
def test_nothing_else_of_the_root_survives(
    thread: tuple[list[CheckpointRecord], dict[str, str], set[Name]], last: int
) -> None:
    found, heads, tags = thread
    roots = sorted((c for c in found if c.namespace == ""), key=lambda c: -c.seq)
    by_name = {(c.namespace, c.id): c for c in found}
    needed = {c.id for c in roots[:last]} | {heads[""]} | {i for n, i in tags if n == ""}
    needed |= {root for name in tags if name[0] and (root := by_name[name].root) is not None}
    left = survivors(found, plan_retention(found, heads, tags, keep_newest(last)))
    assert {i for n, i in left if n == ""} == {c.id for c in roots if c.id in needed}


@given(threads(), st.integers(1, 3))
def test_a_subgraph_follows_the_root_that_it_ran_under(
    thread: tuple[list[CheckpointRecord], dict[str, str], set[Name]], last: int
) -> None:
    found, heads, tags = thread
    left = survivors(found, plan_retention(found, heads, tags, keep_newest(last)))
    for c in found:
        if c.namespace and c.root is not None and ("", c.root) in left:
            assert (c.namespace, c.id) in left
        stateful = c.namespace and ":" not in c.namespace.rsplit("|", 1)[-1]
        if stateful and heads[c.namespace] == c.id:
            assert (c.namespace, c.id) in left


@given(threads(), st.integers(1, 3))
def test_pruning_twice_is_pruning_once(
    thread: tuple[list[CheckpointRecord], dict[str, str], set[Name]], last: int
) -> None:
    found, heads, tags = thread
    left = survivors(found, plan_retention(found, heads, tags, keep_newest(last)))
    still = {n: i for n, i in heads.items() if (n, i) in left}
    again = plan_retention(left.values(), still, tags, keep_newest(last))
    assert ("", heads[""]) in survivors(list(left.values()), again)
    assert [name for name in again.removed if name[0] == ""] == []


@given(threads())
def test_removing_runs_removes_them_alone(
    thread: tuple[list[CheckpointRecord], dict[str, str], set[Name]],
) -> None:
    found, _, tags = thread
    plan = plan_removal(found, lambda c: c.run_id == "r1" and (c.namespace, c.id) not in tags)
    assert set(plan.removed) == {
        (c.namespace, c.id) for c in found if c.run_id == "r1" and (c.namespace, c.id) not in tags
    }
    assert_linked(found, plan)
